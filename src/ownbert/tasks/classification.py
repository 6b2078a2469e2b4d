"""Single-label classification."""

import copy
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from ownbert import checks
from ownbert.config.head_spec import MOST_LABELS
from ownbert.exceptions import InputError, percent
from ownbert.language.messages import Message, join
from ownbert.tables.label_task import note_on_numbers
from ownbert.tables.labels import refuse_ids, single_labels, unusual_labels
from ownbert.tables.tables import Source
from ownbert.tasks.metrics import RANKING, Ranking, Scores, one_vs_rest, risk_curve, score_labels
from ownbert.tasks.row_network import softmax
from ownbert.tasks.rows import (
    PLAIN_OUTPUT,
    OutputOptions,
    Row,
    check_probabilities,
    is_soft,
    learn_order,
    list_labels,
    readable_probabilities,
    unknown_label,
)
from ownbert.tasks.sentence_task import LOGITS, SentenceTask
from ownbert.tasks.task import DEFAULT, KEY, Task, named_probabilities
from ownbert.tasks.text_input import EncodedRows
from ownbert.tasks.thresholds import before_tuning, label_values, settled

if TYPE_CHECKING:
    from ownbert.nn.model import Model
    from ownbert.objectives.objective import Objective

_NUMBERED = re.compile(r"(.*?)([0-9]+)", re.DOTALL)
_BALANCED, _EQUAL = "balanced", "equal"
# Offsets of decisions are multiples of log frequencies, or the log odds of a threshold.
_DECISION = checks.list_of(checks.number(-1e3, 1e3), most=MOST_LABELS)
_SMALLEST = 1e-30  # lower bound of probabilities before their logarithm
_UNEQUAL = 2.0  # labels are weighted if one label is this many times as frequent as another


# Names of positive labels, and for those that may be numbers or abbreviations, of the other label.
_POSITIVE = frozenset(
    {
        *("yes", "true", "positive", "pos", "ja", "oui", "sí", "si", "sì", "sim", "да", "tak"),
        *("wahr", "vrai", "positiv", "positif", "positivo", "是", "有", "阳性", "正面", "はい"),
    }
)
_OPPOSITES = {"1": ("0", "-1"), "1.0": ("0.0", "-1.0"), "y": ("n",), "t": ("f",), "+": ("-",)}


@dataclass(frozen=True, eq=False, slots=True)
class LabelDecision:
    """The prediction for a row with one label, which has the largest of the ``preferences`` (C),
    the probabilities weighted by the decision; as an array, its probabilities (C)."""

    probabilities: np.ndarray
    preferences: np.ndarray

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.probabilities, dtype=dtype)

    @property
    def label(self) -> int:
        return int(self.preferences.argmax())

    def ranked(self, names: Sequence[str]) -> list[dict[str, Any]]:
        """Labels with their probabilities, the predicted one first, like
        ``transformers.pipeline``."""
        order = np.argsort(-self.preferences, kind="stable")
        return [{"label": names[i], "score": float(self.probabilities[i])} for i in order]


class LabelTask(Task):
    """One or several labels of a set per row; a training row may have probabilities of the labels
    as its target (``rows.is_soft``)."""

    counts_labels = True
    takes_soft_targets = True
    gives_probabilities = True
    label_heading = "{count} labels"
    # Label weights of the loss, known once ``learn`` has seen the training rows.
    weights: tuple[float, ...] | None = None

    @property
    def label_indices(self) -> Mapping[str, int]:
        return _indices(self.labels)

    def _labels_of(self, row: Row) -> Sequence[str]:
        return row.target if self.label_sets else (row.target,)

    def label_counts(self, rows: Sequence[Row]) -> np.ndarray:
        """(C) number of rows per label; for rows with probabilities, the expected number."""
        hard = (row for row in rows if not is_soft(row.target))
        by_name = Counter(label for row in hard for label in self._labels_of(row))
        counts = np.asarray([by_name[label] for label in self.labels], dtype=float)
        soft = [row.target for row in rows if is_soft(row.target)]
        return counts + np.sum(soft, 0) if soft else counts

    def check(self, rows: Sequence[Row], source: Source, known: str) -> None:
        indices = self.label_indices
        for row in rows:
            if is_soft(row.target):
                where, single = row.place(source), not self.label_sets
                check_probabilities(row.target, self.labels, where, sum_to_one=single)
                continue
            for label in self._labels_of(row):
                if label not in indices:
                    raise unknown_label(label, self.labels, row.place(source), known)

    def readable_target(self, row: Row) -> str:
        if is_soft(row.target):
            return readable_probabilities(row.target, self.labels)
        return ", ".join(self._labels_of(row)) or "no label"

    def label_distribution(self, rows: Sequence[Row]) -> str:
        counts = zip(self.labels, self.label_counts(rows), strict=True)
        parts = [f"{label} {percent(count / len(rows))}" for label, count in counts]
        none = sum(not is_soft(row.target) and not row.target for row in rows) / len(rows)
        return join([*parts, Message("none {share}", percent(none))] if none else parts)

    def require_per_label(self, name: str, numbers: Sequence[float]) -> None:
        """Raise ``InputError`` unless there is a number for each label."""
        if len(numbers) != len(self.labels):
            raise InputError(
                "{name} has {count} numbers for {count2} labels",
                name,
                len(numbers),
                len(self.labels),
            )


