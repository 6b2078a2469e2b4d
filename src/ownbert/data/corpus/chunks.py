"""Parts: a stream of documents cut into pieces of work of about equal size.

Where a part ends depends on the text and the settings alone, so any number of processes gives the
same store and a run that was stopped meets the same parts again. A document may go on from part
to part.
"""

import re
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from ownbert.data.corpus.documents import Document
from ownbert.data.corpus.duplicates import DuplicateFilter, digest
from ownbert.text.sentences import CLOSING, split_sentences

# Characters of a part.
CHUNK_SIZE = 2_000_000
# A longer piece of text is cut before it is tokenised: an encoding takes a hundred times its text.
LONGEST_PIECE = 1 << 18
# Documents whose hashes are looked up together.
_LOOK_UP = 4096

PRESPLIT, DOCUMENT_ENDS, PIECE_ENDS = 1, 2, 4

# All of them part words for every kind of tokenizer; Python's \s knows some that do not.
_BLANK = re.compile("[ \t\n\r\u3000]")
_MAY_END = tuple(".!?。！？；…｡" + CLOSING)
# How far back from the limit a place to cut is looked for first.
_TAIL = 1 << 12


@dataclass(slots=True)
class Chunk:
    """Sections of documents: section i has the next ``counts[i]`` of ``pieces``; ``flags[i]``
    tells whether each piece is a sentence already (PRESPLIT), whether its document ends with it
    (DOCUMENT_ENDS) and whether its last piece does (PIECE_ENDS)."""

    pieces: list[str] = field(default_factory=list)
    counts: array = field(default_factory=lambda: array("q"))
    flags: bytearray = field(default_factory=bytearray)

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
    """How documents are cut. by_rule: sentences of plain text are found by rule; ends: tokens that
    end a sentence in text that is already tokens; drop: leave duplicates out."""

    by_rule: bool
    ends: frozenset[str]
    drop: bool


def split_into_chunks(
    documents: Iterable[Document], cut: ChunkingOptions, read: ReadStats
) -> Iterator[Chunk]:
    """Parts of about ``CHUNK_SIZE`` characters, in order; ``read`` is kept up to date."""
    part, size = Chunk(), 0
    for document in _counted(documents, cut.drop, read):
        for pieces, flags in _sections(document, cut):
            part.add(pieces, flags)
            size += sum(map(len, pieces))
            # Very short pieces cost by their number.
            if size + 8 * len(part.pieces) >= CHUNK_SIZE:
                yield part
                part, size = Chunk(), 0
    if part.counts:
        yield part


def _counted(documents: Iterable[Document], drop: bool, read: ReadStats) -> Iterator[Document]:
    """The documents, without the repeated ones if they are to be dropped."""
    seen = DuplicateFilter()
    group: list[Document] = []
    digests: list[bytes] = []
    size = 0

    def flush() -> Iterator[Document]:
        new = seen.add(digests)
        read.documents += len(new)
        read.duplicates += len(new) - int(new.sum())
        read.bytes += size
        chosen = new.tolist() if drop else [True] * len(group)
        digests.clear()
        group.reverse()
        while group:  # none is kept alive here once it was handed on
            document = group.pop()
            if chosen[-len(group) - 1]:
                yield document
            del document

    for document in documents:
        key, length = digest(document.pieces)
        group.append(document)
        digests.append(key)
        size += length
        if len(group) >= _LOOK_UP or size >= CHUNK_SIZE:
            yield from flush()
            size = 0
    if group:
        yield from flush()


def _sections(document: Document, cut: ChunkingOptions) -> Iterator[tuple[list[str], int]]:
    """A document as it is, or a huge one in several sections."""
    presplit = PRESPLIT if document.presplit else 0
    pieces = document.pieces
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
            for text, ends in _cut_long(piece, cut, by_rule=cut.by_rule and not presplit):
                yield [text], presplit | (PIECE_ENDS if ends else 0)
        else:
            group.append(piece)
            size += len(piece)
    yield group, presplit | PIECE_ENDS | DOCUMENT_ENDS


def _cut_long(text: str, cut: ChunkingOptions, *, by_rule: bool) -> Iterator[tuple[str, bool]]:
    """A huge piece in parts of at most ``LONGEST_PIECE``, and whether a sentence ends with each.

    Sentences stay whole where they fit. A longer one is cut at a blank, where the ids stay the
    same, and one without a blank anywhere.
    """
    at = 0
    while len(text) - at > LONGEST_PIECE:
        window = text[at : at + LONGEST_PIECE]
        stop = _sentence_start(window) if by_rule else 0
        ends = stop > 0
        if not ends:
            stop = _blank(window, cut, by_rule=by_rule) or _beside_chinese(window) or len(window)
        yield window[:stop], ends
        at += stop
    yield text[at:], True


def _sentence_start(window: str) -> int:
    """Where the last sentence of a window begins, 0 if there is only one. What comes before is
    split as it is in the whole text; the last one may be cut off."""
    stop = window.rfind("\n") + 1  # a line break ends any sentence
    if stop:
        return stop
    sentences = split_sentences(window)
    return len(window.rstrip()) - len(sentences[-1]) if len(sentences) > 1 else 0


def _blank(window: str, cut: ChunkingOptions, *, by_rule: bool) -> int:
    """The last blank where a cut changes neither ids nor sentence ends, or else the last one, which
    may change sentence ends; 0 if there is none."""
    last = 0
    for start in (max(0, len(window) - _TAIL), 0):
        places = [found.start() for found in _BLANK.finditer(window, start)]
        for place in reversed(places):
            last = last or place
            if place and _fits(window, place, cut, by_rule=by_rule):
                return place
    return last


def _fits(window: str, place: int, cut: ChunkingOptions, *, by_rule: bool) -> bool:
    if not by_rule:  # a run of sentence ends is one end: it must not be cut in two
        return not cut.ends or _word_before(window, place) not in cut.ends
    # A number at the start of a sentence is taken for that of a list; and whether a full stop ends
    # a sentence is told by what follows.
    number = window[place + 1 : place + 2].isdigit()
    return not number and not _word_before(window, place).endswith(_MAY_END)


def _word_before(window: str, place: int) -> str:
    words = window[max(0, place - 128) : place].split()
    return words[-1] if words else ""


def _beside_chinese(window: str) -> int:
    """The last place in front of a Chinese character, which is a word by itself; 0 if far away."""
    for place in range(len(window) - 1, max(0, len(window) - _TAIL), -1):
        if "\u4e00" <= window[place] <= "\u9fff":
            return place
    return 0
