"""Finds labelled rows that are probably mistakes by hashes of their texts, without a model."""

import hashlib
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ownbert.language.messages import Message, join
from ownbert.tasks.related_rows import row_key
from ownbert.tasks.rows import Row, shortened

_SHOWN_PLACES = 3  # maximum number of rows named in a message
_LABEL = 40  # maximum characters of a target in a message


@dataclass(frozen=True)
class LabelledSplit:
    """The rows of one file.

    Args:
        name: "training", "dev" or similar.
        source: file name, "" if the rows were passed in Python.
        unit: noun for rows in messages.
        sets: whether targets are unordered sets.
    """

    name: str
    rows: Sequence[Row]
    source: str | Path = ""
    unit: str = "documents"
    sets: bool = False

    def where(self, row: Row) -> str:
        """The location of a row, for messages."""
        place = row.place(self.source)
        return place if self.source else f"{self.name} {place}"

    def target_key(self, row: Row) -> str:
        """The target as a string that is equal for equal targets."""
        return repr(sorted(row.target) if self.sets else row.target)


@dataclass(frozen=True)
class Finding:
    """A group of ``count`` suspicious rows, of a kind of ``check_rows``, with a message.
    ``severe``: whether to warn before training; other findings are common in some kinds of data."""

    kind: str
    count: int
    line: str
    severe: bool = True


def check_rows(train: LabelledSplit, *others: LabelledSplit) -> list[Finding]:
    """Find suspicious rows in the training rows and in ``others``, such as dev rows.

    Texts that differ only in whitespace count as equal; between training rows and ``others`` also
    those that differ in case and punctuation. The kinds are: conflict: equal texts with different
    labels (not values). empty: a text without characters. repeated: rows of ``others`` whose texts
    are also in the training rows. duplicate: copies of earlier training rows with the same target.
    noise: copies with another value.
    """
    texts = _index(train, _exact_key)
    findings = [*empty_texts(train), *_conflicts(train, texts)]
    similar_texts = _index(train, row_key) if others else texts
    for split in others:
        findings += empty_texts(split)
        findings += _conflicts(split, _index(split, _exact_key))
        findings += _repeated(split, train, similar_texts)
    return findings + _duplicates(train, texts)


def label_counts(rows: Sequence[Row], labels: Sequence[str]) -> Counter[str]:
    """Count the rows that have each of ``labels`` as a target.

    Other targets are not counted, because they may be texts.
    """
    counts = Counter(dict.fromkeys(labels, 0))
    for row in rows:
        targets = row.target if isinstance(row.target, tuple) else (row.target,)
        counts.update(a for a in targets if isinstance(a, str) and a in counts)
    return counts


def _exact_key(row: Row) -> bytes:
    """A hash of a row's texts, to save memory; punctuation and case may matter for their label."""
    texts = "\0".join(" ".join(text.split()) for text in row.texts)
    return hashlib.blake2b(texts.encode("utf-8", "surrogatepass"), digest_size=16).digest()


class _TextIndex(NamedTuple):
    """The first row with each key, and all rows with the texts of a first row that has copies."""

    first: dict[Hashable, int]
    groups: dict[int, list[int]]


def _index(split: LabelledSplit, key: Callable[[Row], Hashable]) -> _TextIndex:
    first: dict[Hashable, int] = {}
    groups: dict[int, list[int]] = {}
    for index, row in enumerate(split.rows):
        earliest = first.setdefault(key(row), index)
        if earliest != index:
            groups.setdefault(earliest, [earliest]).append(index)
    return _TextIndex(first, groups)


def _is_label(target: Any) -> bool:
    parts = target if isinstance(target, tuple) else (target,)
    return all(isinstance(p, str | int) for p in parts)


def _is_number(target: Any) -> bool:
    parts = target if isinstance(target, tuple) else (target,)
    return bool(parts) and all(isinstance(p, float) for p in parts)


