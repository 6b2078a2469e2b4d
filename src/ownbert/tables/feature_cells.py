"""Word features in rows: columns with a tag for each word of a text.

W words of a text, F columns.
"""

import re
from collections.abc import Sequence
from typing import Any

from ownbert.exceptions import InputError, counted
from ownbert.tables.labels import text_list
from ownbert.tables.tables import as_text

# The start of a list, which no text with bracketed words has.
_LIST_START = re.compile(r"""\[\s*['"].*['"]\s*,""", re.DOTALL)

# Tags of the words by column: F tuples of W.
Cells = tuple[tuple[str, ...], ...]


def read_features(
    cells: Sequence[Any], names: Sequence[str], words: int | None, where: str
) -> Cells:
    """The tags of each column, from lists or space-separated texts.

    Args:
        cells: cells of the columns.
        names: names of the columns.
        words: required number of tags per column; None: not checked.
        where: location of the row, for messages.

    Raises:
        InputError: a cell is missing or has another number of tags.
    """
    found = tuple(map(split_cell, cells, names, [where] * len(names)))
    for name, tags in zip(names, found, strict=True):
        if words is not None and len(tags) != words:
            raise InputError(
                "{where}: {words}, but {tags} in column {name!r}; every word needs one",
                where,
                counted(words, "word"),
                counted(len(tags), "tag"),
                name,
            )
    return found


def is_written_list(value: Any) -> bool:
    """Whether a cell is a text that represents a list, as in csv, or a part of one. Words may be
    bracketed; quoted items or several numbers make a list."""
    if not isinstance(value, str) or value.lstrip()[:1] != "[":
        return False
    items = text_list(value)
    if items is None:
        return _LIST_START.match(value.strip()) is not None
    return len(items) != 1 or isinstance(items[0], str)


def split_cell(value: Any, column: str, where: str) -> tuple[str, ...]:
    """The items of a list, which csv represents as text, or of a space-separated text."""
    if is_written_list(value) and (value := text_list(value)) is None:
        raise InputError(
            '{where}: {column!r} looks like a list but is not valid; write it as ["one", '
            '"two"], with double quotes, or separate the items by spaces',
            where,
            column,
        )
    if isinstance(value, list):
        return tuple(as_text(item, column, where) for item in value)
    return tuple(as_text(value, column, where).split())


def refuse_plain_text(path: Any, names: str | None) -> None:
    """Raise ``InputError`` if rows are plain texts and the model needs the columns ``names``."""
    if names is not None:
        raise InputError(
            "{path} is plain text; the model also reads word features (the columns {names}), so "
            "it needs a table",
            path,
            names,
        )
