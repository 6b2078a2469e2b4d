"""The statistics of a report. N rows, C classes.

Calibration: reliability of probabilities, and temperature scaling. Differences between labelled and
unlabelled texts: lengths, words, separability. The expected gain from more rows or more minutes: a
power law fitted to the scores.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from ownbert.exceptions import InputError
from ownbert.language.messages import Message
from ownbert.tasks.metrics import auroc

# Temperatures beyond these bounds only come from a handful of rows.
_LOWEST, _HIGHEST = 0.1, 10.0
# Lower bound of log-probabilities: a probability of exactly 0 would have an infinite loss.
_FLOOR = -100.0
_BINS = 10
_NEARLY_1 = 0.1  # absolute log of temperatures that change little
_TOLERANCE = 0.01  # errors beyond chance that do not matter
_RESAMPLED = 200  # bootstrap samples for the error of calibrated probabilities


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
    """Calibration of the probabilities of one class."""

    mean: float  # of its probabilities
    rate: float  # share of the rows that have it
    error: float  # expected calibration error of its probabilities
    # Upper bound of the error of perfectly calibrated probabilities; it holds for all classes
    # together in 95% of the cases.
    by_chance: float
    # Whether mean and rate differ by more than chance, which no temperature mends.
    shifted: bool

    @property
    def calibrated(self) -> bool:
        """Whether the error may be due to chance."""
        return self.error <= self.by_chance


@dataclass(frozen=True)
class Calibration:
    """Calibration error before and after temperature scaling."""

    temperature: float  # divisor of the log-probabilities
    error: float  # expected calibration error
    error_after: float  # after scaling, by 2-fold cross-fitting
    # Whether scaling reduces this error, the mean error of the classes, and the log loss, and
    # shifts the probabilities of no class; a temperature of nearly 1 does not.
    helps: bool
    by_chance: float  # 95th percentile of the error of as many calibrated probabilities
    before: ReliabilityCurve
    after: ReliabilityCurve
    classes: tuple[ClassCalibration, ...]  # without the temperature

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
    for _ in range(_RESAMPLED):
        gaps = confidence - (rng.random(len(confidence)) < confidence)
        errors.append(np.abs(np.bincount(bins, gaps, _BINS)).sum() / len(confidence))
    return float(np.quantile(errors, 0.95))


def _bins_of(confidence: np.ndarray) -> np.ndarray:
    return np.minimum((confidence * _BINS).astype(int), _BINS - 1)


QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
_FOLDS = 5
_TOKENS = 12  # per side, those that differ most
_MOST_TEXTS = 20_000  # per side; more do not change the figures
_FEWEST_TEXTS = 20  # per side, for measuring separability
# Minimum deviations of a difference: smaller ones occur by chance.
_CLEAR_DEVIATIONS = 3.0
_PRIOR = 1000.0  # pseudo-count of the prior, in tokens
_SMOOTHING = 0.5
# Separability below which texts are of the same kind, and above which they are of different kinds.
SAME_KIND, DIFFERENT_KIND = 0.65, 0.9


@dataclass(frozen=True)
class DriftToken:
    """A token that is more frequent on one side: the z-score of the log odds ratio, positive for
    labelled texts, and its share of all tokens of both sides."""

    token: str
    score: float
    labelled: float
    unlabelled: float


@dataclass(frozen=True)
class Drift:
    """Differences between labelled and unlabelled texts."""

    lengths: tuple[float, ...]  # tokens per labelled text at ``QUANTILES``
    unlabelled_lengths: tuple[float, ...]
    unknown: float  # share of the labelled texts' tokens that occur in no unlabelled text
    unlabelled_unknown: float
    tokens: tuple[DriftToken, ...]  # the most different ones, by score, labelled side first
    # AUROC of a naive Bayes score, 0.5 if the texts are indistinguishable; None with too few texts.
    separability: float | None
    summary: str  # in words


def compare_texts(labelled: Sequence[Sequence[str]], unlabelled: Sequence[Sequence[str]]) -> Drift:
    """Compare the tokens of labelled and unlabelled texts; large sets are sampled.

    Source: Monroe, Colaresi and Quinn 2008, "Fightin' Words", section 3.5.1 (log odds with an
    informative Dirichlet prior, equations 15, 16, 19 to 22).
    """
    rng = np.random.default_rng(0)
    sides = []
    for texts in (labelled, unlabelled):
        if len(texts) > _MOST_TEXTS:
            texts = [texts[i] for i in np.sort(rng.choice(len(texts), _MOST_TEXTS, replace=False))]
        sides.append(texts)
    ids: dict[str, int] = {}
    tokens = [[ids.setdefault(t, len(ids)) for t in text] for side in sides for text in side]
    texts = _counts(tokens, len(ids))
    owner = np.repeat([0, 1], [len(side) for side in sides])
    lengths = texts.sum(1)
    counts = np.stack([texts[owner == side].sum(0) for side in (0, 1)])
    totals = np.maximum(1, counts.sum(1))
    separability = _separability(texts, owner, rng)
    unknown = [float(counts[s][counts[1 - s] == 0].sum() / totals[s]) for s in (0, 1)]
    quantiles = [
        tuple(np.quantile(lengths[owner == side], QUANTILES).tolist())
        if (owner == side).any()
        else (0.0,) * len(QUANTILES)
        for side in (0, 1)
    ]
    scores = log_odds(counts)
    # A token that occurs in a single text says nothing about its side.
    scores[np.bincount(texts.indices, minlength=len(ids)) < 2] = 0
    names, order = list(ids), np.argsort(-scores, kind="stable")
    more = [i for i in order[:_TOKENS] if scores[i] > _CLEAR_DEVIATIONS]
    less = [i for i in order[-_TOKENS:] if scores[i] < -_CLEAR_DEVIATIONS]
    shares = counts / totals[:, None]
    return Drift(
        lengths=quantiles[0],
        unlabelled_lengths=quantiles[1],
        unknown=unknown[0],
        unlabelled_unknown=unknown[1],
        tokens=tuple(
            DriftToken(names[i], float(scores[i]), float(shares[0, i]), float(shares[1, i]))
            for i in more + less
        ),
        separability=separability,
        summary=_in_words(separability),
    )


def _counts(texts: Sequence[Sequence[int]], size: int) -> csr_array:
    """(texts, V) number of times that each text has each token."""
    starts = np.cumsum([0, *map(len, texts)])
    tokens = np.fromiter(chain.from_iterable(texts), int, starts[-1])
    counts = csr_array((np.ones(len(tokens)), tokens, starts), shape=(len(texts), size))
    counts.sum_duplicates()
    return counts


def log_odds(counts: np.ndarray) -> np.ndarray:
    """(V) z-scores of log odds ratios of counts (2, V); the prior is the pooled distribution."""
    both = counts.sum(0)
    prior = _PRIOR * both / max(1.0, both.sum())
    smoothed = counts + prior
    others = np.maximum(smoothed.sum(1, keepdims=True) - smoothed, _SMOOTHING)
    difference = np.log(smoothed[0] / others[0]) - np.log(smoothed[1] / others[1])
    return difference / np.sqrt(1 / smoothed[0] + 1 / smoothed[1])


def _separability(texts: csr_array, owner: np.ndarray, rng: np.random.Generator) -> float | None:
    """AUROC of texts' mean log-likelihood ratios, each from the counts of the other folds."""
    lengths = texts.sum(1)
    used = lengths > 0
    if min(used[owner == 0].sum(), used[owner == 1].sum()) < _FEWEST_TEXTS:
        return None
    fold = np.empty(len(owner), dtype=int)
    for side in (0, 1):  # stratified folds
        places = np.flatnonzero(owner == side)
        fold[rng.permutation(places)] = np.arange(len(places)) % _FOLDS
    # Means, not sums: lengths are compared separately. Texts are compared within their fold only,
    # because scores of different models have different scales.
    wins, pairs = 0.0, 0
    for held_out in range(_FOLDS):
        rates = []
        for side in (0, 1):
            counts = texts[(fold != held_out) & (owner == side)].sum(0) + _SMOOTHING
            rates.append(np.log(counts / counts.sum()))
        inside = used & (fold == held_out)
        scores = texts[inside] @ (rates[0] - rates[1]) / lengths[inside]
        first, second = (scores[owner[inside] == side] for side in (0, 1))
        wins += auroc(second, first) * len(first) * len(second)
        pairs += len(first) * len(second)
    return float(wins / pairs)


