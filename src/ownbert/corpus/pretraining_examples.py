"""Pretraining examples: spans of documents, alone or as pairs with a label.

A corpus is split once into spans of whole sentences that fit a sequence, and a part is held out for
evaluation. A segment is contiguous text, a document or a part of one; spans do not cross segments.
The example of span i in epoch e (where it is split, what follows, what is masked) is a pure
function of (seed, e, i).
"""

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ownbert.batches.example import Example
from ownbert.batches.masking import Masker
from ownbert.checks import known, maybe
from ownbert.corpus.store import Store
from ownbert.exceptions import InputError
from ownbert.text.styles import InputFormat
from ownbert.text.tokenizer import Tokenizer

# Next-sentence prediction (BERT) and sentence-order prediction (ALBERT).
PAIRS = ("nsp", "sop")

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
    """Spans of a corpus: first token, end (one past the last token) and document of each,
    ascending; ``breaks`` (segments): end of each segment, in tokens, ascending."""

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
    """Split every document into spans of whole sentences of at most ``limit`` tokens; a longer
    sentence is split at the limit. Ends are one past the last token, ascending.

    All documents advance together in vectorised steps; the few longest ones are finished one by
    one.
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
    """Hold out a ``share`` of the corpus for evaluation.

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


@dataclass(frozen=True)
class PretrainingData:
    """Examples with masked tokens and, with ``pairs``, a label in ``next_sentence``.

    Args:
        spans: one span per example.
        others: spans that the second part of a pair may come from.
        masking: makes the example of a sequence; None: nothing is masked.
        pairs: None; ``nsp``: the label is 1 if the second part comes from another document;
            ``sop``: 1 if the two parts of a span are swapped.
        short_rate: share of sequences truncated to a random length, so that short ones are learnt
            too.

    Source: google-research/bert, create_pretraining_data.py.
    """

    store: Store
    spans: Spans
    others: Spans
    masking: Masker | None
    format: InputFormat
    max_length: int
    pairs: str | None
    seed: int
    short_rate: float = 0.1

    def __len__(self) -> int:
        return len(self.spans)

    @cached_property
    def sizes(self) -> np.ndarray:
        """Nominal lengths (examples) in tokens including special tokens, from the spans only.
        Truncated sequences are shorter; a false second part may be slightly longer than the true
        one. No example is longer than ``max_length``."""
        tokens = self.spans.stops - self.spans.starts
        if self.pairs is not None:
            tokens = np.maximum(tokens, 2)  # a single token also gets a second part
        return np.minimum(tokens + _special(self.format, self.pairs), self.max_length)

    def example(self, epoch: int, index: int) -> Example:
        """The example of span ``index`` in ``epoch``: a pure function of (seed, epoch, index)."""
        rng = _generator(self.seed, epoch, index)
        start, stop = int(self.spans.starts[index]), int(self.spans.stops[index])
        budget = self.max_length - _special(self.format, self.pairs)
        if rng.random() < self.short_rate:
            budget = int(rng.integers(2, budget + 1))
        if stop - start > budget:
            start = int(rng.integers(start, stop - budget + 1))
            stop = start + budget
        if self.pairs is None:
            return self._assemble([range(start, stop)], None, rng)
        if self.pairs == "nsp":
            first, second, label = self._next_sentence(start, stop, index, budget, rng)
        else:
            first, second, label = self._order(start, stop, rng)
        return self._assemble([first, second], label, rng)

    def _assemble(
        self, parts: Sequence[range], label: int | None, rng: np.random.Generator
    ) -> Example:
        """The sequence of one or two texts as in fine-tuning (``InputFormat``), masked."""
        ids, types, starts = self.format.template(*map(len, parts))
        words, features, table = self._words, self._features, None
        begins = None if words is None else np.ones(len(ids), dtype=bool)
        if features is not None:
            table = np.zeros((len(ids), features.shape[1]), dtype=np.int64)
        for at, part in zip(starts, parts, strict=True):
            end = at + len(part)
            ids[at:end] = self._tokens[part.start : part.stop]
            if words is not None and begins is not None:
                begins[at:end] = words[part.start : part.stop]
                begins[at] = True  # the rest of a split word counts as a word
            if features is not None and table is not None:
                table[at:end] = features[part.start : part.stop]
        if self.masking is None:
            return Example(ids, types, next_sentence=label)
        whole = Example(ids, types, next_sentence=label, words=table)
        return self.masking.example(whole, rng, begins)

    # Plain arrays over the same memory maps: numpy.memmap is slow to slice.

    @cached_property
    def _tokens(self) -> np.ndarray:
        return np.asarray(self.store.tokens)

    @cached_property
    def _ends(self) -> np.ndarray:
        return np.asarray(self.store.sentence_ends)

    @cached_property
    def _words(self) -> np.ndarray | None:
        """Word starts, if the store has any and the masking or features need them."""
        words = getattr(self.store, "words", None)
        by_words = self.masking is not None and self.masking.by_words
        if words is None or not (by_words or self._features is not None):
            return None
        return np.asarray(words)

    @cached_property
    def _features(self) -> np.ndarray | None:
        features = getattr(self.store, "features", None)
        return None if features is None else np.asarray(features)

    def _order(self, start: int, stop: int, rng: np.random.Generator) -> tuple[range, range, int]:
        """Split the span in two, swapped half of the time (Lan et al. 2020, section 3.1)."""
        middle = self._split(start, stop, rng)
        first, second = range(start, middle), range(middle, stop)
        return (first, second, 0) if rng.random() < 0.5 else (second, first, 1)

    def _next_sentence(
        self, start: int, stop: int, index: int, budget: int, rng: np.random.Generator
    ) -> tuple[range, range, int]:
        """Half of the time the span in two parts, else its first part and one of another
        document."""
        label = int(rng.random() < 0.5) if stop - start > 1 else 1
        middle = self._split(start, stop, rng) if stop - start > 1 else stop
        first = range(start, middle)
        if label == 0:
            return first, range(middle, stop), label
        other = self._elsewhere(index, rng)
        begin, end = int(self.others.starts[other]), int(self.others.stops[other])
        inner = self._boundaries(begin, end)
        if len(inner):
            chosen = int(rng.integers(len(inner) + 1))
            begin = int(inner[chosen]) if chosen < len(inner) else begin
        end = self._sentence_end_near(begin, max(1, stop - middle), budget - len(first))
        first, second = truncate_pair(first, range(begin, end), budget, rng)
        return first, second, label

    def _sentence_end_near(self, begin: int, distance: int, most: int) -> int:
        """A sentence end about ``distance`` tokens after ``begin`` in its document: as far as the
        true second part's end, so that the length does not reveal false ones."""
        breaks = self.others.breaks
        last = int(breaks[breaks.searchsorted(begin, side="right")])
        ends = self._boundaries(begin, min(begin + most, last) + 1)
        if not len(ends):
            return min(begin + distance, last)
        return int(ends[np.abs(ends - (begin + distance)).argmin()])

    def _boundaries(self, start: int, stop: int) -> np.ndarray:
        """Sentence ends strictly inside a span."""
        low, high = self._ends.searchsorted((start + 1, stop))
        return self._ends[low:high]

    def _split(self, start: int, stop: int, rng: np.random.Generator) -> int:
        """A sentence end inside the span, or any position if there is none."""
        inner = self._boundaries(start, stop)
        if len(inner):
            return int(inner[rng.integers(len(inner))])
        return int(rng.integers(start + 1, stop))

    def _elsewhere(self, index: int, rng: np.random.Generator) -> int:
        """A random span of another document, or of the same one if there is no other."""
        document, documents = int(self.spans.documents[index]), self.others.documents
        low, high = documents.searchsorted((document, document + 1)).tolist()
        if high - low == len(documents):
            same_set = self.others is self.spans
            low, high = (index, index + 1) if same_set else (0, 0)
        other = int(rng.integers(len(documents) - (high - low)))
        return other if other < low else other + high - low


