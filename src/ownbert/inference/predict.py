"""Predict and evaluate: the files that go in, and those that come out."""

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ownbert.data.readers.columns import ColumnNames, find_columns
from ownbert.data.readers.memory import MemoryTable
from ownbert.data.resumable_file import first_read, identity_of
from ownbert.errors import InputError
from ownbert.files import refuse_same, refuse_unreadable, write_json
from ownbert.inference.blend_predictor import BlendPredictor, open_predictor
from ownbert.inference.pipeline import Predictor, text_or_file
from ownbert.inference.prediction_writer import PredictionWriter
from ownbert.inference.predictor import NetworkPredictor, Progress, characters, decide_all
from ownbert.tasks.batched_forward import blocks
from ownbert.tasks.metrics import Scores
from ownbert.tasks.rows import Row
from ownbert.tasks.task import DEFAULT, NoTaskHead, Task, untrained_similarity
from ownbert.train.state_files import model_checksums

Say = Callable[[str], None]


def predict(
    folder: str | Path,
    input: Any,
    output: str | Path | None = None,
    *,
    text_column: str | None = None,
    second_column: str | None = None,
    device: str = "auto",
    precision: str = "float32",
    network: bool = False,
    resume: bool = False,
    top_k: int | None = DEFAULT,
    progress: Progress | None = None,
    say: Say | None = None,
) -> Any:
    """The answers to rows in memory, or one row of predictions for each row of a file.

    With ``output`` the rows of a file are streamed, so neither file need fit in memory. ``output``
    appears complete or not at all; what an interrupted run has answered is kept beside it.

    Args:
        folder: of a fine-tuned model, an ensemble or a blend.
        input: a file, or rows as ``Predictor`` takes them. A string is a file if there is one of
            this name, and with ``output`` always.
        output: a table if its name ends with .csv or .tsv, else JSON lines, and compressed if it
            ends with .gz.
        text_column, second_column: by default as in training.
        device, precision: as for ``NetworkPredictor``.
        resume: continue an interrupted run.
        top_k: without ``output``, as for ``Predictor``.
        progress: called with the number of rows so far.
        say: called with warnings.

    Returns:
        The number of rows; without ``output`` the answers, as ``Predictor`` gives them.

    Raises:
        InputError: a row cannot be read, or, with ``resume``, the model, the input, the columns or
            the precision differ.
    """
    if output is None:
        data = text_or_file(input)
        if isinstance(data, Path):
            _refuse_missing(data)
        predictor = Predictor(
            folder,
            text_column=text_column,
            second_column=second_column,
            device=device,
            precision=precision,
            network=network,
        )
        found = predictor(data, top_k=top_k)
        if say is not None:
            for line in predictor.warnings():
                say(line)
        return found
    if not isinstance(input, str | os.PathLike):
        raise InputError(
            f"-o is for the rows of a file, not for {type(input).__name__}; without it the answers "
            "are returned"
        )
    columns = ColumnNames(text=text_column, second=second_column)
    _refuse_missing(Path(input))
    refuse_same([folder, input], output)
    predictor = open_predictor(
        folder, columns=columns, device=device, precision=precision, network=network
    )
    made_for = _made_for(predictor, Path(input), columns)
    rows = first_read(blocks(predictor.task.stream(input), size=characters))
    file = PredictionWriter(output, made_for, resume=resume)

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


def _made_for(
    predictor: NetworkPredictor | BlendPredictor, input: Path, columns: ColumnNames
) -> dict[str, Any]:
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
    network: bool = False,
    progress: Progress | None = None,
    say: Say | None = None,
) -> Scores:
    """Metrics of a fine-tuned folder on labelled rows.

    A folder that was not fine-tuned is evaluated on pairs of texts with scores: how well the
    cosines of their vectors (``Embedder``) agree with these.

    Args:
        folder: of a fine-tuned model or an ensemble.
        data: a file, or rows in memory: a DataFrame, a datasets.Dataset, a list of mappings, a
            mapping of columns, (texts, labels), a list of (text, label); for "image" also a folder
            or (images, labels).
        output: a file to which the metrics are also written, as JSON.
        text_column, second_column, label_column: by default as in training.
        device, precision: as for ``NetworkPredictor``.
        progress: called with the number of rows so far.
        say: called with warnings.

    Raises:
        InputError: a row cannot be read, or has a label that the model does not have; names its
            line.
    """
    columns = ColumnNames(text_column, second_column, label_column)
    if isinstance(data, str | os.PathLike):
        _refuse_missing(Path(data))
        if output is not None:
            refuse_same([folder, data], output)
    try:
        predictor = open_predictor(
            folder, columns=columns, device=device, precision=precision, network=network
        )
    except NoTaskHead:
        similarity = _similarity(folder, data, columns)
        if similarity is None:
            raise
        predictor = NetworkPredictor(folder, device=device, precision=precision, task=similarity)
    task = predictor.task
    source = task.source(data, labelled=True)
    rows = task.read(source)
    task.check(
        rows,
        source if isinstance(source, str | os.PathLike | MemoryTable) else "",
        f"the model {folder}",
    )
    decided = decide_all(predictor, rows, progress)
    scores = task.score(rows, decided)
    if say is not None:
        for line in (*predictor.warnings(), *scores.warnings):
            say(line)
    if output is not None:
        write_json(output, scores.as_json())
    return scores


def _similarity(folder: str | Path, data: Any, columns: ColumnNames) -> Task | None:
    """The task of a folder without a task head, if the rows are pairs of texts with scores."""
    task = untrained_similarity(folder, columns)
    try:
        found = find_columns(task.source(data, labelled=True), task.column_specs, columns)
    except InputError:
        return None
    return task if "label" in found else None
