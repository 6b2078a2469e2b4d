"""Multi-label classification of texts or pairs of texts."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ownbert.exceptions import InputError
from ownbert.tables.labels import label_sets, sets_of_columns, unusual_labels
from ownbert.tables.tables import Source
from ownbert.tasks.classification import LabelTask, label_weights, sort_labels
from ownbert.tasks.metrics import (
    Scores,
    average_precision,
    label_scores,
    mean_f1,
    set_level_scores,
    weighted_f1,
)
from ownbert.tasks.row_network import sigmoid
from ownbert.tasks.rows import (
    PLAIN_OUTPUT,
    OutputOptions,
    Row,
    is_soft,
    learn_order,
    list_labels,
)
from ownbert.tasks.sentence_task import LOGITS, SentenceTask
from ownbert.tasks.task import DEFAULT, named_probabilities
from ownbert.tasks.text_input import EncodedRows
from ownbert.tasks.thresholds import before_tuning, best_thresholds, settled

if TYPE_CHECKING:
    from ownbert.nn.model import Model
    from ownbert.objectives.objective import Objective


@dataclass(frozen=True, eq=False, slots=True)
class LabelSetDecision:
    """The prediction for a row with any number of labels: their probabilities (C), which are its
    value as an array, and whether each is predicted (C)."""

    probabilities: np.ndarray
    predicted: np.ndarray

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.probabilities, dtype=dtype)

    def ranked(
        self, names: Sequence[str], chosen: np.ndarray | None = None
    ) -> list[dict[str, Any]]:
        """Labels with their probabilities, most probable first, like ``transformers.pipeline``;
        ``chosen`` (C) says which, by default the predicted ones."""
        chosen = self.predicted if chosen is None else chosen
        order = np.argsort(-self.probabilities, kind="stable")
        return [
            {"label": names[i], "score": float(self.probabilities[i])} for i in order if chosen[i]
        ]


class MultiLabelTask(LabelTask, SentenceTask):
    """One sigmoid per label; labels whose probability reaches their threshold (the same for all or
    (C)) are predicted."""

    name = "multilabel"
    purpose = "assigns any number of its labels to each text"
    transformers_lines = (
        LOGITS,
        "print(dict(zip(model.config.id2label.values(), logits[0].sigmoid().tolist())))",
    )
    output_options = frozenset({"top", "threshold", "probabilities", "coverage"})
    label_sets = True
    problem_type = "multi_label_classification"
    saved_attributes = (*SentenceTask.saved_attributes, "threshold")
    metrics = ("micro_f1", "macro_f1", "average_precision", "subset_accuracy")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        threshold = self.settings.threshold
        if isinstance(threshold, float) and not 0 < threshold < 1:
            raise InputError(
                "task.threshold is {threshold}; a probability between 0 and 1 is needed", threshold
            )
        if self.settings.separator == "":
            raise InputError(
                'task.separator is empty; give the character between labels, such as "|"'
            )
        self.threshold: float | tuple[float, ...] = 0.5
        if isinstance(threshold, float):
            self.threshold = threshold

    @property
    def thresholds(self) -> np.ndarray:
        """(C) minimum probability of each label."""
        return np.broadcast_to(self.threshold, len(self.labels))

    def with_thresholds(self, thresholds: Mapping[str, float]) -> "MultiLabelTask":
        own = zip(self.labels, self.thresholds.tolist(), strict=True)
        return self.deciding_by(np.asarray([thresholds.get(*pair) for pair in own]))

    def restore(self, saved: Mapping[str, Any]) -> None:
        super().restore(saved)
        threshold = saved.get("threshold", 0.5)
        if isinstance(threshold, list):
            self.require_per_label("threshold", threshold)
            self.threshold = tuple(map(float, threshold))

    def read(self, path: Source) -> list[Row]:
        names, rows = self.read_table(path)
        if len(names) != 1:
            columns = dict(zip(names, zip(*(row.cells for row in rows), strict=True), strict=True))
            sets = sets_of_columns(columns, [row.where for row in rows])
        else:
            first, cells = not self.known_labels, self.label_cells(rows, names[0])
            sets, separator, note = label_sets(
                cells,
                separator=self.settings.separator,
                known=self.known_labels,
                names=self.vector_names,
            )
            # Stored, so that other files are read in the same way.
            self.settings = replace(self.settings, separator=separator)
            if first:
                self._seen = frozenset(label for labels in sets for label in labels)
                self.label_note = note or self.label_note
                self.label_warnings = list(
                    unusual_labels([label for labels in sets for label in labels])
                )
        return [
            Row(row.line, row.texts, labels, features=row.features)
            for row, labels in zip(rows, sets, strict=True)
        ]

    def learn(self, rows: Sequence[Row], source: Source) -> None:
        sets = {frozenset(row.target) for row in rows if not is_soft(row.target)}
        names = set[str]().union(*sets)
        order = learn_order(rows, self.labels, names, source)
        if not order and not names:
            raise InputError("{source}: no row has a label", source)
        if not order and len(sets) < 2 and not any(is_soft(row.target) for row in rows):
            raise InputError(
                "{source}: all rows have the labels {target}; rows with others, or with none, "
                "are needed",
                source,
                list_labels(rows[0].target),
            )
        self.labels = order or sort_labels(names)
        self.check([row for row in rows if is_soft(row.target)], source, "")
        if aims := self.given_thresholds:
            self.threshold = self.with_thresholds(before_tuning(aims)).threshold
        positives, weights = self.label_counts(rows), self.settings.class_weights
        if weights == "balanced":  # of positive rows; negative rows have weight 1
            # At least 1 negative row, because a label of all rows would get weight 0.
            negatives = np.maximum(len(rows) - positives, 1)
            self.weights = tuple((negatives / np.maximum(positives, 1)).tolist())
        else:
            self.weights = label_weights(weights, self.labels, positives)

    def explained_count(self, tokens: int) -> int:
        return len(self.labels)

    def target(self, row: Row) -> np.ndarray:
        """(C) of 0 and 1, or of probabilities."""
        if is_soft(row.target):
            return np.asarray(row.target, dtype=np.float32)
        return np.asarray([label in row.target for label in self.labels], dtype=np.float32)

    def objective(self, model: "Model") -> "Objective":
        from ownbert.tasks.row_objectives import MultiLabelObjective

        return MultiLabelObjective(label_weights=self.weights)

    def probabilities(self, logits: np.ndarray) -> np.ndarray:
        return sigmoid(logits)

    def tune(self, raws: Sequence[np.ndarray], encoded: EncodedRows, rows: Sequence[Row]) -> None:
        if isinstance(self.settings.threshold, float):
            return
        truth, probabilities = np.stack([self.target(row) for row in rows]), np.stack(raws)
        best = best_thresholds(truth, probabilities, self.metric or self.metrics[0])
        named, self.missed = settled(self.given_thresholds, self.labels, truth > 0, probabilities)
        self.threshold = self.deciding_by(best).with_thresholds(named).threshold

    def deciding_by(self, thresholds: np.ndarray) -> "MultiLabelTask":
        """The task with other thresholds (C)."""
        task = copy.copy(self)
        numbers = tuple(thresholds.tolist())
        task.threshold = numbers if len({*numbers}) > 1 else numbers[0]
        return task

    def decide(self, raw: np.ndarray, row: Row, note: Any) -> LabelSetDecision:
        """The prediction for a row; if nothing of the row is known (``note``), thresholds are at
        least .5, because a lower one suits only known texts."""
        # In float64, so that comparisons do not round the threshold to float32.
        probabilities = raw.astype(np.float64)
        least = np.maximum(self.threshold, 0.5) if note else self.threshold
        return LabelSetDecision(probabilities, probabilities >= least)

    def output_row(
        self, decided: LabelSetDecision, row: Row, options: OutputOptions = PLAIN_OUTPUT
    ) -> dict[str, Any]:
        """The predicted labels with scores, most probable first; with ``top``, that many labels,
        whether or not they reach the default threshold."""
        chosen = decided.predicted
        if options.top is not None or options.threshold is not None:
            chosen = decided.probabilities >= (options.threshold or 0.0)
        labels = decided.ranked(self.labels, chosen)[: options.top]
        output: dict[str, Any] = {"labels": [found["label"] for found in labels]}
        output["scores"] = [round(found["score"], 6) for found in labels]
        if options.probabilities:
            output["probabilities"] = named_probabilities(self.labels, decided.probabilities)
        return output

    def answer(
        self, decided: LabelSetDecision, row: Row, top_k: int | None = DEFAULT
    ) -> list[dict[str, Any]]:
        """The predicted labels, most probable first; with ``top_k``, regardless of the
        threshold."""
        if top_k is DEFAULT:
            return decided.ranked(self.labels)
        return decided.ranked(self.labels, np.full(len(self.labels), True))[:top_k]

    def plain(self, decided: LabelSetDecision, row: Row) -> list[str]:
        return [self.labels[i] for i in np.flatnonzero(decided.predicted)]

    def is_right(self, decided: LabelSetDecision, row: Row) -> bool:
        return bool(((self.target(row) > 0.5) == decided.predicted).all())

    def score(self, rows: Sequence[Row], decided: Sequence[LabelSetDecision]) -> Scores:
        truth = np.stack([self.target(row) for row in rows])
        predicted = np.stack([decision.predicted for decision in decided])
        return score_multilabel(truth, np.stack(decided), predicted, self.labels)  # pyright: ignore


def score_multilabel(
    truth: np.ndarray, probabilities: np.ndarray, predicted: np.ndarray, labels: Sequence[str]
) -> Scores:
    """Metrics of predictions with any number of labels per row, from arrays (rows, C). Macro-F1 is
    the mean over the labels in the truth or the predictions (scikit-learn's zero_division=nan),
    average precision is the mean over the labels in the truth."""
    true = truth.astype(bool)
    counts = right, support, positives = [x.sum(0) for x in (true & predicted, true, predicted)]
    scores = label_scores(labels, *counts)
    precisions = [
        average_precision(true[:, i], probabilities[:, i]) for i in np.flatnonzero(support)
    ]
    values = {
        "micro_f1": float(2 * right.sum() / max(1, (support + positives).sum())),
        "macro_f1": mean_f1(*counts),
        "weighted_f1": weighted_f1(scores),
        "average_precision": float(np.mean(precisions)) if precisions else 0.0,
        "subset_accuracy": float((true == predicted).all(1).mean()),
    }
    return Scores(values, scores, levels=set_level_scores(labels, true, predicted))
