"""The labelled rows of a fine-tuning run, training and dev, and how the model reads them."""

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ownbert.errors import InputError
from ownbert.finetuning.checks import LabelledSplit
from ownbert.nn.model import Model
from ownbert.objectives import Objective
from ownbert.tasks.batched_forward import answers
from ownbert.tasks.metrics import Scores
from ownbert.tasks.recipe import FinetuneRecipe
from ownbert.tasks.rows import Row
from ownbert.tasks.task import Task
from ownbert.tasks.text_input import EncodedRows, UnknownWords, cut_warning

Rows = tuple[Sequence[Row], Sequence[Row] | None]


def drawn(rows: Sequence[Row], recipe: FinetuneRecipe) -> Sequence[Row]:
    """The training rows that are learnt from: all, or so many of each label."""
    count = recipe.data.labels_per_class
    if count is None:
        return rows
    if not all(isinstance(row.target, str) for row in rows):
        raise InputError(f"data.labels_per_class is of no use to {recipe.task.name}")
    chosen = labels_per_class([row.target for row in rows], count, recipe.seed)
    return [rows[i] for i in chosen]


def labels_per_class(labels: Sequence[str], n: int, seed: int) -> list[int]:
    """Indices of at most `n` rows of each label, drawn without replacement, ascending.

    A label with fewer than `n` rows gives all of them. The draw of a label depends on `seed`, its
    name and its number of rows only, so adding a label changes no other label's rows; and for one
    seed the rows for a smaller `n` are among those for a larger one, so that scores at 20, 100,
    ... labels per class differ by what was added and not by a fresh draw.
    """
    if n < 1:
        raise InputError(f"labels per class is {n}; it must be at least 1")
    if seed < 0:
        raise InputError(f"seed is {seed}; it must not be negative")
    rows_of: dict[str, list[int]] = {}
    for row, label in enumerate(labels):
        rows_of.setdefault(label, []).append(row)
    chosen: list[int] = []
    for label, rows in sorted(rows_of.items()):
        # crc32 and not hash(): the latter is salted anew in every process.
        rng = np.random.default_rng([seed, zlib.crc32(label.encode())])
        # Sorting uniform numbers, because `choice` may draw differently in another numpy: only the
        # bit stream, of which `random` is the plainest function, is promised to stay.
        order = np.argsort(rng.random(len(rows)), kind="stable")
        chosen.extend(rows[i] for i in order[:n])
    return sorted(chosen)


class LabelledSplits:
    """Training rows, and dev rows or none, of the files of a recipe or given as ``rows``.

    The task learns from the training rows what it must know (labels, scales), unless it has
    ``learnt`` that before. ``encode`` comes next.
    """

    builder: Any
    train_data: EncodedRows
    dev_data: EncodedRows | None = None

    def __init__(
        self,
        task: Task,
        recipe: FinetuneRecipe,
        rows: Rows | None = None,
        *,
        learnt: bool = False,
    ) -> None:
        self.task, self.recipe = task, recipe
        self.train_rows, self.dev_rows = rows or self._read()
        source = recipe.data.train
        known = f"the training data {source}"
        if not learnt:
            task.learn(self.train_rows, source)
        task.check(self.train_rows, source, known)
        if self.dev_rows is not None:
            task.check(self.dev_rows, recipe.data.dev or "", known)

    def encode(self, builder: Any) -> None:
        """Make of the rows what a model reads; builder: what ``Task.builder`` gives."""
        self.builder = builder
        self.train_data = self.task.encode(self.train_rows, builder, training=True)
        if self.dev_rows is not None:
            self.dev_data = self.task.encode(self.dev_rows, builder, training=False)

    def _read(self) -> Rows:
        data = self.recipe.data
        if not data.train:
            raise InputError("--train is needed: labelled rows to learn")
        rows = drawn(self.task.read(data.train), self.recipe)
        return rows, self.task.read(data.dev) if data.dev else None

    @property
    def parts(self) -> list[LabelledSplit]:
        """The rows with the files they come from."""
        data, task, sets = self.recipe.data, self.task, self.task.label_sets
        found = [LabelledSplit("training", self.train_rows, data.train, task.unit, sets)]
        if self.dev_rows is not None:
            # Without a file of their own they are some of the training file.
            found.append(
                LabelledSplit("dev", self.dev_rows, data.dev or data.train, task.unit, sets)
            )
        return found

    def cuts(self) -> Iterator[str]:
        """What to tell of rows that were too long."""
        for rows, data, what in (
            (self.train_rows, self.train_data, "training"),
            (self.dev_rows, self.dev_data, "dev"),
        ):
            if rows is not None and data is not None and data.cut:
                unit, limit = (
                    f"{what} {self.task.unit}",
                    self.task.limit(self.builder.max_length),
                )
                yield cut_warning(data.cut, len(rows), limit, unit)

    def unknown(self) -> Iterator[str]:
        """What to tell of words that the model does not know, where they are many."""
        found = UnknownWords(self.builder.tokenizer)
        found.count(self.train_data.examples)
        if said := found.warning():
            yield said

    def measure(
        self, model: Model, *, precision: str, objective: Objective | None = None
    ) -> Scores | None:
        """Thresholds chosen on the dev rows, and how well these are answered then; with
        ``objective`` their loss too."""
        if self.dev_rows is None or self.dev_data is None:
            return None
        task, data, rows = self.task, self.dev_data, self.dev_rows
        found = answers(model, task, data.examples, precision=precision, objective=objective)
        task.tune(found.raws, data, rows)
        decided = [task.decide(*each) for each in zip(found.raws, rows, data.notes, strict=True)]
        scores = task.score(rows, decided)
        if found.loss is None or objective is None:
            return scores
        # The second name is the one that it has in the rows of training.
        losses = {"loss": found.loss, f"{objective.name}_loss": found.loss}
        return replace(scores, values={**losses, **scores.values})


def texts_of(task: Task, splits: LabelledSplits) -> Iterator[str]:
    """The different texts of training and dev rows; the words of a row that is tagged are one."""
    seen = set()
    for row in (*splits.train_rows, *(splits.dev_rows or ())):
        for text in [" ".join(row.texts)] if task.head == "tokens" else row.texts:
            if text.strip() and text not in seen:
                seen.add(text)
                yield text
