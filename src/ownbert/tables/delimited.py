"""Reads rows of a csv or tsv file, by the rules described in ``ownbert.tables.tables``."""

import csv
import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

from ownbert.exceptions import InputError, warn_of_input
from ownbert.files.text_files import open_text

# A longer field means an unclosed quote; the default limit of the csv module, 131,072, is too small
# for real documents.
LONGEST_FIELD = 1 << 27
# Maximum lines of a tsv row whose fields are all quoted.
_MOST_LINES = 10_000
# The csv module requires a delimiter; this character does not occur in texts.
NO_DELIMITER = "\x1f"
# First line of Excel files that names the separator.
_SEPARATOR_LINE = re.compile(r'"?sep=(\t|[^\w\s"])"?[\t,;]*', re.IGNORECASE)
# Maximum number of lines after the first that a column name has.
_MOST_NAME_LINES = 10
# A quoted name in a header.
_QUOTED_NAME = re.compile(r'(?:^|(?<=[\t,;|]))"(?:[^"]|"")*"(?=\s*(?:[\t,;|]|$))')
# Placeholder for an escaped quote while the csv module reads a row: a noncharacter code point.
_ESCAPED_QUOTE = "\ufdd0"

# Line number from 1, and the line without its line feed; a carriage return before it is kept,
# because it is text if the line ends inside a quoted field.
_Line = tuple[int, str]
_Row = tuple[int, list[str]]


def sniff_delimiter(header: str) -> str:
    """The first of tab, comma, semicolon and vertical bar that occurs in ``header``, outside of
    quoted names if possible, or ``NO_DELIMITER``."""
    marks = [mark for mark in "\t,;|" if mark in header]
    unquoted = _QUOTED_NAME.sub("", header) if len(marks) > 1 else header
    return next((mark for mark in marks if mark in unquoted), (marks or [NO_DELIMITER])[0])


def open_rows(path: Path) -> tuple[list[str], Iterator[_Row]]:
    """The column names in the first line, stripped of spaces, and the rows after it.

    Rows that repeat the header, as in concatenated files, are skipped with a warning at the end. In
    a single column such a row is a text. So are rows at the end whose fields are all empty, as
    spreadsheets write them. Empty fields behind those of the header are ignored.

    Raises:
        InputError: there is no header; or, during iteration, a row has another number of fields.
    """
    rows = all_rows(path, open_text(path, keep_returns=True))
    if (header := next(rows, None)) is None:
        raise InputError(f"{path} is empty")
    names = [name.strip() for name in header[1]]
    return names, _after_header(path, names, rows)


def _after_header(path: Path, names: Sequence[str], rows: Iterator[_Row]) -> Iterator[_Row]:
    repeated: list[int] = []
    empty: list[int] = []  # rows so far without any value, which may be the last ones
    for number, fields in rows:
        if len(fields) > len(names) > 1 and not any(map(str.strip, fields[len(names) :])):
            del fields[len(names) :]
        if len(fields) != len(names):
            raise InputError(_wrong_count(path, number, len(fields), len(names)))
        if len(names) > 1 and not any(fields):
            empty.append(number)
            continue
        for line in empty:
            yield line, [""] * len(names)
        empty.clear()
        if (
            fields[0].strip() == names[0]
            and len(names) > 1
            and [field.strip() for field in fields] == names
        ):
            repeated.append(number)
            continue
        yield number, fields
    if empty:
        warn_of_input(f"{path}: empty rows at the end, left out: {len(empty):,}")
    if repeated:
        times = "" if len(repeated) == 1 else f" (the first of {len(repeated):,} such lines)"
        warn_of_input(f"{path}, line {repeated[0]} repeats the header and is skipped{times}")


def _wrong_count(path: Path, number: int, found: int, wanted: int) -> str:
    return (
        f"{path}, line {number}: {found} field{'s' if found != 1 else ''}, but the header has "
        f"{wanted}; quote texts that contain the separator, or use .jsonl"
    )


