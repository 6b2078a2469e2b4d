"""The labelled rows of ``fit``: their task, and which of them select between models."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from ownbert.errors import InputError
from ownbert.files import open_text
from ownbert.finetuning.ensemble import fold_of
from ownbert.finetuning.labelled_splits import labels_per_class
from ownbert.finetuning.linear_baseline import targets_of
from ownbert.tables.columns import COLUMNS, ColumnNames, find_columns
from ownbert.tables.labels import are_bits, task_of_cells
from ownbert.tables.tables import Source, kind_of, read_values
from ownbert.tasks.finetune_recipe import TEXT_TASKS, TaskSettings
from ownbert.tasks.rows import Row
from ownbert.tasks.task import Task, task_class
from ownbert.views.linear_models import Targets

# Rows from which a part is held out once; with fewer, every row is held out from one of the folds.
_HOLD_OUT_FROM = 1500
_FOLDS = 5
_LOOKED_AT = 5_000  # rows, to see the task


@dataclass(frozen=True)
class LabelledRows:
    """Rows, and how models are selected on them.

    Args:
        task: has learnt the labels.
        rows: all of them.
        targets: of all rows.
        folds: pairs of indices of rows, those to learn from and those held out from these. The
            held-out ones of all folds are what models are compared on.
        refit: whether the final models may learn from all rows: there is no dev file.
        source: what the held-out rows are, for the user.
    """

    task: Task
    rows: Sequence[Row]
    targets: Targets
    folds: Sequence[tuple[np.ndarray, np.ndarray]]
    refit: bool
    source: str

    @property
    def held_out(self) -> np.ndarray:
        """The indices of the held-out rows, fold after fold."""
        return np.concatenate([held for _, held in self.folds])

    @property
    def learnt(self) -> np.ndarray:
        """The indices of the rows that a single final model learns from."""
        return np.arange(len(self.rows)) if self.refit else self.folds[0][0]

    @property
    def first_fold(self) -> tuple[list[Row], list[Row]]:
        """The rows that the models of the first fold learn from, and those held out from these."""
        learn, held = self.folds[0]
        return [self.rows[i] for i in learn], [self.rows[i] for i in held]

    def texts(self, indices: np.ndarray | None = None) -> list[tuple[str, ...]]:
        """The texts of these rows, or of all."""
        chosen = range(len(self.rows)) if indices is None else indices
        return [self.rows[i].texts for i in chosen]


def find_task(
    path: Source,
    columns: ColumnNames,
    name: str | None = None,
    label_options: Mapping[str, str | None] = MappingProxyType({}),
) -> Task:
    """The task that a file is for, by its labels.

    Args:
        path: of labelled rows.
        columns: that the user named.
        name: of the task, if the user gave it.
        label_options: the settings ``separator`` and ``label_names``, where the user gave them.

    Raises:
        InputError: the rows are of a task that ``fit`` is not for; the message names its command.
    """
    if name is not None:
        found = task_class(name)
        if found.name not in TEXT_TASKS:
            raise InputError(
                f"fit is for {', '.join(TEXT_TASKS)}; for {found.name}: ownbert finetune "
                f"{found.name}"
            )
        return found(_settings(found.name, label_options), columns)
    if kind_of(path) == "txt":
        # A folder and a workbook are refused with their own reason.
        next(open_text(Path(str(path))), None)
        raise InputError(
            f"{path} is plain text; fit needs a table of texts and labels (csv, tsv, jsonl, "
            "parquet); for words with tags: ownbert finetune tag"
        )
    # Several columns have numbers, or 0 and 1 for each label; a name may have a comma too.
    if "," in (columns.label or ""):
        names = find_columns(path, COLUMNS["regress"], columns)["label"]
        if len(names) > 1:
            rows = (values for _, values in itertools.islice(read_values(path, names), _LOOKED_AT))
            bits = are_bits([value for values in rows for value in values])
            kind = "multilabel" if bits else "regress"
            return task_class(kind)(_settings(kind, label_options), columns)
    label = find_columns(path, COLUMNS["classify"], columns)["label"]
    # All of them: a file that is sorted by label shows some of its labels at the end alone.
    cells = [v[0] for _, v in read_values(path, label)]
    found, note = task_of_cells(cells)
    task = task_class(found)(_settings(found, label_options), columns)
    task.label_note = note  # pyright: ignore
    return task


def _settings(name: str, label_options: Mapping[str, str | None]) -> TaskSettings:
    """The settings of a task, with those of how its labels are read."""
    uses = task_class(name).uses
    given: dict[str, Any] = {k: v for k, v in label_options.items() if v is not None and k in uses}
    return TaskSettings(name=name, **given)


def read_labelled(
    task: Task,
    train: Source,
    dev: Source | None,
    *,
    seed: int,
    per_label: int | None = None,
) -> LabelledRows:
    """Labelled rows with the folds that models are compared on.

    With a dev file these are its rows. Otherwise a part of the training rows is held out, or, if
    they are few, each row once; rows that share a text stay on one side.

    Args:
        task: learns the labels.
        train, dev: files.
        seed: of what is drawn.
        per_label: how many rows of each label are drawn from ``train``; by default all.

    Raises:
        InputError: rows or labels cannot be used.
    """
    rows = list(task.read(train))
    if per_label is not None:
        if task.name != "classify":
            raise InputError(f"labels_per_class is of no use to {task.name}")
        rows = [rows[i] for i in labels_per_class([r.target for r in rows], per_label, seed)]
    _refuse_empty(rows, train)
    task.learn(rows, train)
    task.check(rows, train, f"the training data {train}")
    if dev is not None:
        more = list(task.read(dev))
        task.check(more, dev, f"the training data {train}")
        _refuse_empty(more, dev)
        if len(more) < 2:
            raise InputError(f"{dev} has one row; models are compared on two or more")
        texts = {text for row in more for text in task.fold_keys(row)}
        # What is in both files is learnt from neither.
        own = [i for i, row in enumerate(rows) if not texts & set(task.fold_keys(row))]
        if len({str(rows[i].target) for i in own}) < 2:
            raise InputError(f"nearly all rows of {train} are in {dev} too; give other dev rows")
        held = np.arange(len(rows), len(rows) + len(more))
        folds = [(np.asarray(own), held)]
        rows += more
        source, refit = f"{len(more):,} rows of {dev}", False
    else:
        folds, source = _make_folds(task, rows, train, seed)
        refit = True
    return LabelledRows(task, rows, targets_of(task, rows), folds, refit, source)


def _refuse_empty(rows: Sequence[Row], source: Source) -> None:
    empty = [row for row in rows if not any(text.strip() for text in row.texts)]
    if len(empty) > len(rows) / 2:
        raise InputError(f"{source}: {len(empty):,} of {len(rows):,} texts are empty")


def _make_folds(
    task: Task, rows: Sequence[Row], source: Source, seed: int
) -> tuple[list[tuple[np.ndarray, np.ndarray]], str]:
    keys = [task.fold_keys(row) for row in rows]
    once = len(rows) >= _HOLD_OUT_FROM
    count = min(20, max(_FOLDS, len(rows) // 1000)) if once else _FOLDS
    own = np.asarray(fold_of(rows, count, seed=seed, texts=keys))
    found = [(np.flatnonzero(own != k), np.flatnonzero(own == k)) for k in range(count)]
    found = [(learn, held) for learn, held in found if len(held) and len(learn)]
    if len(found) < 2:
        raise InputError(
            f"{source}: the {len(rows):,} rows have too few different texts to hold some out"
        )
    if once:
        return found[:1], f"{len(found[0][1]):,} training rows that were held out"
    return found, f"{len(found)} folds of the {len(rows):,} training rows"
