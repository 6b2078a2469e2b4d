"""Fine-tuning a plain folder with a layer gate and blurred attention, by the command line."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from ownbert import Predictor
from ownbert.checkpoint import load
from support.cli import run_cli
from support.floats import assert_close
from support.tiny import change_config


def finetuned(pretrained: Path, topics: Path, output: Path, *more: object) -> Path:
    files = ("--train", topics / "train.csv", "--dev", topics / "dev.csv")
    given = ("--epochs", 1, "--quiet", *more)
    done = run_cli("finetune", "classify", "--model", pretrained, *files, "-o", output, *given)
    assert done.returncode == 0, done.stderr
    return output


@pytest.mark.parametrize("kind", ["last", "sum"])
def test_from_a_folder_without_either(kind: str, pretrained: Path, topics: Path, tmp_path: Path):
    options = ("--layer-gate", kind, "--attention-blur", 0.3, "--head-init", "random")
    folder = finetuned(pretrained, topics, tmp_path / "out", *options)
    values = json.loads((folder / "config.json").read_text())
    assert values["model_type"] == "ownbert-bert"
    assert (values["ownbert_layer_gate"], values["ownbert_attention_blur"]) == (kind, 0.3)
    gate = load(folder).encoder.gate
    assert gate is not None
    # It is trained, and the bias is no longer where it began.
    assert not torch.equal(gate.up.bias, torch.full_like(gate.up.bias, 0.8))
    described = run_cli("describe", folder).stdout
    assert f"{kind}: " in described
    assert "a Gaussian of 0.3 over 3 neighbouring tokens" in described
    assert "refuse the folder" in (folder / "README.md").read_text()
    done = run_cli("evaluate", folder, topics / "test.csv")
    assert done.returncode == 0, done.stderr
    predictor = Predictor(folder)
    texts = ["red1 red2 w3 red5 9", "blue1 w2 9"]
    together = [row["score"] for row in predictor(texts)]
    assert_close(np.array(together), np.array([predictor([text])[0]["score"] for text in texts]))
    # What is fine-tuned further keeps both.
    again = finetuned(folder, topics, tmp_path / "again")
    assert json.loads((again / "config.json").read_text())["ownbert_layer_gate"] == kind


def test_mistakes_are_one_line(pretrained: Path, topics: Path, tmp_path: Path):
    files = ("--train", topics / "train.csv", "-o", tmp_path / "out")
    start = ("finetune", "classify", "--model", pretrained, *files)
    done = run_cli(*start, "--layer-gate", "first")
    assert done.returncode == 2
    assert "one of last, sum" in done.stderr
    done = run_cli(*start, "--attention-blur", 0)
    assert done.returncode == 2
    assert "more than 0" in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_folder_that_lost_its_gate_is_refused(pretrained: Path, topics: Path, tmp_path: Path):
    folder = finetuned(pretrained, topics, tmp_path / "out", "--layer-gate", "sum")
    change_config(folder, ownbert_layer_gate=...)
    done = run_cli("evaluate", folder, topics / "test.csv")
    assert done.returncode == 2
    assert "unexpected tensor encoder.gate." in done.stderr
