"""Metrics of predictions."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from ownbert.exceptions import InputError, named_repr

_POINTS = 100  # of a curve
_BINS = 10  # of probabilities
# Metrics of the order of the rows by a label's probability.
RANKING = ("roc_auc", "average_precision")
# Separators, longer ones first; spaces around them belong to them.
_SEPARATORS = ("::", "->", ">", "/", "|", "\\", ".")
_DECIMAL = re.compile(r"\s*[+-]?\d*\.?\d*(e[+-]?\d+)?\s*", re.IGNORECASE)
_SHARED = 0.5  # share of the labels whose first part is that of another label too
# The curves of a ``Ranking``.
CURVES = ("roc", "precision_recall", "gain", "calibration")
_FEW = 5  # minimum rows for a class's own threshold; classes with fewer use the mean of all rows


@dataclass(frozen=True)
class LevelScore:
    """Metrics of labels that are cut to their first parts."""

    level: int  # number of parts
    labels: int  # number of different labels at the level
    values: Mapping[str, float]  # metrics of the cut labels, see ``level_scores``

    def as_json(self) -> dict[str, Any]:
        return {"level": self.level, "labels": self.labels, **self.values}


@dataclass(frozen=True)
class LabelScore:
    """Precision, recall and F1 of a label."""

    label: str
    precision: float
    recall: float
    f1: float
    support: int  # number of rows (or entities) with the label


@dataclass(frozen=True)
class Ranking:
    """Rows in the order of the probability of one label, the positive one. N rows."""

    positive: str  # the label
    truth: np.ndarray  # (N) whether a row has the label
    probabilities: np.ndarray  # (N) its probability

    @property
    def complete(self) -> bool:
        """Whether there are rows with and without the label; metrics of the order need both."""
        return bool(self.truth.any() and not self.truth.all())

    @property
    def values(self) -> dict[str, float]:
        """The metrics ``RANKING``: of a random order, .5 and 0, unless ``complete``."""
        if not self.complete:
            return dict(zip(RANKING, (0.5, 0.0), strict=True))
        found = self.probabilities[self.truth]
        area = auroc(self.probabilities[~self.truth], found)
        precision = average_precision(self.truth, self.probabilities)
        return dict(zip(RANKING, (area, precision), strict=True))

    @cached_property
    def _counts(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """See ``counts_by_threshold``; of many thresholds those at which a curve moves visibly."""
        values, right, positives = counts_by_threshold(self.truth, self.probabilities)
        wrong = positives - right
        parts = [sums * _POINTS // max(1, sums[-1]) for sums in (right, wrong, positives)]
        steps: Any = np.diff(np.stack(parts), prepend=-1).any(axis=0)
        steps = np.append(steps[:-1], True)
        return values[steps], right[steps], positives[steps]

    @property
    def roc(self) -> tuple[np.ndarray, np.ndarray]:
        """False positive rates, and true positive rates."""
        _, right, positives = self._counts
        wrong = positives - right
        rates = (sums / max(1, sums[-1]) for sums in (wrong, right))
        found, missed = (np.concatenate([[0.0], rate]) for rate in rates)
        return found, missed

    @property
    def precision_recall(self) -> tuple[np.ndarray, np.ndarray]:
        """Recalls, and precisions."""
        _, right, positives = self._counts
        precision, recall = right / positives, right / max(1, right[-1])
        return np.concatenate([[0.0], recall]), np.concatenate([precision[:1], precision])

    @property
    def gain(self) -> tuple[np.ndarray, np.ndarray]:
        """Shares of the rows, the most probable first, and the shares of the positive rows that are
        among them."""
        _, right, positives = self._counts
        shares = positives / positives[-1], right / max(1, right[-1])
        rows, found = (np.concatenate([[0.0], share]) for share in shares)
        return rows, found

    def lift(self, share: float) -> float:
        """How many times as frequent positive rows are in this share of the rows, the most probable
        first, as in all; rows with equal probabilities count in part."""
        return float(np.interp(share, *self.gain)) / share

    @property
    def calibration(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Mean probability, share of positive rows and number of rows, by tenths of the
        probability that have rows."""
        bins = np.minimum((self.probabilities * _BINS).astype(int), _BINS - 1)
        count = np.bincount(bins, minlength=_BINS)
        used = count > 0
        sums = (np.bincount(bins, x, _BINS) for x in (self.probabilities, self.truth))
        mean, rate = (total[used] / count[used] for total in sums)
        return mean, rate, count[used]

    def as_json(self) -> dict[str, Any]:
        """The curves as lists of points."""
        curves = {name: getattr(self, name) for name in CURVES}
        return {
            "positive": self.positive,
            **{name: np.stack(curve, 1).tolist() for name, curve in curves.items()},
        }


