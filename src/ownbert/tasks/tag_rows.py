"""Sentences of words, with or without tags: read from files of several formats, split into tokens
and into windows of words.

Tables are .jsonl, .ndjson, .json, .parquet, .csv, and a .tsv whose header names columns of words
and tags (``WORD_NAMES``, ``TAG_NAMES``) or the column named by the user. Other files are CoNLL
columns (``tables.conll``); for prediction, a file without one of the extensions ``CONLL`` (such as
.txt) is plain text, one sentence per line. All may be compressed (.gz).

The words in a table are a list, or a text that is split at spaces. For prediction, a text is split
at spaces and around every Chinese character (in BERT's ranges), but in a column named tokens or
words only at spaces. The text of a row of words is the words joined: without spaces if all are
single characters and one of them is Chinese, else with spaces.
"""

import re
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ownbert.batches.example import Example
from ownbert.exceptions import InputError, counted
from ownbert.files.text_files import open_text
from ownbert.tables.columns import (
    COLUMNS,
    TAG_NAMES,
    WORD_NAMES,
    ColumnNames,
    find_columns,
    id_column,
    id_value,
)
from ownbert.tables.conll import read_conll
from ownbert.tables.feature_cells import (
    is_written_list,
    read_features,
    refuse_plain_text,
    split_cell,
)
from ownbert.tables.memory import MemoryTable
from ownbert.tables.tables import (
    PathLike,
    Source,
    as_text,
    at_least_one,
    columns,
    ending_of,
    kind_of,
    place,
    read_values,
)
from ownbert.tasks.rows import Row
from ownbert.tasks.text_input import TextInputBuilder

CONLL = frozenset(
    (".conll", ".conllu", ".bio", ".iob", ".iob2", ".bioes", ".iobes", ".bilou", ".ner", ".tsv")
)
# Code points of _is_chinese_char in google-research/bert (tokenization.py).
_CHINESE = (
    "\u4e00-\u9fff\u3400-\u4dbf\uf900-\ufaff\U00020000-\U0002a6df\U0002a700-\U0002b73f"
    "\U0002b740-\U0002b81f\U0002b820-\U0002ceaf\U0002f800-\U0002fa1f"
)
_IDEOGRAPH = re.compile(f"[{_CHINESE}]")
_WORD = re.compile(rf"[{_CHINESE}]|[^\s{_CHINESE}]+")
_BLANKS = re.compile(r"\S+")
NO_TAG = -1  # tag of tokens without a tag


@dataclass(frozen=True, slots=True)
class PlainTextRow(Row):
    """A row whose words were split from ``text``, and the character offset of each word."""

    text: str = ""
    starts: Sequence[int] = field(default=(), compare=False)


def text_of(row: Row) -> tuple[str, Sequence[int]]:
    """The text of a row, original or joined from its words, and the offset of each word."""
    if isinstance(row, PlainTextRow):
        return row.text, row.starts
    single = all(len(word) == 1 for word in row.texts)
    gap = "" if single and any(map(_IDEOGRAPH.match, row.texts)) else " "
    starts, end = [], 0
    for word in row.texts:
        starts.append(end)
        end += len(word) + len(gap)
    return gap.join(row.texts), starts


def split_text(line: int, text: str, *, chinese: bool = True) -> PlainTextRow:
    """Split a plain text into words; if ``chinese``, every Chinese character is a word."""
    pattern = _WORD if chinese else _BLANKS
    known: dict[str, str] = {}  # share equal words: a text may have millions
    words = tuple(known.setdefault(m[0], m[0]) for m in pattern.finditer(text))
    starts = array("I", (m.start() for m in pattern.finditer(text)))
    return PlainTextRow(line, words, None, text, starts)


def read_sentences(path: Source, named: ColumnNames) -> list[Row]:
    """Read rows with a tag for each word, at least one row."""
    if isinstance(path, MemoryTable) or _is_table(path, named):
        rows = list(_tagged(path, named))
    else:
        sentences = read_conll(
            path,
            tags=True,
            word_column=named.text,
            tag_column=named.label,
            feature_columns=named.features,
        )
        rows = [Row(s.line, s.words, s.tags, features=s.features) for s in sentences]
    if not rows:
        raise InputError("{path} has no rows", path)
    return rows


