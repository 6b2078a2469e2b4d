"""Temperatures and calibration errors of probabilities whose calibration is known."""

import numpy as np
import pytest
from sklearn.calibration import calibration_curve

from ownbert.exceptions import InputError
from ownbert.fitting.report.calibration import (
    calibrate,
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
