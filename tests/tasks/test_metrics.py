"""Measures, curves of a positive label and label errors, against scikit-learn."""

import json
import random
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

import ownbert
from ownbert.exceptions import InputError
from ownbert.tasks.classification import ClassificationTask, positive_of
from ownbert.tasks.finetune_recipe import TaskSettings
from ownbert.tasks.metrics import (
    Ranking,
    find_label_errors,
    one_vs_rest,
    score_labels,
    set_level_scores,
)
from ownbert.tasks.rows import Row
from support.cli import refusal, run_cli
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
    expected = {f"{mean}_f1": f1_score(*cut, average=mean) for mean in ("micro", "macro")}
    assert level.values == pytest.approx({**expected, "subset_accuracy": accuracy_score(*cut)})
    made(tmp_path / "m", "classification", labels=labels)
    change_config(tmp_path / "m", ownbert_task={"name": "multilabel", "threshold": 0.5})
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"text": "a", "labels": ["a/x", "c/z"]}\n{"text": "b", "labels": []}\n')
    done = run_cli("evaluate", tmp_path / "m", rows, "-o", tmp_path / "scores.json")
    line = r"level 1 of the labels, 3 different: micro-F1 [\d.]+, macro-F1 [\d.]+, subset acc"
    assert re.search(line, done.stdout)
    (saved,) = json.loads((tmp_path / "scores.json").read_text())["levels"]
    assert [*saved] == ["level", "labels", "micro_f1", "macro_f1", "subset_accuracy"]


# Planted label errors are found; correct and rare labels are left alone.


def planted(rows: int = 1200, classes: int = 6, wrong: int = 60, seed: int = 0):
    """Probabilities (N, C) of a good model, labels (N), and which of them were exchanged."""
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, classes, rows)
    scores = rng.normal(size=(rows, classes))
    scores[np.arange(rows), truth] += 6.0
    probabilities = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    exchanged = rng.choice(rows, wrong, replace=False)
    labels = truth.copy()
    labels[exchanged] = (truth[exchanged] + rng.integers(1, classes, wrong)) % classes
    return probabilities, labels, truth, set(exchanged.tolist())


