"""Splits questions and contexts into windows of tokens, and finds the best spans."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ownbert.batches.example import Example
from ownbert.tasks.text_input import TextInputBuilder
from ownbert.text.character_spans import span_in

# Maximum tokens of a question; the rest is truncated (Devlin et al. 2019, run_squad.py).
LONGEST_QUESTION = 64
# Tags of the first and last token of an answer.
START, END = 1, 2


class EncodedContext(NamedTuple):
    """The ids (tokens) of a text, and their character offsets (tokens, 2), end exclusive."""

    ids: np.ndarray
    offsets: np.ndarray


def encode_contexts(texts: Sequence[str], builder: TextInputBuilder) -> dict[str, EncodedContext]:
    """Tokenise each distinct text once."""
    unique = list(dict.fromkeys(texts))
    encoded = builder.tokenizer.with_offsets(unique)
    # An empty token (a space before a word) would break the order needed for binary search.
    return {
        text: EncodedContext(ids, np.maximum.accumulate(offsets, axis=0))
        for text, (ids, offsets) in zip(unique, encoded, strict=True)
    }


def token_span(context: EncodedContext, start: int, end: int) -> tuple[int, int] | None:
    """The first and last token of the characters ``start`` to ``end`` (exclusive); None if the
    tokenizer dropped all of them."""
    starts, ends = context.offsets.T
    first = int(np.searchsorted(ends, start, side="right"))
    last = int(np.searchsorted(starts, end, side="left")) - 1
    return (first, last) if first <= last else None


def characters(text: str, offsets: np.ndarray, first: int, last: int) -> tuple[int, int]:
    """The character span of tokens ``first`` to ``last`` (inclusive), as in ``span_in``, by their
    character offsets (tokens, 2)."""
    return span_in(text, int(offsets[first, 0]), int(offsets[last, 1]))


class WindowPosition(NamedTuple):
    """The position of a window: its tokens ``start`` to ``end`` (exclusive) in the concatenated
    windows of its question, its first context token there (``first``) and in the context
    (``begin``), its number of context tokens, and the index of [CLS], the first token, or the last
    one in XLNet."""

    start: int
    end: int
    first: int
    begin: int
    size: int
    cls: int


@dataclass(frozen=True)
class QuestionWindows:
    """A question with the token ids and types of each of its windows; ``truncated``: whether the
    question or the context was."""

    pieces: tuple[tuple[np.ndarray, np.ndarray], ...]
    positions: tuple[WindowPosition, ...]
    truncated: bool

    def examples(self, span: tuple[int, int] | None) -> list[Example]:
        """One example per window, by the first and last token of the answer in the context; [CLS]
        is the answer in windows that do not contain all of it."""
        examples = []
        for (ids, types), (origin, _, first, begin, size, cls) in zip(
            self.pieces, self.positions, strict=True
        ):
            none = cls - origin
            tags = np.zeros(len(ids), dtype=np.int8)
            inside = span is not None and begin <= span[0] and span[1] < begin + size
            start, end = (
                (first - origin - begin + at for at in span) if span and inside else (none, none)
            )
            tags[start] |= START
            tags[end] |= END
            examples.append(Example(ids, types, tags=tags))
        return examples


def split_context(
    question: Sequence[int],
    context: EncodedContext,
    builder: TextInputBuilder,
    *,
    stride: int,
    most: int,
) -> QuestionWindows:
    """Split into at most ``most`` windows "[CLS] question [SEP] part of the context [SEP]".

    The question is truncated to half a window; neighbouring windows share ``stride`` tokens, at
    most half of their context tokens.
    """
    question_ids = question[: min(LONGEST_QUESTION, builder.pair_room // 2)]
    size = builder.pair_room - len(question_ids)
    step = size - min(stride, size // 2)
    begins = range(0, max(1, len(context.ids) - (size - step)), step)
    pieces, positions, offset = [], [], 0
    for begin in begins[:most]:
        part = context.ids[begin : begin + size]
        ids, types = builder.pair(question_ids, part.tolist())
        end = offset + len(ids)
        first = end - builder.format.behind - len(part)
        cls = end - 1 if builder.format.cls_last else offset
        positions.append(WindowPosition(offset, end, first, begin, len(part), cls))
        pieces.append((ids.astype(np.int32), types.astype(np.int8)))
        offset += len(ids)
    truncated = len(question_ids) < len(question) or len(begins) > most
    return QuestionWindows(tuple(pieces), tuple(positions), truncated)


class Span(NamedTuple):
    """Tokens ``first`` to ``last`` (inclusive) of the context, in a window; ``score`` is the sum of
    the start and end logits."""

    score: float
    window: int
    first: int
    last: int


def best_span(raw: np.ndarray, positions: Sequence[WindowPosition], longest: int) -> Span | None:
    """The span of at most ``longest`` tokens with the highest score within a window, by logits
    (tokens, 2); None if the context has no tokens."""
    best = None
    for number, begin, starts, near in _starts_and_ends(raw, positions, longest):
        scores = starts + near.max(1)
        start = int(scores.argmax())
        if best is None or scores[start] > best.score:
            end = start + int(near[start].argmax())
            best = Span(float(scores[start]), number, begin + start, begin + end)
    return best


def best_spans(
    raw: np.ndarray, positions: Sequence[WindowPosition], longest: int, most: int
) -> list[Span]:
    """The ``most`` spans with the highest scores, best first, without duplicates from overlapping
    windows; see ``best_span``."""
    spans: dict[tuple[int, int], Span] = {}
    for number, begin, starts, near in _starts_and_ends(raw, positions, longest):
        scores = (starts[:, None] + near).ravel()
        chosen = np.argpartition(-scores, min(most, len(scores)) - 1)[:most]
        for place in chosen[np.isfinite(scores[chosen])].tolist():
            start, further = divmod(place, near.shape[1])
            span = Span(float(scores[place]), number, begin + start, begin + start + further)
            known = spans.get(span[2:])
            if known is None or span.score > known.score:
                spans[span[2:]] = span
    return sorted(spans.values(), key=lambda span: (-span.score, *span[1:]))[:most]


def _starts_and_ends(
    raw: np.ndarray, positions: Sequence[WindowPosition], longest: int
) -> Iterator[tuple[int, int, np.ndarray, np.ndarray]]:
    """Yield for each window with context tokens its index, its first context token, the start
    logits (size), and the end logits (size, reach) of tokens from each start on, padded by -inf."""
    for number, (_, _, first, begin, size, _) in enumerate(positions):
        if not size:
            continue
        starts, ends = raw[first : first + size].T  # (size)
        reach = min(longest, size)
        padded = np.concatenate([ends, np.full(reach - 1, -np.inf, dtype=ends.dtype)])
        near = np.lib.stride_tricks.sliding_window_view(padded, reach)  # (size, reach)
        yield number, begin, starts, near


def null_span(raw: np.ndarray, positions: Sequence[WindowPosition]) -> Span:
    """The [CLS] with the lowest score among the windows, the score of "no answer" (Devlin et al.
    2019, section 4.3)."""
    scores = [float(raw[window.cls].sum()) for window in positions]
    number = int(np.argmin(scores))
    return Span(scores[number], number, 0, 0)


def probability(raw: np.ndarray, positions: Sequence[WindowPosition], span: Span) -> float:
    """The probability of a span's start times that of its end, over the tokens of the window."""
    window = positions[span.window]
    window_logits = raw[window.start : window.end].astype(float)
    highest = window_logits.max(0)
    sums = highest + np.log(np.exp(window_logits - highest).sum(0))  # (2)
    return float(np.exp(span.score - sums.sum()))