def stream_sentences(path: Source, named: ColumnNames) -> Iterator[Row]:
    """Yield rows to predict, without tags, including empty rows of tables and plain text."""
    if isinstance(path, MemoryTable) or _is_table(path, named):
        rows = _untagged(path, named)
    elif ending_of(path) in CONLL:
        sentences = read_conll(
            path, tags=False, word_column=named.text, feature_columns=named.features
        )
        rows = (Row(s.line, s.words, features=s.features) for s in sentences)
    else:
        refuse_plain_text(path, named.features)
        rows = (split_text(line, text) for line, text in open_text(path))
    return at_least_one(rows, path)


def _is_table(path: PathLike, named: ColumnNames) -> bool:
    if ending_of(path) != ".tsv":
        return kind_of(path) != "txt"
    names = columns(path)
    usual = [any(name.lower() in known for name in names) for known in (WORD_NAMES, TAG_NAMES)]
    return named.text in names or all(usual)


def _columns(path: Source, named: ColumnNames, *, labelled: bool) -> list[str]:
    """The columns of a table with words, tags (if ``labelled``), and word features."""
    names = columns(path)
    # Column numbers are for CoNLL files and ignored for tables.
    text, label = (
        None if name not in names and (name or "").isdecimal() else name
        for name in (named.text, named.label)
    )
    named = ColumnNames(text, label=label, features=named.features)
    columns_by_role = find_columns(path, COLUMNS["tag"], named, labelled=labelled)
    roles = ("text", "label", "features")
    return [name for several in map(columns_by_role.get, roles) for name in several or ()]


def _tagged(path: Source, named: ColumnNames) -> Iterator[Row]:
    column, label, *names = _columns(path, named, labelled=True)
    for line, (words, tags, *cells) in read_values(path, [column, label, *names]):
        where = place(path, line)
        words, tags = split_cell(words, column, where), split_cell(tags, label, where)
        if len(words) != len(tags):
            raise InputError(
                "{where}: {words}, but {tags}; every word needs one",
                where,
                counted(len(words), "word"),
                counted(len(tags), "tag"),
            )
        if not words:
            raise InputError("{where}: there are no words", where)
        if "" in tags:
            raise InputError("{where}: the tag of word {index} is empty", where, tags.index("") + 1)
        features = read_features(cells, names, len(words), where)
        yield Row(line, words, tags, features=features)


def _untagged(path: Source, named: ColumnNames) -> Iterator[Row]:
    column, *names = _columns(path, named, labelled=False)
    ids = id_column(path, [column, *names], named.id)
    for line, (value, *cells) in read_values(path, [column, *names, *ids]):
        where = place(path, line)
        if isinstance(value, list) or is_written_list(value):
            row = Row(line, split_cell(value, column, where))
        else:
            # Features belong to space-separated words.
            text, chinese = as_text(value, column, where), column.lower() not in WORD_NAMES
            row = split_text(line, text, chinese=chinese and not names)
        features = read_features(cells[: len(names)], names, len(row.texts), where)
        row = replace(row, features=features) if names else row
        if ids:
            row = replace(row, id=id_value(cells[-1], named=named.id is not None))
        yield row


@dataclass(frozen=True, slots=True)
class WordWindow:
    """The words ``start`` to ``stop`` (exclusive) of a window; it tags the words ``first`` to
    ``last`` (exclusive), which have more context here than in the neighbouring windows."""

    start: int
    stop: int
    first: int
    last: int


def encode_words(words: Iterable[str], builder: TextInputBuilder) -> dict[str, list[int]]:
    """The ids of each distinct word: at least one, and at most as many as fit in a window; as with
    ``is_split_into_words`` in Transformers, and ``add_prefix_space`` for byte-level BPE."""
    tokenizer, room = builder.tokenizer, builder.room
    distinct = list(dict.fromkeys(words))
    # Byte-level BPE marks the start of a word by the space before it.
    blank = " " if tokenizer.kind == "bpe" else ""
    encoded = builder.ids([blank + word for word in distinct])
    # A word of control characters has no tokens.
    return {w: ids[:room] or [tokenizer.unk_id] for w, ids in zip(distinct, encoded, strict=True)}


