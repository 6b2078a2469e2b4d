"""Measures of predictions against what is right. C labels."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class LabelScore:
    """How well one label is found; support counts the rows that have it."""

    label: str
    precision: float
    recall: float
    f1: float
    support: int


@dataclass(frozen=True)
class Scores:
    """accuracy and macro_f1 in [0, 1], one ``LabelScore`` a label, and the confusion matrix
    (C, C) with a row for each true label and a column for each predicted one."""

    accuracy: float
    macro_f1: float
    labels: tuple[LabelScore, ...]
    confusion: np.ndarray


def score(
    truth: Sequence[int] | np.ndarray,
    predicted: Sequence[int] | np.ndarray,
    labels: Sequence[str],
) -> Scores:
    """Scores of predictions, both given as label numbers.

    Macro-F1 is the mean over the labels that stand in the truth or among the predictions, and 0
    where a label is never found: as in scikit-learn's f1_score.
    """
    size = len(labels)
    pairs = np.asarray(truth) * size + np.asarray(predicted)
    confusion = np.bincount(pairs, minlength=size * size).reshape(size, size)
    right = np.diag(confusion).astype(float)
    support, found = confusion.sum(1), confusion.sum(0)
    precision = right / np.maximum(found, 1)
    recall = right / np.maximum(support, 1)
    f1 = 2 * right / np.maximum(support + found, 1)
    present = (support + found) > 0
    return Scores(
        accuracy=float(right.sum() / max(1, confusion.sum())),
        macro_f1=float(f1[present].mean()) if present.any() else 0.0,
        labels=tuple(
            LabelScore(name, float(p), float(r), float(f), int(n))
            for name, p, r, f, n in zip(labels, precision, recall, f1, support, strict=True)
        ),
        confusion=confusion,
    )
