"""Splits a corpus into spans of whole sentences, and holds out a part for evaluation.

A segment is contiguous text, a document or a part of one; spans do not cross segments.
"""

from array import array
from bisect import bisect_right
from dataclasses import dataclass

import numpy as np

# Whole documents are held out if there are at least this many and none is larger than this fraction
# of the corpus; otherwise pieces of documents are.
_MANY = 20

# Approximate number of pieces of a corpus, and limits of their length in tokens: long enough for a
# long sequence, short enough that even a small corpus has enough pieces to choose from.
_PIECES, _SHORTEST, _LONGEST = 400, 64, 2048

# Minimum number of unfinished segments for which a vectorised step is faster than a loop.
_VECTORISED = 32


@dataclass(frozen=True)
class Spans:
    """Spans of a corpus.

    Args:
        starts: (spans) first token.
        stops: (spans) end, one past the last token.
        documents: (spans) index of the document, ascending.
        breaks: (segments) end of each segment, in tokens, ascending.
    """

    starts: np.ndarray
    stops: np.ndarray
    documents: np.ndarray
    breaks: np.ndarray

    def __len__(self) -> int:
        return len(self.starts)

    def select(self, chosen: np.ndarray) -> "Spans":
        return Spans(self.starts[chosen], self.stops[chosen], self.documents[chosen], self.breaks)

    @property
    def several(self) -> bool:
        """Whether the spans belong to more than one document."""
        return len(self) > 1 and self.documents[0] != self.documents[-1]


def split_into_spans(sentence_ends: np.ndarray, document_ends: np.ndarray, limit: int) -> Spans:
    """Split every document into spans of whole sentences.

    All documents advance together in vectorised steps; the few longest ones are finished one by
    one.

    Args:
        sentence_ends: one past the last token of each sentence, ascending.
        document_ends: one past the last token of each document, ascending.
        limit: maximum number of tokens in a span; a longer sentence is split at the limit.
    """
    sentence_ends = np.asarray(sentence_ends, dtype=np.int64)
    breaks = np.asarray(document_ends, dtype=np.int64)
    if not len(sentence_ends):
        sentence_ends = breaks[-1:]
    number, ends = np.arange(len(breaks)), breaks
    at = np.concatenate([[0], ends[:-1]])
    starts, stops, numbers = [], [], []
    while len(at) > _VECTORISED:
        reach = np.minimum(at + limit, ends)
        # The last sentence end within reach; 0 if there is none.
        last_end = np.searchsorted(sentence_ends, reach, side="right") - 1
        stop = np.where(last_end >= 0, sentence_ends[np.maximum(last_end, 0)], 0)
        stop = np.where((stop > at) & (reach < ends), stop, reach)
        starts.append(at)
        stops.append(stop)
        numbers.append(number)
        left = stop < ends
        at, ends, number = stop[left], ends[left], number[left]
    for start, end, which in zip(at.tolist(), ends.tolist(), number, strict=True):
        inside = _span_stops(sentence_ends, start, end, limit)
        starts.append(np.concatenate([[start], inside[:-1]]))
        stops.append(inside)
        numbers.append(np.full(len(inside), which))
    start, stop, number = (np.concatenate(arrays) for arrays in (starts, stops, numbers))
    order = np.argsort(start, kind="stable")
    return Spans(start[order], stop[order], number[order], breaks)


def _span_stops(sentence_ends: np.ndarray, at: int, end: int, limit: int) -> np.ndarray:
    """The ends of the spans in the text from ``at`` to ``end``."""
    first, last = np.searchsorted(sentence_ends, [at, end], side="right")
    inner = sentence_ends[first:last].data  # indexing gives Python integers, without a copy
    stops, low = array("q"), 0
    while end - at > limit:
        # Sentences have at least one token, so at most ``limit`` of them fit.
        index = bisect_right(inner, at + limit, low, min(low + limit, len(inner)))
        if index > low:
            low, at = index, inner[index - 1]
            stops.append(at)
            continue
        # Split a sentence that does not fit; its last part may be followed by others.
        whole = (inner[low] if low < len(inner) else end) - at
        full = at + (whole - 1) // limit * limit
        stops.extend(range(at + limit, full + 1, limit))
        at = full
    stops.append(end)
    return np.frombuffer(stops, dtype=np.int64)


@dataclass(frozen=True)
class HeldOutSplit:
    """The segments of a corpus: their ends, their documents, and which are held out."""

    ends: np.ndarray
    documents: np.ndarray
    held: np.ndarray

    def spans(self, sentence_ends: np.ndarray, limit: int) -> tuple[Spans, Spans]:
        """Spans of at most ``limit`` tokens for training, and held-out ones."""
        spans = split_into_spans(sentence_ends, self.ends, limit)
        held = self.held[spans.documents]
        spans = Spans(spans.starts, spans.stops, self.documents[spans.documents], spans.breaks)
        return spans.select(~held), spans.select(held)


def hold_out(
    sentence_ends: np.ndarray, document_ends: np.ndarray, share: float, seed: int
) -> HeldOutSplit:
    """Hold out a ``share`` of the corpus for evaluation; for the ends see ``split_into_spans``.

    The selection depends only on the corpus, the share and the seed, so runs with other sequence
    lengths or objectives, and the phases of a run, hold out the same text. Whole documents are
    selected if there are enough, else pieces of whole sentences (spans do not cross the ends of a
    piece). At least two documents remain for training, if there are two; nothing is held out from a
    corpus that is too small.
    """
    ends = np.asarray(document_ends, dtype=np.int64)
    number = np.arange(len(ends))
    rng = np.random.default_rng((seed, 0xE7A1))
    if share <= 0 or not len(ends):
        return HeldOutSplit(ends, number, np.zeros(len(ends), dtype=bool))
    longest = int(np.diff(ends, prepend=0).max())
    if len(ends) >= _MANY and longest * _MANY <= ends[-1]:
        held = np.zeros(len(ends), dtype=bool)
        count = min(len(ends) - 2, max(1, round(share * len(ends))))
        held[rng.choice(number, count, replace=False)] = True
        return HeldOutSplit(ends, number, held)
    length = min(max(int(ends[-1]) // _PIECES, _SHORTEST), _LONGEST)
    pieces = split_into_spans(sentence_ends, ends, length)
    held = np.zeros(len(pieces), dtype=bool)
    if len(pieces) >= _MANY:
        # The first and the last piece are kept, and with them two documents. Shares are in tokens:
        # a corpus may contain documents of one word and of a million.
        order = 1 + rng.permutation(len(pieces) - 2)
        tokens = np.cumsum((pieces.stops - pieces.starts)[order])
        held[order[: max(1, int(np.searchsorted(tokens, share * ends[-1], "right")))]] = True
    # Adjacent pieces of the same kind form one segment.
    breaks = np.ones(len(pieces), dtype=bool)
    breaks[:-1] = np.diff(pieces.documents) > 0
    breaks[:-1] |= held[1:] != held[:-1]
    return HeldOutSplit(pieces.stops[breaks], pieces.documents[breaks], held[breaks])