def all_rows(path: Path, numbered: Iterator[_Line]) -> Iterator[_Row]:
    """Stream (number of the first line, fields) of every row, the header first.

    Args:
        path: name of the file, whose extension determines the kind without separators.
        numbered: lines of the file.
    """
    lines = _Lines(numbered)
    filled = (each for each in lines if each[1].strip())
    first = next(filled, None)
    named = first and _SEPARATOR_LINE.fullmatch(first[1].strip(" \r"))
    if named:
        first = next(filled, None)
    if first is None:
        return
    delimiter = named[1] if named else sniff_delimiter(first[1])
    header = [first]
    if delimiter == NO_DELIMITER and first[1].startswith('"') and first[1].count('"') % 2:
        for line in islice(lines, _MOST_NAME_LINES):  # a name with line breaks, as in spreadsheets
            header.append(line)
            if line[1].count('"') % 2:
                break
        names = "\n".join(line for _, line in header)
        delimiter = sniff_delimiter(_QUOTED_NAME.sub("", names))
    lines.give_back(header)
    csv_name = path.name.lower().removesuffix(".gz").endswith(".csv")
    if delimiter == "\t" or (delimiter == NO_DELIMITER and not csv_name):
        yield from _line_rows(lines, delimiter)
    else:
        yield from _QuotedRows(path, lines, delimiter)


class _Lines(Iterator[_Line]):
    """Lines with push-back."""

    def __init__(self, lines: Iterator[_Line]):
        self._lines = lines
        self._back: deque[_Line] = deque()

    def __next__(self) -> _Line:
        return self._back.popleft() if self._back else next(self._lines)

    def give_back(self, lines: Sequence[_Line]) -> None:
        self._back.extendleft(reversed(lines))


def _line_rows(lines: _Lines, delimiter: str) -> Iterator[_Row]:
    """Yield the lines as rows, or rows parsed by the csv rules where only these give the right
    number of fields."""
    number, line = next(lines)
    line = line.removesuffix("\r")
    names = [_unquoted(field) for field in line.split(delimiter)]
    yield number, names
    width = len(names)
    # A row with an open quote that may continue in the next lines, then blank lines.
    open_row: _Row | None = None
    pending: list[_Line] = []
    for number, whole_line in lines:
        line = whole_line.removesuffix("\r")
        # A blank line between rows is ignored, but in a single column it is an empty text.
        if not line and width > 1:
            if open_row:
                pending.append((number, whole_line))
            continue
        pieces = line.split(delimiter)
        row = number, [_unquoted(field) for field in pieces]
        wrong = len(pieces) != width
        opens = width > 1 and any(p[:1] == '"' and p.count('"') % 2 for p in pieces)
        arguments = (lines, [(number, whole_line)], delimiter, width)
        if opens and pieces[0][:1] == '"' and (found := _quoted_row(*arguments, whole=True)):
            if open_row:
                yield open_row
            open_row, pending = None, []
            yield found
            continue
        if open_row:
            if wrong and (
                found := _quoted_row(lines, [*pending, (number, whole_line)], delimiter, width)
            ):
                open_row, pending = None, []
                yield found
                continue
            yield open_row
            open_row, pending = None, []
        if wrong and (found := _quoted_row(*arguments)):
            yield found
        elif opens and not wrong:
            open_row, pending = row, [(number, whole_line)]
        else:
            yield row
    if open_row:
        yield open_row


def _unquoted(field: str) -> str:
    if len(field) < 2 or field[0] != '"' or field[-1] != '"':
        return field
    inside = field[1:-1]
    halves = inside.split('""')
    return field if any('"' in half for half in halves) else '"'.join(halves)


def _quoted_row(
    lines: _Lines, start: Sequence[_Line], delimiter: str, width: int, *, whole: bool = False
) -> _Row | None:
    """Parse a row by the csv rules.

    Returns None if it has another number of fields, or contains a line that is a row by itself,
    unless its fields must all be quoted (``whole``). Lines after the row are pushed back; if there
    is no row, all but ``start``.
    """
    if not any('"' in line for _, line in start):
        return None
    taken: list[_Line] = []

    def feed() -> Iterator[str]:
        for number, line in lines:
            # The last line of a row may be a row by itself, but none of the lines before it.
            between = len(taken) > 1 and taken[-1][1].count(delimiter) == width - 1
            if len(taken) >= _MOST_LINES if whole else between:
                lines.give_back([(number, line)])
                return
            taken.append((number, line))
            yield f"{line}\n"

    lines.give_back(start)
    fields = _first_row(feed(), delimiter)
    if fields is not None and len(fields) == width and len(taken) >= len(start):
        text = "\n".join(line for _, line in taken)
        if not whole or text.rstrip("\r") == quoted(fields, delimiter):
            return taken[0][0], fields
    lines.give_back(taken)
    for _ in start:
        next(lines)
    return None


