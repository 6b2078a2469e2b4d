"""Power laws are recovered within their intervals; noise and few points are recognised."""

import numpy as np
import pytest

from ownbert.exceptions import InputError
from ownbert.fitting.report.learning_curve import fit_learning_curve


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
