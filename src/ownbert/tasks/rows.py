"""Rows as tasks read them: texts, what the model should answer, and where it stands."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ownbert.data.readers.tables import (
    as_text,
    columns,
    guess_column,
    kind_of,
    place,
    read_records,
    read_values,
)
from ownbert.errors import InputError
from ownbert.files import open_text

# Columns of two texts that belong together, by their usual names.
PAIRS = (
    *(("sentence1", "sentence2"), ("sentence_1", "sentence_2"), ("sentence_a", "sentence_b")),
    *(("text1", "text2"), ("text_1", "text_2"), ("text_a", "text_b"), ("s1", "s2")),
    *(("question1", "question2"), ("premise", "hypothesis"), ("query", "passage")),
    *(("query", "document"), ("anchor", "positive")),
)


@dataclass(frozen=True, slots=True)
class Row:
    """One example as it was read: ``texts`` are what the model reads (of tagging, the words),
    ``target`` what it should answer, None where that is not known; ``line`` is for messages."""

    line: int
    texts: tuple[str, ...]
    target: Any = None

    def place(self, source: str | Path) -> str:
        """The place of the row in a file, for messages."""
        return place(source, self.line) if source else f"row {self.line}"


@dataclass(frozen=True)
class Columns:
    """Names of columns as far as they were given; each task says what it reads from them."""

    text: str | None = None
    second: str | None = None
    label: str | None = None


@dataclass(frozen=True)
class Found:
    """The columns of a file: one text or several, and the label where there is one."""

    texts: tuple[str, ...]
    label: str | None


def find_columns(
    path: str | Path, given: Columns, *, labelled: bool, pair: bool | None = None
) -> Found:
    """Which columns of a table hold the texts and the label, by what was given or usual names.

    A second text is taken where it was named, or where the file has both columns of a pair and no
    text column was named; ``pair``: there must be one, or none. Raises ``InputError``.
    """
    names = columns(path)
    first, second = given.text, given.second
    usual = next((p for p in PAIRS if {*p} <= {n.lower() for n in names}), None)
    if pair is False and second is not None:
        raise InputError(
            f"{path}: the model has learnt from single texts; leave out --second-column"
        )
    if pair is not False and first is None and second is None and usual is not None:
        first, second = (next(n for n in names if n.lower() == u) for u in usual)
    label = None
    if labelled and given.label is not None:
        label = guess_column(names, "label", given.label, source=path)
    taken = [second, label]
    text = guess_column(names, "text", first, exclude=taken, source=path)
    if second is not None and second not in names:
        raise InputError(
            f"{path} has no column {second!r} (--second-column); the columns are: "
            + ", ".join(names[:20])
        )
    if pair and second is None:
        raise InputError(
            f"{path}: two texts a row are needed; name their columns with --text-column and "
            f"--second-column; the columns are: {', '.join(names[:20])}"
        )
    texts = (text,) if second is None else (text, second)
    if labelled and label is None:
        label = guess_column(names, "label", exclude=texts, source=path)
    if len({*texts, label}) < len(texts) + 1:
        twice = label if label in texts else text
        raise InputError(f"{path}: the column {twice!r} cannot be both of two things")
    return Found(texts, label)


def read_labelled(
    path: str | Path, given: Columns, *, pair: bool | None = None
) -> Iterator[tuple[int, tuple[str, ...], Any]]:
    """(line, texts, label as it stands there) of every row; a table without rows is refused."""
    found = find_columns(path, given, labelled=True, pair=pair)
    assert found.label is not None
    empty = True
    for line, (*texts, label) in read_values(path, [*found.texts, found.label]):
        empty = False
        where = place(path, line)
        yield line, tuple(map(as_text, texts, found.texts, [where] * len(texts))), label
    if empty:
        raise InputError(f"{path} has no rows")


def stream_texts(path: str | Path, given: Columns, *, pair: bool | None = None) -> Iterator[Row]:
    """Rows to predict, without answers: a table, or plain text with one a line.

    Empty texts are kept, so that the n-th answer belongs to the n-th row.
    """
    if kind_of(path) == "txt":
        if pair:
            raise InputError(f"{path} is plain text; two texts a row need a table")
        rows: Iterator[Row] = (Row(line, (text,)) for line, text in open_text(path))
    else:
        found = find_columns(path, given, labelled=False, pair=pair)
        rows = (Row(line, texts) for line, texts in read_records(path, found.texts))
    return at_least_one(rows, path)


def at_least_one(rows: Iterator[Row], path: str | Path) -> Iterator[Row]:
    """The rows; ``InputError`` at the end where there was none."""
    empty = True
    for row in rows:
        empty = False
        yield row
    if empty:
        raise InputError(f"{path} {'is empty' if kind_of(path) == 'txt' else 'has no rows'}")


def label_text(value: Any, where: str, column: str = "label") -> str:
    """A label as text, stripped of blanks. ``InputError`` where there is none."""
    text = as_text(value, column, where).strip()
    if not text:
        raise InputError(f"{where}: the label is empty")
    return text


def shown_labels(labels: Sequence[str]) -> str:
    """The first few labels, for messages."""
    return ", ".join(labels[:8]) + (", ..." if len(labels) > 8 else "")


def shortened(text: str, most: int) -> str:
    """A text of at most so many characters: the middle of a longer one is left out."""
    if len(text) <= most:
        return text
    left = (most - 3) // 2 + (most - 3) % 2
    return f"{text[:left]}...{text[len(text) - (most - 3 - left) :]}"
