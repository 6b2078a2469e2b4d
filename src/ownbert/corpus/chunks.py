"""Chunks: a stream of documents split into pieces of work of about equal size.

Where a chunk ends depends on the text and the settings alone, so any number of processes gives the
same store and a resumed run meets the same chunks again. A document may extend over several chunks.
"""

import re
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from ownbert.batches.word_features import Features, number_tags, tag_ids
from ownbert.corpus.documents import Document
from ownbert.corpus.duplicates import DuplicateFilter, digest
from ownbert.text.sentences import CLOSING, split_sentences

# Characters of a chunk.
CHUNK_SIZE = 2_000_000
# A longer piece of text is split before it is tokenised: an encoding takes a hundred times its
# text.
LONGEST_PIECE = 1 << 18
# Documents whose hashes are looked up together.
_LOOKUP_BATCH = 4096

PRESPLIT, DOCUMENT_ENDS, PIECE_ENDS, WORDS = 1, 2, 4, 8

# All of them separate words for every kind of tokenizer; Python's \s includes some that do not.
_SPACE = re.compile("[ \t\n\r\u3000]")
_NO_SPACE = re.compile("[^ \t\n\r\u3000]")
_MAY_END = tuple(".!?。！？；…｡" + CLOSING)
# How far back from the limit a place to split at is looked for first.
_TAIL = 1 << 12


@dataclass(slots=True)
class Chunk:
    """Sections of documents.

    Args:
        pieces: the text of all sections.
        counts: how many of the pieces each section has, in order.
        flags: for each section, whether its pieces are sentences already (PRESPLIT), whether its
            document ends with it (DOCUMENT_ENDS), whether its last piece does (PIECE_ENDS), and
            whether its pieces are the words of a document (WORDS).
        features: (W, F) of each section of words, the ids of their features.
    """

    pieces: list[str] = field(default_factory=list)
    counts: array = field(default_factory=lambda: array("q"))
    flags: bytearray = field(default_factory=bytearray)
    features: list[np.ndarray] = field(default_factory=list)

    def add(self, pieces: list[str], flags: int) -> None:
        self.pieces += pieces
        self.counts.append(len(pieces))
        self.flags.append(flags)


@dataclass(slots=True)
class ReadStats:
    """What was read so far: documents, those that repeat an earlier one, bytes of text."""

    documents: int = 0
    duplicates: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class ChunkingOptions:
    """How documents are split.

    Args:
        by_rule: whether sentences of plain text are found by rule.
        sentence_ends: tokens that end a sentence in text that is already tokens.
        drop_duplicates: whether to leave duplicates out.
        features: the tags of each column of word features.
    """

    by_rule: bool
    sentence_ends: frozenset[str]
    drop_duplicates: bool
    features: Features = field(default_factory=dict)


def split_into_chunks(
    documents: Iterable[Document], options: ChunkingOptions, stats: ReadStats
) -> Iterator[Chunk]:
    """Chunks of about ``CHUNK_SIZE`` characters, in order; ``stats`` is kept up to date."""
    chunk, size, ids = Chunk(), 0, number_tags(options.features)
    for document in _filtered(documents, options.drop_duplicates, stats):
        if document.tags:
            chunk.features.append(tag_ids(document.tags, ids))
        for pieces, flags in _sections(document, options):
            chunk.add(pieces, flags)
            size += sum(map(len, pieces))
            # Very short pieces cost by their number.
            if size + 8 * len(chunk.pieces) >= CHUNK_SIZE:
                yield chunk
                chunk, size = Chunk(), 0
    if chunk.counts:
        yield chunk


def _filtered(
    documents: Iterable[Document], drop_duplicates: bool, stats: ReadStats
) -> Iterator[Document]:
    """The documents, counted, and without the repeated ones if they are to be dropped."""
    duplicates = DuplicateFilter()
    group: list[Document] = []
    digests: list[bytes] = []
    size = 0

    def flush() -> Iterator[Document]:
        new = duplicates.add(digests)
        stats.documents += len(new)
        stats.duplicates += len(new) - int(new.sum())
        stats.bytes += size
        chosen = new.tolist() if drop_duplicates else [True] * len(group)
        digests.clear()
        group.reverse()
        while group:  # none is kept alive here after it was yielded
            document = group.pop()
            if chosen[-len(group) - 1]:
                yield document
            del document

    for document in documents:
        key, length = digest(document.pieces)
        group.append(document)
        digests.append(key)
        size += length
        if len(group) >= _LOOKUP_BATCH or size >= CHUNK_SIZE:
            yield from flush()
            size = 0
    if group:
        yield from flush()


