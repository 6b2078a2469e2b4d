"""Thresholds of labels: how they are written, and how they are chosen on rows."""

import json
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, f1_score

from ownbert.exceptions import InputError
from ownbert.tasks.classification import ClassificationTask
from ownbert.tasks.finetune_recipe import TaskSettings
from ownbert.tasks.multilabel import MultiLabelTask
from ownbert.tasks.rows import Row
from ownbert.tasks.task import KEY, restored_task
from ownbert.tasks.text_input import EncodedRows
from ownbert.tasks.thresholds import Aim, best_thresholds, read_thresholds, settled

LABELS = ("no", "yes", "a=b", "x, y")
ROW = Row(1, ("a text",))


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("yes=0.9", {"yes": 0.9}),
        (" yes = 0.9 , no=.2", {"yes": 0.9, "no": 0.2}),
        ("a=b=0.5,x, y=1e-3", {"a=b": 0.5, "x, y": 0.001}),
        ('{"yes": 0.9, "no": "cost:3"}', {"yes": 0.9, "no": Aim("cost", 3)}),
        ({"yes": "recall:0.9"}, {"yes": Aim("recall", 0.9)}),
        ("yes=precision:1", {"yes": Aim("precision", 1)}),
        ("yes=recall=0.9", {"yes": Aim("recall", 0.9)}),
    ],
)
def test_thresholds_are_read_as_they_are_written(written: object, read: object):
    assert read_thresholds(written, LABELS) == read


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("maybe=0.9", "'maybe=0.9'; write yes=0.9"),
        ("yes", "'yes'; write yes=0.9"),
        ("yes=", "of 'yes' is ''; write"),
        ("yes=1.5", "of 'yes' is 1.5; it must be between 0 and 1"),
        ("yes=0", "it must be between 0 and 1"),
        ("yes=nan", "it must be between 0 and 1"),
        ("yes=recall:0", "recall is 0.0; it must be in"),
        ("yes=recall:2", "recall is 2.0; it must be in"),
        ("yes=cost:-1", "cost is -1.0"),
        ("yes=cost:1e9", "cost is 1000000000.0"),
        ("yes=f1:0.9", "'f1:0.9'; write"),
        ("", "empty"),
        ("{", "not a JSON object"),
        ({"yes": None}, "of 'yes' is None"),
    ],
)
def test_what_is_no_threshold_is_refused(written: object, said: str):
    with pytest.raises(InputError, match=re.escape(said)):
        read_thresholds(written, LABELS)


@given(
    st.lists(st.tuples(st.booleans(), st.integers(0, 9)), min_size=1, max_size=40),
    st.sampled_from((0.25, 0.5, 0.9, 1.0)),
)
def test_aims_are_reached_by_the_threshold_that_keeps_most(rows: list, least: float):
    truth = np.asarray([row[0] for row in rows])
    p = np.asarray([row[1] for row in rows]) / 9  # with ties
    cuts = np.unique(p)

    def recall(cut: float) -> float:
        return (truth & (p >= cut)).sum() / max(1, truth.sum())

    def precision(cut: float) -> float:
        return (truth & (p >= cut)).sum() / (p >= cut).sum()

    threshold, reached = Aim("recall", least).threshold(truth, p)
    assert reached == truth.any()
    if reached:
        fewest = min((p >= cut).sum() for cut in cuts if recall(cut) >= least)
        assert (p >= threshold).sum() == fewest
    threshold, reached = Aim("precision", least).threshold(truth, p)
    attained = [cut for cut in cuts if precision(cut) >= least]
    assert reached == bool(attained)
    if reached:
        assert precision(threshold) >= least
        assert recall(threshold) == max(map(recall, attained))


def test_a_missed_row_that_costs_more_lowers_the_threshold_to_its_share():
    rng = np.random.default_rng(0)
    p = rng.beta(0.5, 2, 20_000)
    truth = rng.random(len(p)) < p
    found = [Aim("cost", cost).threshold(truth, p)[0] for cost in (0.25, 1, 4, 19)]
    assert found == pytest.approx([0.8, 0.5, 0.2, 0.05], abs=0.03)


def test_an_aim_that_cannot_be_reached_is_named():
    truth = np.asarray([[True], [False]])
    p = np.asarray([[0.3], [0.6]])
    found, missed = settled({"yes": Aim("precision", 0.9)}, ["yes"], truth, p)
    assert found["yes"] == pytest.approx(0.15)
    assert missed == [
        "no threshold of 'yes' reaches precision:0.9 on 2 held-out rows; 0.150 comes closest"
    ]


