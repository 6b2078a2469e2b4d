"""Metrics and curves of a positive label, compared with those of scikit-learn."""

import json
import random
from pathlib import Path

import numpy as np
import pytest

import ownbert
from ownbert.exceptions import InputError
from ownbert.tasks.classification import ClassificationTask, positive_of
from ownbert.tasks.finetune_recipe import TaskSettings
from ownbert.tasks.metrics import Ranking, one_vs_rest
from ownbert.tasks.rows import Row
from support.cli import refusal, run_cli

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
