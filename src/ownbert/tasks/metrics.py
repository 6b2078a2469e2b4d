"""Measures of answers against what is right. N rows, C labels."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class LabelScore:
    """How well one label is found; support counts the rows (or entities) that have it."""

    label: str
    precision: float
    recall: float
    f1: float
    support: int


@dataclass(frozen=True)
class Scores:
    """values: measures by name, the most telling first; each is an attribute too
    (``scores.macro_f1``). labels: each label by itself, where the answers are labels. confusion
    (C, C): a row for each true label, a column for each predicted one. warnings: what the figures
    do not show by themselves."""

    values: Mapping[str, float]
    labels: tuple[LabelScore, ...] = ()
    confusion: np.ndarray | None = None
    warnings: tuple[str, ...] = ()

    def __getattr__(self, name: str) -> float:
        try:
            return self.__dict__["values"][name]
        except KeyError:
            raise AttributeError(f"there is no measure {name!r}") from None

    def as_json(self) -> dict[str, Any]:
        """Everything as plain numbers."""
        found: dict[str, Any] = dict(self.values)
        if self.labels:
            found["labels"] = {
                s.label: {k: v for k, v in vars(s).items() if k != "label"} for s in self.labels
            }
        if self.confusion is not None:
            found["confusion"] = self.confusion.tolist()
        if self.warnings:
            found["warnings"] = list(self.warnings)
        return found


def score(
    truth: Sequence[int] | np.ndarray,
    predicted: Sequence[int] | np.ndarray,
    labels: Sequence[str],
) -> Scores:
    """Scores of one label a row, both given as label numbers.

    Macro-F1 is the mean over the labels that stand in the truth or among the predictions, and 0
    where a label is never found: as in scikit-learn's f1_score. mcc: Matthews' correlation for any
    number of labels (Gorodkin 2004), 0 where all rows, or all predictions, have one label.
    """
    size = len(labels)
    pairs = np.asarray(truth) * size + np.asarray(predicted)
    confusion = np.bincount(pairs, minlength=size * size).reshape(size, size)
    right = np.diag(confusion)
    support, found = confusion.sum(1), confusion.sum(0)
    scores = label_scores(labels, right, support, found)
    present = (support + found) > 0
    f1 = np.asarray([s.f1 for s in scores])
    return Scores(
        values={
            "accuracy": float(right.sum() / max(1, confusion.sum())),
            "macro_f1": float(f1[present].mean()) if present.any() else 0.0,
            "mcc": _matthews(confusion),
        },
        labels=scores,
        confusion=confusion,
    )


def label_scores(
    labels: Sequence[str], right: np.ndarray, support: np.ndarray, found: np.ndarray
) -> tuple[LabelScore, ...]:
    """Each label by how often it was right, how often it was true, and how often it was said."""
    precision = right / np.maximum(found, 1)
    recall = right / np.maximum(support, 1)
    f1 = 2 * right / np.maximum(support + found, 1)
    return tuple(
        LabelScore(name, float(p), float(r), float(f), int(n))
        for name, p, r, f, n in zip(labels, precision, recall, f1, support, strict=True)
    )


def _matthews(confusion: np.ndarray) -> float:
    true, said = (confusion.sum(axis).astype(float) for axis in (1, 0))
    total = confusion.sum()
    below = (total**2 - (true**2).sum()) * (total**2 - (said**2).sum())
    return float((np.trace(confusion) * total - true @ said) / np.sqrt(below)) if below > 0 else 0.0
