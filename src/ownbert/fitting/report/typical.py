"""The hardest and the most confidently predicted rows."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

_ROWS = 10  # rows shown


@dataclass(frozen=True)
class RatedRow:
    """A held-out row and its prediction.

    Args:
        row: index of the row.
        true: index of the true class, or the true value.
        predicted: index of the predicted class, or the predicted value.
        score: probability of the true class, or absolute error.
    """

    row: int
    true: float
    predicted: float
    score: float


def hardest_rows(
    probabilities: np.ndarray, targets: np.ndarray, predicted: np.ndarray
) -> list[RatedRow]:
    """The held-out rows with the lowest probabilities of their true classes, lowest first.

    Args:
        probabilities: (N, C).
        targets: (N) indices of the true classes.
        predicted: (N) indices of the predicted classes.
    """
    own = probabilities[np.arange(len(targets)), targets]
    hardest = np.argsort(own, kind="stable")[:_ROWS]
    return _rated_rows(probabilities, targets, predicted, hardest)


def typical_rows(
    probabilities: np.ndarray, targets: np.ndarray, predicted: np.ndarray
) -> list[RatedRow]:
    """The held-out row of each class with the highest probability of its true class.

    Args:
        probabilities: (N, C).
        targets: (N) indices of the true classes.
        predicted: (N) indices of the predicted classes.
    """
    own = probabilities[np.arange(len(targets)), targets]
    order = np.argsort(-own, kind="stable")
    first = [order[targets[order] == label][0] for label in np.unique(targets)]
    return _rated_rows(probabilities, targets, predicted, first)


def largest_errors(predictions: np.ndarray, targets: np.ndarray) -> list[RatedRow]:
    """Rows of a regression with the largest absolute errors, largest first.

    Args:
        predictions: (N) predicted values.
        targets: (N) true values.
    """
    errors = np.abs(predictions - targets)
    order = np.argsort(-errors, kind="stable")[:_ROWS]
    return [
        RatedRow(int(i), float(targets[i]), float(predictions[i]), float(errors[i])) for i in order
    ]


def _rated_rows(
    probabilities: np.ndarray, targets: np.ndarray, predicted: np.ndarray, chosen: Iterable[int]
) -> list[RatedRow]:
    return [
        RatedRow(int(i), int(targets[i]), int(predicted[i]), float(probabilities[i, targets[i]]))
        for i in chosen
    ]
