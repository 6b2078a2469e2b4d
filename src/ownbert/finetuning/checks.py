"""Labelled rows that are probably mistakes: found by a table of hashes, without a model."""

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ownbert.tasks.rows import Row, shortened

_PLACES = 3
_LABEL = 40  # characters of an answer that are shown


@dataclass(frozen=True)
class LabelledSplit:
    """Rows of one file. name: "training", "dev" or the like. source: the file as it was named, ""
    where the rows were given in Python. unit: what a row is, in messages. sets: whether the order
    of several labels is without meaning."""

    name: str
    rows: Sequence[Row]
    source: str | Path = ""
    unit: str = "documents"
    sets: bool = False

    def where(self, row: Row) -> str:
        """The place of a row, for messages."""
        said = row.place(self.source)
        return said if self.source else f"{self.name} {said}"

    def answer(self, row: Row) -> str:
        """The same for answers that are the same."""
        return repr(sorted(row.target) if self.sets else row.target)


@dataclass(frozen=True)
class Finding:
    """kind: conflict, empty, repeated, duplicate or noise. count: of rows. line: for people.
    grave: whether it is worth a warning before training; the others are habits of some data."""

    kind: str
    count: int
    line: str
    grave: bool = True


def check_rows(train: LabelledSplit, *others: LabelledSplit) -> list[Finding]:
    """What looks wrong in the training rows, and in those that they are measured by.

    Texts are the same where they differ in whitespace alone. conflict: the same texts with two
    answers (labels, not numbers). empty: a text without a character. repeated: rows of ``others``
    whose texts stand in the training rows too. duplicate: copies of earlier training rows, with
    the same answer. noise: with another number.
    """
    texts = _texts_of(train)
    found = [*_empty(train), *_conflicts(train, texts)]
    for split in others:
        found += [
            *_empty(split),
            *_conflicts(split, _texts_of(split)),
            *_repeated(split, train, texts),
        ]
    return found + _duplicates(train, texts)


def label_counts(rows: Sequence[Row], labels: Sequence[str]) -> Counter[str]:
    """How often each of ``labels`` is the answer to a row, or one of its answers.

    Other answers are not counted: they may be texts.
    """
    counts = Counter(dict.fromkeys(labels, 0))
    for row in rows:
        answers = row.target if isinstance(row.target, tuple) else (row.target,)
        counts.update(a for a in answers if isinstance(a, str) and a in counts)
    return counts


def _key(row: Row) -> bytes:
    """A hash of a row's texts: long ones need not be kept a second time."""
    texts = "\0".join(" ".join(text.split()) for text in row.texts)
    return hashlib.blake2b(texts.encode("utf-8", "surrogatepass"), digest_size=16).digest()


class _Texts(NamedTuple):
    """first: the row where a text stands first. groups: by that row, all rows of its text, where
    there are several."""

    first: dict[bytes, int]
    groups: dict[int, list[int]]


def _texts_of(split: LabelledSplit) -> _Texts:
    first: dict[bytes, int] = {}
    groups: dict[int, list[int]] = {}
    for index, row in enumerate(split.rows):
        there = first.setdefault(_key(row), index)
        if there != index:
            groups.setdefault(there, [there]).append(index)
    return _Texts(first, groups)


def _is_label(target: Any) -> bool:
    parts = target if isinstance(target, tuple) else (target,)
    return all(isinstance(p, str | int) for p in parts)


def _is_number(target: Any) -> bool:
    parts = target if isinstance(target, tuple) else (target,)
    return bool(parts) and all(isinstance(p, float) for p in parts)


def _empty(split: LabelledSplit) -> list[Finding]:
    rows = [row for row in split.rows if not all(map(str.strip, row.texts)) or not row.texts]
    if not rows:
        return []
    places = _some([split.where(row) for row in rows])
    line = f"{len(rows):,} {split.name} {split.unit} have an empty text: {places}"
    return [Finding("empty", len(rows), line)]


def _conflicts(split: LabelledSplit, texts: _Texts) -> list[Finding]:
    """Rows that differ in their answer from the first row of the same texts."""
    count, pairs = 0, []
    for indices in texts.groups.values():
        first, *rest = (split.rows[i] for i in indices)
        for row in rest:
            labels = _is_label(first.target) and _is_label(row.target)
            if labels and split.answer(row) != split.answer(first):
                count += 1
                if len(pairs) < _PLACES:
                    pairs.append(_both(split, first, row))
    if not count:
        return []
    line = (
        f"{count:,} {split.name} {split.unit} are copies of earlier ones with another answer: "
        f"{_some(pairs, count)}"
    )
    return [Finding("conflict", count, line)]


def _repeated(split: LabelledSplit, train: LabelledSplit, texts: _Texts) -> list[Finding]:
    """Rows of a split whose texts are among those of the training rows."""
    count = other = 0
    pairs: list[str] = []
    known: dict[int, set[str]] = {}
    for row in split.rows:
        first = texts.first.get(_key(row))
        if first is None:
            continue
        count += 1
        if first not in known:
            known[first] = {train.answer(train.rows[i]) for i in texts.groups.get(first, [first])}
        other += _is_label(row.target) and split.answer(row) not in known[first]
        if len(pairs) < _PLACES:
            pairs.append(f"{split.where(row)} and {train.where(train.rows[first])}")
    if not count:
        return []
    differ = f", {other:,} of them with another answer" if other else ""
    line = (
        f"{count:,} of {len(split.rows):,} {split.name} {split.unit} are {train.name} {train.unit} "
        f"too{differ}, so measures on them are too good: {_some(pairs, count)}"
    )
    return [Finding("repeated", count, line)]


def _duplicates(split: LabelledSplit, texts: _Texts) -> list[Finding]:
    same = noise = 0
    for first, indices in texts.groups.items():
        answers = len({split.answer(split.rows[i]) for i in indices})
        same += len(indices) - answers
        noise += answers - 1 if _is_number(split.rows[first].target) else 0
    found, unit = [], f"{split.name} {split.unit}"
    for kind, count, what in (
        ("duplicate", same, "the same answer"),
        ("noise", noise, "another number"),
    ):
        if count:
            line = f"{count:,} {unit} are copies of earlier ones with {what}"
            found.append(Finding(kind, count, line, grave=False))
    return found


def _both(split: LabelledSplit, one: Row, two: Row) -> str:
    """The places of two rows with their answers; of many tags, with those that differ."""
    answers = [r.target if isinstance(r.target, tuple) else (r.target,) for r in (one, two)]
    if not split.sets and len(answers[0]) == len(answers[1]):
        differ = [i for i, (a, b) in enumerate(zip(*answers, strict=True)) if a != b]
        answers = [[answer[i] for i in differ] for answer in answers]
    said = [shortened(", ".join(map(str, answer)), _LABEL) for answer in answers]
    return f"{split.where(one)} ({said[0]}) and {split.where(two)} ({said[1]})"


def _some(places: Sequence[str], count: int | None = None) -> str:
    more = ", ..." if (count or len(places)) > _PLACES else ""
    return "; ".join(places[:_PLACES]) + more
