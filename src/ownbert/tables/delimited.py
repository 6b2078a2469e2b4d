"""Reads rows of a csv or tsv file, by the rules described in ``ownbert.tables.tables``."""

import csv
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import NamedTuple

from ownbert.exceptions import InputError, counted, warn_of_input
from ownbert.files.text_files import open_text
from ownbert.language.messages import Message
from ownbert.tables.missing_values import without_empty_end

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
        raise InputError("{path} is empty", path)
    names = [name.strip() for name in header[1]]
    rows = _after_header(path, names, rows)
    return names, without_empty_end(path, rows, lambda row: len(row) > 1 and not any(row))


def _after_header(path: Path, names: Sequence[str], rows: Iterator[_Row]) -> Iterator[_Row]:
    repeated: list[int] = []
    for number, fields in rows:
        if len(fields) > len(names) > 1 and not any(map(str.strip, fields[len(names) :])):
            del fields[len(names) :]
        if len(fields) != len(names):
            raise InputError(_wrong_count(path, number, len(fields), len(names)))
        if (
            fields[0].strip() == names[0]
            and len(names) > 1
            and [field.strip() for field in fields] == names
        ):
            repeated.append(number)
            continue
        yield number, fields
    if repeated:
        times = Message(" (the first of {count:,} such lines)", len(repeated))
        warn_of_input(
            "{path}, line {line} repeats the header and is skipped{times}",
            *(path, repeated[0], "" if len(repeated) == 1 else times),
        )


def _wrong_count(path: Path, number: int, found: int, wanted: int) -> str:
    return Message(
        "{path}, line {line}: {fields}, but the header has {count}; quote texts that contain the "
        "separator, or use .jsonl",
        *(path, number, counted(found, "field"), wanted),
    )


def all_rows(path: Path, numbered: Iterator[_Line]) -> Iterator[_Row]:
    """Stream (number of the first line, fields) of every row, the header first.

    Args:
        path: name of the file, whose extension determines the kind without separators.
        numbered: lines of the file.
    """
    lines = _LinesAhead(numbered)
    header = _next_filled(lines)
    named = header and _SEPARATOR_LINE.fullmatch(header.strip(" \r"))
    if named:
        lines.drop(1)
        header = _next_filled(lines)
    if header is None:
        return
    delimiter = named[1] if named else sniff_delimiter(header)
    if delimiter == NO_DELIMITER and header.startswith('"') and header.count('"') % 2:
        for i in range(1, _MOST_NAME_LINES + 1):  # a name with line breaks, as in spreadsheets
            if (line := lines.text(i)) is None:
                break
            header += f"\n{line}"
            if line.count('"') % 2:
                break
        delimiter = sniff_delimiter(_QUOTED_NAME.sub("", header))
    csv_name = path.name.lower().removesuffix(".gz").endswith(".csv")
    by_lines = delimiter == "\t" or (delimiter == NO_DELIMITER and not csv_name)
    yield from _line_rows(lines, delimiter) if by_lines else _csv_rows(path, lines, delimiter)


class _LinesAhead:
    """Lines that can be looked at before they are dropped."""

    def __init__(self, lines: Iterator[_Line]):
        self._lines = lines
        self._ahead: list[_Line] = []

    def text(self, index: int = 0) -> str | None:
        """A line that follows; None after the last one."""
        while len(self._ahead) <= index:
            if (line := next(self._lines, None)) is None:
                return None
            self._ahead.append(line)
        return self._ahead[index][1]

    def number(self) -> int:
        """The number of the next line."""
        return self._ahead[0][0]

    def texts(self, count: int) -> list[str]:
        """The next lines, which must exist."""
        return [text for _, text in self._ahead[:count]]

    def drop(self, count: int) -> None:
        del self._ahead[:count]


class _Parsed(NamedTuple):
    """A row as the csv module reads it.

    Args:
        fields: None if it is malformed.
        lines: number of its lines.
        error: what is wrong, for messages.
    """

    fields: list[str] | None
    lines: int
    error: str = ""


def _next_filled(lines: _LinesAhead) -> str | None:
    while (line := lines.text()) is not None and not line.strip():
        lines.drop(1)
    return line


def _line_rows(lines: _LinesAhead, delimiter: str) -> Iterator[_Row]:
    """Yield the lines as rows, or rows parsed by the csv rules where only these give the right
    number of fields."""
    width = 0
    while (line := lines.text()) is not None:
        line, number, taken = line.removesuffix("\r"), lines.number(), 1
        fields: list[str] | None = None
        pieces = line.split(delimiter)
        if width and (found := _row_by_quotes(lines, pieces, delimiter, width)):
            fields, taken = found.fields, found.lines
        lines.drop(taken)
        # A blank line between rows is ignored, but in a single column it is an empty text.
        if line or width == 1:
            yield number, fields or [_unquoted(field) for field in pieces]
        width = width or len(pieces)


def _unquoted(field: str) -> str:
    if len(field) < 2 or field[0] != '"' or field[-1] != '"':
        return field
    inside = field[1:-1]
    halves = inside.split('""')
    return field if any('"' in half for half in halves) else '"'.join(halves)


