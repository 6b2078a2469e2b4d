"""Calibration: reliability of probabilities, and temperature scaling. N rows, C classes."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from ownbert.exceptions import InputError

# Temperatures beyond these bounds only come from a handful of rows.
_LOWEST, _HIGHEST = 0.1, 10.0
# Lower bound of log-probabilities: a probability of exactly 0 would have an infinite loss.
_FLOOR = -100.0
_BINS = 10
_NEARLY_1 = 0.1  # absolute log of temperatures that change little
_TOLERANCE = 0.01  # errors beyond chance that do not matter
_DRAWS = 200  # bootstrap samples for the error of calibrated probabilities


@dataclass(frozen=True)
class ReliabilityCurve:
    """Mean confidence, mean accuracy and number of predictions in bins of equal width; the means of
    empty bins are NaN."""

    confidence: np.ndarray
    accuracy: np.ndarray
    count: np.ndarray

    @property
    def error(self) -> float:
        """The expected calibration error: the mean gap, weighted by count."""
        used = self.count > 0
        gaps = np.abs(self.confidence - self.accuracy)[used]
        return float((gaps * self.count[used]).sum() / max(1, self.count.sum()))


@dataclass(frozen=True)
class ClassCalibration:
    """Calibration of the probabilities of one class.

    Args:
        mean: mean probability of the class.
        rate: share of the rows that have it.
        error: expected calibration error of its probabilities.
        by_chance: upper bound of the error of perfectly calibrated probabilities; it holds for all
            classes together in 95% of the cases.
        shifted: whether mean and rate differ by more than chance, which no temperature mends.
    """

    mean: float
    rate: float
    error: float
    by_chance: float
    shifted: bool

    @property
    def calibrated(self) -> bool:
        """Whether the error may be due to chance."""
        return self.error <= self.by_chance


@dataclass(frozen=True)
class Calibration:
    """Calibration error before and after temperature scaling.

    Args:
        temperature: divisor of the log-probabilities.
        error: expected calibration error.
        error_after: expected calibration error after scaling, by 2-fold cross-fitting.
        helps: whether scaling reduces this error, the mean error of the classes, and the log loss,
            and shifts the probabilities of no class; a temperature of nearly 1 does not.
        by_chance: 95th percentile of the error of perfectly calibrated probabilities, for the
            same number of rows.
        before: reliability curve without the temperature.
        after: reliability curve with the temperature.
        classes: calibration of each class without the temperature.
    """

    temperature: float
    error: float
    error_after: float
    helps: bool
    by_chance: float
    before: ReliabilityCurve
    after: ReliabilityCurve
    classes: tuple[ClassCalibration, ...]

    @property
    def calibrated(self) -> bool:
        """Whether all errors may be due to chance, or are too small to matter."""
        errors = [(own.error, own.by_chance) for own in (self, *self.classes)]
        return all(error <= chance + _TOLERANCE for error, chance in errors)


def fit_temperature(log_probabilities: np.ndarray, targets: np.ndarray) -> float:
    """The temperature that maximises the likelihood of held-out rows, from their log-probabilities
    or logits (N, C) and the indices of their classes (N). It is between 0.1 and 10; above 1, the
    model is overconfident.

    Source: Guo et al. 2017, "On Calibration of Modern Neural Networks", section 4.2.
    """
    from scipy.optimize import minimize_scalar
    from scipy.special import log_softmax

    scores, rows = np.maximum(log_probabilities, _FLOOR), np.arange(len(targets))

    def loss(log_temperature: float) -> float:
        return -float(log_softmax(scores / np.exp(log_temperature), 1)[rows, targets].mean())

    bounds = (np.log(_LOWEST), np.log(_HIGHEST))
    optimum: Any = minimize_scalar(loss, bounds=bounds, method="bounded")
    return float(np.exp(optimum.x))


def reliability_curve(probabilities: np.ndarray, targets: np.ndarray) -> ReliabilityCurve:
    """Accuracy as a function of confidence, the largest probability of a row (N, C)."""
    confidence, hits = probabilities.max(1).clip(0, 1), probabilities.argmax(1) == targets
    bins = _bins_of(confidence)
    count = np.bincount(bins, minlength=_BINS)
    with np.errstate(invalid="ignore"):
        means = [np.bincount(bins, values, _BINS) / count for values in (confidence, hits)]
    return ReliabilityCurve(means[0], means[1], count)


def calibrate(log_probabilities: np.ndarray, targets: np.ndarray) -> Calibration:
    """Fit the temperature on held-out rows, with log-probabilities (N, C) and the indices of their
    classes (N), and compute the calibration error before and after.

    Raises:
        InputError: there are fewer than 2 rows.
    """
    from scipy.special import log_softmax

    if len(targets) < 2:
        raise InputError("calibration needs at least 2 held-out rows")
    scores = np.maximum(log_probabilities, _FLOOR)
    probabilities = np.exp(log_softmax(scores, 1))
    # Cross-fitting: each half is evaluated with the temperature of the other half.
    scaled, halves = np.empty_like(scores), np.arange(len(targets)) % 2
    for half in (0, 1):
        temperature = fit_temperature(scores[halves != half], targets[halves != half])
        scaled[halves == half] = np.exp(log_softmax(scores[halves == half] / temperature, 1))
    both = probabilities, scaled
    before, after = (reliability_curve(own, targets) for own in both)
    classes, classes_after = (_of_classes(own, targets) for own in both)
    of_classes = [np.mean([own.error for own in found]) for found in (classes, classes_after)]
    losses = [_log_loss(own, targets) for own in both]
    pairs = (before.error, after.error), of_classes, losses
    temperature = fit_temperature(scores, targets)
    return Calibration(
        temperature=temperature,
        error=before.error,
        error_after=after.error,
        helps=all(after < before for before, after in pairs)
        and not any(own.shifted for own in classes_after)
        and abs(np.log(temperature)) > _NEARLY_1,
        by_chance=_error_by_chance(probabilities.max(1)),
        before=before,
        after=after,
        classes=classes,
    )


def _log_loss(probabilities: np.ndarray, targets: np.ndarray) -> float:
    own = probabilities[np.arange(len(targets)), targets]
    return -float(np.log(np.maximum(own, np.exp(_FLOOR))).mean())


def _of_classes(probabilities: np.ndarray, targets: np.ndarray) -> tuple[ClassCalibration, ...]:
    """The calibration of each class. Gaps in bins are nearly normal, with the variance of their
    probabilities, so their absolute values are half-normal."""
    from scipy.stats import norm

    rows, size = probabilities.shape
    deviations = float(norm.ppf(1 - 0.05 / size))
    found = []
    for label in range(size):
        own, hits = probabilities[:, label].clip(0, 1), targets == label
        bins = _bins_of(own)
        gaps = np.abs(np.bincount(bins, own - hits, _BINS)).sum() / rows
        variances = np.bincount(bins, own * (1 - own), _BINS) / rows**2
        mean = np.sqrt(2 / np.pi * variances).sum()
        spread = np.sqrt((1 - 2 / np.pi) * variances.sum())
        chance = float(mean + deviations * spread)
        shift = abs(own.mean() - hits.mean()) > deviations * np.sqrt(variances.sum())
        values = float(own.mean()), float(hits.mean()), float(gaps)
        found.append(ClassCalibration(*values, chance, bool(shift)))
    return tuple(found)


def _error_by_chance(confidence: np.ndarray) -> float:
    rng, bins = np.random.default_rng(0), _bins_of(confidence)
    errors = []
    for _ in range(_DRAWS):
        gaps = confidence - (rng.random(len(confidence)) < confidence)
        errors.append(np.abs(np.bincount(bins, gaps, _BINS)).sum() / len(confidence))
    return float(np.quantile(errors, 0.95))


def _bins_of(confidence: np.ndarray) -> np.ndarray:
    return np.minimum((confidence * _BINS).astype(int), _BINS - 1)