@dataclass(frozen=True)
class Scores:
    """The metrics of a set of predictions.

    Args:
        values: metrics by name, main metric first; also available as attributes
            (``scores.macro_f1``).
        labels: scores per label, if predictions are labels.
        confusion: (C, C) counts by true label (row) and predicted label (column).
        warnings: caveats about the values.
        risk: for single-label tasks, pairs of coverage (share of rows answered, most confident
            first) and error rate among these.
        ranking: for single-label tasks with a positive label, the order of the rows by its
            probability.
        levels: metrics at the upper levels of labels that are a hierarchy, such as A/B/C.
    """

    values: Mapping[str, float]
    labels: tuple[LabelScore, ...] = ()
    confusion: np.ndarray | None = None
    warnings: tuple[str, ...] = ()
    risk: tuple[tuple[float, float], ...] = ()
    ranking: Ranking | None = None
    levels: tuple[LevelScore, ...] = ()

    def __repr__(self) -> str:
        return named_repr(self, **self.values)

    def __getattr__(self, name: str) -> float:
        try:
            return self.__dict__["values"][name]
        except KeyError:
            raise AttributeError(f"there is no metric {name!r}") from None

    def confusions(self, most: int) -> list[tuple[int, int, int]]:
        """The most frequent pairs of a true and another predicted label, with their numbers of
        rows."""
        if self.confusion is None:
            return []
        wrong = self.confusion.copy()
        np.fill_diagonal(wrong, 0)
        order = np.argsort(-wrong, axis=None, kind="stable")[:most]
        cells = (divmod(int(place), len(wrong)) for place in order)
        return [(i, j, int(wrong[i, j])) for i, j in cells if wrong[i, j]]

    def as_json(self) -> dict[str, Any]:
        values: dict[str, Any] = dict(self.values)
        if self.labels:
            values["labels"] = {
                s.label: {k: v for k, v in vars(s).items() if k != "label"} for s in self.labels
            }
        if self.confusion is not None:
            values["confusion"] = self.confusion.tolist()
        if self.levels:
            values["levels"] = [level.as_json() for level in self.levels]
        if self.risk:
            values["risk"] = [list(point) for point in self.risk]
        if self.ranking is not None:
            values["ranking"] = self.ranking.as_json()
        if self.warnings:
            values["warnings"] = list(self.warnings)
        return values


def score_labels(
    truth: Sequence[int] | np.ndarray, predicted: Sequence[int] | np.ndarray, labels: Sequence[str]
) -> Scores:
    """Metrics of predictions with one label per row, from indices (rows) of labels. Macro-F1 is the
    mean over the labels in the truth or the predictions, as in scikit-learn. mcc is the Matthews
    correlation coefficient for any number of labels (Gorodkin 2004), 0 if one side is constant."""
    size = len(labels)
    pairs = np.asarray(truth) * size + np.asarray(predicted)
    confusion = np.bincount(pairs, minlength=size * size).reshape(size, size)
    counts = right, support, positives = np.diag(confusion), confusion.sum(1), confusion.sum(0)
    scores, total = label_scores(labels, *counts), confusion.sum()
    true, found = support.astype(float), positives.astype(float)
    variances = (total**2 - (true**2).sum()) * (total**2 - (found**2).sum())
    covariance = right.sum() * total - true @ found
    values = {
        "accuracy": float(right.sum() / max(1, total)),
        "macro_f1": mean_f1(*counts),
        "weighted_f1": weighted_f1(scores),
        "mcc": float(covariance / np.sqrt(variances)) if variances > 0 else 0.0,
    }
    levels = level_scores(labels, confusion)
    return Scores(values, scores, confusion=confusion, levels=levels)


