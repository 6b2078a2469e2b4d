"""Predict and evaluate with a fine-tuned folder, or with several that are averaged."""

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from ownbert.checkpoint import CONFIG, describe
from ownbert.data.readers.columns import ColumnNames
from ownbert.data.resumable_file import identity_of
from ownbert.errors import InputError
from ownbert.files import read_json, refuse_same, refuse_unreadable, write_json
from ownbert.inference.prediction_writer import PredictionWriter
from ownbert.nn.kernels.prepack import prepack
from ownbert.run.run_folder import ENSEMBLE, RECIPE
from ownbert.tasks.batched_forward import blocks, forward_rows
from ownbert.tasks.metrics import Scores
from ownbert.tasks.rows import Row
from ownbert.tasks.task import Task, task_of
from ownbert.tasks.text_input import UnknownWords, truncation_warning
from ownbert.train.device import pick_device, pick_precision
from ownbert.train.state_files import model_checksums

Progress = Callable[[int], None]
Say = Callable[[str], None]


class Predictor:
    """A fine-tuned folder, or an ensemble of such folders, ready to answer rows of its task.

    The scores of an ensemble's members are averaged, and so are their thresholds; everything else
    of the task is that of the first member.

    Args:
        folder: of the model or the ensemble.
        columns: named by the user; others are as in training.
        device: auto, cpu or cuda.
        precision: with float32, the default, an answer does not depend on the other rows of the
            batch.

    Attributes:
        seen: how many rows there were.
        cut: how many of them were truncated.

    Raises:
        InputError: the folder cannot be used.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        columns: ColumnNames | None = None,
        device: str = "auto",
        precision: str = "float32",
    ) -> None:
        self.folder = Path(folder)
        target = pick_device(device)
        self.precision = pick_precision(precision, target)
        self.members = list_members(self.folder)
        described = [(folder, describe(folder)) for folder in self.members]
        self.task = combine_tasks([task_of(about, folder, columns) for folder, about in described])
        models = [self.task.load(*each).to(target) for each in described]
        self.builder = self.task.input_builder(
            self.members[0], models[0].config, self.task.max_length
        )
        self.tokenizer, self.max_length = self.builder.tokenizer, self.builder.max_length
        self.models = [prepack(m) if self.precision == "float32" else m for m in models]
        self.seen = self.cut = 0
        self.unknown = UnknownWords(self.tokenizer)

    def __call__(self, rows: Sequence[Row]) -> list[Any]:
        """The answer of the task to each row."""
        data = self.task.encode(rows, self.builder, training=False)
        self.seen += len(rows)
        self.cut += data.truncated
        self.unknown.count(data.examples, self.task.texts_of(rows))
        scores = [
            forward_rows(model, self.task, data.examples, precision=self.precision).raws
            for model in self.models
        ]
        raws = scores[0]
        if len(scores) > 1:
            raws = [np.mean(of_row, axis=0) for of_row in zip(*scores, strict=True)]
        return [self.task.decide(*each) for each in zip(raws, rows, data.notes, strict=True)]

    def warnings(self) -> Iterator[str]:
        """Warnings about truncated rows and unknown words, if there were any."""
        if self.cut:
            limit = self.task.length_limit(self.max_length)
            yield truncation_warning(self.cut, self.seen, limit, self.task.unit)
        if warning := self.unknown.warning():
            yield warning


def average(predictors: Sequence[Predictor]) -> Predictor:
    """A predictor that averages the scores of several, the members of an ensemble, with the models
    that these have loaded.

    Raises ``InputError`` for a task whose answers cannot be averaged.
    """
    together = copy.copy(predictors[0])
    together.task = combine_tasks([predictor.task for predictor in predictors])
    together.members = [member for predictor in predictors for member in predictor.members]
    together.models = [model for predictor in predictors for model in predictor.models]
    return together


def list_members(folder: Path) -> list[Path]:
    """The folders whose answers are averaged: those of an ensemble, or ``folder`` alone.

    Raises:
        InputError: the folder does not exist, or its training is unfinished.
    """
    if not folder.is_dir():
        raise InputError(f"no such folder: {folder}")
    if not (folder / ENSEMBLE).exists():
        if (folder / RECIPE).exists() and not (folder / CONFIG).exists():
            raise InputError(
                f"{folder}: its training is not finished; continue with the same command and "
                "--resume"
            )
        return [folder]
    members = read_json(folder / ENSEMBLE).get("members") or []
    missing = [m["folder"] for m in members if not (folder / m["folder"] / CONFIG).exists()]
    if not members or missing:
        raise InputError(f"{folder} is an ensemble that is not finished; train it with --resume")
    return [folder / m["folder"] for m in members]


def combine_tasks(tasks: Sequence[Task]) -> Task:
    """The task of an ensemble: that of the first member, with the mean of all thresholds.

    Raises:
        InputError: the answers of this task cannot be averaged.
    """
    task = tasks[0]
    if len(tasks) > 1:
        if not task.averageable:
            raise InputError(
                f"answers of several models cannot be averaged for {task.name}; use one of them"
            )
        thresholds = [
            t for t in (getattr(task, "threshold", None) for task in tasks) if t is not None
        ]
        if thresholds:
            task.threshold = float(np.mean(thresholds))  # type: ignore[attr-defined]
    return task


def predict(
    folder: str | Path,
    input: str | Path,
    output: str | Path,
    *,
    text_column: str | None = None,
    second_column: str | None = None,
    device: str = "auto",
    precision: str = "float32",
    resume: bool = False,
    progress: Progress | None = None,
    say: Say | None = None,
) -> int:
    """Write one row of predictions for each row of a file, in the same order.

    Rows are streamed, so neither file need fit in memory. ``output`` appears complete or not at
    all; what an interrupted run has answered is kept beside it.

    Args:
        folder: of a fine-tuned model or an ensemble.
        input: the file with the rows.
        output: a table if its name ends with .csv or .tsv, else JSON lines, and compressed if it
            ends with .gz.
        text_column, second_column: by default as in training.
        device, precision: as for ``Predictor``.
        resume: continue an interrupted run.
        progress: called with the number of rows so far.
        say: called with warnings.

    Returns:
        The number of rows.

    Raises:
        InputError: a row cannot be read, or, with ``resume``, the model, the input, the columns or
            the precision differ.
    """
    columns = ColumnNames(text=text_column, second=second_column)
    _refuse_missing(Path(input))
    refuse_same(input, output)
    predictor = Predictor(folder, columns=columns, device=device, precision=precision)
    made_for = _made_for(predictor, Path(input), columns)
    file = PredictionWriter(output, made_for, resume=resume)
    rows = blocks(predictor.task.stream(input), size=characters)

    def shown(block: Sequence[Row]) -> list[Any]:
        return list(map(predictor.task.output_row, predictor(block), block))

    count = file.fill(rows, shown, progress)
    if say is not None:
        for line in predictor.warnings():
            say(line)
    return count


def _refuse_missing(path: Path) -> None:
    if not path.is_dir():  # some tasks read folders
        refuse_unreadable(path)


def _made_for(predictor: Predictor, input: Path, columns: ColumnNames) -> dict[str, Any]:
    """The identity of a file of predictions: everything that its rows depend on."""
    weights = [
        [f"{member.relative_to(predictor.folder)}/{name}", checksum]
        for member in predictor.members
        for name, checksum in model_checksums(member)
    ]
    return {
        "format": 1,
        "model": weights,
        "input": identity_of(input),
        "columns": asdict(columns),
        "precision": predictor.precision,
    }


def decide_all(
    predictor: Predictor, rows: Sequence[Row], progress: Progress | None = None
) -> list[Any]:
    """The answers to any number of rows.

    Args:
        predictor: of their task.
        rows: as the task reads them.
        progress: called with the number of rows so far.
    """
    decided: list[Any] = []
    for block in blocks(rows, size=characters):
        decided += predictor(block)
        if progress is not None:
            progress(len(decided))
    return decided


def characters(row: Row) -> int:
    """The number of characters in the texts of a row."""
    return sum(map(len, row.texts))


def evaluate(
    folder: str | Path,
    data: Any,
    *,
    output: str | Path | None = None,
    text_column: str | None = None,
    second_column: str | None = None,
    label_column: str | None = None,
    device: str = "auto",
    precision: str = "float32",
    progress: Progress | None = None,
    say: Say | None = None,
) -> Scores:
    """Metrics of a fine-tuned folder on labelled rows.

    Args:
        folder: of a fine-tuned model or an ensemble.
        data: a file, or anything else that the task reads; for "image" a folder or arrays (images,
            labels).
        output: a file to which the metrics are also written, as JSON.
        text_column, second_column, label_column: by default as in training.
        device, precision: as for ``Predictor``.
        progress: called with the number of rows so far.
        say: called with warnings.

    Raises:
        InputError: a row cannot be read, or has a label that the model does not have; names its
            line.
    """
    columns = ColumnNames(text_column, second_column, label_column)
    if named := isinstance(data, str | Path):
        _refuse_missing(Path(data))
        if output is not None:
            refuse_same(data, output)
    predictor = Predictor(folder, columns=columns, device=device, precision=precision)
    task = predictor.task
    if not (named or task.reads_arrays):
        raise InputError(f"{task.name} is evaluated on a file, not on {type(data).__name__}")
    rows = task.read(data)
    task.check(rows, data if named else "", f"the model {folder}")
    decided = decide_all(predictor, rows, progress)
    scores = task.score(rows, decided)
    if say is not None:
        for line in (*predictor.warnings(), *scores.warnings):
            say(line)
    if output is not None:
        write_json(output, scores.as_json())
    return scores
