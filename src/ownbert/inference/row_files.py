"""Files with one row per input row: predictions, which can be resumed, as JSON lines or a table
in csv, tsv or parquet; and vectors."""

import csv
import io
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from ownbert.exceptions import InputError, in_short
from ownbert.files.resumable_file import ResumableFile, made_for
from ownbert.files.writing import atomic_path
from ownbert.inference.engines import Progress
from ownbert.tables.delimited import quoted
from ownbert.tables.tables import ending_of

# An id (None without an id column) and a text.
Record = tuple[Any, str]
# Writes a block of records and their vectors.
Write = Callable[[list[Record], np.ndarray], None]
VECTOR = "embedding"
# Column separators of tables by extension; and the extensions of JSON lines.
SEPARATORS = {".csv": ",", ".tsv": "\t"}
_LINE_BREAK = re.compile(r"[\r\n]")
_LINES = (".jsonl", ".json", ".ndjson")
PARQUET = ".parquet"
# Rows in memory when a parquet file is written.
_ROWS = 8192


def require_rows_name(path: str | Path) -> str:
    """The extension of a file of rows that ``PredictionWriter`` can write, without .gz."""
    ending = ending_of(path)
    packed = Path(path).name.lower().endswith(".gz")
    if ending == PARQUET and packed:
        raise InputError("{path!r}: parquet files are compressed inside; omit .gz", str(path))
    if ending not in (*SEPARATORS, *_LINES, PARQUET) and not Path(path).is_dir():
        known = ", ".join([*_LINES, *SEPARATORS, PARQUET])
        raise InputError(
            "cannot tell the file type of {path!r}; its name must end with one of {options}, "
            "also followed by .gz",
            str(path),
            known,
        )
    return ending


class RowJob(ABC):
    """Blocks of inputs, and their outputs as rows of a file: for the terminal, files and shards."""

    blocks: Iterator[list[Any]]

    @abstractmethod
    def rows(self, block: Sequence[Any]) -> list[dict[str, Any]]:
        """The output rows of a block."""

    @abstractmethod
    def depends_on(self) -> dict[str, Any]:
        """Everything but the inputs that the rows depend on."""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for block in self.blocks:
            yield from self.rows(block)

    def write(
        self, output: Path, sources: Any, *, resume: bool, progress: Progress | None = None
    ) -> int:
        """Write all rows to a file, or continue it; return the number of inputs, which are read
        from ``sources`` (``made_for``)."""
        writer = PredictionWriter(output, made_for(sources, self.depends_on()), resume=resume)
        return writer.fill(self.blocks, self.rows, progress)


class PredictionWriter(ResumableFile):
    """Writes rows to a file in the format of its extension.

    A csv or tsv table has one column per key of the first row; nested mappings become columns
    ``key.inner``, and lists are written as JSON. A parquet file has a column for each key of any
    row; it is JSON lines until it is complete, so it can be resumed as well.
    """

    def __init__(
        self, path: str | Path, made_for: Mapping[str, Any] | None, *, resume: bool
    ) -> None:
        self.separator = SEPARATORS.get(require_rows_name(path))
        self.columns: list[str] | None = None
        super().__init__(path, made_for, resume=resume)

    def _complete_size(self) -> int:
        """The size of the complete rows; also reads the header of a table."""
        if self.separator is None:
            return super()._complete_size()
        end = size = quotes = lines = 0
        with self.part.open("rb") as file:
            for line in file:
                size += len(line)
                # A line break inside quotes is part of a cell.
                quotes += line.count(b'"')
                if line.endswith(b"\n") and quotes % 2 == 0:
                    end, lines = size, lines + 1
        self.done = max(0, lines - 1)
        if lines:
            with self.part.open(encoding="utf-8", newline="") as file:
                self.columns = next(csv.reader(file, delimiter=self.separator))
        return end

    def write(self, lines: Sequence[Mapping[str, Any]]) -> None:
        """Append rows, which have only columns that the first row has."""
        super().write([self._line(row, self.done + i) for i, row in enumerate(lines, start=1)])

    def finish(self) -> None:
        if ending_of(self.path) != PARQUET:
            super().finish()
            return
        self.file.flush()

        def blocks() -> Iterator[list[Any]]:
            with self.part.open(encoding="utf-8") as lines:
                rows = map(json.loads, lines)
                while block := list(islice(rows, _ROWS)):
                    yield block

        with atomic_path(self.path) as temporary:
            write_parquet(temporary, blocks, self.path)
        self.part.unlink()
        self.metadata.unlink()
        self.file.close()

    def _line(self, row: Mapping[str, Any], number: int) -> str:
        if self.separator is None:
            return json.dumps(row, ensure_ascii=False) + "\n"
        cells, header = dict(_flat(row)), ""
        if self.columns is None:
            self.columns = list(cells)
            header = joined(self.columns, self.separator)
        if others := [name for name in cells if name not in self.columns]:
            raise InputError(
                "{path}: prediction {number:,} has {others!r}, which is not a column of the "
                "first prediction; write to a .jsonl file",
                self.path,
                number,
                others[0],
            )
        return header + joined([cells.get(name, "") for name in self.columns], self.separator)