def weighted_f1(scores: Sequence[LabelScore]) -> float:
    """The mean F1 of labels, weighted by their support."""
    f1, support = np.asarray([(score.f1, score.support) for score in scores]).T
    return float(f1 @ support / max(1, support.sum()))


def label_scores(
    labels: Sequence[str], right: np.ndarray, support: np.ndarray, predicted: np.ndarray
) -> tuple[LabelScore, ...]:
    """Precision, recall and F1 of each label, from its true positives, true instances and
    predictions (C)."""
    precision = right / np.maximum(predicted, 1)
    recall = right / np.maximum(support, 1)
    f1 = 2 * right / np.maximum(support + predicted, 1)
    return tuple(
        LabelScore(name, float(p), float(r), float(f), int(n))
        for name, p, r, f, n in zip(labels, precision, recall, f1, support, strict=True)
    )


def risk_curve(preferences: np.ndarray, right: np.ndarray) -> tuple[tuple[float, float], ...]:
    """Pairs of coverage and error rate among the answered rows, most confident first, from weighted
    probabilities (N, C), and whether the largest is right (N) (El-Yaniv and Wiener 2010, "On the
    Foundations of Noise-free Selective Classification")."""
    order = np.argsort(-preferences.max(1), kind="stable")
    wrong = np.cumsum(~right[order]) / np.arange(1, len(order) + 1)
    places = np.unique(np.linspace(1, len(order), min(_POINTS, len(order))).round().astype(int))
    return tuple((float(n / len(order)), float(wrong[n - 1])) for n in places)


def auroc(low: np.ndarray, high: np.ndarray) -> float:
    """The probability that a score of ``high`` (M) exceeds one of ``low`` (N); ties count half."""
    from scipy.stats import rankdata

    ranks = rankdata(np.concatenate([low, high]))[len(low) :]
    count = len(high)
    return float((ranks.sum() - count * (count + 1) / 2) / (len(low) * count))


@lru_cache(8)
def label_parts(labels: tuple[str, ...]) -> list[list[str]]:
    """The parts of each label if the labels are a hierarchy, else an empty list: a separator
    divides all labels, but for those that begin others (A beside A/B), into parts that are not
    empty, and at least half of them, but not all, share their first part with another. Decimal
    numbers are none."""
    for separator in _SEPARATORS:
        parts = [[part.strip() for part in label.split(separator)] for label in labels]
        if max(map(len, parts), default=1) == 1:
            continue
        first = Counter(label[0] for label in parts)
        alone = [label[0] for label in parts if len(label) == 1]
        if not all(map(all, parts)) or any(first[name] < 2 for name in alone):
            return []
        if separator == "." and all(map(_DECIMAL.fullmatch, labels)):
            return []
        shared = sum(count for count in first.values() if count > 1)
        return parts if len(first) > 1 and shared >= _SHARED * len(labels) else []
    return []


def _cut_labels(labels: Sequence[str]) -> Iterator[tuple[int, np.ndarray, int]]:
    """Each level above that of the whole labels, with the index of each label (C) cut to it, and
    the number of different ones; nothing if the labels are not a hierarchy."""
    parts = label_parts(tuple(labels))
    for level in range(1, max(map(len, parts), default=1)):
        cut = [tuple(label[:level]) for label in parts]
        places = {name: index for index, name in enumerate(dict.fromkeys(cut))}
        yield level, np.asarray([places[name] for name in cut]), len(places)


def level_scores(labels: Sequence[str], confusion: np.ndarray) -> tuple[LevelScore, ...]:
    """The metrics at each level, for a confusion matrix (C, C) by true and predicted label."""
    pairs = np.stack(np.nonzero(confusion))
    counts = confusion[tuple(pairs)]
    scores = []
    for level, places, size in _cut_labels(labels):
        true, predicted = places[pairs]
        right = np.where(true == predicted, counts, 0)
        columns = ((true, right), (true, counts), (predicted, counts))
        hits, support, positives = (np.bincount(*column, size) for column in columns)
        values = {
            "accuracy": float(right.sum() / max(1, counts.sum())),
            "macro_f1": mean_f1(hits, support, positives),
        }
        scores.append(LevelScore(level, size, values))
    return tuple(scores)


