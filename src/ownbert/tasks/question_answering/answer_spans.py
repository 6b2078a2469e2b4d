"""Questions and texts as windows of tokens, what is learnt of them, and the best span.

T tokens, B sequences (windows) of a batch, W windows of a row, N tokens of its context, n of a
window of it.
"""

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ownbert.data.batch import Batch, Example
from ownbert.objectives import Loss
from ownbert.tasks.row_objectives import RowObjective
from ownbert.tasks.text_input import TextInputBuilder

# Tokens of a question; what is beyond is cut off (Devlin et al. 2019, their code for SQuAD).
LONGEST_QUESTION = 64
# Tags of the tokens that an answer starts and ends with.
START, END = 1, 2
# Texts of which all that the tokenizer tells is in memory at a time.
_TEXTS = 256


class EncodedContext(NamedTuple):
    """Tokens of a text: ids (N), and the characters (N, 2) that each is of, ends exclusive."""

    ids: np.ndarray
    offsets: np.ndarray


def encode_contexts(texts: Sequence[str], builder: TextInputBuilder) -> dict[str, EncodedContext]:
    """The tokens of each text, each text encoded once."""
    unique, found = list(dict.fromkeys(texts)), {}
    for start in range(0, len(unique), _TEXTS):
        block = unique[start : start + _TEXTS]
        encodings = builder.tokenizer.encoder.encode_batch(block, add_special_tokens=False)
        for text, encoding in zip(block, encodings, strict=True):
            offsets = np.asarray(encoding.offsets, dtype=np.int32).reshape(-1, 2)
            # A piece of nothing (the blank before a word) would break the order for searches.
            offsets = np.maximum.accumulate(offsets, axis=0)
            found[text] = EncodedContext(np.asarray(encoding.ids, dtype=np.int32), offsets)
    return found


def token_span(context: EncodedContext, start: int, end: int) -> tuple[int, int] | None:
    """The first and last token of the characters from ``start`` to ``end`` (exclusive), or None if
    no token is of them (the tokenizer dropped them)."""
    starts, ends = context.offsets.T
    first = int(np.searchsorted(ends, start, side="right"))
    last = int(np.searchsorted(starts, end, side="left")) - 1
    return (first, last) if first <= last else None


def characters(text: str, offsets: np.ndarray, first: int, last: int) -> tuple[int, int]:
    """Characters of the text, end exclusive, that tokens ``first`` to ``last`` stand for, without
    blanks around them (some tokenizers count the one before a word as of its first token) and with
    the accents of the last letter (some drop these). offsets (N, 2)."""
    start, end = int(offsets[first, 0]), int(offsets[last, 1])
    while start < end and text[start].isspace():
        start += 1
    while start < end and text[end - 1].isspace():
        end -= 1
    while end < len(text) and unicodedata.category(text[end]).startswith("M"):
        end += 1
    return start, end


class WindowPosition(NamedTuple):
    """cls: row of its first token in the scores of the question; end: after its last; first: row
    of its first token of the context, which is token ``begin`` there; size: n."""

    cls: int
    end: int
    first: int
    begin: int
    size: int


@dataclass(frozen=True)
class QuestionWindows:
    """A question with all of its windows. pieces: token ids and types of each. offsets (N, 2).
    cut: whether the question or the context lost its end."""

    pieces: tuple[tuple[np.ndarray, np.ndarray], ...]
    places: tuple[WindowPosition, ...]
    cut: bool

    def examples(self, span: tuple[int, int] | None) -> list[Example]:
        """One example per window. span: first and last token of the answer in the context; where it
        is not wholly in the window the answer is the first token, [CLS]."""
        found = []
        for (ids, types), (cls, _, first, begin, size) in zip(
            self.pieces, self.places, strict=True
        ):
            tags = np.zeros(len(ids), dtype=np.int8)
            inside = span is not None and begin <= span[0] and span[1] < begin + size
            start, end = (first - cls - begin + at for at in span) if span and inside else (0, 0)
            tags[start] |= START
            tags[end] |= END
            found.append(Example(ids, types, tags=tags))
        return found


