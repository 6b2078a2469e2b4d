"""Predict and evaluate: the files that go in, and those that come out."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ownbert.data.readers.columns import ColumnNames
from ownbert.data.resumable_file import first_read, identity_of
from ownbert.errors import InputError
from ownbert.files import refuse_same, refuse_unreadable, write_json
from ownbert.inference.blend_predictor import BlendPredictor, open_predictor
from ownbert.inference.prediction_writer import PredictionWriter
from ownbert.inference.predictor import Predictor, Progress, characters, decide_all
from ownbert.tasks.batched_forward import blocks
from ownbert.tasks.metrics import Scores
from ownbert.tasks.rows import Row
from ownbert.train.state_files import model_checksums

Say = Callable[[str], None]


def predict(
    folder: str | Path,
    input: str | Path,
    output: str | Path,
    *,
    text_column: str | None = None,
    second_column: str | None = None,
    device: str = "auto",
    precision: str = "float32",
    network: bool = False,
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
    predictor: Predictor | BlendPredictor, input: Path, columns: ColumnNames
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
            refuse_same([folder, data], output)
    predictor = open_predictor(
        folder, columns=columns, device=device, precision=precision, network=network
    )
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
