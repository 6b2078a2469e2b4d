"""The labelled rows of ``fit``: their task, and their split into folds."""

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from ownbert.exceptions import InputError
from ownbert.files.text_files import open_text
from ownbert.finetuning.labelled_splits import fold_of, labels_per_class
from ownbert.finetuning.linear_baseline import targets_of
from ownbert.language.messages import Message
from ownbert.tables.columns import COLUMNS, ColumnNames, find_columns
from ownbert.tables.label_task import task_of_cells
from ownbert.tables.labels import are_bits
from ownbert.tables.other_tasks import refuse_other_tasks
from ownbert.tables.tables import Source, kind_of, read_values
from ownbert.tasks.finetune_recipe import TEXT_TASKS, TaskSettings
from ownbert.tasks.related_rows import (
    MANY_ROWS,
    SplitColumns,
    clusters_of,
    fold_count,
    group_warnings,
    split_by_time,
)
from ownbert.tasks.rows import Row
from ownbert.tasks.sentence_task import SentenceTask
from ownbert.tasks.task import Task, task_class
from ownbert.views.linear_models import Targets

LOG_LOSS = "log_loss"
_SAMPLED_ROWS = 5_000  # rows used to detect the task
_LARGEST_FOLD = 1.5  # held-out rows, relative to folds of equal sizes
_BY_TEXT = SplitColumns()
_FEW_KNOWN = 0.05  # share of the test rows


@dataclass(frozen=True)
class LabelledRows:
    """Labelled rows and their folds for model selection."""

    task: Task  # with known labels
    rows: Sequence[Row]
    targets: Targets
    # Pairs of (training indices, held-out indices); models are compared on all held-out rows.
    folds: Sequence[tuple[np.ndarray, np.ndarray]]
    refit: bool  # whether final models may be trained on all rows: there is no dev file
    source: str  # the held-out rows, described for the user
    file: Source  # of the held-out rows
    # (rows) The cluster of each row: rows connected by shared texts and groups are not independent.
    # They are in the same fold, and bootstrap samples draw whole clusters.
    clusters: np.ndarray
    period: str = ""  # the times of the rows, if a column of times was named

    @property
    def held_out(self) -> np.ndarray:
        """The indices of the held-out rows, fold after fold."""
        return np.concatenate([held for _, held in self.folds])

    @property
    def learnt(self) -> np.ndarray:
        """Indices of the rows that a single final model is trained on."""
        return np.arange(len(self.rows)) if self.refit else self.folds[0][0]

    @property
    def training(self) -> list[Row]:
        """The rows that a single final model is trained on."""
        return [self.rows[i] for i in self.learnt]

    @property
    def left_out(self) -> int:
        """Number of rows that are not trained on because they share a text or a group with one that
        is held out: rows beside a dev file, and earlier ones than the latest rows."""
        learn, held_out = self.folds[0]
        return len(self.rows) - len(learn) - len(held_out)

    @property
    def first_fold(self) -> tuple[list[Row], list[Row]]:
        """The training rows and the held-out rows of the first fold."""
        learn, held_out = self.folds[0]
        return [self.rows[i] for i in learn], [self.rows[i] for i in held_out]

    @property
    def label_counts(self) -> np.ndarray | None:
        """Label counts (C) of the training rows; None for other tasks and for balanced labels."""
        if self.targets.task != "classify":
            return None
        counts = np.bincount(self.targets.values[self.learnt], minlength=self.targets.size)
        return None if counts.max() == counts.min() else counts

    def texts(self, indices: np.ndarray | None = None) -> list[tuple[str, ...]]:
        """The texts of all rows, or of those at the indices."""
        chosen = range(len(self.rows)) if indices is None else indices
        return [self.rows[i].texts for i in chosen]


