"""One label per row. N rows, C labels."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from ownbert.data.readers.columns import COLUMNS
from ownbert.errors import InputError
from ownbert.nn.model import Model
from ownbert.tasks.metrics import Scores, score
from ownbert.tasks.row_objectives import OneLabel
from ownbert.tasks.rows import Row, label_text, shown_labels, unknown_label
from ownbert.tasks.sentence_task import COMMON, SentenceTask
from ownbert.tasks.task import Task


class SingleLabelTask(Task):
    """Softmax over labels of which each row has one: all but how rows are read and encoded."""

    head = "classification"

    def learn(self, rows: Sequence[Row], source: str | Path) -> None:
        names = {row.target for row in rows}
        if len(names) < 2:
            raise InputError(
                f"{source or 'training rows'}: all rows have the label {names.pop()!r}; at least "
                "two needed"
            )
        self.labels = in_order(names)
        counts = np.asarray([sum(row.target == label for row in rows) for label in self.labels])
        self.weights = label_weights(self.settings.class_weights, self.labels, counts)

    def check(self, rows: Sequence[Row], source: str | Path, known: str) -> None:
        for row in rows:
            if row.target not in self.numbers:
                raise unknown_label(row.target, self.labels, row.place(source), known)

    @property
    def numbers(self) -> Mapping[str, int]:
        """The number of each label."""
        return _numbers(self.labels)

    def target(self, row: Row) -> Any:
        return self.numbers[row.target]

    def objective(self, model: Model) -> OneLabel:
        return OneLabel(smoothing=self.settings.label_smoothing, label_weights=self.weights)

    def probabilities(self, logits: Tensor) -> Tensor:
        return logits.softmax(-1)

    def decide(self, raw: np.ndarray, row: Row, note: Any) -> np.ndarray:
        return raw

    def shown(self, decided: np.ndarray, row: Row) -> dict[str, Any]:
        pairs = zip(self.labels, decided.tolist(), strict=True)
        return {
            "label": self.labels[int(decided.argmax())],
            "probabilities": {label: round(p, 6) for label, p in pairs},
        }

    def score(self, rows: Sequence[Row], decided: Sequence[np.ndarray]) -> Scores:
        truth = [self.numbers[row.target] for row in rows]
        return score(truth, [int(p.argmax()) for p in decided], self.labels)

    def shares(self, rows: Sequence[Row]) -> str:
        total = len(rows)
        counts = ((label, sum(r.target == label for r in rows)) for label in self.labels)
        return ", ".join(f"{label} {count / total:.1%}" for label, count in counts)


class Classify(SingleLabelTask, SentenceTask):
    """One label per text or pair of texts."""

    name = "classify"
    column_specs = COLUMNS["classify"]
    problem_type = "single_label_classification"
    measures = ("macro_f1", "accuracy", "mcc")
    uses = COMMON | {"class_weights", "label_smoothing"}

    def read(self, path: str | Path) -> list[Row]:
        (label,), rows = self.read_table(path)
        return [
            Row(row.line, row.texts, label_text(row.cells[0], row.where, label)) for row in rows
        ]


@lru_cache(maxsize=8)
def _numbers(labels: tuple[str, ...]) -> Mapping[str, int]:
    return {label: i for i, label in enumerate(labels)}


def in_order(names: set[str]) -> tuple[str, ...]:
    """Labels sorted; as numbers where all are whole numbers."""
    numbers = all(name.lstrip("-").isdecimal() for name in names)
    return tuple(sorted(names, key=(lambda n: (int(n), n)) if numbers else None))


def label_weights(
    given: str | None, labels: Sequence[str], counts: np.ndarray
) -> tuple[float, ...] | None:
    """A weight for each label: none, "balanced" (N / (C count)), or as listed, 1 if not.

    Raises ``InputError`` for what is no weight and for a label that is not there.
    """
    if given is None:
        return None
    if given == "balanced":
        weights = counts.sum() / (len(labels) * np.maximum(counts, 1))
        return tuple(float(w) for w in weights)
    found = dict.fromkeys(labels, 1.0)
    for pair in given.split(","):
        label, _, text = pair.rpartition("=")
        try:
            weight = float(text)
        except ValueError:
            weight = -1.0
        if label.strip() not in found or not weight > 0:
            raise InputError(
                f"task.class_weights has {pair!r}; write balanced, or label=weight with a weight "
                f"above 0 and one of the labels {shown_labels(labels)}"
            )
        found[label.strip()] = weight
    return tuple(found.values())
