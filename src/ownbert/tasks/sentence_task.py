"""Tasks with one answer per text or pair of texts: reading, pooling, long documents."""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ownbert.checkpoint import Description
from ownbert.config import HeadSpec
from ownbert.data.batch import Batch
from ownbert.data.readers.columns import ColumnNames, find_columns
from ownbert.data.readers.tables import at_least_one, kind_of
from ownbert.errors import InputError
from ownbert.files import open_text
from ownbert.tasks.recipe import FinetuneModel, FinetuneRecipe
from ownbert.tasks.rows import Row, TableRow, read_table
from ownbert.tasks.sentence_embedding.embedding_config import read_pooling
from ownbert.tasks.task import Task
from ownbert.tasks.text_input import EncodedRows

# Settings of all these tasks.
COMMON = frozenset({"pooling", "long", "stride", "max_windows", "rdrop"})


class SentenceTask(Task):
    """One answer per text or pair of texts, by the classification head on the pooled text.

    Long documents may be split into segments.
    """

    head = "classification"
    saved_attributes = (*Task.saved_attributes, "pair")
    # Whether a row is two texts; None before the first file.
    pair: bool | None = None
    # What to say about the pooling of the base model, if it is used.
    pooling_note = ""

    def find_columns(
        self, path: str | Path, given: ColumnNames | None = None, *, labelled: bool = True
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The columns of the texts and, if ``labelled``, of the targets.

        Args:
            path: of the table.
            given: the columns that the user named, by default ``columns``.
            labelled: whether the targets are looked for too.

        Raises:
            InputError: a column is missing or needed twice.
        """
        found = find_columns(
            path, self.column_specs, given or self.columns, labelled=labelled, pair=self.pair
        )
        return (*found["text"], *found.get("second", ())), found.get("label", ())

    def read_table(self, path: str | Path) -> tuple[tuple[str, ...], list[TableRow]]:
        """The columns of the targets, and the rows with these as cells; at least one."""
        texts, labels = self.find_columns(path)
        rows = list(read_table(path, texts, labels))
        self.pair = len(texts) == 2
        return labels, rows

    def stream(self, path: str | Path) -> Iterator[Row]:
        if kind_of(path) != "txt":
            texts, _ = self.find_columns(path, labelled=False)
            return (Row(row.line, row.texts) for row in read_table(path, texts))
        if self.pair:
            raise InputError(f"{path} is plain text; two texts per row need a table")
        return (Row(line, (text,)) for line, text in at_least_one(open_text(path), path))

    def describe_columns(self, path: str | Path) -> str:
        texts, labels = (map(repr, names) for names in self.find_columns(path))
        return f"{' and '.join(texts)} to read, {', '.join(labels)} to answer"

    def describe_base(self, model: FinetuneModel) -> Description | None:
        description = super().describe_base(model)
        pooling = read_pooling(Path(model.folder)) if self.settings.pooling is None else None
        if description is not None and pooling is not None:
            usual = self.head_spec(description).pooling
            # Kept, so that the other models of an ensemble have it too.
            self.settings = replace(self.settings, pooling=pooling)
            if pooling != usual:
                self.pooling_note = (
                    f"{pooling} pooling, as {model.folder} has it for embeddings; Transformers "
                    f"has no such classifier (with --pooling {usual} it loads the folder as one)"
                )
        return description

    def complete_recipe(self, recipe: FinetuneRecipe, builder: Any) -> FinetuneRecipe:
        recipe = super().complete_recipe(recipe, builder)
        return replace(recipe, task=replace(recipe.task, pooling=self.settings.pooling))

    def notes(self) -> list[str]:
        return [self.pooling_note] if self.pooling_note else []

    def head_spec(self, description: Description) -> HeadSpec:
        spec, settings = super().head_spec(description), self.settings
        if settings.pooling is not None:
            spec = replace(spec, pooling=settings.pooling)
        if settings.long == "segments":
            spec = replace(spec, segments="attention")
        return spec

    def length_limit(self, max_length: int) -> str:
        if self.settings.long == "cut":
            return super().length_limit(max_length)
        return f"{self.settings.max_windows} windows of {max_length} tokens"

    @abstractmethod
    def target(self, row: Row) -> Any:
        """The label of a row as the objective takes it."""

    def encode(self, rows: Sequence[Row], builder: Any, *, training: bool) -> EncodedRows:
        if self.pair is None and rows:
            self.pair = len(rows[0].texts) == 2
        settings, examples, truncated = self.settings, [], 0
        if settings.long != "cut" and builder.room <= settings.stride:
            raise InputError(
                f"task.stride is {settings.stride}; with sequences of {builder.max_length} tokens "
                f"it must be below {builder.room}"
            )
        for row, own in zip(rows, builder.ids_by_row(rows), strict=True):
            label = {} if row.target is None else {"label": self.target(row)}
            if settings.long == "cut":
                example, was_truncated = builder.example(own, **label)
            elif len(own) > 1:
                raise InputError(
                    f"task.long {settings.long} is for single texts, and the rows have two; take "
                    "task.long cut"
                )
            else:
                example, was_truncated = builder.windows(
                    own[0], stride=settings.stride, most=settings.max_windows, **label
                )
            examples.append(example)
            truncated += was_truncated
        return EncodedRows(examples, truncated, [None] * len(examples))

    @abstractmethod
    def probabilities(self, logits: Tensor) -> Tensor:
        """(B, C) -> (B, C): what is averaged over the windows of a document."""

    def raw(self, logits: Tensor, batch: Batch, model: Any) -> list[np.ndarray]:
        return list(mean_per_row(self.probabilities(logits.float()), batch).cpu().numpy())


def repeat_per_sequence(labels: Tensor, scores: Tensor, batch: Batch) -> Tensor:
    """Labels repeated for the sequences of each row.

    Args:
        labels: (rows, ...).
        scores: (B, ...).
        batch: of B sequences.

    Returns:
        (B, ...), or ``labels`` unchanged if there is one score per row already.
    """
    if batch.groups is None or len(scores) == len(batch.groups):
        return labels
    return labels.repeat_interleave(torch.tensor(batch.groups, device=labels.device), 0)


def mean_per_row(values: Tensor, batch: Batch) -> Tensor:
    """(B, ...) -> (rows, ...): the mean over the sequences of each row; (rows, ...) stays."""
    if batch.groups is None or len(values) == len(batch.groups):
        return values
    counts = torch.tensor(batch.groups, device=values.device)
    rows = torch.arange(len(counts), device=values.device).repeat_interleave(counts)
    sums = values.new_zeros(len(counts), *values.shape[1:]).index_add(0, rows, values)
    return sums / counts.view(-1, *[1] * (values.ndim - 1))