def split_into_windows(sizes: Sequence[int], room: int, stride: int) -> list[WordWindow]:
    """Split a sentence into windows with as many words, of ``sizes`` tokens each, as fit in
    ``room`` tokens. Neighbouring windows share ``stride`` words, at most half of the earlier one.
    Windows that would tag no word are dropped; a sentence without words has one empty window."""
    spans = list(_spans(sizes, room, stride))
    far = len(sizes)
    best = np.full(far, -1, dtype=np.int32)
    chosen = np.zeros(far, dtype=np.int32)
    for number, (start, stop) in enumerate(spans):
        words = np.arange(start, stop)
        # The ends of the sentence are not edges, because no context is missing there.
        left = words - start if start else np.full(stop - start, far)
        right = stop - 1 - words if stop < far else np.full(stop - start, far)
        distance = np.minimum(left, right)
        better = distance > best[start:stop]
        chosen[start:stop][better] = number
        best[start:stop][better] = distance[better]
    # ``chosen`` ascends, so the words of a window are contiguous.
    firsts = np.searchsorted(chosen, np.arange(len(spans) + 1))
    windows = [
        WordWindow(*span, int(first), int(last))
        for span, first, last in zip(spans, firsts, firsts[1:], strict=False)
    ]
    return [w for w in windows if w.first < w.last or not far]


def _spans(sizes: Sequence[int], room: int, stride: int) -> Iterator[tuple[int, int]]:
    start, stop, used = 0, 0, 0
    while True:
        while stop < len(sizes) and used + sizes[stop] <= room:
            used += sizes[stop]
            stop += 1
        yield start, stop
        if stop == len(sizes):
            return
        start = stop - min(stride, (stop - start) // 2)
        used = sum(sizes[start:stop])


def window_example(
    window: WordWindow,
    pieces: Sequence[Sequence[int]],
    tags: Sequence[int] | None,
    builder: TextInputBuilder,
    *,
    continuation: Sequence[int] | None = None,
    words: np.ndarray | None = None,
) -> Example:
    """A window as an example with a tag for each token. ``pieces`` are the ids of each word,
    ``tags`` the classes of the words, assigned to their first tokens (None: class 0, as a mark),
    and ``continuation`` is, for each class, that of a word's other tokens (None: they have no
    tag)."""
    ids: list[int] = []
    token_tags = [NO_TAG] * builder.format.before
    for word in range(window.start, window.stop):
        piece_ids = pieces[word]
        ids += piece_ids
        tag = rest = NO_TAG
        if window.first <= word < window.last:
            tag = 0 if tags is None else tags[word]
            rest = NO_TAG if continuation is None else continuation[tag]
        token_tags += [tag, *[rest] * (len(piece_ids) - 1)]
    token_tags += [NO_TAG] * builder.format.behind
    targets = {"tags": np.asarray(token_tags, dtype=np.int64), "words": words}
    return builder.example([ids], **targets)[0]


def join_windows(examples: Iterable[Example], *, marks: bool = False) -> Example:
    """Combine the windows of a sentence into one example; an iterator avoids holding a long text in
    memory twice. If tags are only ``marks`` of words, arrays may be small."""
    small = {"token_ids": np.int32, "type_ids": np.int8, "tags": np.int8}
    kinds = small if marks else dict.fromkeys(small, np.int64)
    columns = {name: bytearray() for name in kinds}
    parts, words = array("q"), []
    for example in examples:
        parts.append(len(example.token_ids))
        for name, column in columns.items():
            column += getattr(example, name).astype(kinds[name]).tobytes()
        if example.words is not None:
            words.append(example.words)
    arrays: Any = {name: np.frombuffer(column, kinds[name]) for name, column in columns.items()}
    return Example(**arrays, parts=tuple(parts), words=np.concatenate(words) if words else None)