def skewed(seed: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Labels of 30, 5 and 2 % of the rows, and their probabilities."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(count, 3)) * [2.5, 1.5, 1.5] - [1.2, 3.8, 5.0]
    p = 1 / (1 + np.exp(-logits))
    return (rng.random(p.shape) < p).astype(float), p


def test_each_metric_has_its_own_thresholds():
    """The threshold was that of micro-F1 whatever the metric: rare labels were hardly found."""
    known, new = skewed(0, 3000), skewed(1, 20_000)

    def value(metric: str, thresholds: np.ndarray) -> float:
        if metric == "subset_accuracy":
            return float(accuracy_score(new[0], new[1] >= thresholds))
        average = metric.removesuffix("_f1")
        return float(f1_score(new[0], new[1] >= thresholds, average=average))  # type: ignore

    metrics = "micro_f1", "macro_f1", "weighted_f1", "subset_accuracy"
    chosen = {metric: best_thresholds(*known, metric) for metric in metrics}
    assert len(set(chosen["micro_f1"])) == len(set(chosen["subset_accuracy"])) == 1
    assert len(set(chosen["macro_f1"])) == 3
    assert value("macro_f1", chosen["macro_f1"]) > value("macro_f1", chosen["micro_f1"]) + 0.02
    for metric in metrics:
        best = max(value(metric, chosen[other]) for other in metrics)
        assert value(metric, chosen[metric]) > best - 0.01


def test_the_threshold_of_a_label_without_rows_is_that_of_its_probabilities():
    truth, p = skewed(0, 500)
    truth[:, 2] = 0
    with_rows, without = skewed(2, 500), (truth, p)
    for rows in (with_rows, without):
        found = best_thresholds(*rows, "macro_f1")
        assert ((found > 0.05) & (found < 0.6)).all()
    assert best_thresholds(0 * truth, p, "macro_f1").tolist() == [0.5] * 3


class ThreeLabels(ClassificationTask):
    pass


def task_of(kind: type, threshold: object) -> ClassificationTask | MultiLabelTask:
    labels = ("no", "yes") if kind is ClassificationTask else ("a", "b", "c")
    return kind(TaskSettings(name=kind.name, threshold=threshold), labels=labels)  # type: ignore


def test_dev_rows_choose_the_threshold_of_one_of_two_labels():
    rng = np.random.default_rng(0)
    yes = rng.beta(0.5, 3, 800)
    targets = ["yes" if each else "no" for each in rng.random(len(yes)) < yes]
    rows = [Row(i, ("t",), target) for i, target in enumerate(targets)]
    raws = list(np.stack([1 - yes, yes], 1))
    task = task_of(ClassificationTask, "yes=recall:0.8")
    task.tune(raws, EncodedRows([]), rows)
    scores = task.score(rows, [task.decide(*each, None) for each in zip(raws, rows, strict=True)])
    assert 0.8 <= scores.labels[1].recall < 0.83
    assert not task.missed


def test_thresholds_of_several_labels_are_saved_and_read():
    truth, p = skewed(0, 600)
    names = ("a", "b", "c")
    rows = [Row(i, ("t",), [names[j] for j in np.flatnonzero(t)]) for i, t in enumerate(truth)]
    task = task_of(MultiLabelTask, {"a": 0.9})
    task.monitor("macro_f1")
    task.tune(list(p), EncodedRows([]), rows)
    assert isinstance(task.threshold, tuple)  # pyright: ignore
    assert task.threshold[0] == 0.9
    assert task.threshold[1:] == pytest.approx(best_thresholds(truth, p, "macro_f1")[1:])
    saved = json.loads(json.dumps(task.values()[KEY]))
    again = restored_task("multilabel", saved, names)
    raw = np.asarray([0.89, task.threshold[1] + 1e-6, 0.999])
    assert again.plain(again.decide(raw, ROW, None), ROW) == ["b", "c"]
    assert again.plain(again.decide(raw, ROW, True), ROW) == ["c"]  # nothing of the text is known
    for wrong in ([0.5], [0.5] * 4):
        with pytest.raises(InputError, match="numbers for 3 labels"):
            restored_task("multilabel", {**saved, "threshold": wrong}, names)
    old = restored_task("multilabel", {**saved, "settings": {}, "threshold": 0.25}, names)
    assert old.plain(old.decide(np.asarray([0.3, 0.2, 0.25]), ROW, None), ROW) == ["a", "c"]


def halved(task: ClassificationTask | MultiLabelTask) -> object:
    return task.with_thresholds(dict.fromkeys(task.given_thresholds, 0.5))


@pytest.mark.parametrize(
    ("kind", "threshold", "said"),
    [
        (ClassificationTask, 0.4, "of which label? Write yes=0.4"),
        (ClassificationTask, "yes=0.4,no=0.4", "one of two labels, but several have one"),
        (MultiLabelTask, 2.0, "between 0 and 1"),
        (MultiLabelTask, "d=0.4", "one of the labels a, b, c"),
        (ThreeLabels, "a=0.9", "one of two labels, but there are 3"),
    ],
)
def test_thresholds_that_do_not_fit_the_task_are_refused(kind: type, threshold: object, said: str):
    with pytest.raises(InputError, match=re.escape(said)):
        halved(task_of(kind, threshold))
