"""How the models of ``fit`` choose labels from their probabilities. N rows, C labels.

A decision (C) is added to log-probabilities, of which the largest wins, or, for several labels per
row, to log-odds, of which those above 0 do.
"""

import copy
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from scipy.special import expit, logit

from ownbert.tasks.classification import SingleLabelTask
from ownbert.tasks.multilabel import MultiLabelTask
from ownbert.tasks.task import Task
from ownbert.tasks.thresholds import Aim, best_thresholds, settled
from ownbert.views.blending import Decide, from_scores
from ownbert.views.linear_models import Targets, log_softmax

_TRIED = 100  # thresholds with two labels


def how_to_decide(task: Any, metric: str, *, balanced: bool) -> Decide | None:
    """How a decision is chosen on held-out rows (see ``fit_decided``); None: from the label
    frequencies, or not at all.

    Args:
        task: the task, with the thresholds that the user gave.
        metric: selection metric.
        balanced: whether all labels count equally in the metric, and their frequencies differ.
    """
    if isinstance(task, MultiLabelTask):
        return partial(_of_several, task=task, metric=metric)
    if thresholds := task.given_thresholds:
        return partial(_of_one, task=task, thresholds=thresholds)
    if balanced and task.name == "classify" and len(task.labels) == 2:
        positive = task.labels.index(task.positive_label)
        return partial(_best_of_two, value=partial(_value_of_two, metric=metric, positive=positive))
    return None


def deciding(task: Task, decision: np.ndarray) -> Task:
    """A copy of a task that chooses labels with a decision (C)."""
    if isinstance(task, MultiLabelTask):
        return task.deciding_by(np.round(expit(-decision), 12))
    task = copy.copy(task)
    if isinstance(task, SingleLabelTask):
        task.decision = tuple(map(float, decision)) if np.any(decision) else None
    return task


def missed_thresholds(task: Task, scores: np.ndarray, targets: Targets) -> list[str]:
    """A sentence for each threshold that cannot be chosen as the user asked for.

    Args:
        scores: (N, C) calibrated scores.
        targets: N targets.
    """
    if not (thresholds := task.given_thresholds):
        return []
    return settled(thresholds, task.labels, *_truth_and_probabilities(scores, targets))[1]


def _truth_and_probabilities(scores: np.ndarray, targets: Targets) -> tuple[np.ndarray, np.ndarray]:
    """(N, C) whether a row has a label, and the probability of it."""
    values = targets.values
    truth = np.eye(targets.size)[values] if targets.task == "classify" else values
    return truth > 0, from_scores(targets.task, scores)


def _of_several(
    scores: np.ndarray, targets: Targets, start: np.ndarray, *, task: MultiLabelTask, metric: str
) -> np.ndarray:
    """The thresholds of several labels per row that the user gave, or those with the best
    metric."""
    if isinstance(task.settings.threshold, float):
        return np.full(targets.size, -logit(task.settings.threshold))
    truth, probabilities = _truth_and_probabilities(scores, targets)
    best = task.deciding_by(best_thresholds(truth, probabilities, metric))
    named, _ = settled(task.given_thresholds, task.labels, truth, probabilities)
    return -logit(best.with_thresholds(named).thresholds)


def _of_one(
    scores: np.ndarray,
    targets: Targets,
    start: np.ndarray,
    *,
    task: SingleLabelTask,
    thresholds: Mapping[str, float | Aim],
) -> np.ndarray:
    """The threshold that the user gave for one of two labels."""
    numbers, _ = settled(thresholds, task.labels, *_truth_and_probabilities(scores, targets))
    return np.asarray(task.with_thresholds(numbers).decision)


def _best_of_two(
    scores: np.ndarray,
    targets: Targets,
    start: np.ndarray,
    *,
    value: Callable[[np.ndarray, np.ndarray], float],
) -> np.ndarray:
    """The decision (2) with the best metric on rows with calibrated scores (N, 2).

    The mean of the metric of the true labels and of that which the probabilities predict: the
    latter is less noisy with few rows of a label, and depends on the calibration.

    Args:
        start: (2) one of the candidates.
        value: the metric, from weights of each row for each label (N, 2), which sum to 1, and
            predicted indices (N).
    """
    logs = log_softmax(scores)
    truth, expected = np.eye(2)[targets.values], np.exp(logs)
    margins = logs[:, 1] - logs[:, 0]
    quantiles = np.quantile(margins, np.linspace(0, 1, _TRIED + 2)[1:-1])
    tried = np.append(quantiles, start[0] - start[1])

    def worth(threshold: float) -> float:
        predicted = (margins >= threshold).astype(int)
        return value(truth, predicted) + value(expected, predicted)

    values = np.asarray([worth(threshold) for threshold in tried])
    # The middle of the thresholds that are as good: the largest one may be so by chance.
    best = float(np.median(tried[values >= values.max() - 1e-12]))
    return np.asarray([best / 2, -best / 2])


def _value_of_two(truth: np.ndarray, predicted: np.ndarray, *, metric: str, positive: int) -> float:
    """A metric of two labels; see ``_best_of_two``."""
    pairs = np.stack([truth[predicted == i].sum(0) for i in (0, 1)])  # predicted, true
    right, sums = np.diag(pairs), pairs.sum(0) + pairs.sum(1)
    f1 = 2 * right / np.maximum(sums, 1e-9)
    if metric == "f1":
        return float(f1[positive])
    if metric == "mcc":
        products = pairs.sum(0).prod() * pairs.sum(1).prod()
        return float((right.prod() - pairs[0, 1] * pairs[1, 0]) / np.sqrt(max(products, 1e-9)))
    return float(f1.mean())