def find_task(
    path: Source,
    columns: ColumnNames,
    name: str | None = None,
    label_options: Mapping[str, Any] = MappingProxyType({}),
) -> Task:
    """The task of a file: the named one, or detected from the labels. ``columns`` and
    ``label_options``, settings of the task by name, are those that the user gave; None is not
    given.

    Raises:
        InputError: ``fit`` does not support the task; the message names the right command.
    """

    def task_of(name: str) -> Task:
        kind = task_class(name)
        uses = kind.uses()
        given: Any = {k: v for k, v in label_options.items() if v is not None and k in uses}
        return kind(TaskSettings(name=kind.name, **given), columns)

    if name is not None:
        if (known := task_class(name).name) not in TEXT_TASKS:
            raise InputError(
                "fit is for {text_tasks}; for {options}: ownbert finetune {options}",
                ", ".join(TEXT_TASKS),
                known,
            )
        return task_of(name)
    if kind_of(path) == "txt":
        # Folders and workbooks are rejected with more specific messages.
        next(open_text(Path(str(path))), None)
        raise InputError(
            "{path} is plain text; fit needs a table of texts and labels (csv, tsv, jsonl, "
            "parquet); for words with tags: ownbert finetune tag",
            path,
        )
    refuse_other_tasks(path, columns)
    # Several label columns contain numbers, or 0 and 1; but a single name may contain a comma too.
    if "," in (columns.label or ""):
        names = find_columns(path, COLUMNS["regress"], columns)["label"]
        if len(names) > 1:
            rows = itertools.islice(read_values(path, names), _SAMPLED_ROWS)
            bits = are_bits([value for _, values in rows for value in values])
            return task_of("multilabel" if bits else "regress")
    label = find_columns(path, COLUMNS["classify"], columns)["label"]
    # Read all labels: in a file sorted by label, some occur only at the end.
    cells = [v[0] for _, v in read_values(path, label)]
    detected, note = task_of_cells(cells)
    task = task_of(detected)
    task.label_note = note  # pyright: ignore
    return task


def read_labelled(
    task: Task,
    train: Source,
    dev: Source | None,
    *,
    seed: int,
    per_label: int | None = None,
    split: SplitColumns = _BY_TEXT,
) -> LabelledRows:
    """Read labelled rows and split them into folds; the labels are added to the task.

    With a dev file, its rows are held out. With a column of times, the latest rows are. Otherwise a
    part of the training rows is held out, or, if there are few rows, they are cross-validated. Rows
    that share a text or a group stay together. ``per_label``: number of rows per label to sample
    from ``train``; by default all.

    Raises:
        InputError: rows or labels cannot be used.
    """
    if dev is not None and split.time is not None:
        raise InputError(
            "{--time-column} and {--dev} both choose the held-out rows; omit one of them"
        )
    if isinstance(task, SentenceTask):
        split.refuse_labels(train, task.find_columns(train)[1])
    rows = split.with_groups(task.read(train), train)
    if per_label is not None:
        if task.name != "classify":
            raise InputError("labels_per_class does not apply to {name}", task.name)
        rows = [rows[i] for i in labels_per_class([r.target for r in rows], per_label, seed)]
    _refuse_empty(rows, train)
    period = ""
    task.learn(rows, train)
    task.check(rows, train, Message("the training data {train}", train))
    if dev is not None:
        dev_rows = split.with_groups(task.read(dev), dev)
        task.check(dev_rows, dev, Message("the training data {train}", train))
        _refuse_empty(dev_rows, dev)
        if len(dev_rows) < 2:
            raise InputError("{dev} has one row; models are compared on two or more", dev)
        # Rows that share a text or a group with a dev row are not trained on.
        keys = [task.fold_keys(row) for row in (*rows, *dev_rows)]
        known = {key for own in keys[len(rows) :] for key in own}
        unrelated = [i for i in range(len(rows)) if known.isdisjoint(keys[i])]
        if len({str(rows[i].target) for i in unrelated}) < 2:
            shared = "a text" if split.group is None else "a text or a group"
            raise InputError(
                "nearly all rows of {train} share {shared} with rows of {dev}; give other dev rows",
                train,
                shared,
                dev,
            )
        held_out = np.arange(len(rows), len(rows) + len(dev_rows))
        folds = [(np.asarray(unrelated), held_out)]
        rows += dev_rows
        clusters = clusters_of(keys)
        source, refit = Message("{count:,} rows of {dev}", len(dev_rows), dev), False
    else:
        keys = [task.fold_keys(row) for row in rows]
        clusters = clusters_of(keys)
        if (times := split.times(rows, train)) is None:
            folds, source = _make_folds(rows, clusters, train, seed)
        else:
            folds = [split_by_time(times.numbers, keys, train)]
            period = times.period(*folds[0])
            source = Message("the {count:,} latest training rows", len(folds[0][1]))
        refit = True
    file, targets = train if dev is None else dev, targets_of(task, rows)
    return LabelledRows(task, rows, targets, folds, refit, source, file, clusters, period)


