"""Sequences for pretraining: spans of documents, alone or as pairs of which half belong together.

A corpus is cut once into spans of whole sentences that fit a sequence. What becomes of span i in
epoch e (where it is split, what follows, what is masked) is a pure function of (seed, e, i).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ownbert.data.batch import Example
from ownbert.data.masking import Masking
from ownbert.data.store import Store
from ownbert.errors import InputError
from ownbert.text.tokenizer import Tokenizer

# Below this many documents, whole documents cannot be spared for evaluation: spans are.
_FEW = 20


@dataclass(frozen=True)
class Spans:
    """starts, stops (N) in tokens, documents (N) the number of the document, ascending."""

    starts: np.ndarray
    stops: np.ndarray
    documents: np.ndarray

    def __len__(self) -> int:
        return len(self.starts)

    def select(self, chosen: np.ndarray) -> "Spans":
        return Spans(self.starts[chosen], self.stops[chosen], self.documents[chosen])


def cut_spans(sentence_ends: np.ndarray, document_ends: np.ndarray, limit: int) -> Spans:
    """Cut every document into spans of whole sentences of at most ``limit`` tokens together.

    A sentence that is longer is cut at the limit. All documents advance in step, so that the
    work is in numpy.
    """
    number = np.arange(len(document_ends))
    ends = np.asarray(document_ends, dtype=np.int64)
    at = np.concatenate([[0], ends[:-1]])
    sentence_ends = np.asarray(sentence_ends)
    starts, stops, numbers = [], [], []
    while len(at):
        reach = np.minimum(at + limit, ends)
        # The last sentence end within reach; 0 where there is none in the corpus before it.
        found = np.searchsorted(sentence_ends, reach, side="right") - 1
        stop = np.where(found >= 0, sentence_ends[np.maximum(found, 0)], 0)
        stop = np.where(stop > at, stop, reach)
        starts.append(at)
        stops.append(stop)
        numbers.append(number)
        left = stop < ends
        at, ends, number = stop[left], ends[left], number[left]
    order = np.argsort(np.concatenate(starts), kind="stable")
    return Spans(*(np.concatenate(a)[order] for a in (starts, stops, numbers)))


def hold_out(spans: Spans, share: float, seed: int) -> tuple[Spans, Spans]:
    """Training and held-out spans: whole documents, or single spans where documents are few."""
    names, owners = np.unique(spans.documents), spans.documents
    if len(names) < _FEW:
        names = owners = np.arange(len(spans))
    held = np.zeros(len(spans), dtype=bool)
    if share > 0 and len(names) >= _FEW:
        count = min(len(names) - 1, max(1, round(share * len(names))))
        rng = np.random.default_rng((seed, 0xE7A1))
        held = np.isin(owners, rng.choice(names, count, replace=False))
    return spans.select(~held), spans.select(held)


@dataclass(frozen=True)
class PretrainingData:
    """Examples with masked tokens and, with ``pairs``, a next-sentence label.

    others: spans that the second part of a pair may come from. seed: of everything random.
    short_rate: share of sequences cut to a random length, so that
    short ones are learnt too (google-research/bert, create_pretraining_data.py).
    """

    store: Store
    spans: Spans
    others: Spans
    masking: Masking
    cls_id: int
    sep_id: int
    max_length: int
    pairs: bool
    seed: int
    short_rate: float = 0.1

    def __len__(self) -> int:
        return len(self.spans)

    def example(self, epoch: int, index: int) -> Example:
        """The example of span ``index`` in ``epoch``: a pure function of (seed, epoch, index)."""
        rng = np.random.default_rng((self.seed, epoch, index))
        start, stop = int(self.spans.starts[index]), int(self.spans.stops[index])
        budget = self.max_length - (3 if self.pairs else 2)
        if rng.random() < self.short_rate:
            budget = int(rng.integers(2, budget + 1))
        if stop - start > budget:
            start = int(rng.integers(start, stop - budget + 1))
            stop = start + budget
        if self.pairs:
            first, second, label = self._pair(start, stop, index, budget, rng)
            parts: tuple[np.ndarray, ...] = (first, second)
        else:
            parts, label = (self._tokens(start, stop),), None
        return replace(self._assemble(parts, rng), next_sentence=label)

    def _assemble(self, parts: Sequence[np.ndarray], rng: np.random.Generator) -> Example:
        """[CLS] A [SEP], or [CLS] A [SEP] B [SEP], masked."""
        ids, types = [np.asarray([self.cls_id])], [np.asarray([0])]
        for kind, part in enumerate(parts):
            ids += [part, np.asarray([self.sep_id])]
            types.append(np.full(len(part) + 1, kind))
        seen, positions, targets = self.masking(np.concatenate(ids), rng)
        return Example(seen, np.concatenate(types), positions, targets)

    def _tokens(self, start: int, stop: int) -> np.ndarray:
        return self.store.tokens[start:stop].astype(np.int64)

    def _pair(
        self, start: int, stop: int, index: int, budget: int, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray, int]:
        """Half the time the span in two, else its first part and one of another document."""
        label = int(rng.random() < 0.5) if stop - start > 1 else 1
        middle = self._split(start, stop, rng) if stop - start > 1 else stop
        first = self._tokens(start, middle)
        if label == 0:
            return first, self._tokens(middle, stop), label
        other = self._elsewhere(index, rng)
        begin, end = int(self.others.starts[other]), int(self.others.stops[other])
        inner = self._boundaries(begin, end)
        if len(inner):
            begin = int(rng.choice(np.append(inner, begin)))
        end = self._near(begin, max(1, stop - middle), budget - len(first))
        first, second = truncate_pair(first, self._tokens(begin, end), budget, rng)
        return first, second, label

    def _near(self, begin: int, wanted: int, most: int) -> int:
        """A sentence end about ``wanted`` tokens after ``begin`` in its document, as far away as
        the end of the true second part: else the length would tell the false ones."""
        document = int(np.searchsorted(self.store.document_ends, begin, side="right"))
        last = int(self.store.document_ends[document])
        ends = self._boundaries(begin, min(begin + most, last) + 1)
        if not len(ends):
            return min(begin + wanted, last)
        return int(ends[np.argmin(np.abs(ends - begin - wanted))])

    def _boundaries(self, start: int, stop: int) -> np.ndarray:
        """Sentence ends strictly inside a span."""
        ends = self.store.sentence_ends
        low, high = np.searchsorted(ends, [start + 1, stop])
        return np.asarray(ends[low:high])

    def _split(self, start: int, stop: int, rng: np.random.Generator) -> int:
        """A sentence end inside, or any place where there is none."""
        inner = self._boundaries(start, stop)
        return int(rng.choice(inner)) if len(inner) else int(rng.integers(start + 1, stop))

    def _elsewhere(self, index: int, rng: np.random.Generator) -> int:
        """Some span of another document."""
        document, documents = self.spans.documents[index], self.others.documents
        low, high = np.searchsorted(documents, [document, document + 1])
        other = int(rng.integers(len(documents) - (high - low)))
        return other if other < low else other + int(high - low)


def truncate_pair(
    first: np.ndarray, second: np.ndarray, budget: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Shorten the longer part, at its front or back by a coin for every token, until both fit
    (google-research/bert, truncate_seq_pair)."""
    lengths = [len(first), len(second)]
    cut = [0, 0]
    while sum(lengths) - sum(cut) > budget:
        longer = int(lengths[0] - cut[0] <= lengths[1] - cut[1])
        # The difference to the other part goes at once, the rest in turn.
        excess = sum(lengths) - sum(cut) - budget
        lead = abs((lengths[0] - cut[0]) - (lengths[1] - cut[1]))
        cut[longer] += max(1, min(excess, lead))
    parts = []
    for part, count in zip((first, second), cut, strict=True):
        front = int(rng.binomial(count, 0.5))
        parts.append(part[front : len(part) - (count - front)])
    return parts[0], parts[1]


