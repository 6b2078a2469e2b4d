"""The labelled training and dev rows of a fine-tuning run, and their encoding."""

import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ownbert.batches.masking import Masking, ordinary_tokens
from ownbert.checkpoint.description import ANSWERS
from ownbert.exceptions import InputError
from ownbert.finetuning.row_checks import LabelledSplit
from ownbert.language.messages import Message, Option
from ownbert.nn.model import Model
from ownbert.nn.prepack import prepack_for_heads
from ownbert.objectives.objective import Objective
from ownbert.run.packed_encoder import PrecisionCheck, of_cosines
from ownbert.tables.memory import MemoryTable
from ownbert.tasks.finetune_recipe import FinetuneRecipe
from ownbert.tasks.metrics import Scores
from ownbert.tasks.packed_network import PackedNetwork
from ownbert.tasks.related_rows import SplitColumns, group_warnings, split_by_time
from ownbert.tasks.row_network import forward_rows
from ownbert.tasks.rows import Row, refuse_soft_targets
from ownbert.tasks.sentence_task import SentenceTask
from ownbert.tasks.task import Task
from ownbert.tasks.text_input import EncodedRows, UnknownWords, truncation_warning
from ownbert.tasks.thresholds import Aim
from ownbert.train.loop import affordable_tokens
from ownbert.train.metric_names import shown_name

# Minimum dev rows to evaluate even with very few training rows, so that metrics are meaningful.
_LEAST_SAMPLE = 100
# Minimum and maximum dev rows for comparing bfloat16 with float32; required share of equal
# predictions, and maximum difference of the metric.
_LEAST_CHECKED, _MOST_CHECKED = 50, 1000
_EQUAL_SHARE, _METRIC_TOLERANCE = 0.99, 0.003

# Sources of the training and dev rows that are not files.
Sources = tuple[Any, Any]
Rows = tuple[Sequence[Row], Sequence[Row] | None]


def draw_rows(rows: Sequence[Row], recipe: FinetuneRecipe) -> Sequence[Row]:
    """The training rows to use: all, or a sample of ``labels_per_class`` rows per label."""
    count = recipe.data.labels_per_class
    if count is None:
        return rows
    if not all(isinstance(row.target, str) for row in rows):
        raise InputError("data.labels_per_class does not apply to {name}", recipe.task.name)
    chosen = labels_per_class([row.target for row in rows], count, recipe.seed)
    return [rows[i] for i in chosen]


def labels_per_class(labels: Sequence[str], n: int, seed: int) -> list[int]:
    """Indices of at most ``n`` rows of each label, drawn without replacement, ascending.

    A label with fewer than ``n`` rows gives all of them. The draw of a label depends only on
    ``seed``, its name and its number of rows, so adding a label does not change the rows of others.
    For one seed the rows for a smaller ``n`` are among those for a larger one, so that scores at
    20, 100, ... labels per class differ by the added rows, not by a new draw.
    """
    if n < 1:
        raise InputError("labels per class is {count}; it must be at least 1", n)
    if seed < 0:
        raise InputError("seed is {seed}; it must not be negative", seed)
    rows_of: dict[str, list[int]] = {}
    for row, label in enumerate(labels):
        rows_of.setdefault(label, []).append(row)
    chosen: list[int] = []
    for label, rows in sorted(rows_of.items()):
        # crc32 and not hash(): hashes of strings are randomised per process.
        rng = np.random.default_rng([seed, zlib.crc32(label.encode())])
        # Sorting uniform numbers, because ``choice`` may draw differently in another NumPy version:
        # only the bit stream, of which ``random`` is the simplest function, is guaranteed to be
        # stable.
        order = np.argsort(rng.random(len(rows)), kind="stable")
        chosen.extend(rows[i] for i in order[:n])
    return sorted(chosen)


