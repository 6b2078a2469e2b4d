"""Which columns of a table may be meant where no name is usual: proposals by what they hold."""

from collections.abc import Collection, Sequence
from itertools import islice
from typing import Any

from ownbert.errors import InputError
from ownbert.tables.tables import Source, read_values

_ROWS = 1_000
# Labels have fewer characters on average.
_LONGEST_LABEL = 60
# A name of a column has fewer words, or as many.
_LONGEST_NAME = 4
# What columns hold that are a label each.
_BITS = ({"0", "1"}, {"0.0", "1.0"}, {"true", "false"})
# At most so many columns are proposed for the labels.
_LABEL_COLUMNS = 3


def propose_text(path: Source, names: Sequence[str]) -> str | None:
    """The column whose values are the longest in the first 1,000 rows; None where all are numbers
    or cannot be read."""
    lengths = {
        name: _length(values)
        for name, values in _values(path, names).items()
        if not all(map(_is_number, values))
    }
    return max(lengths, key=lambda name: lengths[name], default=None)


def are_numbers(path: Source, name: str) -> bool:
    """Whether every value of a column in the first 1,000 rows is a number; not where the rows
    cannot be read now."""
    values = _values(path, [name]).get(name)
    return bool(values) and all(map(_is_number, values))


def bit_columns(path: Source, names: Sequence[str]) -> list[str]:
    """The columns with 0 and 1 alone in the first 1,000 rows, and both of them."""
    values = _values(path, names)
    return [name for name, own in values.items() if {str(v).lower() for v in own} in _BITS]


def is_headless(path: Source, text: str, labels: Sequence[str]) -> bool:
    """Whether the names of the columns seem to be a row: that of the texts is a sentence, or one of
    the labels occurs among the values."""
    if len(text.split()) > _LONGEST_NAME:
        return True
    return any(name in map(str, values) for name, values in _values(path, labels).items())


def propose_labels(
    path: Source, names: Sequence[str], apart: Collection[str], *, numbers: bool
) -> dict[str, int]:
    """The columns that may hold labels, with the number of their values in the first 1,000 rows.

    Args:
        path: a table.
        names: of its columns.
        apart: columns that hold something else.
        numbers: whether they hold numbers instead of classes.
    """
    found: dict[str, int] = {}
    for name, values in _values(path, [name for name in names if name not in apart]).items():
        different = len({str(value) for value in values})
        classes = 2 <= different <= len(values) // 2 and _length(values) <= _LONGEST_LABEL
        if (different > 1 and all(map(_is_number, values))) if numbers else classes:
            found[name] = different
    return dict(islice(found.items(), _LABEL_COLUMNS))


def _values(path: Source, names: Sequence[str]) -> dict[str, list[Any]]:
    """The values of the first rows by column, without what is missing; none where rows are wrong
    or can be read only once."""
    names = [name for name in names if list(names).count(name) == 1]
    try:
        rows = [values for _, values in islice(read_values(path, names), _ROWS)]
    except InputError:
        return {}
    columns = zip(*rows, strict=True) if rows else ()
    return {
        name: [value for value in values if value not in (None, "")]
        for name, values in zip(names, columns, strict=False)
    }


def _length(values: Sequence[Any]) -> float:
    """Characters of a value on average."""
    return sum(len(str(value)) for value in values) / max(1, len(values))


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True
