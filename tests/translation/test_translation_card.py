"""The model card of a translation."""

import hashlib
import json
import re
from pathlib import Path

import yaml

from ownbert.translation.translation_run import train_translation
from support.sequences import SETTINGS, files, rows

SHORT = SETTINGS | {"max_steps": 4}


def cells(card: str, first: str) -> list[list[str]]:
    found = re.findall(rf"^\| {re.escape(first)} \| (.*) \|$", card, re.MULTILINE)
    return [line.split(" | ") for line in found]


def test_it_says_what_the_model_is_and_was_learnt_from(tmp_path: Path):
    pairs = files(tmp_path, rows(60, seed=0), list, "train")
    train_translation(tmp_path / "run", **(SHORT | pairs | {"average": 2, "save_every": 2}))
    card = (tmp_path / "run" / "README.md").read_text()
    front = yaml.safe_load(card.split("---\n")[1])
    assert front["pipeline_tag"] == "translation"
    assert front["library_name"] == "transformers"
    sums = [hashlib.sha256(Path(path).read_bytes()).hexdigest() for path in pairs.values()]
    assert cells(card, "training") == [
        ["train.source", "59", sums[0]],
        ["train.target", "59", sums[1]],
    ]
    assert cells(card, "dev")[0][:2] == ["held out of the training pairs", "1"]
    assert cells(card, "task.average") == [["2"]]
    assert cells(card, "steps") == [["4 at most"]]
    lines = (tmp_path / "run" / "log.jsonl").read_text().splitlines()
    losses = [row["loss"] for row in map(json.loads, lines) if row.get("evaluation")]
    assert float(cells(card, "loss")[0][0]) <= losses[-1] + 1e-4
    assert "AutoModelForSeq2SeqLM" in card
    assert str(tmp_path) not in card


def test_transformers_is_not_promised_what_it_cannot_load(tmp_path: Path):
    pairs = files(tmp_path, rows(60, seed=0), list, "train")
    train_translation(
        tmp_path / "run", **(SHORT | pairs), norm_first=True, **{"optim.name": "lamb"}
    )
    card = (tmp_path / "run" / "README.md").read_text()
    assert "AutoModelForSeq2SeqLM" not in card
    assert "library_name" not in card
    assert "Only ownbert can load" in card
    assert cells(card, "optim.name") == [["lamb"]]


def test_a_card_of_somebody_stays(tmp_path: Path):
    pairs = files(tmp_path, rows(60, seed=0), list, "train")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "README.md").write_text("mine")
    train_translation(tmp_path / "run", **(SHORT | pairs))
    assert (tmp_path / "run" / "README.md").read_text() == "mine"