def _sections(document: Document, options: ChunkingOptions) -> Iterator[tuple[list[str], int]]:
    """A document as it is, or a huge one in several sections."""
    presplit = PRESPLIT if document.presplit else 0
    pieces = document.pieces
    if document.tags:  # words are encoded one by one: however many there are, they are short
        yield pieces, presplit | DOCUMENT_ENDS | PIECE_ENDS | WORDS
        return
    if len(pieces) == 1 and len(pieces[0]) <= LONGEST_PIECE:
        yield pieces, presplit | DOCUMENT_ENDS | PIECE_ENDS
        return
    group: list[str] = []
    size = 0
    for piece in pieces:
        if size + len(piece) > LONGEST_PIECE and group:
            yield group, presplit | PIECE_ENDS
            group, size = [], 0
        if len(piece) > LONGEST_PIECE:
            by_rule = options.by_rule and not presplit
            for text, ends in _split_long(piece, options, by_rule=by_rule):
                yield [text], presplit | (PIECE_ENDS if ends else 0)
        else:
            group.append(piece)
            size += len(piece)
    yield group, presplit | PIECE_ENDS | DOCUMENT_ENDS


def _split_long(
    text: str, options: ChunkingOptions, *, by_rule: bool
) -> Iterator[tuple[str, bool]]:
    """A huge piece in parts of at most ``LONGEST_PIECE``, and whether a sentence ends with each.

    Sentences stay whole where they fit. A longer one is split at a space, where the ids stay the
    same, and one without a space anywhere.
    """
    at = 0
    while len(text) - at > LONGEST_PIECE:
        window = text[at : at + LONGEST_PIECE]
        stop = _last_sentence_start(window) if by_rule else 0
        ends = stop > 0
        if not ends:
            stop = (
                _last_space(window, options, by_rule=by_rule)
                or _last_chinese(window)
                or len(window)
            )
        stop += at
        # Space behind a part is left out: a next part of space alone could not end the sentence.
        found = _NO_SPACE.search(text, stop)
        start = found.start() if found else len(text)
        line_ends = by_rule and any(one in text[stop:start] for one in "\r\n")
        yield text[at:stop], ends or line_ends or not found
        at = start
    if at < len(text):
        yield text[at:], True


def _last_sentence_start(window: str) -> int:
    """Where the last sentence of a window begins, 0 if there is only one. What comes before is
    split as it is in the whole text; the last one may be incomplete."""
    stop = window.rfind("\n") + 1  # a line break ends any sentence
    if stop:
        return stop
    sentences = split_sentences(window)
    return len(window.rstrip()) - len(sentences[-1]) if len(sentences) > 1 else 0


def _last_space(window: str, options: ChunkingOptions, *, by_rule: bool) -> int:
    """The last space where a split changes neither ids nor sentence ends, or else the last one,
    which may change sentence ends; 0 if there is none."""
    last = 0
    for start in (max(0, len(window) - _TAIL), 0):
        places = [found.start() for found in _SPACE.finditer(window, start)]
        for place in reversed(places):
            last = last or place
            if place and _is_safe(window, place, options, by_rule=by_rule):
                return place
    return last


def _is_safe(window: str, place: int, options: ChunkingOptions, *, by_rule: bool) -> bool:
    before = _word_before(window, place)
    if not by_rule:  # a run of sentence ends is one end: it must not be split
        return before not in options.sentence_ends
    # A number at the start of a sentence is taken for that of a list; and whether a full stop ends
    # a sentence depends on what follows.
    return not window[place + 1 : place + 2].isdigit() and not before.endswith(_MAY_END)


def _word_before(window: str, place: int) -> str:
    words = window[max(0, place - 128) : place].split()
    return words[-1] if words else ""


def _last_chinese(window: str) -> int:
    """The last place in front of a Chinese character, which is a word by itself; 0 if far away."""
    for place in range(len(window) - 1, max(0, len(window) - _TAIL), -1):
        if "\u4e00" <= window[place] <= "\u9fff":
            return place
    return 0