def _row_by_quotes(
    lines: _LinesAhead, pieces: Sequence[str], delimiter: str, width: int
) -> _Parsed | None:
    """The next row by the csv rules; None if it is its first line, split into ``pieces``."""
    wrong = len(pieces) != width
    opens = width > 1 and any(p[:1] == '"' and p.count('"') % 2 for p in pieces)
    whole = opens and pieces[0][:1] == '"'
    if whole and (found := _quoted_row(lines, 1, delimiter, width, whole=True)):
        return found
    if wrong:
        return _quoted_row(lines, 1, delimiter, width)
    if not opens:
        return None
    # The last field may continue in the next lines, if these are no rows by themselves.
    after = next(i for i in count(1) if lines.text(i) not in ("", "\r"))
    line = lines.text(after)
    if line is None or line.count(delimiter) == width - 1:
        return None
    return _quoted_row(lines, after + 1, delimiter, width)


def _quoted_row(
    lines: _LinesAhead, start: int, delimiter: str, width: int, *, whole: bool = False
) -> _Parsed | None:
    """Parse a row by the csv rules.

    Returns None if it has another number of fields, fewer lines than ``start``, or contains a line
    that is a row by itself, unless its fields must all be quoted (``whole``).
    """
    if not any('"' in line for line in lines.texts(start)):
        return None

    def ends(taken: int) -> bool:
        if whole:
            return taken >= _MOST_LINES
        # The last line of a row may be a row by itself, but none of the lines before it.
        return taken > 1 and (lines.text(taken - 1) or "").count(delimiter) == width - 1

    row = _parsed(lines, delimiter, strict=True, ends=ends)
    if row.fields is None or len(row.fields) != width or row.lines < start:
        return None
    text = "\n".join(lines.texts(row.lines))
    return row if not whole or text.rstrip("\r") == quoted(row.fields, delimiter) else None


def quoted(fields: Sequence[str], delimiter: str) -> str:
    """Format a row with all fields quoted."""
    return delimiter.join('"' + field.replace('"', '""') + '"' for field in fields)


def _parsed(
    lines: _LinesAhead,
    delimiter: str,
    *,
    strict: bool = False,
    escapes: bool = False,
    ends: Callable[[int], bool] = lambda index: False,
) -> _Parsed:
    """Parse the next row with the csv module, without dropping its lines.

    Args:
        strict: whether text after a closing quote, and the end inside quotes, are errors.
        escapes: whether backslashes escape quotes.
        ends: whether a row ends before the line with this index.
    """
    line = (lines.text() or "").removesuffix("\r")
    if not escapes and '"' not in line and "\r" not in line:  # faster
        return _Parsed(line.split(delimiter) if line else [], 1)
    taken, is_open = 0, False

    def feed() -> Iterator[str]:
        nonlocal taken, is_open
        while not ends(taken) and (line := lines.text(taken)) is not None:
            taken += 1
            yield f"{_escapes_read(line) if escapes else line}\n"
        # A request for another line within a row means an open quote, and the reader would silently
        # take the rest of the file for one field.
        is_open = True

    try:
        fields = next(csv.reader(feed(), delimiter=delimiter, strict=strict), None)
    except csv.Error as error:
        if "field larger" in str(error):
            reason = Message(
                "a field of over {longest_field:,} characters; is a quote never closed?",
                LONGEST_FIELD,
            )
        else:
            reason = Message("not csv ({error})", error)
        return _Parsed(None, taken, reason)
    if fields is None or is_open:
        return _Parsed(None, taken, "a quote is opened and never closed")
    return _Parsed([f.replace(_ESCAPED_QUOTE, '"') for f in fields] if escapes else fields, taken)


def _csv_rows(path: Path, lines: _LinesAhead, delimiter: str) -> Iterator[_Row]:
    r"""Rows by the csv rules, each with the number of its first line.

    Quotes inside a field are doubled. From the first row on that is malformed by this rule, but
    valid with ``\"`` for a quote and ``\\`` for a backslash, these are accepted, too.
    """
    csv.field_size_limit(max(csv.field_size_limit(), LONGEST_FIELD))
    width, escapes = 0, False
    while lines.text() is not None:
        row = _parsed(lines, delimiter, escapes=escapes)
        if width and not escapes and _is_suspicious(lines, row, delimiter, width):
            other = _parsed(lines, delimiter, strict=True, escapes=True)
            if other.fields is not None and len(other.fields) == width:
                row, escapes = other, True
        number = lines.number()
        if row.fields is None:
            raise InputError("{path}, line {number}: {error}", path, number, row.error)
        lines.drop(row.lines)
        width = width or len(row.fields)
        if row.fields or width == 1:
            yield number, row.fields or [""]


def _is_suspicious(lines: _LinesAhead, row: _Parsed, delimiter: str, width: int) -> bool:
    if not any('\\"' in line for line in lines.texts(row.lines)):
        return False
    if row.fields is None or len(row.fields) != width:
        return True
    strictly = _parsed(lines, delimiter, strict=True, ends=lambda i: i >= row.lines)
    return strictly.fields is None


def _escapes_read(line: str) -> str:
    if "\\" not in line:
        return line
    return re.sub(r'\\([\\"])', lambda found: _ESCAPED_QUOTE if found[1] == '"' else "\\", line)