def empty_texts(split: LabelledSplit) -> list[Finding]:
    """At most one finding: the rows with an empty text."""
    rows = [row for row in split.rows if not all(map(str.strip, row.texts)) or not row.texts]
    if not rows:
        return []
    places = _join_places([split.where(row) for row in rows])
    line = Message(
        "{count:,} {name!t} {unit!t} have an empty text: {places}",
        *(len(rows), split.name, split.unit, places),
    )
    return [Finding("empty", len(rows), line)]


def _conflicts(split: LabelledSplit, texts: _TextIndex) -> list[Finding]:
    """Rows whose label differs from that of the first row with the same texts."""
    count, pairs = 0, []
    for indices in texts.groups.values():
        first, *rest = (split.rows[i] for i in indices)
        for row in rest:
            labels = _is_label(first.target) and _is_label(row.target)
            if labels and split.target_key(row) != split.target_key(first):
                count += 1
                if len(pairs) < _SHOWN_PLACES:
                    pairs.append(_describe_pair(split, first, row))
    if not count:
        return []
    line = Message(
        "{count:,} {name!t} {unit!t} are copies of earlier ones with another label: {places}",
        *(count, split.name, split.unit, _join_places(pairs, count)),
    )
    return [Finding("conflict", count, line)]


def _repeated(split: LabelledSplit, train: LabelledSplit, texts: _TextIndex) -> list[Finding]:
    """Rows of a split whose texts also occur in the training rows."""
    count = other = 0
    pairs: list[str] = []
    known: dict[int, set[str]] = {}
    for row in split.rows:
        first = texts.first.get(row_key(row))
        if first is None:
            continue
        count += 1
        if first not in known:
            known[first] = {
                train.target_key(train.rows[i]) for i in texts.groups.get(first, [first])
            }
        other += _is_label(row.target) and split.target_key(row) not in known[first]
        if len(pairs) < _SHOWN_PLACES:
            where = split.where(row), train.where(train.rows[first])
            pairs.append(Message("{first} and {second}", *where))
    if not count:
        return []
    differ = Message(", {count:,} of them with another label", other) if other else ""
    line = Message(
        "{count:,} of {rows:,} {name!t} {unit!t} are {train!t} {train_unit!t} too{differ}, so "
        "metrics on them are too optimistic: {places}",
        *(count, len(split.rows), split.name, split.unit, train.name, train.unit),
        *(differ, _join_places(pairs, count)),
    )
    return [Finding("repeated", count, line)]


def _duplicates(split: LabelledSplit, texts: _TextIndex) -> list[Finding]:
    same = noise = 0
    for first, indices in texts.groups.items():
        targets = len({split.target_key(split.rows[i]) for i in indices})
        same += len(indices) - targets
        noise += targets - 1 if _is_number(split.rows[first].target) else 0
    findings = []
    for kind, count, what in (
        ("duplicate", same, "the same label"),
        ("noise", noise, "another number"),
    ):
        if count:
            line = "{count:,} {name!t} {unit!t} are copies of earlier ones with {what!t}"
            line = Message(line, count, split.name, split.unit, what)
            findings.append(Finding(kind, count, line, severe=False))
    return findings


def _describe_pair(split: LabelledSplit, one: Row, two: Row) -> str:
    """The locations of two rows with their targets; for tag sequences only the differing tags."""
    targets = [r.target if isinstance(r.target, tuple) else (r.target,) for r in (one, two)]
    if not split.sets and len(targets[0]) == len(targets[1]):
        differ = [i for i, (a, b) in enumerate(zip(*targets, strict=True)) if a != b]
        targets = [[target[i] for i in differ] for target in targets]
    shown = [shortened(", ".join(map(str, target)), _LABEL) for target in targets]
    where = split.where(one), shown[0], split.where(two), shown[1]
    return Message("{first} ({target}) and {second} ({other})", *where)


def _join_places(places: Sequence[str], count: int | None = None) -> str:
    more = ", ..." if (count or len(places)) > _SHOWN_PLACES else ""
    return join(places[:_SHOWN_PLACES], "; ") + more
