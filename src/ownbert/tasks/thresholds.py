"""Thresholds of labels: given, or chosen on rows with known labels. N rows, C labels."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ownbert.checks import between
from ownbert.exceptions import InputError, in_short
from ownbert.language.messages import Message
from ownbert.tasks.metrics import counts_by_threshold
from ownbert.tasks.rows import AIMS, list_labels

_MOST_COST = 1e6
_AIM = re.compile(rf"({'|'.join(AIMS)})\s*[:=]\s*(\S+)")
_FORMS = "yes=0.9, yes=precision:0.9, yes=recall:0.9 or yes=cost:10"
# Probabilities at which thresholds of single labels are tried.
_TRIED = 1 / (1 + np.exp(-np.linspace(-7, 5, 241)))
_PRIOR_ROWS = 10.0  # rows with a label beside which its F1 by the true labels counts half
# Metrics with a threshold for each label.
_BY_LABEL = ("macro_f1", "weighted_f1")


@dataclass(frozen=True)
class Aim:
    """What the threshold of a label is chosen by, on rows with known labels: the lowest threshold
    with at least this precision, the highest one with at least this recall, or the one with the
    least cost, if a missed row costs this and a false alarm 1."""

    kind: str
    value: float

    def __str__(self) -> str:
        return f"{self.kind}:{self.value:g}"

    def threshold(self, truth: np.ndarray, probabilities: np.ndarray) -> tuple[float, bool]:
        """The threshold, between two probabilities (N), by whether each row has the label (N), and
        whether it reaches the aim; if none does, the one that comes closest."""
        values, right, positives = counts_by_threshold(truth, probabilities)
        limits = (values + np.append(values[1:], 0.0)) / 2
        if self.kind == "recall":
            enough = right >= self.value * truth.sum() - 1e-9
            return float(limits[int(enough.argmax())]), bool(truth.any())
        if self.kind == "precision":
            precision = right / positives
            reached = np.flatnonzero(precision >= self.value - 1e-9)
            best = reached[-1] if len(reached) else precision.argmax()
            return float(limits[best]), len(reached) > 0
        # By true labels and by what the probabilities predict, which is less noisy.
        expected = np.cumsum(np.sort(probabilities)[::-1])[positives - 1]
        found, all_rows = right + expected, truth.sum() + probabilities.sum()
        costs = self.value * (all_rows - found) + (2 * positives - found)
        if all_rows * self.value <= costs.min():
            return float((1 + values[0]) / 2), True
        return float(limits[int(costs.argmin())]), True


def read_thresholds(
    given: Any, labels: Sequence[str], *, name: str = "--threshold"
) -> dict[str, float | Aim]:
    """Read the thresholds of labels: ``label=threshold,label=threshold`` (labels may contain
    commas), a JSON object or a mapping; a threshold is a probability, or ``precision:0.9``,
    ``recall:0.9`` or ``cost:10``."""
    pairs = given.items() if isinstance(given, Mapping) else label_values(given, labels, name)
    found: dict[str, float | Aim] = {}
    for label, value in pairs:
        if label not in labels:
            raise InputError(
                "{name} has {value}; write {forms}, with one of the labels {labels}",
                name,
                in_short(f"{label}={value}" if label else value),
                _FORMS,
                list_labels(labels),
            )
        found[label] = _threshold(f"{name} of {label!r}", value)
    if not found:
        raise InputError("{name} is empty; write {forms}", name, _FORMS)
    return found


def before_tuning(thresholds: Mapping[str, float | Aim]) -> dict[str, float]:
    """The thresholds as numbers before they are chosen on rows: .5 for those with an aim."""
    return {label: 0.5 if isinstance(t, Aim) else t for label, t in thresholds.items()}


def _threshold(name: str, given: Any) -> float | Aim:
    if isinstance(given, Aim):
        return given
    aim = _AIM.fullmatch(str(given).strip())
    try:
        value = float(aim[2] if aim else given)
    except (TypeError, ValueError, OverflowError):
        raise InputError(
            "{name} is {value}; write {forms}", name, in_short(given), _FORMS
        ) from None
    if aim is None:
        between(0, 1)(name, value)
        return value
    between(0, *((_MOST_COST, "()") if aim[1] == "cost" else (1, "(]")))(f"{name}: {aim[1]}", value)
    return Aim(aim[1], value)


def settled(
    thresholds: Mapping[str, float | Aim],
    labels: Sequence[str],
    truth: np.ndarray,
    probabilities: np.ndarray,
) -> tuple[dict[str, float], list[str]]:
    """The thresholds as numbers, and a sentence for each aim that no threshold reaches, from truth
    and probabilities (N, C)."""
    found, missed = {}, []
    for label, threshold in thresholds.items():
        if isinstance(threshold, Aim):
            own = labels.index(label)
            number, reached = threshold.threshold(truth[:, own], probabilities[:, own])
            if not reached:
                missed.append(
                    Message(
                        "no threshold of {label!r} reaches {threshold} on {count:,} held-out "
                        "rows; {number:.3f} comes closest",
                        label,
                        threshold,
                        len(truth),
                        number,
                    )
                )
            threshold = min(max(number, 1e-9), 1 - 1e-9)
        found[label] = threshold
    return found, missed


def best_thresholds(truth: np.ndarray, probabilities: np.ndarray, metric: str) -> np.ndarray:
    """The thresholds (C) of several labels per row with the best metric, from truth and
    probabilities (N, C): one for each label for means over labels (macro_f1, weighted_f1), else the
    same one for all (by subset_accuracy, or else micro_f1); .5 if no row has a label.

    The threshold of a label has the best mean of F1 by the true labels and of F1 as the
    probabilities predict it, which is less noisy. The fewer rows have the label, the closer it is
    to the threshold that is best for the latter alone (docs/lab/linear-models.md).
    """
    size = truth.shape[1]
    if not truth.any():
        return np.full(size, 0.5)
    if metric in _BY_LABEL:
        found = []
        for true, own in zip(truth.T, probabilities.T, strict=True):
            order = np.argsort(own)
            first = np.searchsorted(own[order], _TRIED)
            scores = []
            for values in (true, own):  # the number of rows with the label, from each threshold up
                above = np.append(np.cumsum(values[order][::-1])[::-1], 0.0)
                scores.append(2 * above[first] / np.maximum(len(own) - first + above[0], 1e-9))
            weight = true.sum() / (true.sum() + _PRIOR_ROWS)
            middles = (_middle(np.sum(scores, 0)), _middle(scores[1]))
            both, expected = (np.log(t / (1 - t)) for t in middles)
            found.append(1 / (1 + float(np.exp(-(weight * both + (1 - weight) * expected)))))
        return np.asarray(found)
    if metric == "subset_accuracy":
        equal = [((probabilities >= t) == truth.astype(bool)).all(1).sum() for t in _TRIED]
        return np.full(size, _middle(np.asarray(equal)))
    values, right, positives = counts_by_threshold(truth.ravel(), probabilities.ravel())
    best = int(np.argmax(right / (positives + right[-1])))
    return np.full(size, (values[best] + np.append(values, 0.0)[best + 1]) / 2)


def _middle(values: np.ndarray) -> float:
    """The middle one of the thresholds that are best: the first may be so by chance."""
    best = np.flatnonzero(values >= values.max() - 1e-12)
    return float(_TRIED[best[len(best) // 2]])


def label_values(given: str, labels: Sequence[str], name: str) -> Iterator[tuple[str, str]]:
    """Yield (label, value) pairs of ``label=value,label=value``, where labels may contain these
    separators, or of a JSON object."""
    given = str(given)
    if given.lstrip().startswith("{"):
        try:
            pairs = json.loads(given)
        except (ValueError, RecursionError):
            raise InputError(
                "{name} is not a JSON object: {value}", name, in_short(given)
            ) from None
        yield from ((str(label), str(value)) for label, value in pairs.items())
        return
    rest = given.strip()
    while rest:
        known = [label for label in labels if rest.startswith(f"{label}=")]
        unknown = rest.partition(",")[0].rpartition("=")[0]
        start = len(max(known, key=len) if known else unknown)
        label, (value, _, rest) = rest[:start], rest[start:].lstrip("=").partition(",")
        yield label.strip(), value.strip()
        rest = rest.strip()
