"""Tables of texts and labels: csv, tsv, jsonl and parquet, plain or gzip, streamed.

The kind of a file is told by the end of its name (.txt .csv .tsv .jsonl .ndjson .json .parquet,
each also with .gz); any other ending is plain text. What separates the columns of a csv or tsv is
told by its first line, whatever the ending: a tab if there is one, else a comma, else a semicolon,
else the file has a single column. Commas and semicolons follow the csv rules (a quoted field may
hold separators and line breaks). With tabs a row is a line and quotes are ordinary characters,
except in a field that is quoted as a whole: it starts and ends with a quote and every quote inside
is doubled. A .json file holds one object a line, as .jsonl does.
"""

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ownbert.data.readers import delimited
from ownbert.errors import InputError
from ownbert.files import open_text, refuse_unreadable

PathLike = str | os.PathLike[str]
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
# In the order of preference.
USUAL_NAMES = {
    "text": (
        *("text", "texts", "content", "contents", "document", "doc", "sentence", "sentences"),
        *("body", "review", "comment", "message", "abstract", "description", "utterance"),
        *("query", "question", "headline", "title", "tokens", "words", "ids"),
    ),
    "label": (
        *("label", "labels", "class", "category", "target", "topic", "intent", "sentiment"),
        *("tag", "y", "label_id", "class_name", "coarse_label"),
    ),
}
# Columns that are neither.
COUNTERS = frozenset({"", "id", "idx", "index", "no", "row", "guid", "uid", "unnamed: 0"})


@dataclass(frozen=True, slots=True)
class LabelledRow:
    """One example: where it stands (line, or row of parquet), its text and its label."""

    line: int
    text: str
    label: str


def kind_of(path: PathLike) -> str:
    """``txt``, ``delimited``, ``jsonl`` or ``parquet``, by the end of the name."""
    return ENDINGS.get(_ending(path), "txt")


def is_known(path: PathLike) -> bool:
    """Whether the end of the name is one that this module knows."""
    return _ending(path) in ENDINGS


def _ending(path: PathLike) -> str:
    name = Path(path).name.lower().removesuffix(".gz")
    return Path(name).suffix


def place(path: PathLike, position: int) -> str:
    """Where a row stands, for messages: ``train.csv, line 7``."""
    return f"{path}, {'row' if kind_of(path) == 'parquet' else 'line'} {position}"


def columns(path: PathLike) -> list[str]:
    """The names of the columns; for jsonl, the keys of the first object.

    ``InputError`` for an empty file and for plain text, which has no columns.
    """
    source = Path(path)
    kind = kind_of(source)
    refuse_unreadable(source)
    if kind == "delimited":
        return delimited.read_header(source)
    if kind == "parquet":
        return list(_parquet_file(source).schema_arrow.names)
    if kind == "txt":
        known = ".csv, .tsv, .jsonl or .parquet"
        raise InputError(f"{path} is plain text and has no columns: a {known} file is needed")
    for _, value in _json_objects(source):
        return list(value)
    raise InputError(f"{path} is empty")


def read_column(path: PathLike, column: str) -> Iterator[tuple[int, str]]:
    """Stream ``(line or row number, text)`` of one column; see ``read_records``."""
    return ((position, fields[0]) for position, fields in read_records(path, [column]))


