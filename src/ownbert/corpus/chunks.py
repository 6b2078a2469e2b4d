"""Splits a stream of documents into chunks of work of about equal size.

Chunk boundaries depend only on the text and the settings, so any number of processes gives the
same store and a resumed run has the same chunks. A document may extend over several chunks.
"""

import re
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from ownbert.batches.word_features import Features, number_tags, tag_ids
from ownbert.corpus.documents import Document
from ownbert.corpus.duplicate_filter import DuplicateFilter, digest
from ownbert.text.sentences import CLOSING, ENDS, split_sentences

# Characters of a chunk.
CHUNK_SIZE = 2_000_000
# Longer pieces of text are split before tokenisation, because an encoding takes a hundred times the
# memory of its text.
LONGEST_PIECE = 1 << 18
# Documents whose hashes are looked up at a time.
_LOOKUP_BATCH = 4096

PRESPLIT, DOCUMENT_ENDS, PIECE_ENDS, WORDS = 1, 2, 4, 8

# Characters that separate words for all tokenizers; Python's \s includes some that do not.
_SPACE = re.compile("[ \t\n\r\u3000]")
_NO_SPACE = re.compile("[^ \t\n\r\u3000]")
_MAY_END = tuple(ENDS + CLOSING)
# Distance before the limit that is searched first for a place to split.
_TAIL = 1 << 12


@dataclass(slots=True)
class Chunk:
    """Sections of documents.

    Args:
        pieces: text of all sections.
        counts: number of pieces of each section.
        flags: for each section, whether its pieces are sentences (PRESPLIT), whether its document
            ends with it (DOCUMENT_ENDS), whether its last piece does (PIECE_ENDS), and whether its
            pieces are words (WORDS).
        features: (W, F) ids of word features, for each section of words.
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
    """Statistics of the input so far: documents, duplicates, bytes of text."""

    documents: int = 0
    duplicates: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class ChunkingOptions:
    """How documents are split.

    Args:
        by_rule: whether sentences of plain text are found by rule.
        sentence_ends: tokens that end a sentence in pre-tokenised text.
    """

    by_rule: bool
    sentence_ends: frozenset[str]
    drop_duplicates: bool
    features: Features = field(default_factory=dict)


def split_into_chunks(
    documents: Iterable[Document], options: ChunkingOptions, stats: ReadStats
) -> Iterator[Chunk]:
    """Yield chunks of about ``CHUNK_SIZE`` characters in order, and update ``stats``."""
    chunk, size, ids = Chunk(), 0, number_tags(options.features)
    for document in _filtered(documents, options.drop_duplicates, stats):
        if document.tags:
            chunk.features.append(tag_ids(document.tags, ids))
        for pieces, flags in _sections(document, options):
            chunk.add(pieces, flags)
            size += sum(map(len, pieces))
            # Very short pieces have a cost per piece.
            if size + 8 * len(chunk.pieces) >= CHUNK_SIZE:
                yield chunk
                chunk, size = Chunk(), 0
    if chunk.counts:
        yield chunk


def _filtered(
    documents: Iterable[Document], drop_duplicates: bool, stats: ReadStats
) -> Iterator[Document]:
    """Count the documents, and skip duplicates if requested."""
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
        while group:  # frees each document after it was yielded
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
    """Yield a document as it is, or a huge one in several sections."""
    presplit = PRESPLIT if document.presplit else 0
    pieces = document.pieces
    if document.tags:  # words are short, and encoded one by one
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
            for text, ends in _split_long(piece, replace(options, by_rule=by_rule)):
                yield [text], presplit | (PIECE_ENDS if ends else 0)
        else:
            group.append(piece)
            size += len(piece)
    yield group, presplit | PIECE_ENDS | DOCUMENT_ENDS


def _split_long(text: str, options: ChunkingOptions) -> Iterator[tuple[str, bool]]:
    """Split a huge piece into parts of at most ``LONGEST_PIECE``, each with whether it ends a
    sentence.

    Sentences stay whole if they fit. A longer one is split at a space, where ids do not change, and
    one without spaces anywhere.
    """
    at = 0
    while len(text) - at > LONGEST_PIECE:
        window = text[at : at + LONGEST_PIECE]
        stop = _last_sentence_start(window) if options.by_rule else 0
        ends = stop > 0
        if not ends:
            stop = _last_space(window, options) or _last_chinese(window) or len(window)
        stop += at
        # Drop spaces after a part: a part of spaces only could not end the sentence.
        match = _NO_SPACE.search(text, stop)
        start = match.start() if match else len(text)
        line_ends = options.by_rule and any(one in text[stop:start] for one in "\r\n")
        yield text[at:stop], ends or line_ends or not match
        at = start
    if at < len(text):
        yield text[at:], True


def _last_sentence_start(window: str) -> int:
    """The start of the last sentence in a window, 0 if there is only one. Earlier sentences are
    split as in the whole text; the last one may be incomplete."""
    stop = window.rfind("\n") + 1  # a line break ends any sentence
    if stop:
        return stop
    sentences = split_sentences(window)
    return len(window.rstrip()) - len(sentences[-1]) if len(sentences) > 1 else 0


def _last_space(window: str, options: ChunkingOptions) -> int:
    """The last space where a split changes neither ids nor sentence ends, or else the last space,
    which may change sentence ends; 0 if there is none."""
    last = 0
    for start in (max(0, len(window) - _TAIL), 0):
        places = [match.start() for match in _SPACE.finditer(window, start)]
        for place in reversed(places):
            last = last or place
            if place and _is_safe(window, place, options):
                return place
    return last


def _is_safe(window: str, place: int, options: ChunkingOptions) -> bool:
    words = window[max(0, place - 128) : place].split()
    before = words[-1] if words else ""
    if not options.by_rule:  # consecutive sentence ends must not be split
        return before not in options.sentence_ends
    # A number at the start of a sentence is taken for a list number; and whether a full stop ends a
    # sentence depends on the following text.
    return not window[place + 1 : place + 2].isdigit() and not before.endswith(_MAY_END)


def _last_chinese(window: str) -> int:
    """The last position before a Chinese character, which is always a word; 0 if far away."""
    for place in range(len(window) - 1, max(0, len(window) - _TAIL), -1):
        if "\u4e00" <= window[place] <= "\u9fff":
            return place
    return 0