def quoted(fields: Sequence[str], delimiter: str) -> str:
    """Format a row with all fields quoted."""
    return delimiter.join('"' + field.replace('"', '""') + '"' for field in fields)


def _first_row(lines: Iterable[str], delimiter: str) -> list[str] | None:
    """Parse the fields by strict csv rules; None if they are malformed."""
    csv.field_size_limit(max(csv.field_size_limit(), LONGEST_FIELD))
    try:
        return next(csv.reader(lines, delimiter=delimiter, strict=True), None)
    except csv.Error:
        return None


class _QuotedRows:
    r"""Rows by the csv rules, each with the number of its first line.

    Quotes inside a field are doubled. From the first row on that is malformed by this rule, but
    valid with ``\"`` for a quote and ``\\`` for a backslash, these are accepted, too.
    """

    def __init__(self, path: Path, lines: _Lines, delimiter: str):
        self.path = path
        self.lines = lines
        self.delimiter = delimiter
        self.backslashes = False
        # Lines of the current row.
        self.taken: list[_Line] = []

    def __iter__(self) -> Iterator[_Row]:
        csv.field_size_limit(max(csv.field_size_limit(), LONGEST_FIELD))
        reader = self._reader()
        width = 0
        while True:
            self.taken.clear()
            fields, error = None, None
            try:
                fields = next(reader)
            except StopIteration:
                return
            except csv.Error as broken:
                error = InputError(f"{self.path}, line {self.taken[0][0]}: {_reason(broken)}")
            except InputError as broken:
                error = broken
            if width and not self.backslashes and self._is_suspicious(fields, width):
                found = self._by_backslashes(width)
                if found is not None:
                    fields, error = found, None
                    reader = self._reader()
            if error is not None:
                raise error
            assert fields is not None
            if self.backslashes:
                fields = [field.replace(_ESCAPED_QUOTE, '"') for field in fields]
            width = width or len(fields)
            if fields:
                yield self.taken[0][0], fields
            elif width == 1:
                yield self.taken[0][0], [""]

    def _reader(self) -> Iterator[list[str]]:
        return csv.reader(self._feed(), delimiter=self.delimiter)

    def _feed(self) -> Iterator[str]:
        for number, line in self.lines:
            self.taken.append((number, line))
            yield f"{_escapes_read(line) if self.backslashes else line}\n"
        # A request for another line within a row means an open quote, and the reader would silently
        # take the rest of the file for one field.
        if self.taken:
            raise InputError(
                f"{self.path}, line {self.taken[0][0]}: a quote is opened and never closed"
            )

    def _is_suspicious(self, fields: list[str] | None, width: int) -> bool:
        if not any('\\"' in line for _, line in self.taken):
            return False
        if fields is None or len(fields) != width:
            return True
        return _first_row((f"{line}\n" for _, line in self.taken), self.delimiter) is None

    def _by_backslashes(self, width: int) -> list[str] | None:
        """The row with backslash escapes; None if it is malformed that way, too."""
        before, self.taken = self.taken, []
        self.lines.give_back(before)
        self.backslashes = True
        try:
            fields = _first_row(self._feed(), self.delimiter)
        except InputError:
            fields = None
        if fields is not None and len(fields) == width:
            return fields
        self.lines.give_back(self.taken)
        self.backslashes, self.taken = False, [next(self.lines) for _ in before]
        return None


def _escapes_read(line: str) -> str:
    if "\\" not in line:
        return line
    return re.sub(r'\\([\\"])', lambda found: _ESCAPED_QUOTE if found[1] == '"' else "\\", line)


def _reason(error: csv.Error) -> str:
    if "field larger" in str(error):
        return f"a field of over {LONGEST_FIELD:,} characters; is a quote never closed?"
    return f"not csv ({error})"
