"""The expected gain from more rows or more minutes: a power law fitted to the scores."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ownbert.exceptions import InputError

_DRAWS = 1000  # samples of the fitted curve
_HIGHEST = 1.0  # score
_MULTIPLES = (2, 4)  # of the start, to extrapolate to
_EXPONENTS = np.linspace(0.05, 2.0, 40)
_INTERVAL = (0.05, 0.95)
# A gain is reported if its interval is no wider than this or half of the rise so far, and if the
# standard error of the scores is at most a third of that.
_WIDEST = 0.02
_FEWEST = 4  # points: a curve with three parameters fits any three
_SHOWN = 40  # points of the fitted curve


@dataclass(frozen=True)
class Extrapolation:
    """The expected score at ``at`` rows (or minutes) and its gain over the start, each with a 90%
    interval."""

    at: float
    score: float
    low: float
    high: float
    gain: float
    gain_low: float
    gain_high: float


@dataclass(frozen=True)
class LearningCurve:
    """Scores by rows (or minutes), with a fitted power law.

    Args:
        unit: "rows" or "minutes".
        at: (P) numbers of rows or minutes.
        scores: (P) mean scores.
        limit: parameter of ``score = limit - slope at^-exponent``, None if there are too few
            points, like ``slope`` and ``exponent``.
        fitted: (4, 40) places, scores, lower and upper ends of the interval.
        further: extrapolations to multiples of the start; empty if the gain is unknown.
        reason: why the gain is unknown; "" if it is known.
        start: number of rows or minutes of the final model, which gains are relative to.
    """

    unit: str
    at: np.ndarray
    scores: np.ndarray
    limit: float | None = None
    slope: float | None = None
    exponent: float | None = None
    fitted: np.ndarray | None = None
    further: tuple[Extrapolation, ...] = ()
    reason: str = ""
    start: float = 0.0

    @property
    def known(self) -> bool:
        """Whether the gain is known."""
        return not self.reason


def fit_learning_curve(
    points: Iterable[Sequence[float]], *, unit: str = "rows", start: float | None = None
) -> LearningCurve:
    """Fit ``score = a - b n^-c`` and extrapolate it.

    The uncertainty comes from a parametric bootstrap: scores are resampled around the fitted curve
    with the residual standard deviation, which is itself sampled because a few scores estimate it
    poorly.

    Args:
        points: (rows, score, further draws of the score with as many rows); or (minutes, score) of
            the checkpoints of one training. Points at 0 are left out.
        unit: "rows" or "minutes".
        start: number of rows that the final model learns from; by default the largest of the
            points.

    Source: Hestness et al. 2017, "Deep Learning Scaling is Predictable, Empirically", section 3;
    Efron and Tibshirani 1993, "An Introduction to the Bootstrap", section 6.5.
    """
    at, means, counts, squares = _summarised(points)
    if len(at) < _FEWEST:
        reason = f"scores at {_FEWEST} numbers of {unit} are needed, but there are {len(at)}"
        return LearningCurve(unit, at, means, reason=reason)
    scale, weights = at[-1], counts / counts.sum()
    basis = (at / scale)[:, None] ** -_EXPONENTS
    limit, slope, exponent = (v[0] for v in _fit(basis, means[None], weights))
    fit = limit - slope * (at / scale) ** -exponent
    freedom = max(1, int(counts.sum()) - 3)
    deviation = np.sqrt((squares + (counts * (means - fit) ** 2).sum()) / freedom)  # of one draw

    rng = np.random.default_rng(0)
    noise = deviation * np.sqrt(freedom / rng.chisquare(freedom, _DRAWS))[:, None]
    draws = fit + noise * rng.standard_normal((_DRAWS, len(at))) / np.sqrt(counts)
    limits, slopes, exponents = _fit(basis, draws, weights)

    def predicted(place: float | np.ndarray) -> np.ndarray:
        ratio = np.atleast_1d(place)[:, None] / scale
        return (limits - slopes * ratio**-exponents).clip(0, _HIGHEST)

    def best(place: float | np.ndarray) -> np.ndarray:
        return (limit - slope * (np.asarray(place) / scale) ** -exponent).clip(0, _HIGHEST)

    start = float(scale if start is None else start)
    further = []
    for place in (start * multiple for multiple in _MULTIPLES):
        low, high = np.quantile(predicted(place)[0], _INTERVAL).tolist()
        least, most = np.quantile(predicted(place)[0] - predicted(start)[0], _INTERVAL).tolist()
        score, gain = float(best(place)), float(best(place) - best(start))
        further.append(Extrapolation(place, score, low, high, gain, least, most))
    width = further[0].gain_high - further[0].gain_low
    rise, error = float(fit[-1] - fit[0]), float(deviation / np.sqrt(counts.min()))
    reason = ""
    if width > max(_WIDEST, rise / 2):
        reason = f"the scores vary too much: the gain is known to within {width:.3f} only"
    elif error > max(_WIDEST, rise) / 3:
        reason = f"the scores vary too much: by {error:.3f}, while they rise by {rise:.3f}"
    if reason:
        further = []
    places = np.geomspace(at[0], max([scale, *(f.at for f in further)]), _SHOWN)
    fitted = np.stack([places, best(places), *np.quantile(predicted(places), _INTERVAL, axis=1)])
    slope_in_units = float(slope * scale**exponent)
    return LearningCurve(
        unit, at, means, float(limit), slope_in_units, float(exponent), fitted,
        tuple(further), reason, start,
    )  # fmt: skip


def _summarised(
    points: Iterable[Sequence[float]],
) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
    """Places, mean scores, numbers of draws, and the sum of squared deviations of the draws."""
    scores: dict[float, list[float]] = {}
    for point in points:
        place, *draws = map(float, point)
        if not draws or not np.isfinite([place, *draws]).all():
            raise InputError(
                "a point of a learning curve needs a position and scores, not {point}", point
            )
        if place > 0:  # a power law has no value at 0
            scores.setdefault(place, []).extend(draws)
    at = np.asarray(sorted(scores))
    means = np.asarray([np.mean(scores[place]) for place in at])
    counts = np.asarray([len(scores[place]) for place in at], dtype=float)
    squares = sum(float(np.var(draws)) * len(draws) for draws in scores.values())
    return at, means, counts, squares


def _fit(
    basis: np.ndarray, scores: np.ndarray, weights: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Fit limit, slope and exponent, each (draws), to scores (draws, P) by weighted least squares.

    For a fixed exponent the curve is a straight line in ``n^-c``; the exponent is chosen on a grid,
    whose ``n^-c`` are the ``basis`` (P, exponents).
    """
    x, y, w = basis.T[None], scores[:, None], weights
    x_mean, y_mean = (x * w).sum(-1, keepdims=True), (y * w).sum(-1, keepdims=True)
    covariance = (w * (x - x_mean) * (y - y_mean)).sum(-1)
    slope = np.maximum(0, -covariance / (w * (x - x_mean) ** 2).sum(-1))
    limit = y_mean[..., 0] + slope * x_mean[..., 0]
    over = limit > _HIGHEST
    through = (w * x * (_HIGHEST - y)).sum(-1) / (w * x**2).sum(-1)
    slope, limit = np.where(over, np.maximum(0, through), slope), np.where(over, _HIGHEST, limit)
    errors = (w * (limit[..., None] - slope[..., None] * x - y) ** 2).sum(-1)
    chosen = errors.argmin(1)[:, None]
    return (
        np.take_along_axis(limit, chosen, 1)[:, 0],
        np.take_along_axis(slope, chosen, 1)[:, 0],
        _EXPONENTS[chosen[:, 0]],
    )