class SingleLabelTask(LabelTask):
    """Softmax classification with one label per row; subclasses read and encode the rows."""

    head = "classification"
    output_options = frozenset({"top", "threshold", "probabilities", "unknown", "coverage"})
    # The label that ``f1`` and the metrics ``RANKING`` are about; None: see ``positive_label``.
    positive: str | None = None
    # (C) added to log-probabilities to choose the label, such as a rare one below a probability of
    # .5; the probabilities do not change. None: zeros.
    decision: tuple[float, ...] | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if isinstance(threshold := self.settings.threshold, float):
            raise InputError(
                "task.threshold is {threshold:g}, but of which label? Write yes={threshold:g}, "
                "with the name of a label",
                threshold,
            )

    def preferences(self, probabilities: np.ndarray) -> np.ndarray:
        """Probabilities (..., C) weighted by the decision: the label with the largest is
        predicted."""
        return weighted(probabilities, self.decision)

    def with_thresholds(self, thresholds: Mapping[str, float]) -> "SingleLabelTask":
        if len(thresholds) > 1:
            raise InputError("a threshold is that of one of two labels, but several have one")
        if len(self.labels) != 2 or not thresholds:
            raise InputError(
                "a threshold is that of one of two labels, but there are {count}", len(self.labels)
            )
        ((label, threshold),) = thresholds.items()
        odds = float(np.log1p(-threshold) - np.log(threshold))
        task = copy.copy(self)
        task.decision = tuple(odds if own == label else 0.0 for own in self.labels)
        return task

    def tune(self, raws: Sequence[np.ndarray], encoded: EncodedRows, rows: Sequence[Row]) -> None:
        if aims := self.given_thresholds:
            truth = np.asarray([[row.target == label for label in self.labels] for row in rows])
            thresholds, self.missed = settled(aims, self.labels, truth, np.stack(raws))
            self.decision = self.with_thresholds(thresholds).decision

    def decide(self, raw: np.ndarray, row: Row, note: Any) -> LabelDecision:
        """The prediction for a row; the most probable label if nothing of the row is known
        (``note``), because the probabilities are then the label frequencies."""
        return LabelDecision(raw, raw if note else self.preferences(raw))

    def restore(self, saved: Mapping[str, Any]) -> None:
        super().restore(saved)
        if self.positive is not None:
            self.name_positive(self.positive)
        if self.decision is not None:
            _DECISION("decision", self.decision)
            self.require_per_label("decision", self.decision)
            self.decision = tuple(map(float, self.decision))

    def learn(self, rows: Sequence[Row], source: Source) -> None:
        names = {row.target for row in rows if not is_soft(row.target)}
        order = learn_order(rows, self.labels, names, source)
        if not order and len(names) < 2:
            raise InputError(
                "{source}: all rows have the label {names!r}; at least two labels are needed",
                source or "training rows",
                names.pop(),
            )
        self.labels = order or sort_labels(names)
        self.check([row for row in rows if is_soft(row.target)], source, "")
        self.counts = self.label_counts(rows)
        self.weights = label_weights(self.settings.class_weights, self.labels, self.counts)
        if aims := self.given_thresholds:
            self.decision = self.with_thresholds(before_tuning(aims)).decision
        if self.settings.positive is not None:
            self.name_positive(self.settings.positive)
        elif len(self.labels) == 2:
            rarer = self.labels[int(self.counts[0] >= self.counts[1])]
            self.positive = positive_of(self.labels) or rarer

    @property
    def positive_label(self) -> str | None:
        """The label that ``f1`` and the metrics of the order of rows are about; None if there are
        more than two labels and none was named."""
        if self.positive is None and len(self.labels) == 2:  # folders of earlier versions
            return positive_of(self.labels) or self.labels[1]
        return self.positive

    def name_positive(self, label: str) -> None:
        """Choose the positive label; raise ``InputError`` if it is not one of the labels."""
        if label not in self.labels:
            raise InputError(
                "{--positive} is {label!r}, but the labels are {labels}",
                label,
                list_labels(self.labels),
            )
        self.positive = label

    def monitor(self, metric: str) -> None:
        if metric == "f1" and self.positive_label is None:
            raise InputError(
                "the metric f1 is about one of two labels, but there are {count}; name one with "
                "{--positive}, or use macro_f1",
                len(self.labels),
            )
        super().monitor(metric)

    def balance(self) -> bool:
        """Give rare labels larger weights if labels are imbalanced; return whether they are."""
        if unequal := self.counts.max() >= _UNEQUAL * self.counts.min():
            self.weights = label_weights(_BALANCED, self.labels, self.counts)
        return unequal

    def target(self, row: Row) -> Any:
        """The index of the label, or (C) a distribution."""
        if is_soft(row.target):
            return np.asarray(row.target, dtype=np.float32)
        return self.label_indices[row.target]

    def targets(self, rows: Sequence[Row]) -> list[Any]:
        """Indices, or (C) distributions for all rows if one has a distribution: they share
        batches."""
        targets = [None if row.target is None else self.target(row) for row in rows]
        if not any(isinstance(target, np.ndarray) for target in targets):
            return targets
        one_hot = np.eye(len(self.labels), dtype=np.float32)
        return [one_hot[t] if isinstance(t, int) else t for t in targets]

    def objective(self, model: "Model") -> "Objective":
        from ownbert.tasks.row_objectives import SingleLabelObjective

        smoothing = self.settings.label_smoothing
        return SingleLabelObjective(smoothing=smoothing, label_weights=self.weights)

    def probabilities(self, logits: np.ndarray) -> np.ndarray:
        return softmax(logits)

    def output_row(
        self, decided: LabelDecision, row: Row, options: OutputOptions = PLAIN_OUTPUT
    ) -> dict[str, Any]:
        """The label, null if its score is below the threshold, and its score; with ``top``, the
        next labels are label_2, score_2, ..."""
        output: dict[str, Any] = {}
        for rank, found in enumerate(decided.ranked(self.labels)[: options.top or 1], start=1):
            end = "" if rank == 1 else f"_{rank}"
            sure = options.threshold is None or found["score"] >= options.threshold
            output[f"label{end}"] = found["label"] if sure else None
            output[f"score{end}"] = round(found["score"], 6)
        if options.probabilities:
            output["probabilities"] = named_probabilities(self.labels, decided.probabilities)
        return output

    def answer(self, decided: LabelDecision, row: Row, top_k: int | None = DEFAULT) -> Any:
        labels = decided.ranked(self.labels)
        return labels[0] if top_k is DEFAULT else labels[:top_k]

    def plain(self, decided: LabelDecision, row: Row) -> str:
        return self.labels[decided.label]

    def score(self, rows: Sequence[Row], decided: Sequence[LabelDecision]) -> Scores:
        """The metrics, with those of the positive label; without one, with ``RANKING`` averaged
        over the labels if such a metric is monitored, because that takes long with many labels."""
        truth = np.asarray([self.label_indices[row.target] for row in rows])
        probabilities = np.stack(decided)  # pyright: ignore
        preferences = np.stack([decision.preferences for decision in decided])
        predicted = preferences.argmax(1)
        scores = score_labels(truth, predicted, self.labels)
        scores = replace(scores, risk=risk_curve(preferences, predicted == truth))
        label = self.positive_label
        if label is None:
            more = one_vs_rest(truth, probabilities) if self.metric in RANKING else {}
            return replace(scores, values={**scores.values, **more})
        place = self.label_indices[label]
        ranking = Ranking(label, truth == place, probabilities[:, place])
        values = {**scores.values, "f1": scores.labels[place].f1, **ranking.values}
        warnings = scores.warnings
        if not ranking.complete:
            warnings += (
                Message(
                    "all rows or none have the label {label!r}, so roc_auc and "
                    "average_precision are those of a random order",
                    label,
                ),
            )
        return replace(scores, values=values, ranking=ranking, warnings=warnings)


