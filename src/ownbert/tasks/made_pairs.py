"""Pairs of related texts generated from unlabelled texts."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from ownbert.batches.example import Example
from ownbert.corpus.documents import read_documents
from ownbert.exceptions import InputError
from ownbert.language.messages import Option
from ownbert.tables.column_proposals import are_numbers
from ownbert.tables.columns import COUNTERS, LABEL_NAMES, ColumnNames
from ownbert.tables.tables import Source, columns, kind_of, shown_columns
from ownbert.tasks.related_rows import text_key
from ownbert.tasks.rows import Row, read_table
from ownbert.tasks.text_input import EncodedRows
from ownbert.views.tokens import spans_of, text_kind

# Minimum tokens of texts that are split into pieces, and maximum mean tokens per piece.
_LONG, _PIECE = 16, 64
_MAX_SHIFT = 0.4  # maximum random shift of a boundary, as a share of a piece
# Share and maximum number of held-out documents; with fewer than the minimum, none.
_SHARE, _MOST, _LEAST = 0.1, 500, 10
# The kinds of pairs.
LINES, PIECES, TWICE = KINDS = ("lines", "pieces", "twice")


@dataclass(frozen=True)
class MadePairs:
    """Statistics of generated pairs: number of texts by kind of pair, number of duplicate texts
    that were skipped, and the name of a column of labels, which pairs do not need."""

    texts: Mapping[str, int]
    copies: int
    labels: str = ""

    def lines(self, *, training: bool = True) -> Iterator[str]:
        """Yield one line per kind, for the user."""
        if count := self.texts.get(LINES):
            yield f"made pairs of consecutive lines from {count:,} texts"
        if count := self.texts.get(PIECES):
            yield f"made pairs of two pieces of a text from {count:,} texts"
        if (count := self.texts.get(TWICE)) and not training:
            yield f"texts that are too short for two pieces and are not used: {count:,}"
        elif count:
            yield (
                f"made pairs of a text with itself from {count:,} short texts: dropout makes the "
                "two vectors differ"
            )
        if self.copies:
            yield f"skipped {self.copies:,} copies of other texts"
        if self.labels:
            yield f"the column {self.labels!r} is not used: pairs are made from the texts alone"


@dataclass(frozen=True)
class RecutPieces(EncodedRows):
    """Pairs of pieces of a text, of at most ``room`` tokens between ``before`` and ``after``
    special ones, which is split at another position in each epoch."""

    before: int = 1
    after: int = 1
    room: int = 1

    def example(self, epoch: int, index: int) -> Example:
        example = super().example(epoch, index)
        assert example.parts is not None
        assert isinstance(example.label, np.ndarray)
        size, before = example.parts[0], self.before
        ids, types = ([v[:size], v[size:]] for v in (example.token_ids, example.type_ids))
        inner = np.concatenate([text_ids[before : len(text_ids) - self.after] for text_ids in ids])
        quarter = len(inner) // 4
        if example.label[0] == example.label[1] or quarter == 0:
            return example
        rng = np.random.default_rng((self.seed, epoch, index))
        cut = int(rng.integers(quarter, len(inner) - quarter + 1))
        pieces = [inner[:cut][: self.room], inner[cut:][: self.room]]
        ends = slice(size - self.after, size)

        def with_context(values: np.ndarray, middles: Sequence[np.ndarray]) -> np.ndarray:
            rows = [(values[:before], middle, values[ends]) for middle in middles]
            return np.concatenate([part for row in rows for part in row])

        inner_types = [np.full_like(piece, types[0][before]) for piece in pieces]
        return replace(
            example,
            token_ids=with_context(ids[0], pieces),
            type_ids=with_context(types[0], inner_types),
            parts=tuple(before + len(piece) + self.after for piece in pieces),
        )


def make_pairs(
    path: Source, columns_by_role: Mapping[str, Sequence[str]]
) -> tuple[list[Row], MadePairs]:
    """Generate pairs from single texts: the columns of a table, or plain text as ``read_documents``
    reads it. The ``line`` of a row is the number of its text (or of the row in a table).

    A text of several lines gives pairs of consecutive lines; a longer line gives pairs of
    consecutive pieces; a short one is paired with itself, and dropout makes its two vectors differ
    (Gao et al. 2021, "SimCSE", section 3). Lines and pieces are used once.
    """
    if kind_of(path) == "txt":
        texts: Iterable[tuple[int, Sequence[str]]] = (
            (number, document.pieces)
            for number, document in enumerate(read_documents(str(path)), start=1)
        )
    else:
        table = read_table(path, columns_by_role["text"])
        texts = ((row.line, row.texts[0].splitlines()) for row in table)
    stripped = ((number, [line.strip() for line in lines]) for number, lines in texts)
    documents = [(number, list(filter(None, lines))) for number, lines in stripped if any(lines)]
    kind = text_kind(line for _, lines in documents for line in lines)
    rows: list[Row] = []
    counts: Counter[str] = Counter()
    seen: set[tuple[str | bytes, ...]] = set()
    for number, lines in documents:
        # Copies may not be on both sides of a split, and would be wrong answers in a batch.
        key = tuple(map(text_key, lines))
        if key in seen:
            continue
        seen.add(key)
        pieces = lines if len(lines) > 1 else _pieces(lines[0], kind)
        if len(pieces) == 1:
            pieces = pieces * 2
            counts[TWICE] += 1
        else:
            counts[LINES if len(lines) > 1 else PIECES] += 1
        pairs = list(zip(pieces[::2], pieces[1::2], strict=False))
        if len(pieces) % 2:  # the last one is appended to the previous one
            pairs[-1] = (pairs[-1][0], f"{pairs[-1][1]} {pieces[-1]}")
        rows += [Row(number, pair) for pair in pairs]
    if not rows:
        raise InputError("{path} has no text to make pairs from", path)
    return rows, MadePairs(counts, len(documents) - len(seen), *columns_by_role.get("label", ()))


def hold_out(rows: Sequence[Row], seed: int) -> tuple[Sequence[Row], Sequence[Row] | None]:
    """Hold out some texts for evaluation, with one pair each; the rows of a group are on the same
    side. No dev rows (None) if too few texts give two distinct texts."""
    first = {row.line: row for row in reversed(rows) if row.texts[0] != row.texts[1]}
    count = min(_MOST, int(len(first) * _SHARE))
    if count < _LEAST:
        return rows, None
    order = np.random.default_rng(seed).random(len(first)).argsort(kind="stable")
    numbers, held_out = sorted(first), set[int]()
    members: dict[str | int, list[int]] = {}
    for number in numbers:
        members.setdefault(_group(first[number]), []).append(number)
    for i in order.tolist():
        if len(held_out) >= count:
            break
        held_out.update(members[_group(first[numbers[i]])])
    groups = {_group(first[number]) for number in held_out}
    train = [row for row in rows if _group(row) not in groups]
    return train, [first[number] for number in sorted(held_out)]


def _group(row: Row) -> str | int:
    """The group of a row, or its text, which is a group if there is no other."""
    return row.line if row.group is None else row.group


def refuse_ambiguous(
    path: Source, columns_by_role: Mapping[str, Sequence[str]], given: ColumnNames
) -> None:
    """Raise ``InputError`` if a table with one text column may have the second texts in another
    column, unless the user named the text column."""
    names = columns(path)
    text = columns_by_role["text"][0]
    known = {*COUNTERS, *LABEL_NAMES, text.lower(), "uuid"}
    others = [name for name in names if name.lower() not in known and not are_numbers(path, name)]
    if given.text is None and others:
        named = str(Option("--text-column", text))
        second = str(Option("--second-column", others[0]))
        raise InputError(
            "{path}: it is unclear whether a row is one text or a pair; to make pairs from "
            "single texts add {named}, for pairs of two columns {named} {second}; the columns "
            "are: {names}",
            path,
            named,
            second,
            shown_columns(names),
        )


def _pieces(text: str, kind: str) -> list[str]:
    """Split a text into an even number of pieces, of random lengths, because equal ones would
    reveal which belong together; a short text stays whole."""
    # Scripts with spaces are split only there, others not before a vowel sign.
    starts = [start for start, _ in spans_of(text, "marked" if kind == "chinese" else "ids")]
    if len(starts) < _LONG:
        return [text]
    count = 2 * max(1, round(len(starts) / (2 * _PIECE)))
    moved = np.random.default_rng(len(text)).uniform(-_MAX_SHIFT, _MAX_SHIFT, count - 1)
    places = ((np.arange(1, count) + moved) * len(starts) / count).astype(int).tolist()
    cuts = [0, *(starts[place] for place in places), len(text)]
    return [text[a:b].strip() for a, b in pairwise(cuts)]
