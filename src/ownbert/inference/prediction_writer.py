"""Resumable files of predictions with one row per input row: JSON lines, or a table in csv, tsv or
parquet.
"""

import csv
import io
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from ownbert.exceptions import InputError
from ownbert.files.resumable_file import ResumableFile
from ownbert.files.writing import atomic_path
from ownbert.tables.delimited import quoted
from ownbert.tables.tables import ending_of

# Column separators of tables by extension; and the extensions of JSON lines.
SEPARATORS = {".csv": ",", ".tsv": "\t"}
_LINE_BREAK = re.compile(r"[\r\n]")
_LINES = (".jsonl", ".json", ".ndjson")
PARQUET = ".parquet"
# Rows in memory when a parquet file is written.
_ROWS = 8192


def require_rows_name(path: str | Path) -> str:
    """The extension of a file of rows, without .gz.

    Raises:
        InputError: it is not one of those that ``PredictionWriter`` writes.
    """
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


class PredictionWriter(ResumableFile):
    """Writes rows to a file in the format of its extension.

    A csv or tsv table has one column per key of the first row; nested mappings become columns
    ``key.inner``, and lists are written as JSON. A parquet file has a column for each key of any
    row; it is JSON lines until it is complete, so it can be resumed as well.

    Args:
        path: file name ending with .csv, .tsv, .parquet or .jsonl, the others than .parquet
            optionally followed by .gz.
        made_for: identity of the predictions, which must match to ``resume``; None: keep nothing
            of an interrupted run.
        resume: continue an interrupted file.

    Attributes:
        done: number of rows so far.

    Raises:
        InputError: unknown extension, or, with ``resume``, another identity.
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
        """Append rows.

        Raises:
            InputError: a row has a column that the first row lacks.
        """
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
    """Write rows to a parquet file.

    Args:
        target: path of the file.
        blocks: returns an iterator of blocks of rows; it is called twice, first for the types.
        name: name of the file in messages.

    Returns:
        The number of rows.

    Raises:
        InputError: the values of a column have different types.
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
    """Rows as a pyarrow.Table; without ``schema`` with all their keys as columns.

    Raises:
        InputError: the values of a column have different types.
    """
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