def _special(input_format: InputFormat, pairs: str | None) -> int:
    return input_format.special(1 if pairs is None else 2)


def _generator(seed: int, epoch: int, index: int) -> np.random.Generator:
    """``numpy.random.default_rng((seed, epoch, index))`` at two thirds of the cost."""
    entropy = (seed, epoch, index)
    if max(entropy) < 1 << 32:  # larger numbers take several words of entropy
        entropy = np.array(entropy, dtype=np.uint32)
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(entropy)))


def truncate_pair(
    first: range, second: range, budget: int, rng: np.random.Generator
) -> tuple[range, range]:
    """Truncate the longer of two parts, positions of tokens, until both fit ``budget``.

    Each token is removed at the front or back at random.
    """
    lengths = [len(first), len(second)]
    while sum(lengths) > budget:
        longer = int(lengths[0] <= lengths[1])
        # The difference in length is removed first, the rest alternately.
        excess, lead = sum(lengths) - budget, abs(lengths[0] - lengths[1])
        lengths[longer] -= max(1, min(excess, lead))
    parts = []
    for part, length in zip((first, second), lengths, strict=True):
        count = len(part) - length
        front = int(rng.binomial(count, 0.5)) if count else 0
        parts.append(part[front : front + length])
    return parts[0], parts[1]


def pretraining_data(
    store: Store,
    tokenizer: Tokenizer,
    masking: Masker | None,
    *,
    max_length: int,
    pairs: str | None,
    held_out: float,
    seed: int,
) -> tuple[PretrainingData, PretrainingData]:
    """Create training and held-out examples of a store; ``held_out``: share of the corpus for
    evaluation (``hold_out``)."""
    if max_length < 8:
        raise InputError("max_length {max_length} is too short; at least 8", max_length)
    maybe(known(*PAIRS))("pairs", pairs)
    split = hold_out(store.sentence_ends, store.document_ends, held_out, seed)
    train, held_out_spans = split.spans(
        store.sentence_ends, max_length - _special(tokenizer.input_format, pairs)
    )
    if pairs == "nsp" and len(train) < 2:
        raise InputError(
            "next-sentence prediction needs at least two documents, or a longer one; pretrain "
            "with {--objectives mlm}"
        )
    if pairs == "sop":
        train, held_out_spans = (s.select(s.stops - s.starts > 1) for s in (train, held_out_spans))
        if not len(train):
            raise InputError(
                "sentence-order prediction needs documents of at least two tokens, the corpus "
                "has none; pretrain with {--objectives mlm}"
            )

    def data(chosen: Spans) -> PretrainingData:
        return PretrainingData(
            store,
            chosen,
            chosen if chosen.several else train,
            masking,
            tokenizer.input_format,
            max_length,
            pairs,
            seed,
        )

    return data(train), data(held_out_spans)
