"""Rows as tasks read them: texts, target and line."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ownbert.errors import InputError
from ownbert.tables.columns import id_column, id_value
from ownbert.tables.feature_cells import Cells, read_features
from ownbert.tables.tables import Source, as_text, at_least_one, place, read_values


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a file.

    Args:
        line: the line in the file, for messages.
        texts: what the model reads (for tagging, the words).
        target: what it should answer, None if unknown.
        weight: of its loss in training, 1 on average.
        id: what the file calls the row, None if it has no column of ids.
        features: for each column of word features, the tags of the words.
    """

    line: int
    texts: tuple[str, ...]
    target: Any = None
    weight: float = field(default=1.0, kw_only=True)
    id: Any = field(default=None, kw_only=True)
    features: Cells = field(default=(), kw_only=True)

    def place(self, source: Source) -> str:
        """The place of the row in a file, for messages."""
        return place(source, self.line) if source else f"row {self.line}"


@dataclass(frozen=True)
class OutputOptions:
    """What a row of predictions holds.

    Args:
        top: as many labels as this, the most probable first; None: what the task decides.
        threshold: answers whose score is below it are left out; None: what the task decides.
        probabilities: whether every label has its probability beside the answer.
        unknown: the share of texts with a known label that may be refused; None: none is.
        coverage: the share of rows whose set of labels has the right one; None: there are no sets.
    """

    top: int | None = None
    threshold: float | None = None
    probabilities: bool = False
    unknown: float | None = None
    coverage: float | None = None

    @property
    def given(self) -> frozenset[str]:
        """The names of what was asked for."""
        return frozenset(k for k, v in vars(self).items() if v != getattr(PLAIN_OUTPUT, k))

    @property
    def abstains(self) -> bool:
        """Whether held-out rows are needed."""
        return self.unknown is not None or self.coverage is not None


PLAIN_OUTPUT = OutputOptions()


class TableRow(NamedTuple):
    """A row of a table.

    Args:
        where: its place, for messages.
        cells: the values of other columns.
        id: what the table calls the row.
        features: as of a ``Row``.
    """

    line: int
    where: str
    texts: tuple[str, ...]
    cells: tuple[Any, ...]
    id: Any = None
    features: Cells = ()


def read_table(
    path: Source,
    texts: Sequence[str],
    others: Sequence[str] = (),
    *,
    id: str | None = None,
    features: Sequence[str] = (),
) -> Iterator[TableRow]:
    """Stream the rows of a table, including empty texts.

    Args:
        path: of the table.
        texts, others: names of columns.
        id: that of the ids; None: found by its usual name.
        features: those of word features, a tag for each word of the first text, where words are
            what blanks separate.

    Raises:
        InputError: a text is missing, the table has no rows, or words and tags differ in number.
    """
    ids = id_column(path, [*texts, *others, *features], id)
    start = len(texts) + len(others)
    end = start + len(features)
    wanted = [*texts, *others, *features, *ids]
    for line, values in at_least_one(read_values(path, wanted), path):
        where = place(path, line)
        found = tuple(as_text(values[i], name, where) for i, name in enumerate(texts))
        own = id_value(values[end]) if ids else None
        words = len(found[0].split())
        tags = read_features(values[start:end], features, words, where)
        yield TableRow(line, where, found, values[len(texts) : start], own, tags)


def label_text(value: Any, where: str, column: str | None = None) -> str:
    """A label as text without surrounding whitespace.

    Raises:
        InputError: it is empty.
    """
    text = as_text(value, column or "label", where).strip()
    if not text:
        which = "" if column is None else f" (column {column!r})"
        raise InputError(f"{where}: the label{which} is empty")
    return text


def unknown_label(
    label: str, labels: Sequence[str], where: str, known: str, kind: str = "label"
) -> InputError:
    """The error for a label that is not one of ``labels``, which come from ``known``."""
    return InputError(
        f"{where}: {kind} {label!r} is not in {known}, which has {list_labels(labels)}"
    )


def list_labels(labels: Sequence[str]) -> str:
    """The first few labels, for messages."""
    return ", ".join(labels[:8]) + (", ..." if len(labels) > 8 else "")


def shortened(text: str, most: int) -> str:
    """A text of at most ``most`` characters: a longer one loses its middle."""
    if len(text) <= most:
        return text
    left = (most - 3) // 2 + (most - 3) % 2
    return f"{text[:left]}...{text[len(text) - (most - 3 - left) :]}"