def write_parquet(target: Path, blocks: Callable[[], Iterator[list[Any]]], name: Any) -> int:
    """Write rows to a parquet file; return their number.

    Args:
        blocks: returns an iterator of blocks of rows; it is called twice, first for the types.
        name: name of the file in messages.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema, count = pa.schema([]), 0
    for block in blocks():
        try:
            schemas = [schema, arrow_table(block, name).schema]
            schema = pa.unify_schemas(schemas, promote_options="permissive")
        except pa.ArrowException as error:
            raise _mixed(name, error) from None
    with pq.ParquetWriter(target, schema) as file:
        for block in blocks():
            file.write_table(arrow_table(block, name, schema))
            count += len(block)
    return count


def arrow_table(rows: Sequence[Mapping[str, Any]], name: Any, schema: Any = None) -> Any:
    """Rows as a pyarrow.Table; without ``schema`` with all their keys as columns."""
    import pyarrow as pa

    try:
        if schema is not None:
            return pa.Table.from_pylist(rows, schema)
        names = dict.fromkeys(key for row in rows for key in row)
        return pa.table({key: pa.array([row.get(key) for row in rows]) for key in names})
    except (pa.ArrowException, OverflowError) as error:
        raise _mixed(name, error) from None


def _mixed(name: Any, error: Exception) -> InputError:
    return InputError("{name}: the values of a column have different types ({error})", name, error)


def joined(cells: Sequence[str], separator: str) -> str:
    """Format a row of a table as a line.

    In a tsv, each line is a row where possible (``ownbert.tables.tables``). A text with tabs and
    line breaks may look like several rows, so all cells of its row are quoted.
    """
    if separator == "\t" and any("\t" in cell and _LINE_BREAK.search(cell) for cell in cells):
        return quoted(cells, separator) + "\n"
    out = io.StringIO()
    # Before Python 3.13 csv quotes only the characters of its line end: a bare \r would end a row.
    csv.writer(out, delimiter=separator, lineterminator="\r\n").writerow(cells)
    return out.getvalue().removesuffix("\r\n") + "\n"


def _flat(row: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Column name and text of each value in a row, including nested values."""
    for key, value in row.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{key}.")
        elif value is None:
            yield f"{prefix}{key}", ""
        else:
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            yield f"{prefix}{key}", text


@contextmanager
def _npy(path: Path, id_column: str | None, size: int) -> Iterator[Write]:
    count = 0
    with path.open("wb") as file:
        file.write(_header(0, size))

        def write(records: list[Record], vectors: np.ndarray) -> None:
            nonlocal count
            count += len(vectors)
            file.write(vectors.tobytes())

        yield write
        file.seek(0)
        file.write(_header(count, size))


def _header(count: int, size: int) -> bytes:
    """The header of a .npy file, with a length that does not depend on the count."""
    array = {"descr": "<f4", "fortran_order": False, "shape": (count, size)}
    header = io.BytesIO()
    # NumPy pads the header, so that the first dimension can grow.
    np.lib.format.write_array_header_1_0(header, array)
    return header.getvalue()


@contextmanager
def _jsonl(path: Path, id_column: str | None, size: int) -> Iterator[Write]:
    with path.open("w", encoding="utf-8") as file:

        def write(records: list[Record], vectors: np.ndarray) -> None:
            for row in vector_rows(records, vectors, id_column):
                file.write(json.dumps(row, ensure_ascii=False) + "\n")

        yield write


