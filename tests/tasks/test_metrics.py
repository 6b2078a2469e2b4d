"""Measures against scikit-learn."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import (
    accuracy_score,
    confusion_matrix,
    f1_score,
    precision_recall_fscore_support,
)

from ownbert.tasks.metrics import score_labels, set_level_scores
from support.cli import run_cli
from support.tiny import change_config, made

LABELS = ("a", "b", "c", "d")


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=30))
def test_scores_equal_scikit_learns(pairs):
    truth, predicted = (list(column) for column in zip(*pairs, strict=True))
    scores = score_labels(truth, predicted, LABELS)
    assert scores.accuracy == pytest.approx(accuracy_score(truth, predicted))
    macro = f1_score(truth, predicted, average="macro", zero_division=0)
    assert scores.macro_f1 == pytest.approx(macro)
    each = precision_recall_fscore_support(truth, predicted, labels=range(4), zero_division=0)
    for row, p, r, f, n in zip(scores.labels, *each, strict=True):
        assert (row.precision, row.recall, row.f1, row.support) == pytest.approx((p, r, f, n))
    assert np.array_equal(scores.confusion, confusion_matrix(truth, predicted, labels=range(4)))


@pytest.mark.parametrize(
    ("labels", "levels"),
    [
        (["a/x", "a/y", "b/x"], 1),
        (["a > x > 1", "a > x > 2", "a > y", "b"], 0),  # b begins no other label
        (["a > x > 1", "a > x > 2", "a > y", "b > z", "b"], 2),
        (["A00.1", "A00.2", "B10.1"], 1),
        (["1.1", "1.2", "2.1"], 0),  # numbers
        (["1.1.1", "1.1.2", "2.1.1"], 2),
        (["yes/no", "n/a", "either"], 0),
        (["yes/no", "n/a"], 0),  # no first part is shared
        (["a/x", "a/y"], 0),  # one first part
        (["a/x", "a/", "b/x"], 0),
        (["red", "blue"], 0),
    ],
)
def test_levels_are_found_where_labels_are_a_hierarchy(labels: list[str], levels: int):
    size = len(labels)
    scores = score_labels(range(size), range(size), labels)
    assert [level.level for level in scores.levels] == [*range(1, levels + 1)]
    assert all(set(level.values.values()) == {1} for level in scores.levels)
    assert ("levels" in scores.as_json()) == (levels > 0)


def test_the_metrics_of_a_level_are_those_of_cut_labels():
    labels = ["a/x", "a/y", "b/x", "b/y", "c/z"]
    rng = np.random.default_rng(0)
    truth, predicted = rng.integers(0, 4, (2, 200))
    (level,) = score_labels(truth, predicted, labels).levels
    first = ["a", "a", "b", "b", "c"]
    cut = [np.array(["abc".index(first[i]) for i in of]) for of in (truth, predicted)]
    same = score_labels(*cut, ["a", "b", "c"])
    assert level.labels == 3
    assert level.values == pytest.approx({n: same.values[n] for n in ("accuracy", "macro_f1")})


def test_the_levels_of_several_labels_per_row_are_scored(tmp_path: Path):
    labels = ("a/x", "a/y", "b/x", "b/y", "c/z")
    rng = np.random.default_rng(0)
    truth, predicted = rng.random((2, 200, 5)) < 0.3
    (level,) = set_level_scores(labels, truth, predicted)
    cut = [np.stack([x[:, :2].any(1), x[:, 2:4].any(1), x[:, 4]], 1) for x in (truth, predicted)]
    assert (level.level, level.labels) == (1, 3)
    assert level.values == pytest.approx(
        {
            "micro_f1": f1_score(*cut, average="micro"),
            "macro_f1": f1_score(*cut, average="macro"),
            "subset_accuracy": accuracy_score(*cut),
        }
    )
    made(tmp_path / "m", "classification", labels=labels)
    change_config(tmp_path / "m", ownbert_task={"name": "multilabel", "threshold": 0.5})
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"text": "a", "labels": ["a/x", "c/z"]}\n{"text": "b", "labels": []}\n')
    done = run_cli("evaluate", tmp_path / "m", rows, "-o", tmp_path / "scores.json")
    assert re.search(
        r"level 1 of the labels, 3 different: micro-F1 [\d.]+, macro-F1 [\d.]+, subset acc",
        done.stdout,
    )
    (saved,) = json.loads((tmp_path / "scores.json").read_text())["levels"]
    assert [*saved] == ["level", "labels", "micro_f1", "macro_f1", "subset_accuracy"]
