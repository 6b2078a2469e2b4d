"""What ``fit`` chooses: by the metric itself, on whole groups of rows, and by chance nothing."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ownbert.fitting.comparison import (
    DISTILLED,
    JOINED,
    ComparedModel,
    Comparison,
    best_network,
    deciding,
)
from ownbert.fitting.findings import _blend_row, _curve
from ownbert.fitting.progress import Attempts
from ownbert.fitting.report.contents import LeaderboardRow
from ownbert.fitting.rows.labelled_rows import LabelledRows
from ownbert.tables.memory import table_of
from ownbert.views.blending import fit_decided
from ownbert.views.linear_models import log_softmax
from ownbert.views.view_features import Texts
from support.fit_files import labelled


def rows_with(labels: list[str], **options: str) -> LabelledRows:
    table = table_of([{"text": f"w{i}", "label": label} for i, label in enumerate(labels)])
    return labelled(table, **options)


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
    found = labelled(table)
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
    found = judged.metrics
    plain = compared.judge(replace(judged.found, decision=np.zeros(judged.scores.shape)))
    if metric in ("macro_f1", "mcc"):
        assert found.values[metric] > plain.metrics.values[metric]
    assert found.log_loss == plain.metrics.log_loss


def test_a_taught_network_counts_by_what_it_is_worth():
    rng, rows = np.random.default_rng(0), rows_with([*"abc"] * 300)
    truth = rows.targets.values[rows.held_out]

    def scores(share_right: float) -> np.ndarray:
        """Log-probabilities that are right in such a share of the rows, and always as sure."""
        labels = np.where(rng.random(len(truth)) < share_right, truth, (truth + 1) % 3)
        return np.log(np.where(np.arange(3) == labels[:, None], 0.8, 0.1))

    compared = Comparison(rows, [ComparedModel("tfidf", "", "linear", (), 0.0, scores=scores(0.8))])
    count = len(rows.folds[0][1])
    assert compared.share_of(scores(0.9)[:count]) > 0.5
    assert compared.share_of(scores(0.34)[:count]) < 0.25

    def network_of(tuned: np.ndarray, taught: np.ndarray) -> str:
        models = [
            ComparedModel("network", "", "network", (), 0.0, scores=tuned),
            ComparedModel(
                "student", "", "network", (), 0.0, taught[:count], partial=True, role=DISTILLED
            ),
        ]
        best = best_network(Comparison(rows, models))
        assert best is not None
        return best.name

    good, fair = scores(0.9), scores(0.8)
    assert network_of(fair, good) == "student"
    assert network_of(good, fair) == "network"
    assert network_of(good, good) == "student"
    # As often right, but surer of its mistakes: better by the metric alone.
    unsure = np.where(fair == fair.max(1, keepdims=True), fair, fair - 2.0)
    unsure[fair.argmax(1) == truth] = fair[fair.argmax(1) == truth]
    almost = fair.copy()
    almost[: count // 50] = np.log(np.where(np.arange(3) == truth[: count // 50, None], 0.8, 0.1))
    assert network_of(np.where(almost == fair, unsure, almost), fair) == "student"

    # Without texts, a network with built-in linear models comes first.
    roles = {"network": "", "joined": JOINED, "student": DISTILLED}
    models = [
        ComparedModel(name, "", "network", (), 0.0, scores=fair, role=role)
        for name, role in roles.items()
    ]
    for has_texts, expected in ((True, "student"), (False, "joined")):
        best = best_network(Comparison(rows, models, has_texts=has_texts))
        assert best is not None
        assert best.name == expected

    # Of others, one that is better by chance alone must have the smaller loss too.
    lucky = unsure.copy()
    lucky[: count // 20] = np.log(np.where(np.arange(3) == truth[: count // 20, None], 0.8, 0.1))
    models = [
        ComparedModel(name, "", "network", (), 0.0, scores=own, role=role)
        for name, own, role in (
            ("network", lucky, ""),
            ("joined", fair, JOINED),
            ("start", scores(0.4), ""),
        )
    ]
    compared = Comparison(rows, models)
    assert compared.worth_on_first_fold(models[0]) > compared.worth_on_first_fold(models[1])
    assert compared.loss_of(models[0]) > compared.loss_of(models[1])
    assert best_network(compared) is models[1]


def test_a_model_alone_is_taken_where_it_is_better_on_the_same_rows():
    rng, rows = np.random.default_rng(0), rows_with([*"ab"] * 450)
    truth = rows.targets.values[rows.held_out]
    models = []
    for name, share in (("tfidf", 0.8), ("lsa", 0.7)):
        labels = np.where(rng.random(len(truth)) < share, truth, 1 - truth)
        scores = np.log(np.where(np.arange(2) == labels[:, None], 0.8, 0.2))
        models.append(ComparedModel(name, "", "linear", (), 0.0, scores=scores))
    for mistakes, expected in ((3, None), (12, models[0])):
        compared = Comparison(rows, models)
        own = compared.adjusted(models[0])
        scores = own.scores.copy()
        right = np.flatnonzero(own.labels == truth)[:mistakes]
        scores[right] = scores[right, ::-1]
        compared.blended = compared.judge(replace(own.found, scores=scores))
        assert compared.alone is expected


def test_rows_without_known_words_are_judged_alike_on_all_rows_and_on_the_first_fold():
    given = [{"text": f"w{i}", "label": ["a", "b"][i % 3 :]} for i in range(40)]
    train = table_of([{**row, "text": f"{row['text']} x"} for row in given])
    dev = table_of(given[:30])
    rows = labelled(train, dev, task="multilabel")
    truth, noise = rows.targets.values[rows.held_out], np.random.default_rng(0)
    scores = 0.6 * truth - 1.8 + noise.normal(size=truth.shape)
    model = ComparedModel("tfidf", "", "linear", (), 0.0, scores=scores, unknown=(*range(12),))
    compared = Comparison(rows, [model])
    for own in (compared.adjusted(model), compared.blended):
        assert compared.value_on_first_fold(own) == own.value()

    # Offsets that were fitted when linear models were built in are not fitted again.
    for role, kept in ((JOINED, True), ("", False)):
        network = ComparedModel("network", "", "network", (), 0.0, scores=scores, role=role)
        assert (compared.by_itself(network).offsets == 0).all() == kept


def test_a_model_of_the_first_fold_has_the_decision_that_all_folds_give_the_blend():
    """Rare labels occur too rarely in one fold: on long, unbalanced documents the folder's network
    lost five points of macro-F1 by offsets fitted there."""
    labels = ["a"] * 90 + ["b"] * 24 + ["c"] * 6
    rows = rows_with(labels)
    truth, noise = rows.targets.values[rows.held_out], np.random.default_rng(0)
    scores = noise.normal(size=(len(truth), 3)) + 1.5 * np.eye(3)[truth] + [2.0, 0.0, -2.0]
    part = scores[: len(rows.folds[0][1])]
    model = ComparedModel("network", "", "network", (), 0.0, scores=part, partial=True)
    whole = ComparedModel("tfidf", "", "linear", (), 0.0, scores=scores)
    compared = Comparison(rows, [whole, model])
    decision = compared.fitted.decision
    np.testing.assert_array_equal(compared.by_itself(model).decision, decision)
    fitted = fit_decided([part], rows.targets[rows.folds[0][1]], compared.counts).decision
    assert np.abs(fitted - decision).max() > 0.1
    assert (compared.adjusted(model).found.decision == decision).all()


def test_the_size_of_the_blend_is_that_of_its_members(topics: Path):
    train = topics / "train.csv"
    rows = labelled(train)
    scores = np.eye(3)[rows.targets.values[rows.held_out]]
    models = [ComparedModel("tfidf", "words", "linear", (), 1.0, scores=scores)]
    models.append(
        ComparedModel("start", "network", "network", (), 2.0, scores=scores[:12], partial=True)
    )
    board = [LeaderboardRow(model.title, model.kind, 1.0, size=1000) for model in models]
    blend = _blend_row(Comparison(rows, models), board, [], {}, Attempts(print))
    assert (blend.size, blend.seconds) == (1000, 3.0)
