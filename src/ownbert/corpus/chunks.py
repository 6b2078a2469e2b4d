"""Splits a stream of documents into chunks of work of about equal size, without duplicates.

Chunk boundaries depend only on the text and the settings, so any number of processes gives the
same store and a resumed run has the same chunks. A document may extend over several chunks.

Exact duplicates are found by 128-bit hashes in a table, which takes 16 bytes per slot and is at
most three quarters full: 21 to 43 bytes per distinct document, temporarily 50% more while it grows.
"""

import hashlib
import re
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ownbert.batches.word_features import Features, number_tags, tag_ids
from ownbert.corpus.documents import Document
from ownbert.text.text_parts import CLOSING, ENDS, split_sentences

_SMALLEST = 1 << 12  # initial size of the hash table
_MAX_LOAD = 0.75  # share of the table above which it grows
# Characters hashed at a time, to avoid a second copy of a huge document.
_SLICE = 1 << 20


def digest(pieces: Sequence[str]) -> tuple[bytes, int]:
    """The hash of a document (16 bytes), and its UTF-8 length in bytes."""
    if len(pieces) == 1 and len(pieces[0]) <= _SLICE:
        data = pieces[0].encode("utf-8")
        return hashlib.blake2b(data, digest_size=16).digest(), len(data)
    running, size = hashlib.blake2b(digest_size=16), 0
    for number, piece in enumerate(pieces):
        if number:
            running.update(b"\n")
        for start in range(0, len(piece), _SLICE):
            data = piece[start : start + _SLICE].encode("utf-8")
            running.update(data)
            size += len(data)
    return running.digest(), size


class DuplicateFilter:
    """The hashes of all documents so far, in a hash table with open addressing."""

    def __init__(self) -> None:
        self.table = np.zeros((_SMALLEST, 2), dtype=np.uint64)
        self.count = 0

    def add(self, digests: Iterable[bytes]) -> np.ndarray:
        """Add the hashes of documents; return bool (documents), whether each was added neither
        before nor earlier in the same call."""
        keys = np.frombuffer(b"".join(digests), dtype="<u8").astype(np.uint64).reshape(-1, 2)
        keys[:, 1] |= np.uint64(1)  # zeros mark an empty slot
        order = np.lexsort((keys[:, 1], keys[:, 0]))  # stable: keeps the first of equal hashes
        ordered = keys[order]
        new = np.ones(len(keys), dtype=bool)
        new[order[1:][(ordered[1:] == ordered[:-1]).all(axis=1)]] = False
        first = np.flatnonzero(new)
        size = len(self.table)
        while self.count + len(first) > _MAX_LOAD * size:
            size *= 2
        if size > len(self.table):
            old, self.table = self.table, np.zeros((size, 2), dtype=np.uint64)
            # In slices, because temporary arrays of an insertion are several times as large as its
            # keys.
            for start in range(0, len(old), 1 << 16):
                part = old[start : start + (1 << 16)]
                self._insert(part[part[:, 1] != 0])
        fresh = self._insert(keys[first])
        self.count += int(fresh.sum())
        new[first] = fresh
        return new

    def _insert(self, keys: np.ndarray) -> np.ndarray:
        """Insert distinct keys (keys, 2); return whether each is new."""
        mask = np.uint64(len(self.table) - 1)
        slots = (keys[:, 0] & mask).astype(np.int64)
        fresh = np.ones(len(keys), dtype=bool)
        left = np.arange(len(keys))
        while len(left):
            occupants, inserted = self.table[slots[left]], keys[left]
            known = (occupants == inserted).all(axis=1)
            fresh[left[known]] = False
            empty = occupants[:, 1] == 0
            claims = left[empty]
            self.table[slots[claims]] = keys[claims]
            # If two keys claim a slot the last one wins, and the other one probes further.
            lost = (self.table[slots[claims]] != keys[claims]).any(axis=1)
            left = np.concatenate([left[~known & ~empty], claims[lost]])
            slots[left] = (slots[left] + 1) & int(mask)
        return fresh


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
    """Sections of documents: the text of all, and for each the number of pieces and flags: whether
    its pieces are sentences (PRESPLIT), whether its document ends with it (DOCUMENT_ENDS), whether
    its last piece does (PIECE_ENDS), and whether its pieces are words (WORDS). ``features``: (W, F)
    ids of word features, for each section of words."""

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
    """How documents are split: whether sentences of plain text are found by rule, and tokens that
    end a sentence in pre-tokenised text."""

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
    sentence. Sentences stay whole if they fit. A longer one is split at a space, where ids do not
    change, and one without spaces anywhere."""
    at = 0
    while len(text) - at > LONGEST_PIECE:
        window = text[at : at + LONGEST_PIECE]
        # The start of the last sentence, 0 if there is only one. Earlier sentences are split as in
        # the whole text; the last one may be incomplete. A line break ends any sentence.
        stop = window.rfind("\n") + 1 if options.by_rule else 0
        if options.by_rule and not stop and len(sentences := split_sentences(window)) > 1:
            stop = len(window.rstrip()) - len(sentences[-1])
        ends = stop > 0
        if not ends:
            stop = _last_space(window, options) or _last_chinese(window) or len(window)
        stop += at
        # Drop spaces after a part: a part of spaces only could not end the sentence.
        match = _NO_SPACE.search(text, stop)
        start = match.start() if match else len(text)
        line_ends = options.by_rule and any(character in text[stop:start] for character in "\r\n")
        yield text[at:stop], ends or line_ends or not match
        at = start
    if at < len(text):
        yield text[at:], True


def _last_space(window: str, options: ChunkingOptions) -> int:
    """The last space where a split changes neither ids nor sentence ends, or else the last space,
    which may change sentence ends; 0 if there is none."""
    last = 0
    for start in (max(0, len(window) - _TAIL), 0):
        places = [match.start() for match in _SPACE.finditer(window, start)]
        for place in reversed(places):
            last = last or place
            words = window[max(0, place - 128) : place].split()
            before = words[-1] if words else ""
            if options.by_rule:
                # A number at the start of a sentence is taken for a list number; and whether a
                # full stop ends a sentence depends on the following text.
                number = window[place + 1 : place + 2].isdigit()
                safe = not number and not before.endswith(_MAY_END)
            else:  # consecutive sentence ends must not be split
                safe = before not in options.sentence_ends
            if place and safe:
                return place
    return last


def _last_chinese(window: str) -> int:
    """The last position before a Chinese character, which is always a word; 0 if far away."""
    for place in range(len(window) - 1, max(0, len(window) - _TAIL), -1):
        if "\u4e00" <= window[place] <= "\u9fff":
            return place
    return 0
