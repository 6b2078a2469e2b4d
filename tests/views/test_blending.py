"""Blends: weights, their gradient, and estimates that owe nothing to choosing them."""

from functools import partial

import numpy as np
import pytest
from scipy.optimize import approx_fprime
from sklearn.metrics import f1_score

from ownbert.fitting.comparison import _best_of_two, _value_of_two
from ownbert.views.blending import (
    blend,
    cross_fitted,
    fit_blend,
    fit_decided,
    from_scores,
    loss,
    to_scores,
)
from ownbert.views.linear_models import Targets, log_softmax, loss_and_slope


def rows(task: str, count: int = 400, seed: int = 0) -> tuple[Targets, list[np.ndarray]]:
    """Targets, and the scores of a good model, of a fair one with other errors, and of noise."""
    rng = np.random.default_rng(seed)
    if task == "regress":
        truth = rng.normal(size=(count, 1)) * 5
        members = [truth + rng.normal(size=truth.shape) * s for s in (1.0, 2.0, 50.0)]
        return Targets(task, truth, 1), members
    labels = rng.integers(0, 3, count)
    values = np.eye(3)[labels]
    noisy = [values * s + rng.normal(size=values.shape) for s in (2.0, 1.5, 0.0)]
    if task == "classify":
        return Targets(task, labels, 3), [log_softmax(x) for x in noisy]
    return Targets(task, values, 3), [2 * x - 1 for x in noisy]


TASKS = ["classify", "multilabel", "regress"]


@pytest.mark.parametrize("task", TASKS)
def test_a_blend_is_better_than_its_members_and_noise_gets_no_weight(task: str):
    targets, members = rows(task)
    weights = fit_blend(members, targets)[0]
    assert (weights >= 0).all()
    assert weights[2] < 0.5 * weights[0]
    assert loss(targets, blend(members, weights)) < min(loss(targets, m) for m in members)


def test_many_rare_labels_do_not_draw_a_model_in_that_knows_nothing_of_its_own():
    """With weights drawn to equal ones as if the 17 labels of a row were one."""
    rng = np.random.default_rng(0)
    good = rng.normal(size=(1000, 17)) - 2.5
    values = (rng.random(good.shape) < 1 / (1 + np.exp(-good))).astype(float)
    poor = -2.5 + 0.5 * (good + 2.5) + rng.normal(size=good.shape)
    targets = Targets("multilabel", values, 17)
    weights, _ = fit_blend([good, poor, poor[::-1]], targets)
    assert weights[0] > 0.8
    assert (weights[1:] < 0.05).all()


@pytest.mark.parametrize("task", TASKS)
def test_the_estimate_is_not_of_rows_that_chose_the_weights(task: str):
    targets, members = rows(task, 60)
    weights, offsets = fit_blend(members, targets)
    chosen = loss(targets, blend(members, weights) + offsets)
    assert loss(targets, cross_fitted(members, targets).scores) > chosen


@pytest.mark.parametrize("task", ["classify", "multilabel"])
def test_given_offsets_are_kept_and_the_weights_fitted_with_them(task: str):
    targets, members = rows(task)
    offsets = np.asarray([0.5, 0.0, -0.5])
    weights, kept = fit_blend(members, targets, offsets=offsets)
    assert kept is offsets
    scores = blend(members, weights, offsets)
    for other in (0.5 * weights, 3 * weights):
        assert loss(targets, scores) < loss(targets, blend(members, other, offsets))
    assert loss(targets, blend(members, *fit_blend(members, targets))) < loss(targets, scores)


@pytest.mark.parametrize("task", TASKS)
def test_the_slope_is_that_of_the_loss(task: str):
    targets, members = rows(task, 7)
    scores = members[0]
    for smoothing in (0.0, 0.1):

        def value(x: np.ndarray, smoothing: float = smoothing) -> float:
            return loss_and_slope(targets, x.reshape(scores.shape), smoothing=smoothing)[0]

        slope = loss_and_slope(targets, scores, smoothing=smoothing)[1]
        numeric = approx_fprime(scores.ravel(), value, 1e-6)
        np.testing.assert_allclose(slope.ravel(), numeric, atol=1e-5)


