"""A blend: several models' scores of the same rows, added with weights that are not negative.

N rows, C labels or numbers. Scores are log-probabilities (classify), logits (multilabel) or numbers
(regress), so a blend of probabilities is their weighted geometric mean, and one weight for all of
them is a temperature.
"""

from collections.abc import Sequence

import numpy as np
from scipy.optimize import minimize

from ownbert.views.linear import Targets, log_softmax

# Weights are drawn towards their mean as strongly as so many rows draw them apart.
_PRIOR_ROWS = 5.0
# Members with a smaller share of the weights are left out.
_SMALLEST_SHARE = 0.02
_LEAST, _MOST = 1e-7, 30.0
# How far scores are moved from the labels' frequencies towards equal ones.
_ADJUSTMENTS = (0.0, 0.25, 0.5, 0.75, 1.0)


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
    return _loss_and_slope(targets, scores)[0]


def fit_weights(members: Sequence[np.ndarray], targets: Targets) -> np.ndarray:
    """The weights that give held-out rows the least loss, drawn towards equal weights.

    Members with hardly any weight get none. For numbers the weights add up to 1.

    Args:
        members: of each model (N, C) scores of rows that it was not trained on.
        targets: of these rows.
    """
    if not members:
        raise ValueError("nothing to blend")
    weights = _minimise(members, targets)
    keep = weights >= _SMALLEST_SHARE * weights.sum()
    if not keep.all():
        kept = [m for m, own in zip(members, keep, strict=True) if own]
        weights[:] = 0
        weights[keep] = _minimise(kept, targets)
    return weights


def fit_offsets(scores: np.ndarray, targets: Targets, counts: np.ndarray | None) -> np.ndarray:
    """What is added to scores so that argmax gives held-out rows the best macro-F1.

    A model of log-probabilities gives frequent labels more than macro-F1 does, which counts every
    label the same. Some of the logarithms of their frequencies is subtracted, as much as is best
    (logit adjustment, Menon et al. 2021); nothing where labels are equally frequent.

    Args:
        scores: (N, C) log-probabilities, not normalised.
        counts: (C) how many of the rows that were learnt from have each label; None for other
            tasks.

    Returns:
        (C).
    """
    if counts is None:
        return np.zeros(scores.shape[1])
    logs = np.log(counts + 0.5)
    logs -= logs.mean()
    found = [
        _macro_f1(targets.values, (scores - share * logs).argmax(1), targets.size)
        for share in _ADJUSTMENTS
    ]
    return -_ADJUSTMENTS[int(np.argmax(found))] * logs


def _macro_f1(truth: np.ndarray, predicted: np.ndarray, labels: int) -> float:
    """The mean over the labels that are in either."""
    right = np.bincount(truth[truth == predicted], minlength=labels)
    both = np.bincount(truth, minlength=labels) + np.bincount(predicted, minlength=labels)
    return float((2 * right[both > 0] / both[both > 0]).mean())


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
    is measured on. counts: as of ``fit_offsets``.
    """
    rows = len(targets)
    part = np.random.default_rng(seed).permutation(rows) % max(2, min(parts, rows))
    found = np.zeros((rows, members[0].shape[1]))
    for number in range(part.max() + 1):
        own = part == number
        others, rest = [m[~own] for m in members], targets[~own]
        weights = fit_weights(others, rest)
        offsets = fit_offsets(blend(others, weights), rest, counts)
        found[own] = blend([m[own] for m in members], weights) + offsets
    return found


def _minimise(members: Sequence[np.ndarray], targets: Targets) -> np.ndarray:
    count, numbers = len(members), targets.task == "regress"
    strength = _PRIOR_ROWS / max(1, len(targets))
    scale = _spread(targets) if numbers else 1.0

    def objective(weights: np.ndarray) -> tuple[float, np.ndarray]:
        if numbers:  # the weights add up to 1: what is free is their proportion
            total = weights.sum()
            own, slope = _loss_and_slope(targets, blend(members, weights / total))
            each = np.asarray([(m * slope).sum() for m in members])
            gradient = (each - (each * weights).sum() / total) / total
            own, gradient = own / scale, gradient / scale
        else:
            own, slope = _loss_and_slope(targets, blend(members, weights))
            gradient = np.asarray([(m * slope).sum() for m in members])
        apart = weights - weights.mean()
        return own + strength * (apart**2).sum(), gradient + 2 * strength * apart

    start = np.full(count, 1.0 / count)
    low = 1e-6 if numbers else 0.0
    found = minimize(objective, start, jac=True, method="L-BFGS-B", bounds=[(low, 10.0)] * count)
    weights = np.maximum(found.x, 0)
    if weights.sum() <= 0:
        weights = start
    return weights / weights.sum() if numbers else weights


def _loss_and_slope(targets: Targets, scores: np.ndarray) -> tuple[float, np.ndarray]:
    """The mean loss, and its derivative by the scores (N, C)."""
    rows = np.arange(len(scores))
    if targets.task == "classify":
        logs = log_softmax(scores)
        slope = np.exp(logs)
        slope[rows, targets.values] -= 1
        return float(-logs[rows, targets.values].mean()), slope / len(scores)
    if targets.task == "multilabel":
        each = np.logaddexp(0, scores) - targets.values * scores
        slope = from_scores("multilabel", scores) - targets.values
        return float(each.mean()), slope / scores.size
    apart = scores - targets.values
    return float((apart**2).mean() / 2), apart / scores.size


def _spread(targets: Targets) -> float:
    return max(float(np.var(targets.values)), 1e-12)