class ClassificationTask(SingleLabelTask, SentenceTask):
    """One label per text or pair of texts."""

    name = "classify"
    purpose = "assigns one of its labels to each text"
    transformers_lines = (LOGITS, "print(model.config.id2label[int(logits.argmax())])")
    problem_type = "single_label_classification"
    metrics = ("macro_f1", "accuracy", "mcc", "f1", *RANKING)
    saved_attributes = (*SentenceTask.saved_attributes, "positive", "decision")
    # Name of the type of the labels of an estimator, unless they are texts.
    label_type: str | None = None

    def values(self) -> dict[str, Any]:
        values = super().values()
        if self.label_type is not None:
            values[KEY]["label_type"] = self.label_type
        return values

    def restore(self, saved: Mapping[str, Any]) -> None:
        super().restore(saved)
        self.label_type = saved.get("label_type")

    def read(self, path: Source) -> list[Row]:
        (column,), rows = self.read_table(path)
        first, cells = not self.known_labels, self.label_cells(rows, column)
        names, note = single_labels(cells, known=self.known_labels, names=self.vector_names)
        if first:
            refuse_ids(names, path, column)
            self._seen = frozenset(names)
            self.label_note = self.label_note or note or note_on_numbers(names)
            self.label_warnings = list(unusual_labels(names, column))
        return [
            Row(row.line, row.texts, name, features=row.features)
            for row, name in zip(rows, names, strict=True)
        ]