def stratified_sample(rows: Sequence[Row], count: int, seed: int) -> list[int]:
    """Sorted indices of ``count`` rows, sampled by label, or by value for regression."""
    order = np.random.default_rng(seed).random(len(rows)).argsort(kind="stable").tolist()
    order.sort(key=lambda i: _stratum(rows[i].target))
    return sorted(order[i * len(rows) // count] for i in range(count))


def _stratum(target: Any) -> tuple[Any, ...]:
    """The labels or values of a target; for other targets whether there is one (an answer)."""
    parts = target if isinstance(target, tuple) else (target,)
    return parts if all(isinstance(p, str | int | float) for p in parts) else (bool(target),)


def fold_of(rows: Sequence[Row], count: int, *, seed: int, clusters: np.ndarray) -> list[int]:
    """Assign each row to a fold, numbered from 0; ``clusters`` (N) keep rows together.

    Folds have about the same size and, for single labels, the same label distribution.
    """
    members: dict[int, list[int]] = {}
    for row, cluster in enumerate(clusters.tolist()):
        members.setdefault(cluster, []).append(row)
    groups = list(members.values())
    order = np.random.default_rng(seed).permutation(len(groups))
    shuffled = sorted((groups[i] for i in order), key=len, reverse=True)
    sizes, labels = [0] * count, [Counter() for _ in range(count)]
    fold_of_row = [0] * len(rows)
    for group in shuffled:
        votes = Counter(t for i in group if isinstance(t := rows[i].target, str))
        costs = [
            (sum(own[label] * n for label, n in votes.items()), size)
            for own, size in zip(labels, sizes, strict=True)
        ]
        fold = costs.index(min(costs))
        labels[fold] += votes
        sizes[fold] += len(group)
        for i in group:
            fold_of_row[i] = fold
    return fold_of_row


class LabelledSplits:
    """The training rows and dev rows, if any, from ``rows`` or the files of a recipe; ``encode``
    them before use.

    The ``task`` learns labels and scales from the training rows unless ``learnt``. For ``rows`` and
    ``sources`` see ``FinetuningRun``; dev rows must not have soft targets.
    """

    # Sources of the rows, if rows were not given.
    tables: Sources = (None, None)
    builder: Any
    train_data: EncodedRows
    dev_data: EncodedRows | None = None
    # Indices of the dev rows that are evaluated during training; None: all.
    sample: Sequence[int] | None = None
    # Outputs of the dev rows in the last evaluation.
    raws: Sequence[np.ndarray] = ()

    def __init__(
        self,
        task: Task,
        recipe: FinetuneRecipe,
        rows: Rows | None = None,
        *,
        sources: Sources = (None, None),
        learnt: bool = False,
    ) -> None:
        self.task, self.recipe = task, recipe
        files = (recipe.data.train or "", recipe.data.dev or "")
        self.split = SplitColumns(recipe.data.group, recipe.data.time_column)
        self.notes: list[str] = []
        self.train_rows, self.dev_rows = rows or self._read(sources)
        # For messages: a table in memory has a name too, arrays have none.
        source, dev = (
            one if isinstance(one, MemoryTable) else file
            for one, file in zip(self.tables, files, strict=True)
        )
        known = Message("the training data {source}", source).rstrip()
        if not learnt:
            task.learn(self.train_rows, source)
            task.learn_features(self.train_rows)
        task.check(self.train_rows, source, known)
        if self.dev_rows is not None:
            if task.takes_soft_targets:
                refuse_soft_targets(self.dev_rows, dev)
            task.check(self.dev_rows, dev, known)
        elif aims := [t for t in task.given_thresholds.items() if isinstance(t[1], Aim)]:
            label, aim = aims[0]
            raise InputError(
                "{threshold}={aim} is chosen on dev rows, and there are none; give them with "
                "{--dev}",
                Option("--threshold", label),
                aim,
            )

    def encode(self, builder: Any) -> None:
        """Encode the rows for a model."""
        self.builder = builder
        self.train_data = self.task.encode(self.train_rows, builder, training=True)
        if rate := self.recipe.task.mask_rate:
            tokenizer = builder.tokenizer
            ordinary = ordinary_tokens(tokenizer.vocab_size, tokenizer.special_ids)
            masking = Masking(tokenizer.mask_id, ordinary, rate)
            self.train_data = replace(self.train_data, masking=masking)
        if self.dev_rows is not None:
            self.dev_data = self.task.encode(self.dev_rows, builder, training=False)

    def draw_sample(self, trained: float) -> None:
        """Sample the dev rows that are evaluated during training, so that it takes at most a fifth
        of the time, with at least ``_LEAST_SAMPLE`` rows; ``trained``: training examples between
        evaluations."""
        if self.dev_rows is None or self.dev_data is None:
            return
        tokens = affordable_tokens(trained * self.train_data.sizes.mean())
        count = max(_LEAST_SAMPLE, int(tokens / self.dev_data.sizes.mean()))
        if count < len(self.dev_rows):
            self.sample = stratified_sample(self.dev_rows, count, self.recipe.seed)

    def _read(self, sources: Sources) -> Rows:
        files = (self.recipe.data.train, self.recipe.data.dev)
        train: Any
        dev: Any
        train, dev = (
            file if given is None else self.task.source(given, name=name, labelled=True)
            for given, file, name in zip(sources, files, ("train", "dev"), strict=True)
        )
        if isinstance(train, str) and not train:
            raise InputError("{--train} is needed: the labelled training rows")
        self.tables = (train, dev)
        self._check_split(train, dev)
        rows = self.split.with_groups(self.task.read(train), train)
        times = self.split.times(rows, train)
        if times is not None:
            keys = [self.task.fold_keys(row) for row in rows]
            earlier, latest = split_by_time(times.numbers, keys, train)
            self.notes.append(Message("times: {period}", times.period(earlier, latest)))
            self._note_left_out(len(rows) - len(earlier) - len(latest))
            drawn = draw_rows([rows[i] for i in earlier], self.recipe)
            return drawn, [rows[i] for i in latest]
        if dev is not None:
            dev_rows = self.split.with_groups(self.task.read(dev), dev)
            dev_groups = {row.group for row in dev_rows} - {None}
            others = [row for row in rows if row.group not in dev_groups]
            if len(others) < min(2, len(rows)):
                raise InputError(
                    "nearly all rows of {train} belong to groups of {dev}; give other dev rows",
                    train,
                    dev,
                )
            self._note_left_out(len(rows) - len(others))
            return draw_rows(others, self.recipe), dev_rows
        rows, held_out = self.task.hold_out(draw_rows(rows, self.recipe), train, self.recipe.seed)
        if self.split.group is not None and held_out is None and not self.recipe.run.folds:
            raise InputError(
                "data.group has no effect without held-out rows; give data.dev, run.folds or "
                "data.time_column"
            )
        return rows, held_out

    def _check_split(self, train: Any, dev: Any) -> None:
        """Check the columns of groups and times, and warn if one of groups was not named."""
        split, task = self.split, self.task
        if not task.column_specs and split != SplitColumns():
            raise InputError("data.group and data.time_column do not apply to {name}", task.name)
        if dev is not None and split.time is not None:
            raise InputError(
                "data.time_column and data.dev both choose the dev rows; omit one of them"
            )
        split.named(train)
        if isinstance(task, SentenceTask):
            split.refuse_labels(train, task.find_columns(train)[1])
            held_out = dev is not None or self.recipe.run.folds or split.time is not None
            if held_out and split.group is None:
                unused = task.unused_columns(train)
                self.notes += group_warnings(train, unused, dev)

    def _note_left_out(self, count: int) -> None:
        if count:
            shared = "a group" if self.split.time is None else "a text or a group"
            line = (
                "{count:,} training rows share {shared!t} with a dev row: they are not trained on"
            )
            self.notes.append(Message(line, count, shared))

    @property
    def rows(self) -> Rows:
        """The training rows, and the dev rows or None."""
        return self.train_rows, self.dev_rows

    @property
    def parts(self) -> list[LabelledSplit]:
        """The rows with the files that they come from."""
        data, task, sets = self.recipe.data, self.task, self.task.label_sets
        parts = [LabelledSplit("training", self.train_rows, data.train, task.unit, sets)]
        if self.dev_rows is not None:
            # Dev rows without their own file were held out from the training file.
            source = data.dev or data.train
            parts.append(LabelledSplit("dev", self.dev_rows, source, task.unit, sets))
        return parts

    def columns_read(self) -> Iterator[str]:
        """The columns of the training rows and the others, which are not used."""
        train = self.tables[0]
        if train is None:
            return
        others = self.split.named(train).values()
        if columns := self.task.describe_columns(train, others):
            yield Message("columns: {columns}", columns)

    def truncation_warnings(self) -> Iterator[str]:
        """Warnings about rows that were too long."""
        for rows, data, what in (
            (self.train_rows, self.train_data, "training"),
            (self.dev_rows, self.dev_data, "dev"),
        ):
            if rows is not None and data is not None and data.truncated:
                limit = self.task.length_limit(self.builder.max_length)
                unit = f"{what} {self.task.unit}"
                yield truncation_warning(data.truncated, len(rows), limit, unit)

    def unknown_warnings(self) -> Iterator[str]:
        """A warning if the vocabulary does not fit the training rows."""
        unknown = UnknownWords(self.builder.tokenizer)
        ids = [e.token_ids for e in self.train_data.examples]
        unknown.count(ids, self.task.texts_of(self.train_rows))
        if warning := unknown.warning():
            yield warning

    def evaluate(
        self,
        model: Model,
        *,
        precision: str,
        objective: Objective | None = None,
        sampled: bool = False,
    ) -> Scores | None:
        """Tune the task's thresholds on dev rows, and evaluate the model on them, or if ``sampled``
        on their sample, if there is one. The loss of ``objective`` is added to the metrics. None
        without dev rows."""
        if self.dev_rows is None or self.dev_data is None:
            return None
        task, data, rows = self.task, self.dev_data, self.dev_rows
        if sampled and self.sample is not None:
            data, rows = data.subset(self.sample), [rows[i] for i in self.sample]
        network = PackedNetwork(model, precision, objective)
        raws = self.raws = forward_rows(network, task, data.examples)
        task.tune(raws, data, rows)
        decided = task.decide_each(raws, rows, data.notes)
        scores = task.score(rows, decided)
        if network.loss is None or objective is None:
            return scores
        # The second name is the one of the training loss in the log.
        losses = {"loss": network.loss, f"{objective.name}_loss": network.loss}
        return replace(scores, values={**losses, **scores.values})

    def distinct_texts(self) -> Iterator[str]:
        """The distinct texts of training and dev rows."""
        texts = self.task.texts_of((*self.train_rows, *(self.dev_rows or ())))
        return (text for text in dict.fromkeys(texts) if text.strip())

    def check_bfloat16(self, model: Model, metric: str) -> PrecisionCheck | None:
        """Compare predictions in bfloat16, as computed by ``predict``, with those of the last
        ``evaluate`` in float32, on dev rows that are evaluated during training; None if there are
        too few."""
        if not self.dev_rows or self.dev_data is None:
            return None
        chosen = range(len(self.dev_rows)) if self.sample is None else self.sample
        chosen = [int(i) for i in chosen[:: -(-len(chosen) // _MOST_CHECKED)]]
        if len(chosen) < _LEAST_CHECKED:
            return None
        task, rows, data = (
            self.task,
            [self.dev_rows[i] for i in chosen],
            self.dev_data.subset(chosen),
        )
        fine = [self.raws[i] for i in chosen]
        network = PackedNetwork(prepack_for_heads(model, "bfloat16"))
        rough = forward_rows(network, task, data.examples)
        if task.head == "embedding":
            commands = "The commands `ownbert embed`, `predict` and `evaluate`"
            return of_cosines(np.concatenate(fine), np.concatenate(rough), commands)
        decided = [task.decide_each(raws, rows, data.notes) for raws in (fine, rough)]
        before, after = (task.score(rows, answers).values[metric] for answers in decided)
        measured = Message(
            "{metric!t} {after:.4f} instead of {before:.4f}", shown_name(metric), after, before
        )
        agree = abs(after - before) <= _METRIC_TOLERANCE
        if not task.discrete:
            finding = Message(
                "In bfloat16, {rows:,} dev rows have {measured}.", len(rows), measured
            )
            return PrecisionCheck(ANSWERS, agree, finding)
        pairs = zip(*decided, rows, strict=True)
        same = sum(task.plain(a, row) == task.plain(b, row) for a, b, row in pairs)
        finding = Message(
            "In bfloat16, {same:,} of {rows:,} dev rows get the same prediction, with {measured}.",
            *(same, len(rows), measured),
        )
        return PrecisionCheck(ANSWERS, agree and same >= _EQUAL_SHARE * len(rows), finding)
