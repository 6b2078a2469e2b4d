"""Resumable files of predictions with one row per input row: JSON lines or a table."""

import csv
import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ownbert.exceptions import InputError
from ownbert.files.resumable_file import ResumableFile
from ownbert.tables.delimited import quoted
from ownbert.tables.tables import ending_of

# Column separators of tables by extension; and the extensions of JSON lines.
SEPARATORS = {".csv": ",", ".tsv": "\t"}
_LINE_BREAK = re.compile(r"[\r\n]")
_LINES = (".jsonl", ".json", ".ndjson")


def require_rows_name(path: str | Path) -> str:
    """The extension of a file of rows, without .gz.

    Raises:
        InputError: it is not one of those that ``PredictionWriter`` writes.
    """
    ending = ending_of(path)
    if ending not in (*SEPARATORS, *_LINES) and not Path(path).is_dir():
        known = ", ".join([*_LINES, *SEPARATORS])
        raise InputError(
            f"cannot tell the file type of {str(path)!r}; its name must end with one of {known}, "
            "also followed by .gz"
        )
    return ending


class PredictionWriter(ResumableFile):
    """Writes rows to a file in the format of its extension.

    A table has one column per key of the first row; nested mappings become columns ``key.inner``,
    and lists are written as JSON.

    Args:
        path: file name ending with .csv, .tsv or .jsonl, optionally followed by .gz.
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

    def _line(self, row: Mapping[str, Any], number: int) -> str:
        if self.separator is None:
            return json.dumps(row, ensure_ascii=False) + "\n"
        cells, header = dict(_flat(row)), ""
        if self.columns is None:
            self.columns = list(cells)
            header = joined(self.columns, self.separator)
        if others := [name for name in cells if name not in self.columns]:
            raise InputError(
                f"{self.path}: prediction {number:,} has {others[0]!r}, which is not a column of "
                "the first prediction; write to a .jsonl file"
            )
        return header + joined([cells.get(name, "") for name in self.columns], self.separator)


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
