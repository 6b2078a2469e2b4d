"""The figures of a report: calibration, drift, learning curves, and rows that are shown."""

import numpy as np
import pytest
from sklearn.calibration import calibration_curve
from sklearn.metrics import roc_auc_score

from ownbert.exceptions import InputError
from ownbert.fitting.report.contents import hardest_rows, largest_errors, typical_rows
from ownbert.fitting.report.statistics import (
    calibrate,
    compare_texts,
    fit_learning_curve,
    fit_temperature,
    reliability_curve,
)
from support.fit_report import calibrated_rows


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.5])
def test_a_known_temperature_is_recovered(temperature: float):
    scores, targets = calibrated_rows(4000, 5)
    assert fit_temperature(temperature * scores, targets) == pytest.approx(temperature, rel=0.06)
    # Normalising changes nothing, so logits and log probabilities have one temperature.
    logits = temperature * scores + 7.0
    assert fit_temperature(logits, targets) == pytest.approx(temperature, rel=0.06)


def test_the_temperature_brings_the_error_down_to_chance():
    scores, targets = calibrated_rows(1500, 5)
    good = calibrate(scores, targets)
    assert good.error < good.by_chance
    poor = calibrate(3 * scores, targets)
    assert poor.error > 2 * poor.by_chance
    assert poor.error_after < poor.error / 3
    assert poor.temperature == pytest.approx(3, rel=0.15)


def test_the_reliability_curve():
    probabilities = np.asarray([[0.95, 0.05], [0.92, 0.08], [0.45, 0.55], [0.0, 1.0]])
    curve = reliability_curve(probabilities, np.asarray([0, 1, 0, 1]))
    assert curve.count.tolist() == [0, 0, 0, 0, 0, 1, 0, 0, 0, 3]
    assert curve.accuracy[[5, 9]] == pytest.approx([0, 2 / 3])
    assert curve.confidence[[5, 9]] == pytest.approx([0.55, (0.95 + 0.92 + 1) / 3])
    assert np.isnan(curve.accuracy[0])
    assert curve.error == pytest.approx((0.55 + 3 * (2.87 / 3 - 2 / 3)) / 4)


def test_the_reliability_curve_of_scikit_learn():
    rng = np.random.default_rng(1)
    probabilities = rng.dirichlet(np.ones(3), 500)
    targets = rng.integers(0, 3, 500)
    curve = reliability_curve(probabilities, targets)
    hits, used = probabilities.argmax(1) == targets, curve.count > 0
    shares, means = calibration_curve(hits, probabilities.max(1), n_bins=10)
    assert curve.accuracy[used] == pytest.approx(shares)
    assert curve.confidence[used] == pytest.approx(means)


