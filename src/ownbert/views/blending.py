"""A blend: several models' scores of the same rows, added with weights that are not negative.

N rows, C labels or numbers. Scores are log-probabilities (classify), logits (multilabel) or numbers
(regress), so a blend of probabilities is their weighted geometric mean, and one weight for all of
them is a temperature.
"""

from collections.abc import Sequence

import numpy as np
from scipy.optimize import minimize

from ownbert.views.linear_models import Targets, log_softmax, loss_and_slope

# Weights are drawn towards their mean, and the multiple of the labels' frequencies towards 1, as
# strongly as so many rows draw them apart.
_PRIOR_ROWS, _PRIOR_ROWS_OF_FREQUENCIES = 5.0, 1.0
# Members with a smaller share of the weights are left out.
_SMALLEST_SHARE = 0.02
_LEAST, _MOST = 1e-7, 30.0
_LARGEST_WEIGHT = 10.0
# The power of 1 over a label's frequency that its rows count with where labels are not equally
# frequent. 1 would be for recall, where rows to predict have all labels equally often; 0 for
# accuracy. Macro-F1 is between the two (docs/lab/linear-models.md).
_BALANCE = 0.5


def to_scores(task: str, outputs: np.ndarray) -> np.ndarray:
    """What a model's outputs, probabilities or numbers (N, C), are as scores."""
    outputs = np.asarray(outputs, dtype=np.float64)
    if task == "classify":
        return log_softmax(np.log(np.maximum(outputs, _LEAST)))
    if task == "multilabel":
        inside = np.clip(outputs, _LEAST, 1 - _LEAST)
        return np.log(inside) - np.log1p(-inside)
    return outputs


def from_scores(task: str, scores: np.ndarray) -> np.ndarray:
    """Probabilities or numbers (N, C) from scores that need not be normalised."""
    if task == "classify":
        return np.exp(log_softmax(scores))
    if task == "multilabel":
        return 1 / (1 + np.exp(-np.clip(scores, -_MOST, _MOST)))
    return scores


def blend(members: Sequence[np.ndarray], weights: np.ndarray) -> np.ndarray:
    """The sum (N, C) of the members' scores with their weights."""
    return sum(w * scores for w, scores in zip(weights, members, strict=True))  # pyright: ignore


def loss(targets: Targets, scores: np.ndarray) -> float:
    """The mean loss of scores: cross entropy, or half the squared error of numbers."""
    return loss_and_slope(targets, scores)[0]


def fit_weights(members: Sequence[np.ndarray], targets: Targets) -> np.ndarray:
    """The weights that give held-out rows the least loss, drawn towards equal weights.

    Members with hardly any weight get none. For numbers the weights add up to 1. For labels, one
    row more than there are is taken to be answered wrongly: models that are right on every held-out
    row would otherwise be made as certain as the weights allow (Platt 1999).

    Args:
        members: of each model (N, C) scores of rows that it was not trained on.
        targets: of these rows.
    """
    return fit_blend(members, targets)[0]


