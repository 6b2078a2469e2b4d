"""Where a classifier is wrong: its confident mistakes, failing groups and doubtful labels."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from ownbert import InputError, Predictor
from ownbert.inspect.error_analysis import analyse_errors, as_lines
from support.cli import run_cli
from support.tiny import made


@pytest.fixture(scope="module")
def rows(topics: Path) -> list[tuple[str, str]]:
    with (topics / "test.csv").open(newline="") as file:
        return [(row["text"], row["label"]) for row in csv.DictReader(file)]


def test_wrong_labels_are_found_and_named(classifier: Path, rows: list[tuple[str, str]]):
    predictor = Predictor(classifier)
    # The surest answer first, which contradicts a wrong label the most.
    sure = predictor.predict_proba([text for text, _ in rows]).max(1)
    rows = [rows[i] for i in np.argsort(-sure, kind="stable")]
    answers = predictor.predict([text for text, _ in rows]).tolist()
    right = [(text, answer) for (text, _), answer in zip(rows, answers, strict=True)]
    assert analyse_errors(classifier, right).errors == 0
    labels = sorted(set(answers))
    other = labels[(labels.index(answers[0]) + 1) % len(labels)]
    found = analyse_errors(classifier, [(right[0][0], other), *right[1:]], train=right)
    assert found.errors == pytest.approx(1 / len(rows))
    assert found.confusions == ((other, answers[0], 1),)
    (mistake,) = found.mistakes
    assert (mistake.texts, mistake.label) == ((rows[0][0],), other)
    assert (mistake.predicted, mistake.neighbour) == (answers[0], (answers[0], rows[0][0]))
    assert set(mistake.words) <= set(rows[0][0].split())
    assert found.label_errors == (mistake,)


def test_a_label_that_is_never_right_is_a_failing_group(
    classifier: Path, rows: list[tuple[str, str]]
):
    answers = Predictor(classifier).predict([text for text, _ in rows]).tolist()
    labels = sorted(set(answers))
    many = [
        (f"{text}", labels[0] if answer == labels[1] else answer)
        for (text, _), answer in zip(rows, answers, strict=True)
    ] * 4
    found = analyse_errors(classifier, many, most=3)
    (group,) = (group for group in found.groups if group.name == f"label {labels[0]}")
    assert group.errors > found.errors
    assert len(found.mistakes) == 3
    probabilities = [mistake.probability for mistake in found.mistakes]
    assert probabilities == sorted(probabilities, reverse=True)


def test_a_text_is_one_line(classifier: Path, rows: list[tuple[str, str]]):
    answer = str(Predictor(classifier).predict([rows[0][0]])[0])
    other = next(label for _, label in rows if label != answer)
    broken = rows[0][0].replace(" ", "\r\n", 2)
    lines = as_lines(analyse_errors(classifier, [(broken, other)], train=[(broken, other)] * 2))
    at = lines.index("the most confident mistakes")
    assert lines[at + 1] == "  line: label -> prediction, its probability, text"
    assert lines[at + 2].endswith(rows[0][0][:100])
    assert not any("\n" in line or "\r" in line for line in lines)


def test_on_the_command_line(classifier: Path, topics: Path, tmp_path: Path):
    done = run_cli("errors", classifier, topics / "test.csv", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["rows"] == len((topics / "test.csv").read_text().splitlines()) - 1
    done = run_cli("errors", classifier, topics / "test.csv", "--train", topics / "train.csv")
    assert "rows are wrong" in done.stdout.splitlines()[0]
    made(tmp_path / "pairs")
    (tmp_path / "pairs" / "modules.json").write_text("[]")
    done = run_cli("errors", tmp_path / "pairs", "--data", topics / "test.csv")
    assert done.returncode == 2
    assert "is a model for embed; ownbert errors supports classify, multilabel" in done.stderr
    with pytest.raises(InputError, match="is not in the model"):
        analyse_errors(classifier, [("a", "no such label"), ("b", "c")])
