"""Rows of tasks: texts, target and line."""

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from ownbert.exceptions import InputError
from ownbert.language.messages import Message, Option
from ownbert.tables.columns import id_column, id_value
from ownbert.tables.feature_cells import Cells, read_features
from ownbert.tables.memory import MemoryTable
from ownbert.tables.tables import (
    Source,
    as_text,
    at_least_one,
    columns,
    kind_of,
    place,
    read_values,
    require_column,
)

# What the threshold of a label is chosen by (``tasks.thresholds``): the least precision, the least
# recall, or the cost of a row with the label that is missed, if a false alarm costs 1.
AIMS = ("precision", "recall", "cost")
_ROUNDING = 1e-3  # tolerance for the sum of a distribution, which may consist of rounded numbers
_SHOWN = 0.05  # minimum probability shown in a message


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a file."""

    line: int  # line in the file, for messages
    texts: tuple[str, ...]  # input of the model (the words for tagging)
    target: Any = None  # expected prediction, None if unknown
    _: KW_ONLY
    weight: float = 1.0  # weight of the loss in training, 1 on average
    id: Any = None  # in the file; None without an id column
    features: Cells = ()  # tags of the words, by column
    kept: tuple[tuple[str, Any], ...] = ()  # input columns copied to the output
    group: str | None = None  # such as a customer; None: it belongs to no group

    def place(self, source: Source) -> str:
        """The location of the row in a file, for messages."""
        return place(source, self.line) if source else Message("row {row}", self.line)


@dataclass(frozen=True)
class OutputOptions:
    """Contents of a row of predictions."""

    top: int | None = None  # number of labels, most probable first; None: the task's default
    threshold: float | None = None  # minimum score of predictions; None: the task's default
    probabilities: bool = False  # whether to include the probabilities of all labels
    unknown: float | None = None  # share of in-scope texts that may be rejected; None: reject none
    coverage: float | None = None  # share of rows whose label set is right; None: no label sets
    keep: tuple[str, ...] = ()  # input columns that are copied to the rows; ("all",): all columns
    thresholds: str | None = None  # of labels, see ``read_thresholds``; None: those of the folder

    @property
    def given(self) -> frozenset[str]:
        """The names of the options that are set and that a task may lack."""
        values = {k: v for k, v in vars(self).items() if k not in ("keep", "thresholds")}
        return frozenset(k for k, v in values.items() if v != getattr(PLAIN_OUTPUT, k))

    @property
    def abstains(self) -> bool:
        """Whether held-out rows are needed for rejected predictions or label sets."""
        return self.unknown is not None or self.coverage is not None

    @property
    def calibrated(self) -> bool:
        """Whether held-out rows are needed, also for thresholds."""
        return self.abstains or any(aim in (self.thresholds or "") for aim in AIMS)


class TableRow(NamedTuple):
    """A row of a table: its line and location (``where``, for messages), the cells of the other
    columns, its id and word features (see ``Row``)."""

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
    """Stream the rows of a table, including empty texts. ``others`` are columns to read besides the
    texts; ``id`` is the id column (None: one with a usual name, if any); ``features`` are columns
    with one tag per space-separated word of the first text."""
    ids = id_column(path, [*texts, *others, *features], id)
    start = len(texts) + len(others)
    end = start + len(features)
    names = [*texts, *others, *features, *ids]
    for line, values in at_least_one(read_values(path, names), path):
        where = place(path, line)
        row_texts = tuple(as_text(values[i], name, where) for i, name in enumerate(texts))
        row_id = id_value(values[end], named=id is not None) if ids else None
        tags: Cells = ()
        if features:
            tags = read_features(values[start:end], features, len(row_texts[0].split()), where)
        yield TableRow(line, where, row_texts, values[len(texts) : start], row_id, tags)


def with_columns(
    rows: Iterable[Row], source: Source, names: Sequence[str], *, option: str
) -> Iterator[Row]:
    """Rows of a table, in its order, with the values of further columns (``Row.kept``), which are
    read in step with them; ``option`` names them, for messages."""
    if not isinstance(source, MemoryTable) and kind_of(source) == "txt":
        raise needs_table(option)
    names = [require_column(columns(source), name, source=source, option=option) for name in names]
    values = read_values(source, names)
    for row in rows:
        cells = next((cells for line, cells in values if line == row.line), None)
        if cells is None:  # such as questions of SQuAD, of which a line has many
            raise needs_table(option)
        kept = ((name, _json_value(value)) for name, value in zip(names, cells, strict=True))
        yield replace(row, kept=tuple(kept))


def needs_table(option: str) -> InputError:
    """The error for an option with columns if rows do not come from a table."""
    return InputError("{option} needs a table: .csv, .tsv, .jsonl or .parquet", Option(option))


def _json_value(value: Any) -> Any:
    """A cell as a value of JSON; numbers that are not finite are missing values."""
    value = id_value(value)
    return None if isinstance(value, float) and not math.isfinite(value) else value


def label_text(value: Any, where: str) -> str:
    """A label as text without surrounding whitespace; raise ``InputError`` if it is empty."""
    text = as_text(value, "label", where).strip()
    if not text:
        raise InputError("{where}: the label is empty", where)
    return text


def unknown_label(
    label: str, labels: Sequence[str], where: str, known: str, kind: str = "label"
) -> InputError:
    """The error for a label that is not one of ``labels``, which come from ``known``."""
    return InputError(
        "{where}: {kind} {label!r} is not in {options}, which has {labels}",
        where,
        kind,
        label,
        known,
        list_labels(labels),
    )


def list_labels(labels: Sequence[str]) -> str:
    """The first few labels as text, for messages."""
    return ", ".join(labels[:8]) + (", ..." if len(labels) > 8 else "")


def shortened(text: str, most: int) -> str:
    """Shorten a text to ``most`` characters by removing its middle."""
    if len(text) <= most:
        return text
    left = (most - 3) // 2 + (most - 3) % 2
    return f"{text[:left]}...{text[len(text) - (most - 3 - left) :]}"


def is_soft(target: Any) -> bool:
    """Whether a target contains probabilities: an array, or numbers in a tuple."""
    if isinstance(target, np.ndarray):
        return True
    return isinstance(target, tuple) and bool(target) and not isinstance(target[0], str)


def learn_order(
    rows: Sequence[Row], labels: Sequence[str], names: Collection[str], source: Source
) -> tuple[str, ...]:
    """The label order of the probabilities in ``rows``: ``labels``, if a row has probabilities,
    else empty, because the rows determine the labels. ``names`` are the labels of the other
    rows."""
    if not any(is_soft(row.target) for row in rows):
        return ()
    where = source or "training rows"
    if labels:
        if unknown := sorted(set(names) - set(labels)):
            raise InputError(
                "{where}: the label {unknown!r} is not one of the labels of the probabilities, "
                "{labels}",
                where,
                unknown[0],
                list_labels(labels),
            )
        return tuple(labels)
    if not names:
        raise InputError(
            "{where}: all targets are probabilities; give the labels in their order (labels=...)",
            where,
        )
    return ()


def check_probabilities(
    target: Any, labels: Sequence[str], where: str, *, sum_to_one: bool
) -> None:
    """Raise ``InputError`` unless the target has a probability (C) for each label."""
    try:
        values = np.asarray(target, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(
            "{where}: the probabilities of the labels must be numbers", where
        ) from None
    if values.shape != (len(labels),):
        raise InputError(
            "{where}: {size} probabilities for {count} labels; one for each of {labels} is needed",
            where,
            values.size,
            len(labels),
            list_labels(labels),
        )
    if not ((values >= 0) & (values <= 1)).all():  # also rejects NaN
        raise InputError(
            "{where}: a probability is not between 0 and 1: {values}", where, values.tolist()
        )
    if sum_to_one and not math.isclose(total := float(values.sum()), 1, abs_tol=_ROUNDING):
        raise InputError(
            "{where}: the probabilities of the labels add up to {total:g}, not to 1", where, total
        )


def refuse_soft_targets(rows: Sequence[Row], source: Source) -> None:
    """Raise ``InputError`` if a row for evaluation has probabilities."""
    for row in rows:
        if is_soft(row.target):
            raise InputError(
                "{place}: dev rows need labels; probabilities are for training rows",
                row.place(source),
            )


def readable_probabilities(target: Any, labels: Sequence[str]) -> str:
    """The most probable labels with their probabilities, for the user."""
    pairs = zip(labels, np.asarray(target).tolist(), strict=True)
    return ", ".join(f"{label} {p:.0%}" for label, p in pairs if p >= _SHOWN) or "no likely label"


PLAIN_OUTPUT = OutputOptions()