def fit_blend(
    members: Sequence[np.ndarray], targets: Targets, counts: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """As ``fit_weights``, and what is added to the blend's scores.

    Where rows have several labels, each label has an offset of its own, drawn towards 0, with which
    its probabilities are right on average (Platt 1999).

    Where they have one, the offsets are for a good macro-F1. A model of log-probabilities gives
    frequent labels more than macro-F1 does, which counts every label the same. A multiple of the
    logarithms of their frequencies is subtracted (logit adjustment, Menon et al. 2021). It is
    fitted together with the weights, as one more member that is drawn towards 1, and the rows of a
    label count the less the more of them there are.

    Args:
        members, targets: as of ``fit_weights``.
        counts: (C) how many of the rows that were learnt from have each label; None for other
            tasks.

    Returns:
        The weights, and offsets (C): zeros for numbers, and where all labels of rows with one
        label are equally frequent.
    """
    if not members:
        raise ValueError("nothing to blend")
    logs = np.zeros(members[0].shape[1])
    if counts is not None and counts.min() < counts.max():
        logs = np.log(counts + 0.5)
        logs -= logs.mean()
    weights, offsets = _minimise(members, targets, logs)
    keep = weights >= _SMALLEST_SHARE * weights.sum()
    if not keep.all():
        kept = [m for m, own in zip(members, keep, strict=True) if own]
        weights[:] = 0
        weights[keep], offsets = _minimise(kept, targets, logs)
    return weights, offsets


def cross_fitted(
    members: Sequence[np.ndarray],
    targets: Targets,
    counts: np.ndarray | None = None,
    *,
    parts: int = 5,
    seed: int = 0,
) -> np.ndarray:
    """The blend's scores (N, C), each row with weights and offsets that were fitted on other rows.

    A metric of these is an estimate that owes nothing to having chosen the weights on the rows it
    is measured on. counts: as of ``fit_blend``.
    """
    rows = len(targets)
    part = np.random.default_rng(seed).permutation(rows) % max(2, min(parts, rows))
    found = np.zeros((rows, members[0].shape[1]))
    for number in range(part.max() + 1):
        own = part == number
        others, rest = [m[~own] for m in members], targets[~own]
        weights, offsets = fit_blend(others, rest, counts)
        found[own] = blend([m[own] for m in members], weights) + offsets
    return found


def _minimise(
    members: Sequence[np.ndarray], targets: Targets, logs: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Weights and offsets (C). logs: (C) of frequencies, a multiple of which is subtracted where
    they are not all 0."""
    count, numbers = len(members), targets.task == "regress"
    scale = _spread(targets) if numbers else 1.0
    parts, each_row = list(members), None
    # What is added to the scores, times numbers to be found: what these are drawn towards, and
    # their bounds.
    free, drawn_to, bounds = np.zeros((0, targets.size)), 0.0, (-_MOST, _MOST)
    if logs.any():
        free, drawn_to, bounds = -logs[None, :], 1.0, (0.0, _LARGEST_WEIGHT)
        frequency = np.bincount(targets.values, minlength=targets.size)
        each_row = frequency[targets.values] ** -_BALANCE
    elif targets.task == "multilabel":
        free = np.eye(targets.size)
    smoothing = 1 / (len(targets) + 2)
    strength = _PRIOR_ROWS / max(1, len(targets))
    # The loss of rows with several labels is the mean over these.
    strength_of_free = _PRIOR_ROWS_OF_FREQUENCIES / max(1, len(targets)) / max(1, len(free))
    strengths = np.repeat([strength, strength_of_free], [count, len(free)])

    def objective(found: np.ndarray) -> tuple[float, np.ndarray]:
        weights, shares = found[:count], found[count:]
        if numbers:  # the weights add up to 1: what is free is their proportion
            total = weights.sum()
            own, slope = loss_and_slope(targets, blend(parts, weights / total))
            each = np.asarray([(m * slope).sum() for m in parts])
            own, gradient = own / scale, (each - (each * weights).sum() / total) / total / scale
        else:
            scores = blend(parts, weights) + shares @ free
            own, slope = loss_and_slope(targets, scores, each_row, smoothing=smoothing)
            gradient = np.asarray([(m * slope).sum() for m in parts])
            gradient = np.concatenate([gradient, free @ slope.sum(0)])
        apart = np.concatenate([weights - weights.mean(), shares - drawn_to])
        return own + float(strengths @ apart**2), gradient + 2 * strengths * apart

    start = np.repeat([1.0 / count, drawn_to], [count, len(free)])
    both = [(1e-6 if numbers else 0.0, _LARGEST_WEIGHT)] * count + [bounds] * len(free)
    found = minimize(objective, start, jac=True, method="L-BFGS-B", bounds=both).x
    weights, shares = np.maximum(found[:count], 0), found[count:]
    if weights.sum() <= 0:
        weights = start[:count]
    return weights / weights.sum() if numbers else weights, shares @ free


def _spread(targets: Targets) -> float:
    return max(float(np.var(targets.values)), 1e-12)
