"""What fine-tuning starts from: the head of a folder where it is for the same labels."""

from pathlib import Path
from typing import Any

import pytest
import torch

import ownbert
from support.cli import run_cli
from support.tiny import change_config, made

ROWS = [("a b", "ant"), ("c", "zebra"), ("d e", "7")] * 2
# Nothing is learnt: what a head is like afterwards is what it began as.
STILL: Any = {"epochs": 1, "learning_rate": 1e-12, "quiet": True}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made(tmp_path / "model", "classification")
    names = {str(i): label for i, label in enumerate(sorted({label for _, label in ROWS}))}
    change_config(tmp_path / "model", id2label=names)
    return tmp_path / "model"


def head_after(folder: Path, rows: list[tuple[str, str]]) -> torch.Tensor:
    output = folder.parent / f"{len(rows)}{rows[0][1]}"
    ownbert.finetune("classify", model=folder, train=rows, output=output, **STILL)
    return head(output)


def head(folder: Path) -> torch.Tensor:
    weights = ownbert.load(folder).heads["classification"].state_dict()
    return next(tensor for name, tensor in weights.items() if name.endswith("weight"))


def test_a_head_for_the_same_labels_is_kept(folder: Path):
    torch.testing.assert_close(head_after(folder, ROWS), head(folder), atol=1e-6, rtol=0)


def test_a_head_whose_labels_have_no_names_is_kept(folder: Path):
    change_config(folder, id2label=None, num_labels=3)
    torch.testing.assert_close(head_after(folder, ROWS), head(folder), atol=1e-6, rtol=0)


def test_a_head_for_as_many_other_labels_starts_anew(folder: Path):
    renamed = [(text, f"new {label}") for text, label in ROWS]
    assert (head_after(folder, renamed) - head(folder)).abs().max() > 1e-3


def test_a_head_for_fewer_labels_starts_anew_and_it_is_said(folder: Path):
    rows = folder.parent / "rows.csv"
    rows.write_text("text,label\na b,x\nc,y\n")
    out = folder.parent / "out"
    done = run_cli("finetune", "classify", "--model", folder, "--train", rows, "-o", out)
    assert done.returncode == 0
    assert (
        f"{folder} has a head for other labels; a new one is initialised\n"
        in done.stdout + done.stderr
    )
    assert ownbert.load(out).labels == ("x", "y")
