"""The hardest and the most confidently predicted rows."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


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


def hardest_rows(probabilities: np.ndarray, targets: np.ndarray, count: int = 10) -> list[RatedRow]:
    """Held-out rows with the lowest probabilities of their true classes, lowest first.

    Args:
        probabilities: (N, C).
        targets: (N) indices of the true classes.
        count: number of rows.
    """
    return _rated_rows(
        probabilities,
        targets,
        lambda probabilities_of_label: np.argsort(probabilities_of_label, kind="stable")[:count],
    )


def typical_rows(
    probabilities: np.ndarray, targets: np.ndarray, per_class: int = 1
) -> list[RatedRow]:
    """Held-out rows with the highest probabilities of their true classes, class by class.

    Args:
        probabilities: (N, C).
        targets: (N) indices of the true classes.
        per_class: number of rows per class.
    """
    targets = np.asarray(targets, dtype=int)

    def chosen(label_probabilities: np.ndarray) -> Sequence[int]:
        order = np.argsort(-label_probabilities, kind="stable")
        return [int(i) for c in np.unique(targets) for i in order[targets[order] == c][:per_class]]

    return _rated_rows(probabilities, targets, chosen)


def largest_errors(predictions: np.ndarray, targets: np.ndarray, count: int = 10) -> list[RatedRow]:
    """Rows of a regression with the largest absolute errors, largest first.

    Args:
        predictions: (N) predicted values.
        targets: (N) true values.
        count: number of rows.
    """
    predictions, targets = np.asarray(predictions, float), np.asarray(targets, float)
    errors = np.abs(predictions - targets)
    order = np.argsort(-errors, kind="stable")[:count]
    return [
        RatedRow(int(i), float(targets[i]), float(predictions[i]), float(errors[i])) for i in order
    ]


def _rated_rows(probabilities: np.ndarray, targets: np.ndarray, choose) -> list[RatedRow]:
    probabilities, targets = np.asarray(probabilities, float), np.asarray(targets, dtype=int)
    label_probabilities = probabilities[np.arange(len(targets)), targets]
    predicted = probabilities.argmax(1) if len(targets) else targets
    return [
        RatedRow(int(i), int(targets[i]), int(predicted[i]), float(label_probabilities[i]))
        for i in choose(label_probabilities)
    ]