@pytest.mark.parametrize("task", ["classify", "multilabel"])
def test_models_that_are_always_right_are_not_made_certain(task: str):
    targets, _ = rows(task, 60)
    truth = targets.values if task == "multilabel" else np.eye(targets.size)[targets.values]
    right = 10 * truth - 5.0
    weights = fit_blend([right], targets)[0]
    found = from_scores(task, blend([right], weights))
    assert 0.9 < found[truth > 0].mean() < 0.995


def test_equal_members_get_equal_weights():
    targets, members = rows("classify")
    weights = fit_blend([members[0], members[0].copy()], targets)[0]
    np.testing.assert_allclose(weights[0], weights[1], rtol=1e-3)


def test_weights_of_numbers_add_up_to_one():
    targets, members = rows("regress")
    assert fit_blend(members, targets)[0].sum() == pytest.approx(1)


@pytest.mark.parametrize("task", TASKS)
def test_outputs_come_back_from_their_scores(task: str):
    rng = np.random.default_rng(0)
    outputs = rng.random((5, 3))
    if task == "classify":
        outputs /= outputs.sum(1, keepdims=True)
    np.testing.assert_allclose(from_scores(task, to_scores(task, outputs)), outputs, atol=1e-6)


def test_impossible_probabilities_have_finite_scores():
    outputs = np.asarray([[0.0, 1.0]])
    assert np.isfinite(to_scores("classify", outputs)).all()
    assert np.isfinite(to_scores("multilabel", outputs)).all()


def imbalanced(seed: int, count: int = 500) -> tuple[Targets, np.ndarray, np.ndarray]:
    """Labels of which one is in nine rows of ten, log-probabilities of a model that knows so, and
    how often each label is."""
    rng = np.random.default_rng(seed)
    frequencies = np.array([0.9, 0.06, 0.04])
    labels = rng.choice(3, count, p=frequencies)
    evidence = np.eye(3)[labels] * 1.5 + rng.normal(size=(count, 3))
    scores = log_softmax(1.5 * evidence + np.log(frequencies))
    return Targets("classify", labels, 3), scores, np.bincount(labels, minlength=3)


def test_offsets_give_rare_labels_their_due():
    targets, scores, counts = imbalanced(0)
    _, offsets = fit_blend([scores], targets, counts)
    assert offsets[0] < min(offsets[1:])
    new, fresh, _ = imbalanced(1)
    before = f1_score(new.values, fresh.argmax(1), average="macro")
    assert f1_score(new.values, (fresh + offsets).argmax(1), average="macro") > before + 0.03


def test_where_labels_are_alike_or_there_are_none_nothing_is_added():
    targets, scores, _ = imbalanced(0)
    assert not fit_blend([scores], targets, np.full(3, 20))[1].any()
    assert not fit_blend([scores], targets, None)[1].any()


def test_the_estimate_is_not_of_rows_that_chose_the_offsets():
    targets, scores, counts = imbalanced(0)
    result = cross_fitted([scores], targets, counts)
    found = result.scores + result.decision
    one = fit_blend([scores], targets)[0][0] * scores
    kinds = {tuple(np.round(own, 6)) for own in found - found.mean(1, keepdims=True)}
    assert len(kinds) > 1
    assert f1_score(targets.values, found.argmax(1), average="macro") > f1_score(
        targets.values, one.argmax(1), average="macro"
    )


def skewed(seed: int, frequencies: np.ndarray, count: int) -> tuple[Targets, list[np.ndarray]]:
    """Rows of labels with these frequencies, and two models that learnt less of rarer labels."""
    rng = np.random.default_rng(seed)
    labels = rng.choice(6, count, p=frequencies)
    learnt = np.array([0.4, 0.8, 1.2, 1.6, 2.2, 3.0]) ** 0.5  # of each label
    members = []
    for strength in (2.0, 1.2):
        evidence = np.eye(6)[labels] * strength * learnt + rng.normal(size=(count, 6))
        members.append(log_softmax(evidence * learnt + np.log(FREQUENCIES)))
    return Targets("classify", labels, 6), members