def test_probabilities_of_zero_and_few_rows():
    with np.errstate(divide="ignore"):
        scores = np.log([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
    assert 0.1 <= fit_temperature(scores, np.asarray([0, 1, 1])) <= 10
    found = calibrate(scores[:2], np.asarray([0, 1]))
    assert found.error == pytest.approx(0)
    with pytest.raises(InputError, match="at least 2 held-out rows"):
        calibrate(scores[:1], np.asarray([0]))


def test_each_class_is_judged():
    """With 10 % of yes and shifted probabilities the largest probabilities look calibrated."""
    rng = np.random.default_rng(0)
    evidence = rng.normal(-2.6, 1.2, 4000)
    targets = (rng.random(4000) < 1 / (1 + np.exp(-evidence))).astype(int)
    true = calibrate(np.stack([np.zeros(4000), evidence], 1), targets)
    assert true.calibrated
    assert [each.calibrated for each in true.classes] == [True, True]
    assert true.classes[1].mean == pytest.approx(true.classes[1].rate, abs=0.01)
    shifted = calibrate(np.stack([np.zeros(4000), evidence + 0.8], 1), targets)
    assert not shifted.calibrated
    assert not shifted.classes[1].calibrated
    assert shifted.classes[1].mean > shifted.classes[1].rate + 0.04
    # Each class on its own has no more false alarms than one in twenty.
    alarms = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        probabilities = rng.dirichlet(np.ones(8) * 0.3, 400)
        drawn = (probabilities.cumsum(1) > rng.random((400, 1))).argmax(1)
        with np.errstate(divide="ignore"):
            found = calibrate(np.log(probabilities), drawn)
        alarms += not all(each.calibrated for each in found.classes)
    assert alarms <= 10


def test_a_temperature_helps_only_where_it_does_when_applied():
    scores, targets = calibrated_rows(1500, 5)
    assert calibrate(3 * scores, targets).helps
    rng = np.random.default_rng(0)
    evidence = rng.normal(-2.6, 1.2, 3000)
    labels = (rng.random(3000) < 1 / (1 + np.exp(-evidence))).astype(int)
    shifted = calibrate(np.stack([np.zeros(3000), evidence + 0.8], 1), labels)
    assert not shifted.helps
    assert all(each.shifted for each in shifted.classes)


WORDS = np.asarray([f"w{i}" for i in range(400)])


def sample(seed: int, texts: int, shift: float = 0.0, length: int = 25) -> list[list[str]]:
    """Texts of words with Zipf's frequencies; ``shift`` of the tokens are of fifty other words."""
    rng = np.random.default_rng(seed)
    rates = 1 / np.arange(1, 351)
    own = np.concatenate([(1 - shift) * rates / rates.sum(), np.full(50, shift / 50)])
    return [WORDS[rng.choice(400, rng.poisson(length) + 1, p=own)].tolist() for _ in range(texts)]


def test_samples_of_one_kind_cannot_be_told_apart():
    drift = compare_texts(sample(1, 300), sample(2, 900))
    assert drift.separability == pytest.approx(0.5, abs=0.07)
    assert "are similar" in drift.summary
    assert max(abs(one.score) for one in drift.tokens) < 4.5
    assert drift.lengths == pytest.approx(drift.unlabelled_lengths, abs=3)


def test_texts_of_another_kind_are_told_apart():
    drift = compare_texts(sample(1, 300, shift=0.15), sample(2, 900, length=60))
    assert drift.separability is not None
    assert drift.separability > 0.9
    assert "differ clearly" in drift.summary
    assert drift.unknown == pytest.approx(0.15, abs=0.02)
    assert drift.unlabelled_unknown < 0.05
    own = [one for one in drift.tokens if one.score > 0]
    assert all(int(one.token[1:]) >= 350 and one.unlabelled == 0 for one in own)
    assert len(own) == 12
    assert drift.lengths[2] < drift.unlabelled_lengths[2]


def test_the_figure_is_the_area_under_the_curve():
    # One word decides, and half of the labelled texts have it: two scores for all texts.
    labelled, unlabelled = [["a"] * 5] * 50 + [["b"] * 5] * 50, [["b"] * 5] * 100
    truth, scores = [1] * 100 + [0] * 100, [1] * 50 + [0] * 150
    drift = compare_texts(labelled, unlabelled)
    assert drift.separability == pytest.approx(roc_auc_score(truth, scores), abs=1e-6)


def test_a_token_of_one_text_is_not_that_of_a_side():
    drift = compare_texts([*sample(1, 100), ["mine"] * 500], sample(2, 100))
    assert "mine" not in {one.token for one in drift.tokens}


@pytest.mark.parametrize("labelled", [[], [[]], [["a", "b"]]])
def test_too_few_texts(labelled: list[list[str]]):
    drift = compare_texts(labelled, [["a"]] * 30)
    assert drift.separability is None
    assert "cannot be measured" in drift.summary


def law(rows: float) -> float:
    return 0.92 - 1.1 * rows**-0.4


def made(seed: int, noise: float = 0.003, draws: int = 3, rows: int = 4000):
    rng = np.random.default_rng(seed)
    places = (rows // 8, rows // 4, rows // 2, rows)
    return [(n, *(law(n) + rng.normal(0, noise, draws))) for n in places]


def test_a_curve_without_noise_is_recovered():
    curve = fit_learning_curve([(n, law(n)) for n in (250, 500, 1000, 2000, 4000)])
    assert curve.known
    assert curve.limit == pytest.approx(0.92, abs=1e-6)
    assert curve.slope == pytest.approx(1.1, rel=1e-4)
    assert curve.exponent == pytest.approx(0.4)
    assert [one.at for one in curve.further] == [8000, 16000]
    assert [one.score for one in curve.further] == pytest.approx([law(8000), law(16000)], abs=1e-6)
    assert curve.further[0].gain == pytest.approx(law(8000) - law(4000), abs=1e-6)


def test_gains_are_those_over_the_rows_of_the_final_model():
    """Curves were measured on the rows of a fold, and "twice as many rows" were 1.6 times."""
    curve = fit_learning_curve([(n, law(n)) for n in (100, 200, 400, 800)], start=1000)
    assert [one.at for one in curve.further] == [2000, 4000]
    assert curve.further[0].gain == pytest.approx(law(2000) - law(1000), abs=1e-6)
    assert curve.start == 1000


def test_the_law_lies_within_the_interval():
    inside = [0, 0]
    for seed in range(40):
        curve = fit_learning_curve(made(seed))
        for i, one in enumerate(curve.further):
            inside[i] += one.low <= law(one.at) <= one.high
            assert 0 <= one.low <= one.high <= 1
    assert min(inside) >= 32  # 90 in 100 are expected; 32 of 40 allow for chance


def test_noise_and_few_points_are_recognised():
    noisy = fit_learning_curve(made(0, noise=0.05))
    assert not noisy.known
    assert not noisy.further  # the table and the picture show no estimate either
    assert noisy.fitted is not None
    assert noisy.fitted[0].max() == pytest.approx(noisy.at[-1])
    assert "vary too much" in noisy.reason
    few = fit_learning_curve(made(0)[:3])
    assert not few.known
    assert "scores at 4 numbers of rows are needed, but there are 3" in few.reason
    assert not few.further
    assert fit_learning_curve([]).reason


def test_a_flat_curve_is_known_to_bring_nothing():
    rng = np.random.default_rng(0)
    curve = fit_learning_curve([(n, *(0.8 + rng.normal(0, 0.002, 3))) for n in (1, 2, 4, 8)])
    assert curve.known
    assert curve.further[0].gain < 0.005


def test_minutes_of_one_training():
    rng = np.random.default_rng(0)
    points = [(m, 0.85 - 0.3 * m**-1.5 + rng.normal(0, 0.002)) for m in range(20)[1:]]
    curve = fit_learning_curve([(0, 0.1), *points], unit="minutes")
    assert curve.unit == "minutes"
    assert curve.at[0] == 1  # a power law has no value at 0
    assert curve.known
    assert curve.further[0].score == pytest.approx(0.85, abs=0.005)


def test_scores_stay_in_their_bounds():
    curve = fit_learning_curve([(n, 1 - 2 / n) for n in (8, 16, 32, 64)])
    assert max(one.high for one in curve.further) <= 1
    assert curve.limit == pytest.approx(1, abs=0.01)


def test_points_that_cannot_be_used():
    for point in ((8,), (8, float("nan"))):
        with pytest.raises(InputError, match="needs a position and scores"):
            fit_learning_curve([point])


PROBABILITIES = np.asarray([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4], [0.3, 0.7]])
TARGETS = np.asarray([0, 0, 1, 1])


def test_the_hardest():
    found = hardest_rows(PROBABILITIES, TARGETS, PROBABILITIES.argmax(1))[:2]
    assert [(one.row, one.true, one.predicted) for one in found] == [(1, 0, 1), (2, 1, 0)]
    assert [one.score for one in found] == pytest.approx([0.2, 0.4])


def test_the_most_typical_of_each_class():
    assert [one.row for one in typical_rows(PROBABILITIES, TARGETS, PROBABILITIES.argmax(1))] == [
        0,
        3,
    ]
    assert typical_rows(np.zeros((0, 2)), np.zeros(0, int), np.zeros(0, int)) == ()


def test_the_largest_errors():
    one, _ = largest_errors(np.asarray([1.0, 5.0]), np.asarray([1.5, 2.0]))
    assert (one.row, one.true, one.predicted, one.score) == (1, 2, 5, 3)
