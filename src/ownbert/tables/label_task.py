"""Decides which task the cells of a label column are for, by one table."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from ownbert.exceptions import InputError
from ownbert.language.messages import Message, Option
from ownbert.tables.labels import (
    LabelCells,
    as_lists,
    is_on,
    separators,
    vector_message,
    vector_size,
)
from ownbert.tables.missing_values import is_missing, is_missing_number
from ownbert.tables.number_notation import (
    CODE,
    decimal_numbers,
    has_zero_groups,
    is_infinite,
    number_signs,
    stray_texts,
)
from ownbert.tables.tables import as_text

# Classes that are numbers are reported from this many.
_NOTED = 11
# Integers with this many distinct values or more are classes only if they repeat this often, and
# look like indices or codes.
_MANY, _REPEATED = 21, 3
# Numbers with fractions are reported if there are at most this many distinct values.
_FEW = 2


@dataclass(frozen=True)
class _Column:
    """What the decision depends on.

    Args:
        lists: the cells that are lists.
        size: their length if all cells are vectors of 0 and 1, else 0.
        cells: the other cells, as texts.
    """

    lists: Sequence[list[Any]]
    size: int
    cells: Sequence[str]

    @cached_property
    def texts(self) -> list[str]:
        """The texts that do not stand for missing numbers."""
        return [text for text in self.cells if not is_missing_number(text)]

    @cached_property
    def numbers(self) -> list[float]:
        """Empty if the texts are not all numbers."""
        return decimal_numbers(self.texts) or []

    @cached_property
    def signs(self) -> tuple[str, str]:
        """The separator between thousands and the decimal one."""
        return number_signs(self.texts) or ("", ".")

    @cached_property
    def distinct(self) -> int:
        return len(set(self.numbers))

    @cached_property
    def has_fractions(self) -> bool:
        return any(number % 1 for number in self.numbers)

    @cached_property
    def has_codes(self) -> bool:
        return any(map(CODE.fullmatch, self.texts))

    def are_like_classes(self) -> bool:
        """Indices of classes have no gaps and begin with 0 or 1, codes have large gaps; ages have
        neither."""
        least, span = min(self.numbers), max(self.numbers) - min(self.numbers) + 1
        are_indices = least in (0, 1) and self.distinct == span
        repeated = len(self.numbers) >= _REPEATED * self.distinct
        return repeated and (are_indices or 2 * self.distinct < span)

    def are_numbers_with_infinite_ones(self) -> bool:
        finite = [text for text in self.texts if not is_infinite(text)]
        return len(finite) < len(self.texts) and _decided(_Column((), 0, finite))[0] == "regress"


class _Decision(NamedTuple):
    """A line of the table.

    Args:
        applies: whether it is the one, if none before it is.
        task: the name of the task.
        note: for the user, if the cells are ambiguous.
    """

    applies: Callable[[_Column], bool]
    task: str
    note: Callable[[_Column], str] = lambda column: ""


def _as_whole_numbers(column: _Column, what: str, other: str) -> str:
    return Message(
        "the labels are {distinct:,} different whole numbers in {count:,} rows: they are "
        "read as {what}; use {task} to change this",
        column.distinct,
        len(column.numbers),
        what,
        Option("--task", other),
    )


def _with_thousands(column: _Column) -> str:
    return Message("the labels are numbers with {signs!r} between thousands", column.signs[0])


def _only_few(column: _Column) -> str:
    return Message(
        "the labels are only {distinct:,} different numbers, some with fractions: they are "
        "read as numbers; use {--task classify} to change this",
        column.distinct,
    )


_DECIMAL_COMMA = (
    "the labels are numbers with a decimal comma; --task multilabel reads them as sets of labels"
)

_DECISIONS = (
    # Lists.
    _Decision(lambda c: bool(c.lists) and not c.cells and {*map(len, c.lists)} == {1}, "classify"),
    _Decision(
        lambda c: c.size > 0 and all(sum(map(is_on, v)) == 1 for v in c.lists),
        "classify",
        lambda c: vector_message("one-hot", c.size) + "; --task multilabel reads them as sets",
    ),
    _Decision(lambda c: bool(c.lists), "multilabel"),
    # Numbers.
    _Decision(
        lambda c: bool(c.signs[0]) and (c.has_fractions or c.distinct >= _NOTED),
        "regress",
        _with_thousands,
    ),
    _Decision(lambda c: c.has_fractions and c.signs[1] == ",", "regress", lambda c: _DECIMAL_COMMA),
    _Decision(lambda c: c.has_fractions and c.distinct <= _FEW, "regress", _only_few),
    _Decision(lambda c: c.has_fractions, "regress"),
    _Decision(lambda c: bool(c.numbers) and (c.distinct < _NOTED or c.has_codes), "classify"),
    _Decision(
        lambda c: bool(c.numbers) and (c.distinct < _MANY or c.are_like_classes()),
        "classify",
        lambda c: _as_whole_numbers(c, "classes", "regress"),
    ),
    _Decision(
        lambda c: bool(c.numbers), "regress", lambda c: _as_whole_numbers(c, "numbers", "classify")
    ),
    # Numbers with a few cells that are none, and commas that are decimal or between thousands: they
    # are refused with their location when the rows are read.
    _Decision(lambda c: c.are_numbers_with_infinite_ones(), "regress"),
    _Decision(lambda c: bool(stray_texts(c.texts)) or has_zero_groups(c.texts), "regress"),
    # Names.
    _Decision(lambda c: _has_separators(c.cells), "multilabel"),
    _Decision(lambda c: True, "classify"),
)


def task_of_cells(values: Sequence[Any]) -> tuple[str, str]:
    """Detect the task of a label column from its first values: classify, multilabel or regress; and
    a note for the user if this is ambiguous."""
    present = [value for value in values if not is_missing(value)]
    cells = LabelCells(present, [""] * len(present), "")
    try:
        items = as_lists(cells)
        size = vector_size(items, cells.places)
        texts = [as_text(v, "", "").strip() for v in items if not isinstance(v, list)]
    except InputError:  # reported with its location when the rows are read
        return "multilabel", ""
    return _decided(_Column([v for v in items if isinstance(v, list)], size, texts))


def _decided(column: _Column) -> tuple[str, str]:
    decision = next(each for each in _DECISIONS if each.applies(column))
    return decision.task, decision.note(column)


def note_on_numbers(names: Sequence[str]) -> str:
    """A note that the labels, which are read as names, may be numbers; "" if they are not."""
    different = [*set(names)]
    are_numbers = len(different) >= _NOTED and decimal_numbers(different) is not None
    if not are_numbers or any(map(CODE.fullmatch, different)):
        return ""
    return Message(
        "the labels are {count:,} different numbers in {count2:,} rows: they are read as "
        "classes; ownbert fit --task regress and ownbert finetune regress read them as "
        "numbers",
        len(different),
        len(names),
    )


def _has_separators(texts: Sequence[str]) -> bool:
    """Whether cells contain several labels: labels also occur alone, or in more combinations than
    there are labels."""
    for separator in separators(texts):
        parts = [text.split(separator) for text in texts]
        several = sum(len(part) > 1 for part in parts)
        alone = {part[0] for part in parts if len(part) == 1}
        together = {tuple(part) for part in parts if len(part) > 1}
        joined = {name.strip() for part in together for name in part}
        if several > len(texts) / 20 and (joined & alone or len(together) > len(joined)):
            return True
    return False