def _in_words(separability: float | None) -> str:
    if separability is None:
        return Message(
            "Fewer than {fewest_texts} texts on one side: the difference cannot be measured.",
            _FEWEST_TEXTS,
        )
    if separability < SAME_KIND:
        return "Labelled and unlabelled texts are similar."
    if separability < DIFFERENT_KIND:
        return "Labelled and unlabelled texts differ somewhat."
    return "Labelled and unlabelled texts differ clearly."


_DRAWS = 1000  # samples of the fitted curve
_HIGHEST_SCORE = 1.0  # score
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
    """Scores by rows (or minutes), with a fitted power law ``score = limit - slope at^-exponent``,
    whose parameters are None if there are too few points."""

    unit: str  # "rows" or "minutes"
    at: np.ndarray  # (P) numbers of rows or minutes
    scores: np.ndarray  # (P) means
    limit: float | None = None
    slope: float | None = None
    exponent: float | None = None
    fitted: np.ndarray | None = None  # (4, 40) places, scores, lower and upper ends
    # To multiples of the start; empty if the gain is unknown.
    further: tuple[Extrapolation, ...] = ()
    reason: str = ""  # why the gain is unknown
    start: float = 0.0  # rows or minutes of the final model, which gains are relative to

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
        template = "scores at {fewest} numbers of {unit!t} are needed, but there are {count}"
        reason = Message(template, _FEWEST, unit, len(at))
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
        return (limits - slopes * ratio**-exponents).clip(0, _HIGHEST_SCORE)

    def best(place: float | np.ndarray) -> np.ndarray:
        return (limit - slope * (np.asarray(place) / scale) ** -exponent).clip(0, _HIGHEST_SCORE)

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
        reason = Message(
            "the scores vary too much: the gain is known to within {width:.3f} only", width
        )
    elif error > max(_WIDEST, rise) / 3:
        reason = Message(
            "the scores vary too much: by {error:.3f}, while they rise by {rise:.3f}",
            *(error, rise),
        )
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
    over = limit > _HIGHEST_SCORE
    through = (w * x * (_HIGHEST_SCORE - y)).sum(-1) / (w * x**2).sum(-1)
    slope, limit = (
        np.where(over, np.maximum(0, through), slope),
        np.where(over, _HIGHEST_SCORE, limit),
    )
    errors = (w * (limit[..., None] - slope[..., None] * x - y) ** 2).sum(-1)
    chosen = errors.argmin(1)[:, None]
    return (
        np.take_along_axis(limit, chosen, 1)[:, 0],
        np.take_along_axis(slope, chosen, 1)[:, 0],
        _EXPONENTS[chosen[:, 0]],
    )