def weighted(
    probabilities: np.ndarray, decision: Sequence[float] | np.ndarray | None
) -> np.ndarray:
    """Probabilities (..., C) of labels with other frequencies: ``decision`` (C) is added to their
    logarithms. None: unchanged."""
    if decision is None:
        return probabilities
    return softmax(np.log(np.maximum(probabilities, _SMALLEST)) + np.asarray(decision))


def positive_of(labels: Sequence[str]) -> str | None:
    """The one of two labels whose name is that of a positive answer (yes, true, 1); None if that
    holds for neither or both."""
    named = [label.strip().casefold() for label in labels]
    found = [
        label
        for label, own, other in zip(labels, named, named[::-1], strict=True)
        if own in _POSITIVE or other in _OPPOSITES.get(own, ())
    ]
    return found[0] if len(found) == 1 else None


@lru_cache(maxsize=8)
def _indices(labels: tuple[str, ...]) -> Mapping[str, int]:
    return {label: i for i, label in enumerate(labels)}


def sort_labels(names: set[str]) -> tuple[str, ...]:
    """Sort labels, by their numbers if all are integers, or the same text with a number behind it:
    label_2 before label_10, as the columns of a matrix are ordered."""
    # Python refuses to convert more than 4,300 digits to an integer.
    short = all(len(name) < 1000 for name in names)
    if short and all(name.removeprefix("-").isdecimal() for name in names):
        return tuple(sorted(names, key=lambda name: (int(name), name)))
    parts = {name: _NUMBERED.fullmatch(name) for name in names if short}
    if len({part and part[1] for part in parts.values()}) == 1 and None not in parts.values():
        return tuple(sorted(names, key=lambda name: (int(parts[name][2]), name)))  # pyright: ignore
    return tuple(sorted(names))


def label_weights(
    written: str | None, labels: Sequence[str], counts: np.ndarray
) -> tuple[float, ...] | None:
    """The weights (C) of labels, 1 for those that are not listed; None if all are equal.
    ``written`` is None or "equal", "balanced" (rows / (C count)), a list ("label=weight,...", where
    labels may contain commas) or a JSON object; ``counts`` (C) are the rows per label."""
    if written in (None, _EQUAL):
        return None
    if written == _BALANCED:
        weights = counts.sum() / (len(labels) * np.maximum(counts, 1))
        return tuple(float(w) for w in weights)
    weight_of_label = dict.fromkeys(labels, 1.0)
    for label, text in label_values(written, labels, "task.class_weights"):
        try:
            weight = float(text)
        except ValueError:
            weight = -1.0
        if label not in weight_of_label or not 0 < weight < float("inf"):
            pair = f"{label}={text}" if label else text
            raise InputError(
                "task.class_weights has {pair!r}; write balanced, equal, or label=weight with a "
                "weight above 0 and one of the labels {labels}",
                pair,
                list_labels(labels),
            )
        weight_of_label[label] = weight
    return tuple(weight_of_label.values())
