"""Cells without a value: empty ones, and texts that other programs write for missing values; rows
of such cells at the end of a table, as spreadsheets leave them."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

from ownbert.exceptions import warn_of_input

Row = TypeVar("Row")
# Rows of a spreadsheet; more empty ones are not kept in memory.
_MOST_ROWS = 1 << 20
_keeps_end: ContextVar[bool] = ContextVar("keeps_end", default=False)

# Texts for missing values in files of R, pandas, SQL, spreadsheets and the UCI repository. As
# labels they are only reported: "NA" can be a country, and "None" a class.
_MARKS = frozenset(
    (
        *("NA", "N/A", "n/a", "<NA>", "NaN", "nan", "NaT", "NULL", "null", "None", r"\N", "?"),
        *("#N/A", "#DIV/0!", "#VALUE!", "#REF!", "#NAME?", "#NUM!", "#NULL!"),
    )
)
# Lower-case texts for missing values in columns of numbers.
_NO_NUMBERS = frozenset((*(mark.lower() for mark in _MARKS), "-", "--", "."))


def is_missing(value: Any) -> bool:
    """Whether a cell is empty: null, NaN, or a blank text."""
    if value is None or (isinstance(value, float) and value != value):
        return True
    return isinstance(value, str) and not value.strip()


def is_missing_number(value: Any) -> bool:
    """Whether a cell of a column of numbers is empty or has a text for missing values."""
    return is_missing(value) or (isinstance(value, str) and value.strip().lower() in _NO_NUMBERS)


def marks_missing(label: str) -> bool:
    """Whether a label is usual for missing values."""
    return label in _MARKS or label in ("-", "--")


@contextmanager
def keeping_empty_end() -> Iterator[None]:
    """A context in which files are read with the empty rows at their end: they are parts of files,
    and more rows follow."""
    token = _keeps_end.set(True)
    try:
        yield
    finally:
        _keeps_end.reset(token)


def without_empty_end(
    name: Any,
    rows: Iterable[tuple[int, Row]],
    is_empty: Callable[[Row], bool],
    at_end: Callable[[int], int] = lambda most: most,
) -> Iterator[tuple[int, Row]]:
    """Yield numbered rows without the empty ones at the end, of which the user is warned.

    Args:
        name: name of the table.
        rows: numbers and rows.
        is_empty: whether a row may be empty.
        at_end: how many of that many rows at the end are empty, if a row has further columns.
    """
    held: list[tuple[int, Row]] = []  # rows so far that may be the last ones
    for number, row in rows:
        held.append((number, row))
        if not is_empty(row) or len(held) > _MOST_ROWS or _keeps_end.get():
            yield from held
            held.clear()
    empty = at_end(len(held)) if held else 0
    yield from held[: len(held) - empty]
    warn_of_empty_end(name, empty)


def warn_of_empty_end(name: Any, empty: int) -> None:
    """Warn that ``empty`` rows at the end of a table are left out, if there are any."""
    if empty:
        warn_of_input("{name}: empty rows at the end, left out: {empty:,}", name, empty)


def count_at_end(total: int, are_empty: Callable[[int], Iterable[bool]], window: int = 1024) -> int:
    """Count the empty rows at the end.

    Args:
        total: number of rows.
        are_empty: which of the last rows are empty; called with growing numbers of rows.
        window: rows looked at first.
    """
    empty, looked = 0, 0
    while empty == looked < total:
        looked = min(total, max(window, 2 * looked))
        empty = 0
        for row_is_empty in are_empty(looked):
            empty = empty + 1 if row_is_empty else 0
    return empty