FREQUENCIES = np.array([0.01, 0.02, 0.04, 0.08, 0.25, 0.60])


def test_weights_and_frequencies_fitted_together_find_more_rare_labels():
    targets, members = skewed(0, FREQUENCIES, 2000)
    counts = np.round(1000 * FREQUENCIES)
    weights, offsets = fit_blend(members, targets, counts)
    logs = np.log(counts + 0.5)
    new, fresh = skewed(1, np.full(6, 1 / 6), 3000)
    one_after_the_other = blend(fresh, fit_blend(members, targets)[0]) - (logs - logs.mean())
    together = blend(fresh, weights) + offsets
    scores = [
        f1_score(new.values, found.argmax(1), average="macro")
        for found in (blend(fresh, weights), one_after_the_other, together)
    ]
    assert scores[2] > scores[0] + 0.1
    assert scores[2] > scores[1] + 0.03


def churn(seed: int, count: int) -> tuple[Targets, np.ndarray, np.ndarray]:
    """Labels of which one row in ten has the second, and log-probabilities of a model."""
    rng = np.random.default_rng(seed)
    labels = (rng.random(count) < 0.1).astype(int)
    evidence = np.eye(2)[labels] * 1.3 + rng.normal(size=(count, 2))
    return Targets("classify", labels, 2), log_softmax(evidence), np.bincount(labels, minlength=2)


def test_probabilities_of_a_rare_label_are_true_and_the_decision_finds_it():
    """Offsets for macro-F1 were added to the probabilities: P(yes) had a mean of .149 for a rate of
    .108, and of those at .6 to .8 a third were yes."""
    targets, scores, counts = churn(0, 2000)
    value = partial(_value_of_two, metric="macro_f1", positive=1)
    decide = partial(_best_of_two, value=value)
    fitted = fit_decided([scores], targets, counts, decide=decide)
    new, fresh, _ = churn(1, 20_000)
    logs = log_softmax(blend([fresh], fitted.weights, fitted.offsets))
    yes = np.exp(logs[:, 1])
    assert yes.mean() == pytest.approx(0.1, abs=0.02)
    for low, high in ((0.0, 0.1), (0.1, 0.3), (0.3, 0.6), (0.6, 0.9)):
        inside = (yes >= low) & (yes < high)
        assert new.values[inside].mean() == pytest.approx(yes[inside].mean(), abs=0.08)
    chosen = (logs + fitted.decision).argmax(1)
    plain = f1_score(new.values, logs.argmax(1), average="macro")
    assert f1_score(new.values, chosen, average="macro") > plain + 0.01


def test_with_several_labels_the_decision_is_that_of_the_offsets_which_probabilities_had():
    targets, members = skewed(0, FREQUENCIES, 1000)
    counts = np.bincount(targets.values, minlength=6)
    weights, shift = fit_blend(members, targets, counts)
    fitted = fit_decided(members, targets, counts)
    new, fresh = skewed(1, FREQUENCIES, 5000)
    logs = log_softmax(blend(fresh, fitted.weights, fitted.offsets))
    before = (blend(fresh, weights) + shift).argmax(1)
    assert ((logs + fitted.decision).argmax(1) == before).mean() > 0.999
    assert loss(new, logs) <= loss(new, blend(fresh, weights, shift))
    np.testing.assert_allclose(np.exp(logs).mean(0), FREQUENCIES, atol=0.02)


def test_rows_of_a_cluster_are_judged_together():
    """Copies of a row would tell its weights the labels of the others."""
    targets, members = rows("classify", 60)
    copies = targets[np.repeat(np.arange(60), 4)]
    repeated, clusters = [np.repeat(m, 4, axis=0) for m in members], np.repeat(np.arange(60), 4)
    found = cross_fitted(repeated, copies, clusters=clusters).scores
    np.testing.assert_array_equal(found[::4], found[3::4])
