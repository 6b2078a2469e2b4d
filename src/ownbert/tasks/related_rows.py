"""Rows that belong together, because they share a text or a group, and later rows. N: rows."""

import hashlib
import math
import re
import unicodedata
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, timezone
from functools import cache
from numbers import Real
from typing import Any

import numpy as np

from ownbert.exceptions import InputError, in_short
from ownbert.language.messages import Message, Option
from ownbert.tables.key_columns import key_columns
from ownbert.tables.missing_values import is_missing
from ownbert.tables.tables import Source, as_text, columns, place, read_values, require_column
from ownbert.tasks.rows import Row
from ownbert.views.tokens import marks

_LONGEST = 64  # longer texts are compared by hashes, which take less memory
# Categories of characters that separate words: punctuation, symbols, spaces, controls.
_SEPARATORS = ("P", "S", "Z", "Cc", "Cf")
GROUP, TIME = "--group", "--time-column"
# Number of rows from which one hold-out is enough; with fewer, ``fit`` cross-validates.
MANY_ROWS = 1500
# Bounds of the number of folds, and rows of a fold between them.
_FEWEST_FOLDS, _MOST_FOLDS, _ROWS_OF_A_FOLD = 5, 20, 1000
_SHOWN = 3  # columns in a message
_FRACTION = re.compile(r"(?<=\d)[.,](\d+)")
_YEAR_FIRST = re.compile(r"(\d{4})[/.](\d{1,2})[/.](\d{1,2})(?!\d)")
_MONTH = re.compile(r"\d{4}-\d{1,2}")
# Digits of a date with the year last, and of a time of day; the first zero may be lost.
_YEAR_LAST = re.compile(r"(\d{1,2})(\d{2})((?:19|20)\d{2})((?:\d{2}){2,3})?(?:\.0)?")
_NUMBER, _DATE = "a plain number", "a date"


class _Words(dict[int, int]):
    """A translation table that replaces characters between words by spaces."""

    def __missing__(self, code: int) -> int:
        separates = unicodedata.category(chr(code)).startswith(_SEPARATORS)
        self[code] = ord(" ") if separates else code
        return self[code]


_WORDS = _Words()


@cache
def _stray_marks() -> re.Pattern[str]:
    return re.compile(rf"(?:^| )[{marks()}]+")


def normalised(text: str) -> str:
    """Lower-case, compose, and remove width variants, punctuation and repeated spaces; a text that
    consists of punctuation keeps it."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    words = folded.translate(_WORDS)
    if not words.isascii():
        words = _stray_marks().sub(" ", words)
        words = unicodedata.normalize("NFC", words)  # folding can decompose letters
    words = words.strip(" ")
    if "  " in words:
        words = " ".join(words.split())
    return words or " ".join(folded.split())


def text_key(text: str) -> str | bytes:
    """A key that is equal for copies of a text, which differ only in spaces, case, punctuation and
    the encoding of characters; empty for a blank text. Rows that share a key are kept on the same
    side of a split, so that answers cannot be memorised."""
    key = normalised(text)
    if len(key) <= _LONGEST:
        return key
    return hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def row_key(row: Row) -> tuple[str | bytes, ...]:
    """The keys of all texts of a row: equal for copies of a row."""
    return tuple(map(text_key, row.texts))


def clusters_of(keys: Sequence[Sequence[Hashable]]) -> np.ndarray:
    """The cluster (N) of each row: rows are connected by shared keys (see ``Task.fold_keys``),
    directly or through others. Numbered from 0 in the order of the first rows."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    # A graph that connects each row to the first row with one of its keys.
    first: dict[Hashable, int] = {}
    pairs = [(i, first.setdefault(key, i)) for i, own in enumerate(keys) for key in own]
    # Older versions of scipy connect everything if the numbers have 64 bits.
    rows, firsts = np.asarray(pairs, dtype=np.int32).reshape(-1, 2).T
    graph = coo_array((np.ones(len(rows)), (rows, firsts)), shape=(len(keys),) * 2)
    _, components = connected_components(graph, directed=False)
    _, starts, clusters = np.unique(components, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(starts))[clusters.reshape(-1)]


def bootstrap(clusters: np.ndarray, samples: int) -> Iterator[np.ndarray]:
    """Yield indices of rows: bootstrap samples of whole clusters (N) (Field and Welsh 2007,
    "Bootstrapping clustered data", section 2)."""
    rng, order = np.random.default_rng(0), np.argsort(clusters, kind="stable")
    parts = np.split(order, np.flatnonzero(np.diff(clusters[order])) + 1)
    for _ in range(samples):
        yield np.concatenate([parts[i] for i in rng.integers(0, len(parts), len(parts))])


def permutations(clusters: np.ndarray, samples: int) -> Iterator[np.ndarray]:
    """Yield random orders (N) of rows, in which the rows of a cluster stay together. They are
    shuffled, too: their targets may be in the same order in each cluster (before, after)."""
    rng, order = np.random.default_rng(0), np.argsort(clusters, kind="stable")
    kinds, numbers = np.unique(clusters, return_inverse=True)
    for _ in range(samples):
        ranks = rng.permutation(len(kinds))[numbers]
        shuffled = np.empty_like(order)
        shuffled[order] = np.lexsort((rng.random(len(order)), ranks))
        yield shuffled


