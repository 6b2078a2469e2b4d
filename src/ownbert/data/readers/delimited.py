"""Rows of a csv or tsv file; the rules stand at the top of ``ownbert.data.readers.tables``."""

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path

from ownbert.errors import InputError
from ownbert.files import open_text

# Beyond this a quote was opened and never closed; the limit of the csv module itself, 131,072,
# refuses real documents.
LONGEST_FIELD = 1 << 27
# Stands for "no separator": the csv module wants one character, and this one is in no text.
NO_DELIMITER = "\x1f"


def sniff_delimiter(header: str) -> str:
    """Tab, comma or semicolon, the first of them that ``header`` holds; else ``NO_DELIMITER``."""
    return next((mark for mark in "\t,;" if mark in header), NO_DELIMITER)


def read_header(path: Path) -> list[str]:
    """The names in the first line, stripped of blanks.

    Raises:
        InputError: there is none.
    """
    for _, fields in _all_rows(path):
        return [name.strip() for name in fields]
    raise InputError(f"{path} is empty")


def read_rows(path: Path, wanted: Sequence[int]) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Stream ``(line number, the wanted fields)`` of every row after the header.

    Raises:
        InputError: a row has another number of fields than the header.
    """
    rows = _all_rows(path)
    _, header = next(rows, (0, []))
    for number, fields in rows:
        if len(fields) != len(header):
            raise InputError(_wrong_count(path, number, len(fields), len(header)))
        yield number, tuple(fields[index] for index in wanted)


def _wrong_count(path: Path, number: int, found: int, wanted: int) -> str:
    return (
        f"{path}, line {number}: {found} field{'s' if found != 1 else ''}, but the header has "
        f"{wanted}; quote texts that hold the separator, or use .jsonl"
    )


def _all_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    lines = open_text(path)
    first = next(((number, line) for number, line in lines if line.strip()), None)
    if first is None:
        return
    delimiter = sniff_delimiter(first[1])
    csv_name = path.name.lower().removesuffix(".gz").endswith(".csv")
    if delimiter == "\t" or (delimiter == NO_DELIMITER and not csv_name):
        yield from _line_rows(first, lines, delimiter)
    else:
        yield from _QuotedRows(path, first, lines, delimiter)


def _line_rows(
    first: tuple[int, str], lines: Iterator[tuple[int, str]], delimiter: str
) -> Iterator[tuple[int, list[str]]]:
    names = [_unquoted(field) for field in first[1].split(delimiter)]
    yield first[0], names
    for number, line in lines:
        # A blank line is an accident between rows, but a text (an empty one) in a single column.
        if line or len(names) == 1:
            yield number, [_unquoted(field) for field in line.split(delimiter)]


def _unquoted(field: str) -> str:
    if len(field) < 2 or field[0] != '"' or field[-1] != '"':
        return field
    inside = field[1:-1]
    halves = inside.split('""')
    return field if any('"' in half for half in halves) else '"'.join(halves)


class _QuotedRows:
    """Rows by the csv rules, each with the number of its first line."""

    def __init__(
        self,
        path: Path,
        first: tuple[int, str],
        lines: Iterator[tuple[int, str]],
        delimiter: str,
    ):
        self.path = path
        self.first = first
        self.lines = lines
        self.delimiter = delimiter
        self.start = first[0]
        self.inside_row = False

    def __iter__(self) -> Iterator[tuple[int, list[str]]]:
        csv.field_size_limit(max(csv.field_size_limit(), LONGEST_FIELD))
        reader = csv.reader(self._feed(), delimiter=self.delimiter)
        width = 0
        while True:
            self.inside_row = False
            try:
                fields = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                raise InputError(f"{self.path}, line {self.start}: {_reason(error)}") from error
            width = width or len(fields)
            if fields:
                yield self.start, fields
            elif width == 1:
                yield self.start, [""]

    def _feed(self) -> Iterator[str]:
        self.inside_row = True
        yield self.first[1] + "\n"
        for number, line in self.lines:
            if not self.inside_row:
                self.start = number
            self.inside_row = True
            yield line + "\n"
        # Asked for more in the middle of a row: a quote is still open, and the reader would take
        # the rest of the file for one field without a word.
        if self.inside_row:
            raise InputError(f"{self.path}, line {self.start}: a quote is opened and never closed")


def _reason(error: csv.Error) -> str:
    if "field larger" in str(error):
        return f"a field of over {LONGEST_FIELD:,} characters; is a quote never closed?"
    return f"not csv ({error})"
