"""Tables of texts and labels: csv, tsv, jsonl and parquet, plain or gzip, streamed.

The extension determines the kind of a file (.txt .csv .tsv .jsonl .ndjson .json .parquet, each also
with .gz); any other extension is plain text. The first line determines the separator of a csv or
tsv, whatever the extension: a tab if there is one, else a comma, else a semicolon, else a vertical
bar, else the file has a single column; or Excel's line "sep=;" before it. Separators other than
tabs imply the csv rules (a quoted field may contain separators and line breaks; quotes in it are
doubled, or escaped by backslashes if the file is otherwise malformed). With tabs a row is a line
and quotes are ordinary characters, except in a field that is quoted as a whole: it starts and ends
with a quote and every quote inside is doubled. A row with a wrong number of fields by these rules
and the right number by the csv rules is read by the latter. Rows that repeat the header, and
empty rows at the end, are skipped with a warning. A .json file has one object per line, like
.jsonl. Rows in memory (``MemoryTable``) are read in the same way.
"""

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar
from unicodedata import normalize

from ownbert.exceptions import InputError, in_short
from ownbert.files.input_files import open_input, parsed_once
from ownbert.files.text_files import is_misnamed_gzip, open_text, refuse_unreadable
from ownbert.language.messages import Message, Option
from ownbert.tables import delimited, memory
from ownbert.tables.memory import MemoryTable
from ownbert.tables.missing_values import is_missing, without_empty_end

PathLike = str | os.PathLike[str]
# A file, or rows in memory.
Source = PathLike | MemoryTable
ENDINGS = {
    ".txt": "txt",
    ".csv": "delimited",
    ".tsv": "delimited",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".parquet": "parquet",
}
PARQUET_ROWS = 1024
# Lines of a plain text that are read to recognise a binary file.
_SNIFFED = 10

Item = TypeVar("Item")


def kind_of(path: Source) -> str:
    """``txt``, ``delimited``, ``jsonl`` or ``parquet``, by the extension; or ``memory``."""
    if isinstance(path, MemoryTable):
        return memory.KIND
    return ENDINGS.get(ending_of(path), "txt")


def is_known(path: PathLike) -> bool:
    """Whether the extension is supported by this module."""
    return ending_of(path) in ENDINGS


def ending_of(path: PathLike) -> str:
    """The extension of a file in lower case, without .gz."""
    name = Path(path).name.lower().removesuffix(".gz")
    return Path(name).suffix


def place(path: Source, position: int) -> Message:
    """The location of a row, for messages: ``train.csv, line 7``."""
    within = place_within(path, position)
    return Message.ready(f"{path}, {within}", "{file}, {place}", file=path, place=within)


def place_within(path: Source, position: int) -> Message:
    """The location of a row in its file or table: ``line 7``, ``row 7``."""
    if kind_of(path) in ("parquet", memory.KIND):
        return Message.ready(Message("row {row:,}", position), "row {row}", row=position)
    return Message.ready(Message("line {line}", position), "line {line}", line=position)


def columns(path: Source) -> list[str]:
    """The names of the columns; for jsonl, the keys of the first object.

    Raises:
        InputError: the file is empty, or plain text, which has no columns.
    """
    if isinstance(path, MemoryTable):
        return list(path.names)
    source = Path(path)
    kind = kind_of(source)
    if kind == "delimited":
        return _delimited(source)[0]
    if kind == "parquet":
        refuse_unreadable(source)
        return list(parquet_file(open_input(source), source).schema_arrow.names)
    if kind == "txt":
        for _ in islice(open_text(source), _SNIFFED):  # refuses binary files
            pass
        known = ".csv, .tsv, .jsonl or .parquet"
        raise InputError(
            "{path} is plain text and has no columns: a {options} file is needed", path, known
        )
    for _, value in _json_objects(source):
        return list(value)
    raise InputError("{path} is empty", path)


