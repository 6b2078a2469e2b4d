"""Importance of attention heads, and models without the least important ones."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification

import ownbert
from ownbert import InputError
from ownbert.inspect.heads.importance import (
    gradient_importance,
    labelled_model,
    left_heads,
    masking_importance,
)
from ownbert.inspect.heads.pruning import prune_heads
from support.cli import run_cli
from support.tiny import LABELS, change_config, made

ROWS = [("a b c", "zebra"), ("d e", "ant"), ("f", "7"), ("c b", "ant")]
CASES: dict[str, tuple[str, dict[str, Any], Any]] = {
    "classify": ("classification", {"ownbert_task": {"name": "classify"}}, ROWS),
    "multilabel": (
        "classification",
        {"ownbert_task": {"name": "multilabel", "threshold": 0.5}},
        [{"text": "a b", "labels": ["ant"]}, {"text": "c", "labels": ["zebra", "7"]}],
    ),
    "regress": (
        "classification",
        {"ownbert_task": {"name": "regress"}},
        [{"text": text, **dict.fromkeys(LABELS, 0.5)} for text in ("a", "b c")],
    ),
    "tag": ("tokens", {}, [{"words": ["a", "b"], "tags": ["ant", "7"]}]),
    "answer": ("span", {}, [{"question": "a", "context": "b c", "answer": "c"}]),
    "choose": ("choice", {}, [{"prompt": "a", "choices": ["b", "c"], "label": 1}]),
}


@pytest.mark.parametrize("case", CASES)
def test_heads_of_every_task_are_measured(tmp_path: Path, case: str):
    head, changes, rows = CASES[case]
    made(tmp_path / "model", head)
    change_config(tmp_path / "model", **changes)
    labelled = labelled_model(tmp_path / "model", rows)
    for measure in (gradient_importance, masking_importance):
        found = measure(labelled)
        assert found.shape == (2, 2)
        assert np.isfinite(found).all()
        assert np.abs(found).max() > 0


def test_a_head_that_does_nothing_is_the_first_to_go(tmp_path: Path):
    model = made(tmp_path / "model", "classification")
    output = model.encoder.blocks[1].attention.output  # pyright: ignore
    with torch.no_grad():
        output.weight[:, :4] = 0  # pyright: ignore  # of head 0
    ownbert.save(model, tmp_path / "idle", tokenizer=ownbert.load_tokenizer(tmp_path / "model"))
    labelled = labelled_model(tmp_path / "idle", ROWS)
    for measure in (gradient_importance, masking_importance):
        found = measure(labelled)
        assert found[1, 0] == pytest.approx(0, abs=1e-6)
        assert (np.delete(np.abs(found).flatten(), 2) > 1e-6).all()
    rounds = prune_heads(tmp_path / "idle", ROWS, tmp_path / "pruned", share=0.25, rounds=1)
    assert [each.heads for each in rounds] == [4, 3]
    assert rounds[0].score == rounds[1].score
    theirs = AutoModelForSequenceClassification.from_pretrained(tmp_path / "pruned").eval()
    assert theirs.config.pruned_heads == {1: [0]}
    texts = [text for text, _ in ROWS]
    one, two = (ownbert.Predictor(tmp_path / n).predict_proba(texts) for n in ("idle", "pruned"))
    np.testing.assert_allclose(one, two, atol=1e-5)


def test_each_layer_keeps_a_head(tmp_path: Path):
    made(tmp_path / "model", "classification")
    prune_heads(tmp_path / "model", ROWS, tmp_path / "pruned", share=0.5, rounds=2)
    model = ownbert.load(tmp_path / "pruned").model
    assert [layer for layer, _ in left_heads(model)] == [0, 1]
    for share in (0.1, 0.9):
        with pytest.raises(InputError, match="from 1 to 2 can be pruned: a layer keeps one head"):
            prune_heads(tmp_path / "model", ROWS, tmp_path / "other", share=share)
        assert not (tmp_path / "other").exists()
    with pytest.raises(InputError, match="is there already and not empty"):
        prune_heads(tmp_path / "model", ROWS, tmp_path / "pruned", share=0.5)


def test_on_the_command_line(tmp_path: Path):
    made(tmp_path / "model", "classification")
    rows = tmp_path / "rows.csv"
    rows.write_text("text,label\n" + "".join(f"{text},{label}\n" for text, label in ROWS))
    done = run_cli("heads", tmp_path / "model", rows)
    assert [line.split()[:2] for line in done.stdout.splitlines()[1:]] == [
        ["layer", "0"],
        ["layer", "1"],
    ]
    done = run_cli("heads", tmp_path / "model", rows, "--by", "masking", "--json")
    assert np.shape(json.loads(done.stdout)["importance"]) == (2, 2)
    out = ("-o", tmp_path / "out")
    done = run_cli("heads", tmp_path / "model", rows, "--prune", "0.5", "--rounds", "2", *out)
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["4", "3", "2", "saved"]
    assert run_cli("evaluate", tmp_path / "out", rows).returncode == 0
    for options, message in (
        (("--by", "magic"), "by 'magic' is not known; one of gradient, masking"),
        (("--prune", "0.5"), "--prune and -o belong together"),
    ):
        done = run_cli("heads", tmp_path / "model", rows, *options)
        assert done.returncode == 2
        assert message in done.stderr
    made(tmp_path / "plain")
    assert "has no task head" in run_cli("heads", tmp_path / "plain", rows).stderr