def read_records(path: PathLike, names: Sequence[str]) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Stream ``(line or row number, values of the named columns)``.

    Numbers and truth values become text as JSON writes them; a list of tokens is joined by
    blanks. ``InputError`` for a column that is missing, a row that cannot be read and a value
    that is missing or null.
    """
    rows = read_values(path, names)
    return (
        (line, tuple(map(as_text, values, names, [place(path, line)] * len(names))))
        for line, values in rows
    )


def read_values(path: PathLike, names: Sequence[str]) -> Iterator[tuple[int, tuple[Any, ...]]]:
    """As ``read_records``, with the values as they are: lists, numbers, None where one is null or
    missing; texts alone in csv and tsv."""
    source = Path(path)
    present = columns(source)
    for name in names:
        require_column(present, name, source=source, option="--text-column or --label-column")
    kind = kind_of(source)
    if kind == "delimited":
        return delimited.read_rows(source, [present.index(name) for name in names])
    if kind == "parquet":
        return _parquet_rows(source, names)
    return ((line, tuple(map(value.get, names))) for line, value in _json_objects(source))


def guess_column(
    names: Sequence[str],
    kind: Literal["text", "label"],
    given: str | None = None,
    *,
    exclude: Sequence[str | None] = (),
    source: PathLike | None = None,
) -> str:
    """The column that holds the texts or the labels.

    ``given`` if it exists; else the first of the usual names; else the only column that is left
    once ids, the columns to ``exclude`` and the usual names of the other kind are set aside.
    ``InputError`` otherwise, with the columns there are and the option that chooses one.
    """
    option = f"--{kind}-column"
    if given is not None:
        require_column(names, given, source=source, option=option)
        return given
    free = [name for name in names if name not in exclude]
    lower = {name.lower(): name for name in reversed(free)}
    for usual in USUAL_NAMES[kind]:
        if usual in lower:
            return lower[usual]
    others = USUAL_NAMES["label" if kind == "text" else "text"]
    left = [name for name in free if name.lower() not in COUNTERS and name.lower() not in others]
    if len(left) == 1:
        return left[0]
    start = f"{source}: " if source is not None else ""
    raise InputError(
        f"{start}cannot tell which column holds the {kind}s; name it with {option}; "
        f"the columns (from the first line) are: {_shown(names)}"
    )


def require_column(
    names: Sequence[str], name: str, *, source: PathLike | None, option: str
) -> None:
    """``InputError`` unless there is one column of that name; option: what chooses another."""
    start = f"{source} has" if source is not None else "there is"
    if name not in names:
        raise InputError(
            f"{start} no column {name!r}; the columns are: {_shown(names)}; choose with {option}"
        )
    if list(names).count(name) > 1:
        raise InputError(f"{start} two columns {name!r}: give them different names")


def _shown(names: Sequence[str]) -> str:
    short = [name if len(name) <= 40 else name[:37] + "..." for name in names[:20]]
    return ", ".join(short) + (", ..." if len(names) > 20 else "")


def read_labelled(
    path: PathLike, *, text_column: str | None = None, label_column: str | None = None
) -> list[LabelledRow]:
    """All examples of a table, labels stripped of blanks.

    ``InputError`` for an empty file, a table without rows, an empty label, and what
    ``guess_column`` and ``read_records`` refuse.
    """
    names = columns(path)
    if label_column is None and text_column is None:
        text = guess_column(names, "text", source=path)
        label = guess_column(names, "label", exclude=[text], source=path)
    else:
        text = guess_column(names, "text", text_column, exclude=[label_column], source=path)
        label = guess_column(names, "label", label_column, exclude=[text], source=path)
    if text == label:
        raise InputError(f"{path}: the text and the label cannot both be the column {text!r}")
    rows = [
        LabelledRow(position, fields[0], fields[1].strip())
        for position, fields in read_records(path, [text, label])
    ]
    if not rows:
        raise InputError(f"{path} has no rows")
    for row in rows:
        if not row.label:
            raise InputError(f"{place(path, row.line)}: the label (column {label!r}) is empty")
    return rows


def read_texts(path: PathLike, *, text_column: str | None = None) -> Iterator[str]:
    """Stream the texts to predict: a table's text column, or plain text with one a line.

    Empty texts are kept, so that the n-th answer belongs to the n-th text. ``InputError`` when
    there is none at all.
    """
    if kind_of(path) == "txt":
        return _at_least_one((text for _, text in open_text(path)), path)
    column = guess_column(columns(path), "text", text_column, source=path)
    return _at_least_one((text for _, text in read_column(path, column)), path)


def _at_least_one(texts: Iterator[str], path: PathLike) -> Iterator[str]:
    empty = True
    for text in texts:
        empty = False
        yield text
    if empty:
        raise InputError(f"{path} {'is empty' if kind_of(path) == 'txt' else 'has no rows'}")


def _json_objects(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    for line_number, line in open_text(path):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            reason = error.msg if isinstance(error, json.JSONDecodeError) else "not readable"
            raise InputError(
                f"{place(path, line_number)}: not JSON ({reason}); one object a line is needed"
            ) from error
        if not isinstance(value, dict):
            raise InputError(
                f"{place(path, line_number)}: a JSON object such as "
                f'{{"text": "..."}} is needed on each line, not a {type(value).__name__}'
            )
        yield line_number, value


def as_text(value: object, name: str, where: str) -> str:
    """A value of column ``name`` as text. ``InputError`` for none, half a character, an object."""
    if isinstance(value, str):
        # JSON can write half of a surrogate pair, which no encoder of UTF-8 accepts.
        if not value.isascii() and any("\ud800" <= letter <= "\udfff" for letter in value):
            raise InputError(f"{where}: {name!r} holds half a surrogate pair, not a character")
        return value
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    if isinstance(value, list):
        return " ".join(as_text(item, name, where) for item in value)
    if value is None:
        raise InputError(f"{where}: {name!r} is missing or null")
    raise InputError(f"{where}: {name!r} is a {type(value).__name__}, not a text")


def _parquet_file(path: Path) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.ParquetFile(path)
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{path} is not a readable parquet file") from error


def _parquet_rows(path: Path, names: Sequence[str]) -> Iterator[tuple[int, tuple[Any, ...]]]:
    import pyarrow as pa

    row = 0
    try:
        with _parquet_file(path) as table:
            for batch in table.iter_batches(batch_size=PARQUET_ROWS, columns=list(names)):
                by_name = [batch.column(batch.schema.get_field_index(name)) for name in names]
                for values in zip(*(column.to_pylist() for column in by_name), strict=True):
                    row += 1
                    yield row, values
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{path}: damaged parquet data after row {row}") from error
