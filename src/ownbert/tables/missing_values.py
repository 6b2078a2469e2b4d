"""Cells without a value: empty ones, and texts that other programs write for missing values."""

from typing import Any

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
