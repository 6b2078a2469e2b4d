"""``ownbert compare``: two models on the same labelled rows."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ownbert import InputError, compare, evaluate, finetune
from ownbert.inspect.model_comparison import shown_comparison
from support.cli import refusal, run_cli


@pytest.fixture(scope="module")
def untrained(topics: Path, pretrained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classifier after a single step."""
    folder = tmp_path_factory.mktemp("compare") / "untrained"
    how: Any = {"train": topics / "train.csv", "dev": topics / "dev.csv", "quiet": True}
    finetune(model=pretrained, output=folder, max_steps=1, head_init="random", **how)
    return folder


def test_rows_without_a_label_are_left_out_on_request(
    classifier: Path, topics: Path, tmp_path: Path
):
    lines = (topics / "test.csv").read_text().splitlines()
    assert lines[0].split(",")[0] == "label"
    gaps = [*lines[:30], *("," + line.partition(",")[2] for line in lines[30:33])]
    whole, some = tmp_path / "whole.csv", tmp_path / "some.csv"
    whole.write_text("\n".join(lines[:30]))
    some.write_text("\n".join(gaps))
    commands = (
        ("evaluate", classifier, some),
        ("errors", classifier, some, "--train", some),
        ("compare", classifier, classifier, some, "--group", "label"),
    )
    for command in commands:
        assert "3 of 32 rows have none: remove them (--skip-unlabelled of " in refusal(*command)
    with pytest.warns(UserWarning, match="rows without a label, left out: 3 of 32"):
        scores = evaluate(classifier, some, skip_unlabelled=True)
    assert scores.values == evaluate(classifier, whole).values
    for command in commands:
        result = run_cli(*command, "--skip-unlabelled")
        assert (result.returncode, "left out: 3 of 32" in result.stderr) == (0, True)


def test_a_missing_file_is_refused_before_a_model_is_opened(tmp_path: Path):
    folder, file = tmp_path / "no", tmp_path / "no.csv"
    for command in (("evaluate", folder), ("compare", folder, folder), ("errors", folder)):
        assert refusal(*command, file).strip() == f"error: no such file: {file}"


def test_a_folder_keeps_that_rows_without_a_label_are_left_out(
    pretrained: Path, classifier: Path, tmp_path: Path
):
    rows = [{"text": f"{name} {i}", "label": name} for i in range(9) for name in ("a", "b")]
    rows.append({"text": "c", "label": None})
    how: Any = {"model": pretrained, "output": tmp_path / "m", "max_steps": 1, "quiet": True}
    with pytest.warns(UserWarning, match="left out: 1 of 19"):
        finetune("classify", train=rows, dev=rows, skip_unlabelled=True, **how)
    with pytest.warns(UserWarning, match="left out: 1 of 19"):
        assert len(evaluate(tmp_path / "m", rows).labels) == 2


def test_scores_differences_and_rows(
    classifier: Path, untrained: Path, topics: Path, tmp_path: Path
):
    test = topics / "test.csv"
    how: Any = {"output": tmp_path / "c.json", "html": tmp_path / "c.html"}
    found = compare(untrained, classifier, test, **how)
    for model, name in ((untrained, "first"), (classifier, "second")):
        for metric, value in evaluate(model, test).values.items():
            assert getattr(found.scores[metric], name) == pytest.approx(value)
    assert found.metric == "macro_f1"
    gap = found.scores[found.metric]
    assert gap.low is not None
    assert gap.high is not None
    assert 0 < gap.low < gap.second - gap.first < gap.high
    assert found.better == 1
    assert found.right is not None
    assert sum(found.right.values()) == found.rows == 45
    assert found.right["second"] == len(found.second_right) or len(found.second_right) == 10
    rows = list(csv.DictReader(test.open(newline="")))
    for row in found.second_right:
        given = rows[row.line - 2]
        assert (row.text, row.label, row.second) == (given["text"], given["label"], given["label"])
        assert row.first != row.label
    assert sum(count for *_, count in found.changes) == round(45 * (1 - found.equal))
    assert json.loads((tmp_path / "c.json").read_text())["rows"] == 45
    page = (tmp_path / "c.html").read_text()
    assert found.second_right[0].text[:20] in page
    assert "Most frequent different predictions" in page
    # The other way round everything is mirrored.
    other = compare(classifier, untrained, test)
    assert other.better == 0
    assert other.scores["macro_f1"].low == pytest.approx(-gap.high)
    assert other.right is not None
    assert other.right["first"] == found.right["second"]


def test_rows_of_a_group_are_drawn_together(classifier: Path, untrained: Path, tmp_path: Path):
    """Two customers with equal rows: the interval has only the values of both, and of each."""
    with (tmp_path / "test.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["customer", "text", "label"])
        for i in range(20):
            topic = ("red", "blue", "green")[i % 3]
            rows.writerow([["a", "b"][i % 2], f"{topic}{i} {topic}{i + 1}", topic])
    alone = compare(untrained, classifier, tmp_path / "test.csv")
    grouped = compare(untrained, classifier, tmp_path / "test.csv", group="customer")
    assert (alone.clusters, grouped.clusters) == (20, 2)
    assert "2 clusters" in shown_comparison(grouped)
    with pytest.raises(InputError, match="no column 'client'"):
        compare(untrained, classifier, tmp_path / "test.csv", group="client")


def test_a_model_is_equal_to_itself(classifier: Path, topics: Path):
    found = compare(classifier, classifier, topics / "test.csv")
    assert (found.equal, found.better, found.changes) == (1.0, None, ())
    assert "No clear difference" in shown_comparison(found)


@pytest.mark.parametrize(
    ("task", "ending"),
    [("regress", "csv"), ("multilabel", "csv"), ("tag", "conll"), ("answer", "jsonl")],
)
def test_other_tasks(task: str, ending: str, pretrained: Path, tmp_path: Path):
    examples = Path(__file__).resolve().parents[2] / "examples" / "tasks"
    train, test = (examples / f"{task}.{part}.{ending}" for part in ("train", "test"))
    for name, seed in (("a", 1), ("b", 2)):
        how: Any = {"model": pretrained, "train": train, "dev": test, "quiet": True}
        finetune(task, output=tmp_path / name, max_steps=1, head_init="random", seed=seed, **how)
    found = compare(tmp_path / "a", tmp_path / "b", test)
    counts = found.right or found.closer
    assert counts is not None
    assert 0 < sum(counts.values()) <= found.rows == 100
    first = evaluate(tmp_path / "a", test).values
    assert np.isclose(found.scores[found.metric].first, first[found.metric])
    assert shown_comparison(found)


def test_what_cannot_be_compared(classifier: Path, pretrained: Path, topics: Path, tmp_path: Path):
    numbers = tmp_path / "numbers.csv"
    numbers.write_text("text,score\n" + "".join(f"red{i},{i}\n" for i in range(12)))
    how: Any = {"model": pretrained, "train": numbers, "dev": numbers, "quiet": True}
    finetune("regress", output=tmp_path / "numbers", max_steps=1, **how)
    test = str(topics / "test.csv")
    found = refusal("compare", str(classifier), str(tmp_path / "numbers"), test)
    assert "are for different tasks: classify and regress" in found
    found = refusal("compare", str(classifier), str(classifier), test, "--metric", "nix")
    assert "there is no metric 'nix'; choose one of accuracy" in found
    done = run_cli("compare", str(classifier), str(classifier), test, "--quiet")
    assert (done.returncode, done.stdout) == (0, "")