def cut_windows(
    question: Sequence[int],
    context: EncodedContext,
    builder: TextInputBuilder,
    *,
    stride: int,
    most: int,
) -> QuestionWindows:
    """[CLS] question [SEP] part of the context [SEP], as often as the context needs.

    The question has half of a window at most. stride: tokens that neighbours share, at most half
    of what the context has in one. most: windows.
    """
    asked = question[: min(LONGEST_QUESTION, builder.pair_room // 2)]
    size = builder.pair_room - len(asked)
    step = size - min(stride, size // 2)
    begins = range(0, max(1, len(context.ids) - (size - step)), step)
    pieces, places, row = [], [], 0
    for begin in begins[:most]:
        part = context.ids[begin : begin + size]
        ids, types = builder.pair(asked, part.tolist())
        first = row + len(ids) - 1 - len(part)
        places.append(WindowPosition(row, row + len(ids), first, begin, len(part)))
        pieces.append((ids.astype(np.int32), types.astype(np.int8)))
        row += len(ids)
    cut = len(asked) < len(question) or len(begins) > most
    return QuestionWindows(tuple(pieces), tuple(places), cut)


class Span(NamedTuple):
    """Tokens ``first`` to ``last`` of the context, in window ``window``; score: start plus end."""

    score: float
    window: int
    first: int
    last: int


def best_span(raw: np.ndarray, places: Sequence[WindowPosition], longest: int) -> Span | None:
    """The span of at most ``longest`` tokens in one window with the highest score; None where the
    context has no token. raw (T, 2) as ``Answer.raw`` gives it."""
    found = None
    for number, (_, _, first, begin, size) in enumerate(places):
        if not size:
            continue
        starts, ends = raw[first : first + size].T  # (n)
        reach = min(longest, size)
        padded = np.concatenate([ends, np.full(reach - 1, -np.inf, dtype=ends.dtype)])
        near = np.lib.stride_tricks.sliding_window_view(padded, reach)  # (n, reach)
        scores = starts + near.max(1)
        start = int(scores.argmax())
        if found is None or scores[start] > found.score:
            end = start + int(near[start].argmax())
            found = Span(float(scores[start]), number, begin + start, begin + end)
    return found


def null_span(raw: np.ndarray, places: Sequence[WindowPosition]) -> Span:
    """[CLS] of the window that likes it least, whose score is that of no answer (Devlin et al.
    2019, section 4.3)."""
    scores = [float(raw[window.cls].sum()) for window in places]
    number = int(np.argmin(scores))
    return Span(scores[number], number, 0, 0)


def probability(raw: np.ndarray, places: Sequence[WindowPosition], span: Span) -> float:
    """Of a span's start times that of its end, among the tokens of its window."""
    window = places[span.window]
    own = raw[window.cls : window.end].astype(float)
    highest = own.max(0)
    sums = highest + np.log(np.exp(own - highest).sum(0))  # (2)
    return float(np.exp(span.score - sums.sum()))


@dataclass(frozen=True)
class SpanObjective(RowObjective):
    """Mean of the cross entropies of the first and last token of the answer, over all tokens of
    each window (Devlin et al. 2019, section 4.2). The tags of a batch say where it is."""

    name: str = "answer"
    head: str = "span"

    def count(self, batch: Batch) -> int:
        return 0 if batch.tags is None else batch.sequences

    def __call__(self, logits: Tensor, batch: Batch) -> Loss:
        assert batch.tags is not None
        scores = log_softmax(logits, batch)  # (T, 2)
        truth = torch.stack([batch.tags & START, batch.tags & END], -1) > 0
        total = -(scores * truth).sum() / 2
        highest = torch.segment_reduce(
            scores.detach(), "max", lengths=batch.layout.cu_seqlens.diff()
        )
        hits = ((scores >= highest[batch.layout.sequences]) & truth).sum(1)  # (T)
        right = hits.new_zeros(batch.sequences).index_add(0, batch.layout.sequences, hits) == 2
        return Loss(total, right.sum(), batch.sequences)

    def distance(self, one: Tensor, two: Tensor, batch: Batch) -> Tensor:
        a, b = log_softmax(one, batch), log_softmax(two, batch)
        return ((a.exp() - b.exp()) * (a - b)).sum() / 4  # two ways, two softmaxes


def log_softmax(logits: Tensor, batch: Batch) -> Tensor:
    """Over the tokens of each sequence, in float32: (T, C) -> (T, C)."""
    logits, layout = logits.float(), batch.layout
    lengths = layout.cu_seqlens.diff()
    # Subtracted for the sake of range alone: a softmax does not change by it.
    highest = torch.segment_reduce(logits.detach(), "max", lengths=lengths)  # (B, C)
    shifted = logits - highest[layout.sequences]
    sums = logits.new_zeros(highest.shape).index_add(0, layout.sequences, shifted.exp())
    return shifted - sums.log()[layout.sequences]