def set_level_scores(
    labels: Sequence[str], truth: np.ndarray, predicted: np.ndarray
) -> tuple[LevelScore, ...]:
    """The metrics at each level, for the true and predicted labels (rows, C) of each row."""
    scores = []
    for level, places, size in _cut_labels(labels):
        cut = (places[:, None] == np.arange(size)).astype(np.float32)
        true, found = (x.astype(np.float32) @ cut > 0 for x in (truth, predicted))
        right, support, positives = (x.sum(0) for x in (true & found, true, found))
        values = {
            "micro_f1": float(2 * right.sum() / max(1, (support + positives).sum())),
            "macro_f1": mean_f1(right, support, positives),
            "subset_accuracy": float((true == found).all(1).mean()),
        }
        scores.append(LevelScore(level, size, values))
    return tuple(scores)


def mean_f1(right: np.ndarray, support: np.ndarray, predicted: np.ndarray) -> float:
    """The mean over the labels in the truth or the predictions, from their counts (C)."""
    both = support + predicted
    return float((2 * right[both > 0] / both[both > 0]).mean()) if both.any() else 0.0


def average_precision(truth: np.ndarray, probabilities: np.ndarray) -> float:
    """Precision at each threshold, weighted by the recall gained there; ``truth`` (rows) has at
    least one positive."""
    _, right, positives = counts_by_threshold(truth, probabilities)
    return float((np.diff(right, prepend=0) * right / positives).sum() / right[-1])


def one_vs_rest(truth: np.ndarray, probabilities: np.ndarray) -> dict[str, float]:
    """The metrics ``RANKING`` of each label against the others, averaged over the labels that some
    rows have and others lack, from indices (rows) of true labels and probabilities (rows, C)."""
    rankings = [Ranking("", truth == i, probabilities[:, i]) for i in np.unique(truth)]
    values = [ranking.values for ranking in rankings if ranking.complete] or [rankings[0].values]
    return {name: float(np.mean([own[name] for own in values])) for name in RANKING}


def counts_by_threshold(
    truth: np.ndarray, values: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The distinct values in descending order, with the true positives and all positives for each
    value as the threshold."""
    order = np.argsort(-values, kind="stable")
    values = values[order].astype(np.float64)
    last = np.flatnonzero(np.append(np.diff(values) != 0, True))
    return values[last], np.cumsum(truth[order].astype(np.int64))[last], last + 1


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
    out-of-sample probabilities (N, C) and indices of the given labels (N) (Northcutt, Jiang and
    Chuang 2021, "Confident Learning", section 3)."""
    probabilities, labels = np.asarray(probabilities, dtype=float), np.asarray(labels)
    if probabilities.ndim != 2 or labels.shape != probabilities.shape[:1]:
        raise InputError(
            "probabilities must be (rows, classes) and labels (rows); they are {shape} and "
            "{labels_shape}",
            probabilities.shape,
            labels.shape,
        )
    size = probabilities.shape[1]
    if len(labels) and (labels.min() < 0 or labels.max() >= size):
        raise InputError("labels must be indices of the {shape} classes", size)
    labels = labels.astype(int)
    own = probabilities[np.arange(len(labels)), labels]
    count = np.bincount(labels, minlength=size)
    thresholds = np.bincount(labels, own, size) / np.maximum(1, count)
    # Pooled mean, so that one hard row of a rare class does not lower its threshold for all rows.
    few = count < _FEW
    thresholds[few] = np.maximum(thresholds[few], own.mean() if len(own) else 1.0)
    # The most probable class among those whose threshold a row exceeds, or -1.
    reached = np.where(probabilities >= thresholds, probabilities, -1.0)
    suggested = np.where(reached.max(1) >= 0, reached.argmax(1), -1)
    margins = probabilities[np.arange(len(labels)), suggested] - own
    wrong = np.flatnonzero((suggested >= 0) & (suggested != labels) & (margins > 0))
    order = wrong[np.argsort(-margins[wrong], kind="stable")]
    return [LabelError(int(r), int(labels[r]), int(suggested[r]), float(margins[r])) for r in order]
