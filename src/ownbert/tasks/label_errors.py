"""Rows whose labels are probably wrong: confident learning on held-out probabilities."""

from dataclasses import dataclass

import numpy as np

from ownbert.exceptions import InputError

# Minimum rows for a class's own threshold; classes with fewer use the mean of all rows.
_FEW = 5


@dataclass(frozen=True)
class LabelError:
    """A row whose label contradicts the held-out prediction: indices of the row, the given and the
    predicted label, and the probability of the latter minus that of the former, 0 to 1."""

    row: int
    given: int
    suggested: int
    score: float


def find_label_errors(probabilities: np.ndarray, labels: np.ndarray) -> list[LabelError]:
    """The rows off the diagonal of the confident joint, the largest margin first, from
    out-of-sample probabilities (N, C) and indices of the given labels (N).

    Source: Northcutt, Jiang and Chuang 2021, "Confident Learning", section 3.
    """
    probabilities, labels = _checked(probabilities, labels)
    suggested = _confident_classes(probabilities, labels)
    rows = np.arange(len(labels))
    margins = probabilities[rows, suggested] - probabilities[rows, labels]
    wrong = np.flatnonzero((suggested >= 0) & (suggested != labels) & (margins > 0))
    order = wrong[np.argsort(-margins[wrong], kind="stable")]
    return [LabelError(int(r), int(labels[r]), int(suggested[r]), float(margins[r])) for r in order]


def _confident_classes(probabilities: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """(N) the most probable class among those whose threshold a row exceeds, or -1."""
    size = probabilities.shape[1]
    label_probabilities = probabilities[np.arange(len(labels)), labels]
    count = np.bincount(labels, minlength=size)
    thresholds = np.bincount(labels, label_probabilities, size) / np.maximum(1, count)
    # Pooled mean, so that one hard row of a rare class does not lower its threshold for all rows.
    few = count < _FEW
    thresholds[few] = np.maximum(
        thresholds[few], label_probabilities.mean() if len(label_probabilities) else 1.0
    )
    reached = np.where(probabilities >= thresholds, probabilities, -1.0)
    return np.where(reached.max(1) >= 0, reached.argmax(1), -1)


def _checked(probabilities: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    probabilities, labels = np.asarray(probabilities, dtype=float), np.asarray(labels)
    if probabilities.ndim != 2 or labels.shape != probabilities.shape[:1]:
        raise InputError(
            "probabilities must be (rows, classes) and labels (rows); they are {shape} and "
            "{labels_shape}",
            probabilities.shape,
            labels.shape,
        )
    if len(labels) and (labels.min() < 0 or labels.max() >= probabilities.shape[1]):
        raise InputError("labels must be indices of the {shape} classes", probabilities.shape[1])
    return probabilities, labels.astype(int)