def test_planted_errors_are_found_first():
    probabilities, labels, truth, exchanged = planted()
    found = find_label_errors(probabilities, labels)
    rows = [one.row for one in found]
    assert len(exchanged & set(rows)) > 0.85 * len(exchanged)
    first = rows[: len(exchanged) // 2]
    assert len(exchanged & set(first)) > 0.9 * len(first)
    assert [one.score for one in found] == sorted((one.score for one in found), reverse=True)
    right = [one.suggested == truth[one.row] for one in found if one.row in exchanged]
    assert np.mean(right) > 0.95
    assert all(one.given == labels[one.row] != one.suggested for one in found)


def test_correct_labels_and_rare_classes():
    probabilities, _, truth, _ = planted(wrong=0)
    assert len(find_label_errors(probabilities, truth)) < 0.01 * len(truth)
    # A class with a single row that the model does not know must not attract the others.
    rare = np.concatenate([probabilities, np.full((len(truth), 1), 1e-3)], axis=1)
    labels = truth.copy()
    labels[0] = 6
    assert not [one for one in find_label_errors(rare, labels) if one.suggested == 6]
    # A class without rows does no harm.
    assert find_label_errors(rare, truth) == find_label_errors(probabilities, truth)


def test_no_rows_and_wrong_shapes():
    assert find_label_errors(np.zeros((0, 3)), np.zeros(0, int)) == []
    with pytest.raises(InputError, match="labels \\(rows\\)"):
        find_label_errors(np.zeros((2, 3)), np.zeros(3, int))
    with pytest.raises(InputError, match="indices of the 3 classes"):
        find_label_errors(np.zeros((1, 3)), np.asarray([3]))


# Metrics and curves of a positive label, compared with those of scikit-learn.


sklearn = pytest.importorskip("sklearn.metrics")


def outputs(rows: int, labels: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """True labels, and probabilities with ties."""
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, labels, rows)
    logits = rng.standard_normal((rows, labels)) + np.eye(labels)[truth]
    probabilities = np.exp(logits.round(1))
    return truth, probabilities / probabilities.sum(1, keepdims=True)


def test_metrics_are_those_of_scikit_learn():
    truth, probabilities = outputs(400, 2)
    ranking = Ranking("yes", truth == 1, probabilities[:, 1])
    area = sklearn.roc_auc_score(truth, probabilities[:, 1])
    precision = sklearn.average_precision_score(truth, probabilities[:, 1])
    assert ranking.values["roc_auc"] == pytest.approx(area)
    assert ranking.values["average_precision"] == pytest.approx(precision)
    assert np.trapezoid(*ranking.roc[::-1]) == pytest.approx(area, abs=0.01)
    rates = sklearn.roc_curve(truth, probabilities[:, 1], drop_intermediate=False)[:2]
    precisions = sklearn.precision_recall_curve(truth, probabilities[:, 1])[:2][::-1]
    for ours, exact in ((ranking.roc, rates), (ranking.precision_recall, precisions)):
        gaps = np.abs(np.stack(ours, 1)[1:, None] - np.stack(exact, 1)).max(-1)
        assert gaps.min(1).max() < 1e-9
    # All rows are reviewed in the end, and the first tenth has more positives than a random one.
    assert ranking.gain[1][-1] == 1
    assert ranking.lift(1.0) == pytest.approx(1)
    assert ranking.lift(0.1) > 1
    truth, probabilities = outputs(300, 4)
    options = {"multi_class": "ovr", "average": "macro"}
    area = sklearn.roc_auc_score(truth, probabilities, **options)
    precision = sklearn.average_precision_score(np.eye(4)[truth], probabilities)
    assert one_vs_rest(truth, probabilities)["roc_auc"] == pytest.approx(area)
    assert one_vs_rest(truth, probabilities)["average_precision"] == pytest.approx(precision)


def test_a_label_of_all_rows_has_no_order():
    ranking = Ranking("yes", np.ones(3, dtype=bool), np.asarray([0.1, 0.2, 0.3]))
    assert ranking.values == {"roc_auc": 0.5, "average_precision": 0.0}
    json.dumps(ranking.as_json())


def task_of(labels: list[str], **settings: str) -> ClassificationTask:
    task = ClassificationTask(TaskSettings(name="classify", **settings))
    task.learn([Row(i, (f"text {i}",), label) for i, label in enumerate(labels)], "rows.csv")
    return task


@pytest.mark.parametrize(
    ("labels", "positive"),
    [
        (["no", "yes", "yes"], "yes"),
        (["0", "1", "1"], "1"),
        (["1", "2", "2"], "1"),  # the rarer one
        (["ham", "spam", "ham"], "spam"),
        (["True", "False"], "True"),
        (["是", "否"], "是"),
        (["yes", "positive", "yes"], "positive"),
        (["a", "b", "c"], None),
    ],
)
def test_the_positive_label_is_found_or_named(labels: list[str], positive: str | None):
    task = task_of(labels)
    assert task.positive_label == positive
    assert task_of(labels, positive=labels[0]).positive_label == labels[0]
    with pytest.raises(InputError, match="positive is 'x', but the labels are"):
        task_of(labels, positive="x")
    if positive is None:
        with pytest.raises(InputError, match="f1 is about one of two labels, but there are 3"):
            task.monitor("f1")
    else:
        task.monitor("f1")
    assert positive_of(("no", "yes")) == "yes"


@pytest.mark.usefixtures("plots")
@pytest.mark.parametrize("labels", [("no", "yes"), ("a", "b", "c")])
def test_fit_selects_by_the_area_and_evaluate_draws_the_curves(
    tmp_path: Path, labels: tuple[str, ...]
):
    rng = random.Random(0)
    rows = []
    for i in range(90):
        label = labels[i % len(labels)]
        words = [label if rng.random() < 0.4 else f"w{rng.randint(0, 20)}" for _ in range(4)]
        rows.append((" ".join(words), label))
    folder = tmp_path / "m"
    ownbert.fit(rows, minutes=0.05, metric="roc_auc", output=folder, quiet=True)
    report = json.loads((folder / "report.json").read_text("utf-8"))
    assert report["metric"] == "roc_auc"
    assert 0.5 < report["scores"]["roc_auc"] <= 1
    two = len(labels) == 2
    assert ('id="ranking"' in (folder / "report.html").read_text("utf-8")) == two
    table = tmp_path / "test.csv"
    table.write_text("text,label\n" + "".join(f"{a},{b}\n" for a, b in rows), encoding="utf-8")
    line = ("evaluate", folder, table, "-o", tmp_path / "s.json", "--html", tmp_path / "s.html")
    done = run_cli(*line)
    assert done.returncode == 0, done.stderr
    values = json.loads((tmp_path / "s.json").read_text("utf-8"))
    assert ("ranking" in values) == ("positive label: yes" in done.stdout) == two
    assert (tmp_path / "s.curves.png").exists() == two
    assert (tmp_path / "s.html").read_text("utf-8").count("<svg") == (5 if two else 1)
    named = ownbert.evaluate(folder, table, positive=labels[0])
    assert named.ranking.positive == labels[0]
    assert "--positive is 'x'" in refusal("evaluate", folder, table, "--positive", "x")