def vector_rows(
    records: list[Record], vectors: np.ndarray, id_column: str | None
) -> Iterator[dict[str, Any]]:
    """Records and their vectors as rows of a .jsonl file."""
    for (id, text), vector in zip(records, vectors, strict=True):
        id_cell = {} if id_column is None else {id_column: id}
        # Nine digits represent a float32 exactly.
        yield {**id_cell, "text": text, VECTOR: [float(f"{x:.9g}") for x in vector.tolist()]}


@contextmanager
def _parquet(path: Path, id_column: str | None, size: int) -> Iterator[Write]:
    import pyarrow.parquet as pq

    with ExitStack() as stack:
        file: pq.ParquetWriter | None = None

        def write(records: list[Record], vectors: np.ndarray) -> None:
            nonlocal file
            # The first block decides whether ids are numbers or texts.
            kind = None
            if file is not None and id_column is not None:
                kind = file.schema.field(id_column).type
            try:
                table = vector_table(records, vectors, id_column, kind)
            except InputError as error:
                raise InputError("{error}; write to a .jsonl file", error) from None
            if file is None:
                file = stack.enter_context(pq.ParquetWriter(path, table.schema))
            file.write_table(table)

        yield write
        if file is None:  # a shard may have no rows
            write([], np.empty((0, size), np.float32))


def vector_table(
    records: Sequence[Record], vectors: np.ndarray, id_column: str | None, kind: Any = None
) -> Any:
    """Records and their vectors (records, D) as a pyarrow.Table.

    Args:
        id_column: name of the column of ids; None: no such column.
        kind: Arrow type of the ids; by default inferred.
    """
    import pyarrow as pa

    ids, texts = [id for id, _ in records], [text for _, text in records]
    flat = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), vectors.shape[1])
    cells = {"text": pa.array(texts, pa.string()), VECTOR: flat}
    if id_column is not None:
        try:
            cells = {id_column: pa.array(ids, kind), **cells}
        except (pa.ArrowException, OverflowError) as error:
            raise InputError(
                "the ids in {id_column!r} have different types ({error})", id_column, error
            ) from None
    return pa.table(cells)


VECTOR_WRITERS: dict[str, Callable[[Path, str | None, int], AbstractContextManager[Write]]] = {
    ".npy": _npy,
    ".parquet": _parquet,
    ".jsonl": _jsonl,
}


def write_blocks(
    path: Path,
    ending: str,
    blocks: Iterable[tuple[list[Record], np.ndarray]],
    size: int,
    id_column: str | None,
    progress: Progress | None = None,
) -> int:
    """Write blocks of records and their vectors (records, D) in the format of ``ending``: .npy,
    .parquet or .jsonl; return their number."""
    done = 0
    with VECTOR_WRITERS[ending](path, id_column, size) as write:
        for records, vectors in blocks:
            write(records, vectors)
            done += len(vectors)
            if progress is not None:
                progress(done)
    return done


def parquet_layout(path: Path) -> tuple[str | None, int]:
    """The id column (or None) and the vector size of a file written by ``embed``."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        schema = pq.read_schema(path)
    except (pa.ArrowException, OSError) as error:
        raise InputError("it is not a readable parquet file") from error
    ids = [name for name in schema.names if name not in ("text", VECTOR)]
    if sorted(schema.names) != sorted([*ids[:1], "text", VECTOR]):
        raise InputError("its columns are {names}, not those of embed", in_short(schema.names))
    text, vectors = (schema.field(name).type for name in ("text", VECTOR))
    fixed = pa.types.is_fixed_size_list(vectors) and vectors.value_type == pa.float32()
    if text != pa.string() or not fixed:
        raise InputError(
            "its texts are of type {text} and its vectors {vectors}", text, in_short(str(vectors))
        )
    return (ids[0] if ids else None), vectors.list_size


def parquet_rows(
    path: Path, id_column: str | None, rows: int
) -> Iterator[tuple[Record, np.ndarray]]:
    """Yield the records and vectors of a file written by ``embed``, reading ``rows`` at a time.

    Missing values in a vector are NaN.
    """
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(batch_size=rows):
            texts = batch.column("text").to_pylist()
            ids = [None] * len(texts) if id_column is None else batch.column(id_column).to_pylist()
            column = batch.column(VECTOR)
            if column.null_count:
                raise InputError("{path}: a vector is missing", path)
            vectors = column.flatten().to_numpy(zero_copy_only=False)
            yield from zip(
                zip(ids, texts, strict=True), vectors.reshape(len(texts), -1), strict=True
            )