def split_notices(
    rows: LabelledRows, split: SplitColumns, train: Source, dev: Source | None
) -> Iterator[str]:
    """Messages about groups and times."""
    name = split.group
    if rows.period:
        yield Message("times: {period}", rows.period)
    counts = Counter(row.group for row in rows.rows)
    alone = counts.pop(None, 0)  # rows without a group
    task = rows.task
    if name is None and isinstance(task, SentenceTask):
        unused = task.unused_columns(train)
        yield from group_warnings(train, unused, dev)
    if name is not None:
        largest = max(counts.values(), default=0)
        yield Message(
            "groups: {count:,} in column {name!r}; the largest has {largest:,} rows",
            len(counts),
            name,
            largest,
        )
        if alone:
            yield Message(
                "warning: {alone:,} rows have no {name!r}; each is a group of its own", alone, name
            )
    shared = "a text" if name is None else "a text or a group"
    if rows.left_out and not rows.refit:
        line = (
            "{count:,} training rows share {shared!t} with a dev row: no model is trained on them"
        )
        yield Message(line, rows.left_out, shared)
    elif rows.left_out:
        yield Message(
            "{count:,} earlier rows share {shared!t} with one of the latest rows: they are not "
            "trained on while models are compared",
            *(rows.left_out, shared),
        )


def _refuse_empty(rows: Sequence[Row], source: Source) -> None:
    empty = [row for row in rows if not any(text.strip() for text in row.texts)]
    if len(empty) > len(rows) / 2:
        raise InputError(
            "{source}: {count:,} of {count2:,} texts are empty", source, len(empty), len(rows)
        )


def _make_folds(
    rows: Sequence[Row], clusters: np.ndarray, source: Source, seed: int
) -> tuple[list[tuple[np.ndarray, np.ndarray]], str]:
    once = len(rows) >= MANY_ROWS
    count = fold_count(len(rows))
    row_folds = np.asarray(fold_of(rows, count, seed=seed, clusters=clusters))
    folds = [(np.flatnonzero(row_folds != k), np.flatnonzero(row_folds == k)) for k in range(count)]
    folds = [(learn, held_out) for learn, held_out in folds if len(held_out) and len(learn)]
    if len(folds) < 2:
        shared, connect = "a text", "shared texts connect"
        if any(row.group is not None for row in rows):
            shared, connect = "a text or a group", "shared texts and groups connect"
        raise InputError(
            "{source}: rows that share {shared} are held out together, and {connect} all "
            "{count:,} rows, so none can be held out; give other rows with {--dev}",
            source,
            shared,
            connect,
            len(rows),
        )
    if once:
        # The first fold has the largest cluster; alone, it would say little about others.
        most = _LARGEST_FOLD * len(rows) / count
        fold = next((fold for fold in folds if len(fold[1]) <= most), folds[-1])
        return [fold], Message("{count:,} held-out training rows", len(fold[1]))
    return folds, Message("{count} folds of the {count2:,} training rows", len(folds), len(rows))


def known_in_test(texts: int, groups: int, rows: int) -> Iterator[str]:
    """A sentence on the number of test rows that are training rows too, and one on those whose
    group was trained on, with a warning if there are many."""
    of_texts = Message(
        "The training data contains {options:,} of the {rows:,} test rows", *(texts, rows)
    )
    of_groups = Message(
        "{options:,} of the {rows:,} test rows belong to groups of the training data",
        *(groups, rows),
    )
    for count, sentence, new in ((texts, of_texts, "texts"), (groups, of_groups, "groups")):
        if count:
            many = f", so the test score says little about new {new}"
            yield sentence + (many if count > _FEW_KNOWN * rows else "")