def pretraining_data(
    store: Store,
    tokenizer: Tokenizer,
    masking: Masking,
    *,
    max_length: int,
    pairs: bool,
    held_out: float,
    seed: int,
) -> tuple[PretrainingData, PretrainingData]:
    """Training and held-out examples of a store.

    Raises ``InputError`` where pairs are asked of a single document.
    """
    if max_length < 8:
        raise InputError(f"max_length {max_length} is too short; at least 8")
    limit = max_length - (3 if pairs else 2)
    spans = cut_spans(store.sentence_ends, store.document_ends, limit)
    train, held = hold_out(spans, held_out, seed)
    if pairs and _many(spans) and not _many(train):
        train, held = hold_out(spans, 0, seed)
    if pairs and not _many(train):
        raise InputError(
            "next-sentence prediction needs at least two documents, the corpus has one; "
            "pretrain with --objectives mlm"
        )

    def data(chosen: Spans) -> PretrainingData:
        return PretrainingData(
            store,
            chosen,
            chosen if _many(chosen) else train,
            masking,
            tokenizer.cls_id,
            tokenizer.sep_id,
            max_length,
            pairs,
            seed,
        )

    return data(train), data(held)


def _many(spans: Spans) -> bool:
    """Whether they are of more than one document."""
    return len(spans) > 1 and spans.documents[0] != spans.documents[-1]
