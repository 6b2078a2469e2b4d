"""Merges training rows with rows that were labelled later."""

import difflib
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ownbert.exceptions import InputError
from ownbert.language.messages import Message
from ownbert.tables.columns import COLUMNS, LABEL_NAMES, ColumnNames, find_columns
from ownbert.tables.label_studio import is_export, read_export
from ownbert.tables.memory import MemoryTable, table_of
from ownbert.tables.missing_values import is_missing
from ownbert.tables.number_notation import decimal_numbers
from ownbert.tables.tables import Source, columns, read_values
from ownbert.tables.texts_or_files import are_names
from ownbert.tasks.related_rows import SplitColumns

_BY_TEXT = SplitColumns()


def with_added(
    train: Source,
    added: Any,
    named: ColumnNames,
    task: str | None,
    split: SplitColumns = _BY_TEXT,
) -> tuple[MemoryTable, list[str]]:
    """Merge added rows into the training rows; an added row replaces a row with the same text.

    Args:
        added: files of rows (Label Studio exports too) or rows in memory; rows without a label are
            skipped.
        named: columns named by the user; added rows need not have them.
        task: name of the task if the user gave one.
        split: columns of groups and times; added rows need not have them, and one that replaces a
            row has its group and time.

    Returns:
        The merged rows, with the column names of ``train``, and notes for the user.

    Raises:
        InputError: a file cannot be read or none of its rows has a label.
    """
    columns_by_role = find_columns(train, COLUMNS[task or "classify"], named)
    if len(columns_by_role["label"]) != 1:
        raise InputError("{--add} is for labels in one column")
    names = _names(columns_by_role)
    others = list(split.named(train).values())
    pair, label = "second" in columns_by_role, len(names) - 1
    rows = [values for _, values in read_values(train, [*names, *others])]

    def key(values: Sequence[Any]) -> tuple[str, ...]:
        """The texts of a row with normalised white space, so that equal texts have equal keys."""
        return tuple(" ".join(str(value).split()) for value in values[:label])

    counts = Counter(map(key, rows))
    notes: list[str] = []
    new: dict[Any, tuple[Any, ...]] = {}
    for source in _sources(added):
        labelled = _labelled(source, named, task, names[-1], pair, others, notes)
        repeated = len(labelled) - len({key(row) for row in labelled} - new.keys())
        if repeated:
            notes.append(
                Message(
                    "{source}: repeated texts: {repeated:,}; the last label counts",
                    source,
                    repeated,
                )
            )
        new.update((key(row), row) for row in labelled)
    before = {key(row): row for row in rows}
    for text in new.keys() & before.keys():
        filled = (b if is_missing(a) else a for a, b in zip(new[text], before[text], strict=True))
        new[text] = tuple(filled)
    replaced = sum(counts[text] for text in new)
    if replaced:
        known = new.keys() & before.keys()
        other = sum(str(before[text][label]) != str(new[text][label]) for text in known)
        notes.append(
            Message(
                "rows of {train} replaced by added ones with the same text: {replaced:,}; with "
                "another label: {value:,}",
                train,
                replaced,
                other,
            )
        )
    if unseen := _unseen_labels(rows, new.values(), label):
        name, count = next(iter(unseen.items()))
        close = difflib.get_close_matches(name, {str(row[label]).strip() for row in rows}, n=1)
        meant = Message(" (did you mean {close!r}?)", close[0]) if close else ""
        notes.append(
            Message(
                "warning: added labels that no row of {train} has: {count:,}, such as {name!r} "
                "(rows: {count2:,}){meant}; they become new labels",
                train,
                len(unseen),
                name,
                count,
                meant,
            )
        )
    merged = [*(row for row in rows if key(row) not in new), *new.values()]
    name, names = Message("{train} and added rows", train), (*names, *others)
    return table_of([dict(zip(names, row, strict=True)) for row in merged], name=name), notes


def _unseen_labels(
    rows: Iterable[Sequence[Any]], added: Iterable[Sequence[Any]], label: int
) -> Counter[str]:
    """The number of rows of each added label that no other row has, if labels are names."""
    known = {str(row[label]).strip() for row in rows}
    if decimal_numbers([*known]) is not None or any(isinstance(row[label], list) for row in rows):
        return Counter()
    # Cells with several labels are compared label by label.
    parts = {part.strip() for name in known for part in re.split(r"[|;,]", name)} | known
    names = (str(row[label]).strip() for row in added if not isinstance(row[label], list))
    unseen = Counter(name for name in names if name not in known)
    return Counter(
        {
            name: count
            for name, count in unseen.items()
            if not {part.strip() for part in re.split(r"[|;,]", name)} <= parts
        }
    )


def _sources(added: Any) -> list[Source]:
    if not are_names(added):
        return [table_of(added, name="the added rows")]
    paths = [added] if isinstance(added, str | Path) else list(added)
    return [read_export(path) if is_export(path) else Path(path) for path in paths]


def _labelled(
    source: Source,
    named: ColumnNames,
    task: str | None,
    label: str,
    pair: bool,
    others: Sequence[str],
    notes: list[str],
) -> list[tuple[Any, ...]]:
    """The texts and the label of each labelled row, and its values of other columns, None in files
    without them."""
    present = columns(source)
    known_names = {role: name if name in present else None for role, name in vars(named).items()}
    columns_by_role = find_columns(
        source, COLUMNS[task or "classify"], replace(named, **known_names), pair=pair
    )
    names = _names(columns_by_role)
    # A guess may be a label of something else.
    if names[-1].casefold() not in (label.casefold(), *LABEL_NAMES):
        raise InputError(
            "{source} has no column {label!r} or 'label'; rename its label column", source, label
        )
    found = [name for name in others if name in present]
    given = (
        (values[: len(names)], dict(zip(found, values[len(names) :], strict=True)))
        for _, values in read_values(source, [*names, *found])
    )
    rows = [(*values, *map(other.get, others)) for values, other in given]
    labelled = [values for values in rows if not is_missing(values[len(names) - 1])]
    if not labelled:
        raise InputError(
            "{source}: no row has a label yet; fill in the column {names!r}", source, names[-1]
        )
    empty = len(rows) - len(labelled)
    notes.append(
        Message(
            "{source}: labelled rows added: {count:,}; without a label, left out: {empty:,}",
            source,
            len(labelled),
            empty,
        )
    )
    return labelled


def _names(found: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(name for role in ("text", "second", "label") for name in found.get(role, ()))
