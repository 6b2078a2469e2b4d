"""Blends: non-negative weighted sums of several models' logits for the same rows.

N rows, C labels or regression values. "Scores" are log-probabilities (classify), logits
(multilabel) or values (regress). Hence a blend of probabilities is their weighted geometric mean,
and a common factor of the weights is a temperature.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import minimize

from ownbert.views.linear_models import Targets, log_softmax, loss_and_slope

# Strength of the priors, as a number of rows: weights are shrunk towards their mean, and the factor
# of the log label frequencies towards 1.
_PRIOR_ROWS, _PRIOR_ROWS_OF_FREQUENCIES = 5.0, 1.0
# Members with a smaller share of the weights are dropped.
_SMALLEST_SHARE = 0.02
_LEAST, _MOST = 1e-7, 30.0
_LARGEST_WEIGHT = 10.0
_LEAST_FACTOR = 0.05  # of calibrated scores
# Rows are weighted by this power of the inverse label frequency if labels are imbalanced. 1 would
# optimise recall, 0 accuracy; macro-F1 lies in between (docs/lab/linear-models.md).
_BALANCE = 0.5
_FOLDS = 5
# Number of blocks of rows for the standard error of a difference in loss.
_BLOCKS = 100


# See ``fit_decided``.
Decide = Callable[[np.ndarray, Targets, np.ndarray], np.ndarray]


def to_scores(task: str, outputs: np.ndarray) -> np.ndarray:
    """Convert a model's outputs, probabilities or values (N, C), to scores."""
    outputs = np.asarray(outputs, dtype=np.float64)
    if task == "classify":
        return log_softmax(np.log(np.maximum(outputs, _LEAST)))
    if task == "multilabel":
        inside = np.clip(outputs, _LEAST, 1 - _LEAST)
        return np.log(inside) - np.log1p(-inside)
    return outputs


def from_scores(task: str, scores: np.ndarray) -> np.ndarray:
    """Convert scores, normalised or not, to probabilities or values (N, C)."""
    if task == "classify":
        return np.exp(log_softmax(scores))
    if task == "multilabel":
        return 1 / (1 + np.exp(-np.clip(scores, -_MOST, _MOST)))
    return scores


def blend(
    members: Sequence[np.ndarray],
    weights: np.ndarray,
    offsets: np.ndarray | float = 0.0,
    unknown: Sequence[np.ndarray] | None = None,
) -> np.ndarray:
    """The weighted sum (N, C) of the members' scores (N, C), plus offsets (C).

    Rows without any feature known to the members get the mean of the members' priors instead,
    because the sum would be overconfident in the most frequent label. ``unknown``: for each member
    (N) whether it knows no feature of a row; None: all know some.
    """
    total: np.ndarray = sum(w * m for w, m in zip(weights, members, strict=True)) + offsets  # pyright: ignore
    if unknown is not None and (rows := rows_without_features(weights, unknown)).any():
        used = [m[rows] for w, m in zip(weights, members, strict=True) if w > 0]
        total[rows] = np.mean(used, axis=0)
    return total


def rows_without_features(
    weights: Sequence[float] | np.ndarray, unknown: Sequence[np.ndarray]
) -> np.ndarray:
    """(N) whether no member with a weight knows any feature of a row; see ``blend``."""
    return np.all([each for w, each in zip(weights, unknown, strict=True) if w > 0], axis=0)


def loss(targets: Targets, scores: np.ndarray) -> float:
    """The mean loss of scores: cross entropy, or half the squared error for regression."""
    return loss_and_slope(targets, scores)[0]


def clearly_better(
    targets: Targets, scores: np.ndarray, others: np.ndarray, errors: float = 1.0
) -> bool:
    """Whether the mean loss of scores is smaller than that of others for the same rows by more than
    a multiple of the standard error of the difference."""
    blocks = np.array_split(np.arange(len(targets)), min(len(targets), _BLOCKS))
    gains = [loss(targets[b], others[b]) - loss(targets[b], scores[b]) for b in blocks]
    return bool(np.mean(gains) > errors * np.std(gains) / math.sqrt(len(gains)))


