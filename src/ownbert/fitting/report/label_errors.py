"""Rows whose labels are probably wrong: confident learning on held-out probabilities."""

from dataclasses import dataclass

import numpy as np

from ownbert.errors import InputError

# Below so many rows a class's mean is one row's noise; the mean of all rows is put in its stead.
_FEW = 5


@dataclass(frozen=True)
class LabelError:
    """A row with a label that the held-out model contradicts.

    Args:
        row: its index.
        given, suggested: indices of classes.
        score: the normalised margin, the suggested label's probability less that of the given one,
            0 to 1.
    """

    row: int
    given: int
    suggested: int
    score: float


def find_label_errors(probabilities: np.ndarray, labels: np.ndarray) -> list[LabelError]:
    """Rows off the diagonal of the confident joint, the largest margin first.

    Args:
        probabilities: (N, C), each row's from a model that did not train on it.
        labels: (N) indices of the given classes.

    Raises:
        InputError: shapes or indices do not fit.

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
    """(N) the most probable of the classes whose thresholds a row reaches, -1 without any."""
    size = probabilities.shape[1]
    own = probabilities[np.arange(len(labels)), labels]
    count = np.bincount(labels, minlength=size)
    thresholds = np.bincount(labels, own, size) / np.maximum(1, count)
    # The mean of several rows, so that one hard row of a rare class does not let all others in.
    few = count < _FEW
    thresholds[few] = np.maximum(thresholds[few], own.mean() if len(own) else 1.0)
    reached = np.where(probabilities >= thresholds, probabilities, -1.0)
    return np.where(reached.max(1) >= 0, reached.argmax(1), -1)


def _checked(probabilities: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    probabilities, labels = np.asarray(probabilities, dtype=float), np.asarray(labels)
    if probabilities.ndim != 2 or labels.shape != probabilities.shape[:1]:
        raise InputError(
            f"probabilities must be (rows, classes) and labels (rows); they are "
            f"{probabilities.shape} and {labels.shape}"
        )
    if len(labels) and (labels.min() < 0 or labels.max() >= probabilities.shape[1]):
        raise InputError(f"labels must be indices of the {probabilities.shape[1]} classes")
    return probabilities, labels.astype(int)