def read_records(path: Source, names: Sequence[str]) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Stream (line or row number, values of the named columns).

    Numbers and booleans are converted to text as in JSON, times and decimals as in Python; lists of
    tokens are joined by spaces.

    Raises:
        InputError: a column is missing, a row cannot be read, or a value is missing or null.
    """
    rows = read_values(path, names)
    return (
        (line, tuple(map(as_text, values, names, [place(path, line)] * len(names))))
        for line, values in rows
    )


def read_values(path: Source, names: Sequence[str]) -> Iterator[tuple[int, tuple[Any, ...]]]:
    """Like ``read_records``, with unconverted values.

    Values are lists, numbers, texts, or None if null or missing; csv and tsv have texts only.
    """
    kind = kind_of(path)
    opened = _delimited(Path(str(path))) if kind == "delimited" else None
    present = columns(path) if opened is None else opened[0]
    option = Message("{--text-column} or {--label-column}")
    names = [require_column(present, name, source=path, option=option) for name in names]
    if opened is not None:
        places = [present.index(name) for name in names]
        return ((number, tuple(fields[i] for i in places)) for number, fields in opened[1])
    if isinstance(path, MemoryTable):
        return path.read(names)
    source = Path(path)
    if kind == "parquet":
        return _parquet_rows(source, names)
    filled = without_empty_end(
        path, _json_objects(source), lambda row: len(row) > 1 and all(map(is_missing, row.values()))
    )
    return ((line, tuple(map(value.get, names))) for line, value in filled)


def require_column(
    names: Sequence[str], name: str, *, source: Source | None, option: str | Message
) -> str:
    """The only column with a name, as the table writes it: some programs write accents apart (NFD),
    keyboards do not, and both look the same.

    Raises:
        InputError: there is no such column, or there are several.
    """
    if name not in names:
        composed = {normalize("NFC", each): each for each in names}
        name = composed.get(normalize("NFC", name), name)
    start = Message("{source} has", source) if source is not None else Message("there is")
    if name not in names:
        shown = option if isinstance(option, Message) else Option(option)
        raise InputError(
            "{start} no column {name!r}; the columns are: {names}; choose with {option}",
            *(start, name, shown_columns(names), shown),
        )
    if list(names).count(name) > 1:
        raise InputError("{start} two columns {name!r}: give them different names", start, name)
    return name


def shown_columns(names: Sequence[str]) -> str:
    """The first column names as text, for messages."""
    short = [name if len(name) <= 40 else name[:37] + "..." for name in names[:20]]
    short = [name if name.strip() else repr(name) for name in short]
    return ", ".join(short) + (", ..." if len(names) > 20 else "")


def at_least_one(rows: Iterable[Item], path: Source) -> Iterator[Item]:
    """Yield the rows of a table; raise ``InputError`` at the end if there were none."""
    message = Message("{path} is empty" if kind_of(path) == "txt" else "{path} has no rows", path)
    if not isinstance(path, MemoryTable) and is_misnamed_gzip(Path(path)):
        message += "; it is not gzip data, whatever its name says"
    return not_empty(rows, message)


def not_empty(items: Iterable[Item], message: str) -> Iterator[Item]:
    """Yield the items; raise ``InputError`` at the end if there were none."""
    empty = True
    for item in items:
        empty = False
        yield item
    if empty:
        raise InputError(message)


def _delimited(path: Path) -> tuple[list[str], Iterator[tuple[int, list[str]]]]:
    """The names and the rows of ``delimited.open_rows``; see ``read_once``."""

    def parse() -> Iterator[tuple[int, list[str]]]:
        names, rows = delimited.open_rows(path)
        yield 0, names
        yield from rows

    rows = parsed_once(path, parse)
    return next(rows)[1], rows


def _json_objects(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    def parse() -> Iterator[tuple[int, dict[str, Any]]]:
        for line_number, line in open_text(path):
            if line.strip():
                yield line_number, memory.parse_object(line, place(path, line_number))

    return parsed_once(path, parse)


def as_text(value: object, name: str, where: str) -> str:
    """Convert a value of column ``name`` to text.

    Raises:
        InputError: the value is missing, an object, or has a lone surrogate.
    """
    if isinstance(value, str):
        # JSON can contain lone surrogates, which cannot be encoded in UTF-8.
        if not value.isascii() and any("\ud800" <= letter <= "\udfff" for letter in value):
            raise InputError(
                "{where}: {name!r} contains half a surrogate pair, not a character", where, name
            )
        return value
    if isinstance(value, bool | int | float):
        try:
            return json.dumps(value)
        except ValueError:
            raise InputError(
                "{where}: {name!r} has {value}, not text", where, name, in_short(value)
            ) from None
    if isinstance(value, memory.SCALARS):
        return str(value)
    if isinstance(value, list):
        return " ".join(as_text(item, name, where) for item in value)
    if value is None:
        raise InputError("{where}: {name!r} is missing or null", where, name)
    if isinstance(value, dict):
        raise InputError(
            "{where}: {name!r} is an object, not a text; each line must be a row, as pandas "
            "writes with to_json(path, orient='records', lines=True)",
            where,
            name,
        )
    raise InputError(
        "{where}: {name!r} is of type {kind}, not a text", where, name, type(value).__name__
    )


def parquet_file(source: Any, name: PathLike) -> Any:
    """Open a parquet file, by its path or as a file of pyarrow.

    Raises:
        InputError: it is not one; with its ``name``.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.ParquetFile(source)
    except (pa.ArrowException, OSError) as error:
        raise InputError("{name} is not a readable parquet file", name) from error


def _empty_parquet_rows(table: Any, most: int) -> int:
    """The number of empty rows at the end of a parquet file, at most ``most``."""
    groups, rows = table.num_row_groups, 0
    while groups and rows < most:
        groups -= 1
        rows += table.metadata.row_group(groups).num_rows
    empty = 0
    for batch in table.iter_batches(row_groups=[*range(groups, table.num_row_groups)]):
        for row_is_empty in memory.empty_rows(batch):
            empty = empty + 1 if row_is_empty else 0
    return min(empty, most)


def _parquet_rows(path: Path, names: Sequence[str]) -> Iterator[tuple[int, tuple[Any, ...]]]:
    import pyarrow as pa

    row = 0
    try:
        with parquet_file(open_input(path), path) as table:
            batches = table.iter_batches(batch_size=PARQUET_ROWS, columns=list(names))
            rows = enumerate(memory.rows_of_batches(batches, names, f"{path}: "), start=1)
            several = len(table.schema_arrow.names) > 1
            for row, values in without_empty_end(
                path,
                rows,
                lambda values: several and all(map(is_missing, values)),
                lambda most: _empty_parquet_rows(table, most),
            ):
                yield row, values
    except (pa.ArrowException, OSError) as error:
        raise InputError("{path}: damaged parquet data after row {row}", path, row) from error