def fold_count(rows: int) -> int:
    """The number of folds, one of which is held out: a fifth of the rows, or about a thousand."""
    return min(_MOST_FOLDS, max(_FEWEST_FOLDS, rows // _ROWS_OF_A_FOLD))


@dataclass(frozen=True)
class RowTimes:
    """The times of rows, as numbers (N), and as texts (N) for readers."""

    numbers: np.ndarray
    texts: Sequence[str]

    @classmethod
    def read(cls, values: Sequence[Any], name: str, places: Sequence[str]) -> "RowTimes":
        """Read the cells (N) of a column; ``places`` (N) are locations of the rows, for messages.
        Raises ``InputError`` if a value is not a time, or values are written in different ways."""
        texts, numbers, kinds = [], [], set()
        for value, where in zip(values, places, strict=True):
            text, number, kind = _time(value, name, where)
            kinds.add(kind)
            if len(kinds) > 1:
                raise InputError(
                    "{where}: column {name!r} has {value}, {kind}; earlier rows have {kinds}; "
                    "write all times in the same way",
                    where,
                    name,
                    in_short(value),
                    kind,
                    (kinds - {kind}).pop(),
                )
            texts.append(text)
            numbers.append(number)
        if kinds == {_NUMBER} and any(map(_YEAR_LAST.fullmatch, texts)):
            texts, numbers = _with_years_first(texts, numbers, name, places)
        return cls(np.asarray(numbers), texts)

    def period(self, learnt: np.ndarray, held_out: np.ndarray) -> str:
        """The times that models are trained and measured on, from indices of rows."""
        last = learnt[self.numbers[learnt].argmax()]
        measured = self.numbers[held_out]
        start, end = held_out[measured.argmin()], held_out[measured.argmax()]
        return Message(
            "trained on rows up to {texts}, measured on rows from {texts2} to {texts3}",
            self.texts[last],
            self.texts[start],
            self.texts[end],
        )


@dataclass(frozen=True)
class SplitColumns:
    """The columns named by the user; None: there is none."""

    group: str | None = None  # such as customers; the rows of a group stay together
    time: str | None = None  # earlier rows are trained on, and later ones are held out

    def named(self, source: Source) -> dict[str, str]:
        """The columns by option, as the table writes them."""
        return {
            option: require_column(columns(source), name, source=source, option=option)
            for option, name in ((GROUP, self.group), (TIME, self.time))
            if name is not None
        }

    def refuse_labels(self, source: Source, labels: Sequence[str]) -> None:
        """Raise ``InputError`` if the table has no such column, or it is one of the labels."""
        for option, name in self.named(source).items():
            if name in labels:
                raise InputError(
                    "{source}: {option} is {name!r}, the column of the labels", source, option, name
                )

    def with_groups(self, rows: Sequence[Row], source: Source) -> list[Row]:
        """The rows with their groups; a row without a value belongs to no group."""
        if self.group is None:
            return list(rows)
        name = self.named(source)[GROUP]
        values = read_values(source, [name])
        groups = {line: _group(value, name, place(source, line)) for line, (value,) in values}
        return [replace(row, group=groups.get(row.line)) for row in rows]

    def times(self, rows: Sequence[Row], source: Source) -> RowTimes | None:
        """The times of the rows (N), or None if no column was named."""
        if self.time is None:
            return None
        name, wanted = self.named(source)[TIME], {row.line for row in rows}
        found = read_values(source, [name])
        values = {line: value for line, (value,) in found if line in wanted}
        places = [place(source, row.line) for row in rows]
        return RowTimes.read([values[row.line] for row in rows], name, places)


def group_warnings(
    source: Source, unused: Sequence[str], dev: Source | None = None
) -> Iterator[str]:
    """A warning if unused columns of the training rows seem to name groups with several rows, of
    which some are in ``dev``, if there is such a file."""

    def values(file: Source, name: str) -> set[str | None]:
        return {_group(value, name, "") for _, (value,) in read_values(file, [name])} - {None}

    found = key_columns(source, unused)
    if dev is not None:
        found = [
            name
            for name in found
            if name in columns(dev) and not values(source, name).isdisjoint(values(dev, name))
        ]
    if found:
        shown = ", ".join(map(repr, found[:_SHOWN]))
        yield (
            Message(
                "warning: several rows have the same {shown}: if these rows are alike, scores "
                "are too optimistic for new ones; keep them together with {option}",
                shown,
                Option(GROUP, found[0]),
            )
        )


def split_by_time(
    times: np.ndarray, keys: Sequence[Sequence[Hashable]], source: Source
) -> tuple[np.ndarray, np.ndarray]:
    """Indices of the earlier rows to train on, and of the latest ones to hold out, both ascending,
    by their times (N). Rows of equal times stay together; earlier rows that share one of their
    ``keys`` with a later row are not trained on."""
    distinct, counts = np.unique(times, return_counts=True)
    if len(distinct) < 2:
        raise InputError(
            "{source}: all rows have the same time, so no later ones can be held out; omit "
            "{--time-column}, or name another column",
            source,
        )
    later = np.cumsum(counts[::-1])[::-1][1:]  # rows from each distinct time on, after the first
    wanted = len(times) / fold_count(len(times))
    start = distinct[1:][int(np.argmin(np.abs(later - wanted)))]
    held_out = np.flatnonzero(times >= start)
    known = {key for i in held_out.tolist() for key in keys[i]}
    earlier = [i for i in np.flatnonzero(times < start).tolist() if known.isdisjoint(keys[i])]
    if len(earlier) < 2:
        raise InputError(
            "{source}: nearly all earlier rows share a text or a group with one of the "
            "{count:,} latest rows, so there is nothing to train on; give other rows with "
            "{--dev}",
            source,
            len(held_out),
        )
    return np.asarray(earlier), held_out


def _group(value: Any, name: str, where: str) -> str | None:
    """A group as text: equal for 7, 7.0 and "7", as tables write missing and whole numbers."""
    if is_missing(value):
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return unicodedata.normalize("NFC", as_text(value, name, where).strip())


def _time(value: Any, name: str, where: str) -> tuple[str, float, str]:
    """A time as text and as a number, and whether it was a date or a number."""
    if is_missing(value):
        raise InputError("{where}: column {name!r} is empty; each row needs a time", where, name)
    if isinstance(value, np.datetime64):
        value = value.astype("datetime64[us]").item()
    if isinstance(value, Real) and not isinstance(value, bool):
        text = str(value)
    elif isinstance(value, date):  # or a datetime, of pandas too
        text = value.isoformat()
    else:
        text = str(value).strip()
    try:
        number = float(text)
    except (ValueError, OverflowError):
        number = None
    if number is not None and math.isfinite(number):
        return text, number, _NUMBER
    try:
        return text, _timestamp(text), _DATE
    except (ValueError, OverflowError):
        raise InputError(
            "{where}: column {name!r} has {value}, which is not a time; write times as "
            "2024-05-31, 2024-05-31T12:00:00, or as numbers",
            where,
            name,
            in_short(value),
        ) from None


def _with_years_first(
    texts: Sequence[str], numbers: Sequence[float], name: str, places: Sequence[str]
) -> tuple[Sequence[str], Sequence[float]]:
    """Read 31052024 as 2024-05-31: as a number, days of all months would be mixed. Unless most of
    the numbers are such dates, they are returned as they are."""
    found = [_dates_of(text) for text in texts]
    if sum(map(bool, found)) <= len(texts) / 2:
        return texts, numbers
    for text, dates, where in zip(texts, found, places, strict=True):
        if not dates:
            raise InputError(
                "{where}: column {name!r} has {text}, which is not a date like those of other "
                "rows, which seem to end with the year; write times as 2024-05-31, "
                "2024-05-31T12:00:00, or as numbers",
                where,
                name,
                text,
            )
    for order in (0, 1):  # the day first, the month first
        others = [dates.get(1 - order) for dates in found]
        if all(order in dates for dates in found) and None in others:
            own = [dates[order] for dates in found]
            return own, [_timestamp(text) for text in own]
    if all(dates.get(0) == dates.get(1) for dates in found):
        return [dates[0] for dates in found], [_timestamp(dates[0]) for dates in found]
    raise InputError(
        "column {name!r} has dates such as {texts}, in which the day or the month may be first; "
        "write times as 2024-05-31, 2024-05-31T12:00:00, or as numbers",
        name,
        texts[0],
    )


def _dates_of(text: str) -> dict[int, str]:
    """The possible ISO forms of digits that end with a year, or of them and a time of day: with the
    day first (0), and with the month first (1)."""
    found: dict[int, str] = {}
    if (parts := _YEAR_LAST.fullmatch(text)) is None:
        return found
    first, second, year, clock = parts.groups()
    for order, (day, month) in enumerate(((first, second), (second, first))):
        iso = f"{year}-{month:0>2}-{day:0>2}"
        if clock:
            iso += "T" + ":".join(re.findall("..", clock))
        try:
            _timestamp(iso)
        except ValueError:
            continue
        found[order] = iso
    return found


def _timestamp(text: str) -> float:
    """An ISO date or time as seconds; times without a zone are UTC."""
    text = _YEAR_FIRST.sub(lambda m: f"{m[1]}-{int(m[2]):02}-{int(m[3]):02}", text, count=1)
    if _MONTH.fullmatch(text):
        year, month = text.split("-")
        text = f"{year}-{int(month):02}-01"
    if text[-1:] in "Zz" and text:
        text = f"{text[:-1]}+00:00"
    # Python 3.10 reads three or six digits of a second only.
    text = _FRACTION.sub(lambda m: f".{m[1][:6]:0<6}", text, count=1)
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=timezone.utc)
    return moment.timestamp()
