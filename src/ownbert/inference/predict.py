"""Prediction and evaluation on files."""

import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

from ownbert.exceptions import InputError
from ownbert.files.encodings import reads_encoding
from ownbert.files.input_files import refuse_same
from ownbert.files.resumable_file import first_read
from ownbert.files.text_files import open_text
from ownbert.inference.decisions import Doubts, decides, output_rows, with_thresholds
from ownbert.inference.engines import TORCH, Compute, Progress, Say, say_each
from ownbert.inference.open_folder import open_folder
from ownbert.inference.opened import Opened, characters, refuse_missing
from ownbert.inference.pipeline import Predictor, output_options
from ownbert.inference.row_files import RowJob, arrow_table, require_rows_name
from ownbert.inference.shards import DealtRows, part_of
from ownbert.language.messages import Message
from ownbert.nn.default_dtype import in_float32
from ownbert.tables.columns import ColumnNames, kept_columns
from ownbert.tables.columns import id_column as id_column_of
from ownbert.tables.tables import columns as columns_of
from ownbert.tables.tables import is_known, kind_of, read_values
from ownbert.tables.texts_or_files import text_or_file
from ownbert.tasks.row_network import blocks
from ownbert.tasks.rows import PLAIN_OUTPUT, OutputOptions, Row, needs_table, with_columns
from ownbert.tasks.task import DEFAULT

UNUSED_CALIBRATION = Message(
    "{--calibrate} requires {--unknown}, {--coverage} or a {--threshold} such as yes=recall:0.9"
)
# Options that are recorded even if they are not given, as in files of earlier versions.
_RECORDED = ("top", "threshold", "probabilities")


@reads_encoding
@in_float32
def predict(
    folder: str | Path,
    input: Any,
    output: str | Path | None = None,
    *,
    text_column: str | None = None,
    second_column: str | None = None,
    id_column: str | None = None,
    encoding: str | None = None,
    device: str = "auto",
    precision: str | None = None,
    engine: str | None = None,
    network: bool = False,
    resume: bool = False,
    shard: Any = None,
    top_k: int | None = DEFAULT,
    threshold: Any = None,
    probabilities: bool = False,
    unknown: float | None = None,
    coverage: float | None = None,
    calibrate: Any = None,
    keep: str | Sequence[str] | None = None,
    progress: Progress | None = None,
    say: Say | None = None,
) -> Any:
    """Predict rows in memory, or write one row of predictions for each row of a file.

    With ``output``, rows are streamed, so neither file has to fit in memory. ``output`` is written
    completely or not at all; predictions of an interrupted run are kept beside it.

    Args:
        folder: folder of a fine-tuned model, an ensemble or a blend.
        input: a file, or rows in any form accepted by ``Predictor``. A string is a file name if the
            file exists, and always with ``output``.
        output: a table if its name ends with .csv, .tsv or .parquet, else JSON lines; compressed
            if it ends with .gz.
        text_column: column of the text; by default as in training.
        second_column: column of the second text; by default as in training.
        id_column: with ``output``, column written instead of the texts, to join rows by; by default
            a column with a usual name (id, guid, uuid, ...), if there is one.
        encoding: encoding of text files; by default UTF-8.
        device, engine: see ``Compute``.
        precision: float32, bfloat16 or auto; by default the folder decides (``Compute``).
        network: use only the network of a ``fit`` folder.
        resume: continue an interrupted run.
        shard: with ``output``, predict only this share of the rows, (3, 16) or "3/16", and write it
            beside ``output``, for ``ownbert.merge``.
        top_k: see ``Predictor``; with ``output``, the number of labels per row.
        threshold: minimum score; labels below it are left out; or thresholds of labels, see
            ``Predictor``.
        probabilities: whether to include the probabilities of all labels.
        unknown: share of in-scope texts that may be rejected.
        coverage: share of rows whose label set contains the right label, such as 0.9.
        calibrate: labelled rows not used for training, for ``unknown``, ``coverage`` and thresholds
            such as ``recall:0.9``; the calibration is saved in the folder. By default the rows held
            out by ``fit``, or the dev file of ``finetune``.
        keep: with ``output``, input columns copied to it: names, also "id,date", or "all".
        progress: called with the number of rows so far.
        say: called with notes and warnings.

    Returns:
        The number of rows; without ``output`` the predictions in the format of ``Predictor``.

    Raises:
        InputError: a row cannot be read, or, with ``resume``, the model, the input, the columns or
            the precision differ.
    """
    columns = ColumnNames(text_column, second_column, id=id_column)
    output, dealt = part_of(output, shard)
    if output is not None:
        require_rows_name(output)
        data = Path(input) if isinstance(input, str) else input
    elif id_column is not None or keep is not None:
        option = "keep" if id_column is None else "id_column"
        raise InputError("{option} needs an output file; name it with output", option)
    else:
        data = text_or_file(input)
    if in_file := isinstance(data, os.PathLike):
        refuse_missing(Path(data))
    refuse_same([folder, data], output)
    opened = open_folder(folder, Compute(device, precision, engine, network), columns=columns)
    if output is None:
        predictor = Predictor(opened)
        if calibrate is not None:
            predictor.calibrate(calibrate)
        result = predictor(
            data,
            top_k=top_k,
            threshold=threshold,
            probabilities=probabilities,
            unknown=unknown,
            coverage=coverage,
        )
        say_each((*opened.notes(), *opened.warnings()), say)
        return result
    predictions = RowPredictions(
        opened,
        data,
        columns=columns,
        dealt=dealt,
        options=output_options(top_k, threshold, probabilities, unknown, coverage, keep),
        calibrate=calibrate,
        say=say,
    )
    predictions.blocks = first_read(predictions.blocks)
    say_each(opened.notes(), say)
    sources: Any = Path(data) if in_file else [None]
    count = predictions.write(output, sources, resume=resume, progress=progress)
    dealt.write_manifest(output, predictions.depends_on)
    say_each(opened.warnings(), say)
    return count


