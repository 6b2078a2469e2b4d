"""What ``fit`` chooses: by the metric itself, on whole groups of rows, and by chance nothing."""

from dataclasses import replace

import numpy as np
import pytest

from ownbert.fitting.comparison import ComparedModel, Comparison, deciding
from ownbert.fitting.findings import _curve
from ownbert.fitting.rows.labelled_rows import LabelledRows, find_task, read_labelled
from ownbert.tables.columns import ColumnNames
from ownbert.tables.memory import table_of
from ownbert.views.linear_models import log_softmax
from ownbert.views.view_features import Texts


def rows_with(labels: list[str], **options: str) -> LabelledRows:
    table = table_of([{"text": f"w{i}", "label": label} for i, label in enumerate(labels)])
    return read_labelled(find_task(table, ColumnNames(), None), table, None, seed=0, **options)


def linear(name: str, scores: np.ndarray) -> ComparedModel:
    return ComparedModel(name, name, "linear", (f"members/{name}",), 0.0, scores=scores)


def scores_for(rows: LabelledRows, rng: np.random.Generator, strength: float) -> np.ndarray:
    truth = rows.targets.values[rows.held_out]
    size, counts = rows.targets.size, np.bincount(rows.targets.values)
    evidence = strength * np.eye(size)[truth] + rng.normal(size=(len(truth), size))
    return log_softmax(evidence * strength + np.log(counts))


def test_on_ties_the_blend_is_used():
    """Of 30 tickets five models and the blend had 29 right, and one of the five was used alone."""
    rows = rows_with([*"ab"] * 15)
    truth, rng = rows.targets.values[rows.held_out], np.random.default_rng(0)
    right = np.where(np.arange(2) == truth[:, None], 0.9, 0.1)
    right[7] = right[7, ::-1]
    models = [
        linear(name, np.log(np.clip(right + rng.normal(size=right.shape) * 0.03, 0.02, 0.98)))
        for name in ("tfidf", "words", "nb", "lsa", "vectors")
    ]
    compared = Comparison(rows, models)
    assert {compared.worth(model) for model in (*models, None)} == {compared.worth(None)}
    assert compared.alone is None


@pytest.mark.parametrize("seed", range(4))
def test_a_lucky_model_is_not_used_alone_where_some_labels_are_rare(seed: int):
    """A lead of .5 / sqrt(rows) was taken for more than chance, but one row of a label with four
    moves macro-F1 by more."""
    rng = np.random.default_rng(seed)
    rows = rows_with(["a"] * 700 + ["b"] * 60 + ["c"] * 8 + ["d"] * 4)
    models = [linear(name, scores_for(rows, rng, 1.5)) for name in ("tfidf", "words", "nb", "lsa")]
    compared = Comparison(rows, models)
    for model in models:
        model.scores = compared.adjusted(model).scores  # each as sure as the others
    lead = max(compared.worth(model) for model in models) - compared.worth(None)
    assert compared.alone is None, lead


def test_a_model_that_is_clearly_better_is_used_alone():
    """The blend's weights are those of other rows, so poor models can only cost."""
    rng = np.random.default_rng(0)
    rows = rows_with([*"abc"] * 100)
    strengths = {"tfidf": 2.0, "words": 0.2}
    models = [linear(name, scores_for(rows, rng, each)) for name, each in strengths.items()]
    compared = Comparison(rows, models)
    own = compared.adjusted(models[0])
    truth, worse = rows.targets.values[rows.held_out], own.scores.copy()
    wrong = np.flatnonzero(own.labels == truth)[:25]
    worse[wrong] = np.roll(worse[wrong], 1, axis=1)
    compared.blended = compared.judge(replace(own.found, scores=worse))
    assert compared.alone is models[0]


def test_the_curve_over_rows_is_that_of_decisions():
    """With a rare positive label its F1 was 0 at every size: more labels would hardly help."""
    rng, rows = np.random.default_rng(0), []
    for i in range(1600):
        yes = i % 10 == 0
        words = rng.integers(0, 400, 12) // (5 if yes and i % 20 else 1)
        label = "yes" if yes else "no"
        rows.append({"text": " ".join(f"w{word}" for word in words), "label": label})
    table = table_of(rows)
    found = read_labelled(find_task(table, ColumnNames(), None), table, None, seed=0)
    compared = Comparison(found, [linear("tfidf", scores_for(found, rng, 1.2))], "f1")
    curve = _curve(compared, Texts(found.texts(), "words"))
    assert curve is not None
    assert curve.scores.min() > 0.1


@pytest.mark.parametrize("metric", ["macro_f1", "mcc", "accuracy", "log_loss"])
def test_probabilities_are_true_whatever_the_metric(metric: str):
    rng = np.random.default_rng(0)
    rows = rows_with(["no"] * 1350 + ["yes"] * 150)
    models = [linear(name, scores_for(rows, rng, 1.2)) for name in ("tfidf", "words")]
    compared = Comparison(rows, models, metric)
    for judged in (compared.blended, compared.adjusted(models[0])):
        assert judged.outputs[:, 1].mean() == pytest.approx(0.1, abs=0.015)
    _, fitted, judged = compared.used
    decision = deciding(judged.task, fitted.decision).decision  # pyright: ignore
    assert (decision is not None) == (metric in ("macro_f1", "mcc"))
    found = judged.metrics()
    plain = compared.judge(replace(judged.found, decision=np.zeros(judged.scores.shape)))
    if metric in ("macro_f1", "mcc"):
        assert found.values[metric] > plain.metrics().values[metric]
    assert found.log_loss == plain.metrics().log_loss
