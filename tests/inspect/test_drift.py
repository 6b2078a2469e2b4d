"""``ownbert drift``: new rows compared with those of training."""

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ownbert import InputError, drift, finetune, fit
from ownbert.inspect.drift import shown_drift
from support.cli import refusal, run_cli


def write(path: Path, texts: list[str]) -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([["text"], *([text] for text in texts)])
    return path


def texts_of(topics: Path, name: str) -> list[dict[str, str]]:
    return list(csv.DictReader((topics / name).open(newline="")))


def test_rows_of_the_same_kind_have_not_changed(classifier: Path, topics: Path, tmp_path: Path):
    found = drift(classifier, topics / "test.csv", output=tmp_path / "d.json")
    assert (found.earlier_rows, found.rows) == (60, 45)
    assert found.largest.beyond_chance < 0.1
    names = [each.name for each in found.distances]
    assert names == [
        *("unknown or rare words", "frequency of words", "words per text", "predicted labels"),
    ]
    assert sum(before for before, _ in found.labels.values()) == pytest.approx(1)
    assert json.loads((tmp_path / "d.json").read_text())["rows"] == 45


def test_each_change_is_found(classifier: Path, topics: Path, tmp_path: Path):
    rows = texts_of(topics, "test.csv")
    changed_texts = {
        "unknown or rare words": [f"{row['text']} zzz{i}" for i, row in enumerate(rows)],
        "words per text": [" ".join([row["text"]] * 4) for row in rows],
        "predicted labels": [row["text"] for row in rows if row["label"] == "red"] * 3,
    }
    for name, texts in changed_texts.items():
        data = write(tmp_path / "new.csv", texts)
        found = drift(classifier, data, html=tmp_path / "d.html")
        assert name in {each.name for each in found.distances if each.beyond_chance > 0.02}
        assert name.split()[-1] in shown_drift(found)
        assert "beyond chance" in (tmp_path / "d.html").read_text()
    found = drift(classifier, write(tmp_path / "word.csv", [f"{r['text']} neu" for r in rows]))
    assert found.words[0].word == "neu"
    assert (found.words[0].before, found.words[0].now) == (0, 1)


def test_the_folder_has_counts_and_no_texts(classifier: Path, topics: Path):
    values = json.loads((classifier / "training_rows.json").read_text())
    assert (values["rows"], sum(values["labels"].values())) == (60, 60)
    texts = [row["text"] for row in texts_of(topics, "train.csv")]
    counts = {
        word: sum(word in text.split() for text in texts) for text in texts for word in text.split()
    }
    assert values["words"] == {word: n for word, n in counts.items() if n >= 5}


def test_other_tasks_and_earlier_rows(pretrained: Path, tmp_path: Path):
    examples = Path(__file__).resolve().parents[2] / "examples" / "tasks"
    for task, ending, name in (
        ("regress", "csv", "predicted numbers"),
        ("tag", "conll", "predicted labels"),
        ("answer", "jsonl", "confidence"),
    ):
        train, test = (examples / f"{task}.{part}.{ending}" for part in ("train", "test"))
        how: Any = {"model": pretrained, "dev": test, "max_steps": 1, "quiet": True}
        finetune(task, train=train, output=tmp_path / task, **how)
        found = drift(tmp_path / task, test, reference=test)
        assert name in {each.name for each in found.distances}
        assert found.largest.distance == 0
        assert drift(tmp_path / task, test).reference == "the training rows"


def test_the_command_for_monitoring(classifier: Path, topics: Path, tmp_path: Path):
    command = ("drift", str(classifier), str(topics / "test.csv"))
    assert run_cli(*command, "--fail-above", "0.3").returncode == 0
    long = write(tmp_path / "long.csv", [" ".join(["red1"] * 60)] * 45)
    done = run_cli("drift", str(classifier), str(long), "--fail-above", "0.3", "--quiet")
    assert (done.returncode, done.stdout) == (1, "")


def test_what_cannot_be_compared(classifier: Path, pretrained: Path, topics: Path, tmp_path: Path):
    folder = shutil.copytree(classifier, tmp_path / "old")
    (folder / "training_rows.json").write_text('{"format": 1, "rows": -1}')
    with pytest.raises(InputError, match=r"training_rows\.json"):
        drift(folder, topics / "test.csv")
    (folder / "training_rows.json").unlink()
    found = refusal("drift", str(folder), str(topics / "test.csv"))
    assert "has no training_rows.json" in found
    assert drift(folder, topics / "test.csv", reference=topics / "dev.csv").earlier_rows == 30


def test_rows_like_those_of_training_are_no_alarm_where_a_rare_label_is_predicted_often(
    tmp_path: Path,
):
    """Predictions were compared with labels: a model that predicts yes for a third of the rows, of
    which a tenth are, had drifted on its own training rows."""
    rng = np.random.default_rng(0)

    def rows(count: int) -> list[dict[str, str]]:
        words = rng.integers(0, 60, (count, 6))
        return [
            {"text": " ".join(f"w{i}" for i in own), "label": "yes" if rng.random() < 0.1 else "no"}
            for own in words
        ]

    fit(rows(600), output=tmp_path / "out", minutes=0.05, metric="f1", quiet=True)
    found = drift(tmp_path / "out", rows(600))
    (labels,) = (each for each in found.distances if each.name == "predicted labels")
    assert labels.beyond_chance < 0.1