def count_rows(data: Any) -> int | None:
    """The number of output rows; None if it is only known after reading, or reading fails."""
    if isinstance(data, list):
        return len(data)
    if not isinstance(data, Path) or not data.is_file() or not is_known(data):
        return None
    try:
        if kind_of(data) == "txt":
            return sum(1 for _ in open_text(data))
        return sum(1 for _ in read_values(data, columns_of(data)[:1]))
    except (InputError, OSError):
        return None


class RowPredictions(RowJob):
    """Rows of any input of the task, and their predictions as rows of a file.

    Args:
        data: a file, rows in memory, or an iterator of lines: texts, or JSON objects; None: inputs
            are passed to ``read``.
        columns: columns named by the user.
        options: contents of the output rows.
        dealt: selects the rows of a shard.
        calibrate, say: see ``held_out_of``.
    """

    def __init__(
        self,
        opened: Opened,
        data: Any,
        *,
        columns: ColumnNames,
        options: OutputOptions = PLAIN_OUTPUT,
        dealt: DealtRows | None = None,
        calibrate: Any = None,
        say: Say | None = None,
    ) -> None:
        opened.task.refuse_output_options(options)
        if calibrate is not None and not options.calibrated:
            raise InputError(UNUSED_CALIBRATION)
        if calibrate is not None:
            from ownbert.inference.calibrate import held_out_of  # imports torch

            held_out_of(opened, calibrate, say, options)
        if options.thresholds is not None:
            opened = with_thresholds(opened, options.thresholds, say)
        self.opened, self.compute, task = opened, opened.compute, opened.task
        self._doubts = Doubts(opened, options, say) if options.abstains else None
        self._options, self._columns = options, columns
        self._dealt = dealt or DealtRows(None)
        if isinstance(data, Iterator) and task.reads_arrays:
            raise InputError("{folder} reads images: give files or folders of them", opened.folder)
        self._renamed: set[str] = set()  # kept columns with other names
        self._say = say
        self.blocks = iter(()) if data is None else self.read(data)

    def read(self, data: Any, skip: int = 0) -> Iterator[list[Row]]:
        """Yield blocks of an input's rows after the first ``skip`` rows."""
        task = self.opened.task
        source = task.source(data, name="the input", labelled=False)
        if self._columns.id is not None:
            if task.reads_arrays:
                raise InputError("{--id-column} is for tables, and {name} reads images", task.name)
            id_column_of(source, named=self._columns.id)
        rows = task.stream(source)
        if self._options.keep:  # read in step with the rows
            is_file = isinstance(source, str | os.PathLike)
            if task.reads_arrays or (is_file and kind_of(source) == "txt"):
                raise needs_table("--keep")
            if isinstance(data, Iterator):
                raise InputError("{--keep} needs a file or a table, which can be read twice")
            names = kept_columns(source, self._options.keep)
            rows = with_columns(rows, source, names, option="--keep")
        rows = self._dealt.take(rows, lambda row: [row.texts, task.identity(row)])
        return blocks(islice(rows, skip, None), size=characters)

    def rows(self, block: Sequence[Row]) -> list[dict[str, Any]]:
        """The ids or texts of the rows, the columns to keep, and their predictions."""
        task = self.opened.task
        outputs, records = output_rows(self.opened, block, self._options, self._doubts), []
        for output, row in zip(outputs, block, strict=True):
            identity = task.identity(row)
            # A column that is the id or the text is there already.
            kept = {k: v for k, v in row.kept if k not in identity or identity[k] != v}
            if kept:
                kept = self._named_apart(kept, {*identity, *output})
            if both := identity.keys() & output.keys():
                raise InputError(
                    "the id column {both!r} has the same name as a column of the predictions; "
                    "rename it",
                    both.pop(),
                )
            records.append({**identity, **kept, **output})
        return records

    def _named_apart(self, kept: dict[str, Any], others: Collection[str]) -> dict[str, Any]:
        """The kept cells, by names that are not those of columns of the predictions."""
        found = {}
        for name, value in kept.items():
            new = name
            while new in others or (new != name and new in kept):
                new += "_input"
            if new != name and name not in self._renamed:
                self._renamed.add(name)
                note = Message(
                    "note: the column {name!r} of the input is {new!r} in the output", name, new
                )
                say_each([note], self._say)
            found[new] = value
        return found

    def warnings(self) -> Iterator[str]:
        """Warnings about the rows so far."""
        return self.opened.warnings()

    def table(self, source: Any, before: int) -> Any:
        """Predict a part of a file or table, after ``before`` leading rows that do not belong to
        it, as a pyarrow.Table."""
        rows = [row for block in self.read(source, before) for row in self.rows(block)]
        return arrow_table(rows, source)

    def depends_on(self) -> dict[str, Any]:
        """Everything but the rows that the predictions depend on."""
        opened = self.opened
        weights = [[f"{member}/{name}", checksum] for member, name, checksum in opened.checksums]
        engines = sorted({choice.name for choice in opened.engines} - {TORCH})
        return {
            **({"engines": engines} if engines else {}),
            "format": 1,
            "model": weights,
            "columns": asdict(self._columns),
            "precision": opened.precision,
            "options": {k: v for k, v in asdict(self._options).items() if k in _RECORDED or v},
            **({} if self._options.thresholds is None else {"decides": decides(opened.task)}),
            **({} if self._doubts is None else {"held_out": self._doubts.identity}),
        }
