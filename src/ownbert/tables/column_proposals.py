"""Proposes columns of a table by their content if no name is usual."""

from collections.abc import Collection, Sequence
from itertools import islice
from typing import Any

from ownbert.exceptions import InputError, in_short, warn_of_input
from ownbert.tables.memory import MemoryTable
from ownbert.tables.tables import Source, kind_of, read_values, shown_columns

_ROWS = 1_000  # rows examined
# Maximum mean length of labels in characters.
_LONGEST_LABEL = 60
# Maximum number of words in a column name.
_LONGEST_NAME = 4
# Values of columns that contain one label each.
_BITS = ({"0", "1"}, {"0.0", "1.0"}, {"true", "false"})
# Maximum number of columns proposed for the labels.
_LABEL_COLUMNS = 3


def propose_text(path: Source, names: Sequence[str]) -> str | None:
    """The column with the longest values in the first 1,000 rows; None if all are numeric or rows
    cannot be read."""
    lengths = {
        name: _length(values)
        for name, values in _values(path, names).items()
        if not all(map(_is_number, values))
    }
    return max(lengths, key=lambda name: lengths[name], default=None)


def are_numbers(path: Source, name: str) -> bool:
    """Whether a column is numeric in the first 1,000 rows; false if rows cannot be read now."""
    values = _values(path, [name]).get(name)
    return bool(values) and all(map(_is_number, values))


def bit_columns(path: Source, names: Sequence[str]) -> list[str]:
    """Columns that contain both 0 and 1, and nothing else, in the first 1,000 rows."""
    values = _values(path, names)
    return [name for name, column in values.items() if {str(v).lower() for v in column} in _BITS]


def is_headless(path: Source, text: str, labels: Sequence[str]) -> bool:
    """Whether the header seems to be a row: the name of the text column is a sentence, or a label's
    name occurs among the values."""
    if len(text.split()) > _LONGEST_NAME:
        return True
    return any(name in map(str, values) for name, values in _values(path, labels).items())


def warn_if_headless(path: Source, names: Sequence[str]) -> None:
    """Warn that the names of the only columns, none of which is usual, may be texts: they are
    sentences, or about as long as the values."""
    values = _values(path, names) if kind_of(path) == "delimited" else {}
    if values and all(
        (column and "_" not in name and 2 * len(name) >= _length(column))
        or len(name.split()) > _LONGEST_NAME
        for name, column in values.items()
    ):
        shown = in_short(shown_columns(names))
        warn_of_input(
            "{path}: the first line, {shown}, is read as a header, not as a row; if it is a "
            "row, add a header line before it, such as text",
            path,
            shown,
        )


def propose_labels(
    path: Source, names: Sequence[str], apart: Collection[str], *, numbers: bool
) -> dict[str, int]:
    """Columns that may contain labels, with their numbers of distinct values in the first 1,000
    rows.

    Args:
        path: a table.
        names: its column names.
        apart: columns that contain something else.
        numbers: whether to look for numeric columns instead of classes.
    """
    found: dict[str, int] = {}
    for name, values in _values(path, [name for name in names if name not in apart]).items():
        different = len({str(value) for value in values})
        classes = 2 <= different <= len(values) // 2 and _length(values) <= _LONGEST_LABEL
        if (different > 1 and all(map(_is_number, values))) if numbers else classes:
            found[name] = different
    return dict(islice(found.items(), _LABEL_COLUMNS))


def first_rows_of(path: Source, names: Sequence[str], most: int) -> dict[str, tuple[Any, ...]]:
    """The values of the first rows by column; empty if rows are malformed or can only be read
    once."""
    names = [name for name in names if list(names).count(name) == 1]
    if isinstance(path, MemoryTable) and path.once:
        return {}
    try:
        rows = [values for _, values in islice(read_values(path, names), most)]
    except InputError:
        return {}
    return dict(zip(names, zip(*rows, strict=True), strict=False))


def _values(path: Source, names: Sequence[str]) -> dict[str, list[Any]]:
    """The values of the first rows by column, without missing ones."""
    return {
        name: [value for value in values if value not in (None, "")]
        for name, values in first_rows_of(path, names, _ROWS).items()
    }


def _length(values: Sequence[Any]) -> float:
    """Mean number of characters per value."""
    return sum(len(str(value)) for value in values) / max(1, len(values))


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True