def fit_blend(
    members: Sequence[np.ndarray],
    targets: Targets,
    counts: np.ndarray | None = None,
    *,
    offsets: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Fit the weights and the offsets that minimise the blend's loss on held-out rows.

    The weights are shrunk towards equal ones, and members with negligible weight are dropped.
    Weights sum to 1 for regression. For labels, one additional row counts as misclassified:
    otherwise models that are right on every held-out row would be made as confident as the bounds
    allow (Platt 1999).

    In multi-label tasks each label has an offset, shrunk towards 0, that makes its mean probability
    right (Platt 1999).

    In single-label tasks the offsets optimise macro-F1. Log-probabilities favour frequent labels,
    but macro-F1 counts all labels equally. So a multiple of the log label frequencies is subtracted
    (logit adjustment, Menon et al. 2021). The factor is fitted together with the weights as one
    more member, shrunk towards 1, and rows of frequent labels get smaller weights.

    Args:
        members: each model's (N, C) scores of rows that it was not trained on.
        counts: (C) label counts of the training rows; None for other tasks.
        offsets: (C) offsets to keep; by default they are fitted.

    Returns:
        The weights, and offsets (C): zeros for regression, and for balanced labels in single-label
            tasks.
    """
    if not members:
        raise ValueError("nothing to blend")
    logs = np.zeros(members[0].shape[1])
    if counts is not None and counts.min() < counts.max():
        logs = _centred_logs(counts)
    weights, fitted = _minimise(members, targets, logs, offsets)
    keep = weights >= _SMALLEST_SHARE * weights.sum()
    if not keep.all():
        kept = [m for m, is_kept in zip(members, keep, strict=True) if is_kept]
        weights[:] = 0
        weights[keep], fitted = _minimise(kept, targets, logs, offsets)
    return weights, fitted


class FittedBlend(NamedTuple):
    """A blend with true probabilities, and how it chooses labels.

    Args:
        weights: weight of each member.
        offsets: (C) added to the weighted logits, so that probabilities are calibrated.
        decision: (C) added to log-probabilities to choose the label (zeros: the most probable one);
            for several labels, to log-odds, of which those above 0 are predicted.
    """

    weights: np.ndarray
    offsets: np.ndarray
    decision: np.ndarray


def fit_decided(
    members: Sequence[np.ndarray],
    targets: Targets,
    counts: np.ndarray | None = None,
    *,
    balanced: bool = True,
    decision: np.ndarray | None = None,
    offsets: np.ndarray | None = None,
    decide: Decide | None = None,
) -> FittedBlend:
    """Fit a blend whose probabilities are true, with a separate rule that chooses labels; for the
    other arguments, see ``fit_blend``.

    The sum of several models' log-probabilities counts the label frequencies several times, and the
    offsets of ``fit_blend`` favour rare labels, which macro-F1 needs. So a temperature and a
    multiple of the log label frequencies are fitted to the blend's log loss, and what is left of
    the offsets is the decision.

    Args:
        balanced: whether all labels count equally, as in macro-F1; otherwise the most probable
            label is chosen.
        decision: (C) a decision to keep; by default it is fitted.
        decide: chooses another decision (C) from calibrated scores (N, C), targets and the one of
            the blend.
    """
    weights, shift = fit_blend(members, targets, counts if balanced else None, offsets=offsets)
    found, scores = np.zeros(targets.size), blend(members, weights)
    if counts is not None and counts.min() < counts.max():
        logs = _centred_logs(counts)
        temperature, multiple = _calibration(scores, targets, logs)
        found = temperature * shift - multiple * logs if balanced else found
        weights, scores, shift = temperature * weights, temperature * scores, multiple * logs
    if decision is None:
        decision = found if decide is None else decide(scores + shift, targets, found)
    return FittedBlend(weights, shift, decision)


def _centred_logs(counts: np.ndarray) -> np.ndarray:
    """(C) log label frequencies minus their mean."""
    logs = np.log(counts + 0.5)
    return logs - logs.mean()


def _calibration(scores: np.ndarray, targets: Targets, logs: np.ndarray) -> tuple[float, float]:
    """The factor of scores (N, C), and the multiple of the log label frequencies (C) added to them,
    that minimise the log loss; the latter is shrunk towards 0."""
    smoothing = 1 / (len(targets) + 2)
    strength = _PRIOR_ROWS_OF_FREQUENCIES / len(targets)

    def objective(parameters: np.ndarray) -> tuple[float, np.ndarray]:
        factor, multiple = parameters
        own, slope = loss_and_slope(targets, factor * scores + multiple * logs, smoothing=smoothing)
        gradient = np.asarray([(slope * scores).sum(), slope.sum(0) @ logs])
        return own + strength * multiple**2, gradient + np.asarray([0.0, 2 * strength * multiple])

    bounds = [(_LEAST_FACTOR, _LARGEST_WEIGHT), (-_LARGEST_WEIGHT, _LARGEST_WEIGHT)]
    start = np.asarray([1.0, 0.0])
    optimum = minimize(objective, start, jac=True, method="L-BFGS-B", bounds=bounds).x
    return float(optimum[0]), float(optimum[1])


@dataclass(frozen=True, eq=False)
class Decided:
    """A model's results for held-out rows, by cross-fitting: what is fitted is fitted on other
    rows, so that metrics are unbiased estimates."""

    scores: np.ndarray  # (N, C) of calibrated probabilities
    decision: np.ndarray  # (N, C) see ``FittedBlend``
    unknown: np.ndarray  # (N) whether no member knows a feature of a row

    def __len__(self) -> int:
        return len(self.scores)


def cross_fitted(
    members: Sequence[np.ndarray],
    targets: Targets,
    counts: np.ndarray | None = None,
    *,
    unknown: Sequence[np.ndarray] | None = None,
    clusters: np.ndarray | None = None,
    **fitting: Any,
) -> Decided:
    """The blend's results by cross-fitting, in which rows of a cluster (N) stay together; see
    ``fit_decided`` for ``fitting`` and the other arguments, and ``blend`` for ``unknown``."""
    rows = len(targets)
    numbers = np.arange(rows)
    if clusters is not None and len(set(clusters.tolist())) > 1:
        numbers = np.unique(clusters, return_inverse=True)[1]
    several = int(numbers.max()) + 1
    shuffled = np.random.default_rng(0).permutation(several)
    part = (shuffled % max(2, min(_FOLDS, several)))[numbers]
    shape = rows, members[0].shape[1]
    found = Decided(np.zeros(shape), np.zeros(shape), np.zeros(rows, dtype=bool))
    for number in range(part.max() + 1):
        in_part = part == number
        others, rest = [m[~in_part] for m in members], targets[~in_part]
        fitted = fit_decided(others, rest, counts, **fitting)
        without = None if unknown is None else [each[in_part] for each in unknown]
        parts = [m[in_part] for m in members]
        found.scores[in_part] = blend(parts, fitted.weights, fitted.offsets, without)
        found.decision[in_part] = fitted.decision
        if without is not None:
            found.unknown[in_part] = rows_without_features(fitted.weights, without)
    return found


def _minimise(
    members: Sequence[np.ndarray],
    targets: Targets,
    logs: np.ndarray,
    known: np.ndarray | None,
) -> tuple[np.ndarray, np.ndarray]:
    """Fit weights and offsets (C). A multiple of the log label frequencies ``logs`` (C) is
    subtracted unless all are 0; ``known`` (C): offsets to keep instead."""
    count, numbers = len(members), targets.task == "regress"
    scale = max(float(np.var(targets.values)), 1e-12) if numbers else 1.0
    parts, each_row = list(members), None
    # Basis of the offsets with free coefficients; the values that these are shrunk towards, and
    # their bounds.
    free, drawn_to, bounds = np.zeros((0, targets.size)), 0.0, (-_MOST, _MOST)
    if logs.any():
        if known is None:
            free, drawn_to, bounds = -logs[None, :], 1.0, (0.0, _LARGEST_WEIGHT)
        frequency = np.bincount(targets.values, minlength=targets.size)
        each_row = frequency[targets.values] ** -_BALANCE
    elif targets.task == "multilabel" and known is None:
        free = np.eye(targets.size)
    smoothing = 1 / (len(targets) + 2)
    priors = np.repeat([_PRIOR_ROWS, _PRIOR_ROWS_OF_FREQUENCIES], [count, len(free)])
    # The loss of multi-label rows is the mean over labels.
    terms = targets.size if targets.task == "multilabel" else 1
    strengths = priors / (max(1, len(targets)) * terms)

    def offsets(shares: np.ndarray) -> np.ndarray:
        return shares @ free if known is None else known

    def objective(parameters: np.ndarray) -> tuple[float, np.ndarray]:
        weights, shares = parameters[:count], parameters[count:]
        if numbers:  # weights sum to 1, so only their ratios are free
            total = weights.sum()
            own, slope = loss_and_slope(targets, blend(parts, weights / total))
            each = np.asarray([(m * slope).sum() for m in parts])
            own, gradient = own / scale, (each - (each * weights).sum() / total) / total / scale
        else:
            scores = blend(parts, weights) + offsets(shares)
            own, slope = loss_and_slope(targets, scores, each_row, smoothing=smoothing)
            gradient = np.asarray([(m * slope).sum() for m in parts])
            gradient = np.concatenate([gradient, free @ slope.sum(0)])
        deviations = np.concatenate([weights - weights.mean(), shares - drawn_to])
        return own + float(strengths @ deviations**2), gradient + 2 * strengths * deviations

    start = np.repeat([1.0 / count, drawn_to], [count, len(free)])
    both = [(1e-6 if numbers else 0.0, _LARGEST_WEIGHT)] * count + [bounds] * len(free)
    optimum = minimize(objective, start, jac=True, method="L-BFGS-B", bounds=both).x
    weights, shares = np.maximum(optimum[:count], 0), optimum[count:]
    if weights.sum() <= 0:
        weights = start[:count]
    return weights / weights.sum() if numbers else weights, offsets(shares)
