"""Splits words into tokens, and sentences into windows of words."""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ownbert.batches.example import Example
from ownbert.tasks.text_input import TextInputBuilder

# Tag of tokens without a tag.
NO_TAG = -1


@dataclass(frozen=True, slots=True)
class WordWindow:
    """A window of words, and the words that are tagged in it.

    Args:
        start, stop: range of words, ``stop`` exclusive.
        first, last: range of tagged words, ``last`` exclusive; these have more context here than
            in the neighbouring windows.
    """

    start: int
    stop: int
    first: int
    last: int


def encode_words(words: Iterable[str], builder: TextInputBuilder) -> dict[str, list[int]]:
    """The ids of each distinct word: at least one, and at most as many as fit in a window.

    Same as ``is_split_into_words`` in Transformers, and ``add_prefix_space`` for byte-level BPE.
    """
    tokenizer, room = builder.tokenizer, builder.room
    distinct = list(dict.fromkeys(words))
    # Byte-level BPE marks the start of a word by the space before it.
    blank = " " if tokenizer.kind == "bpe" else ""
    encoded = builder.ids([blank + word for word in distinct])
    # A word of control characters has no tokens.
    return {w: ids[:room] or [tokenizer.unk_id] for w, ids in zip(distinct, encoded, strict=True)}


def split_into_windows(sizes: Sequence[int], room: int, stride: int) -> list[WordWindow]:
    """Split a sentence into windows with as many words as fit in ``room`` tokens.

    Windows that would tag no word are dropped; a sentence without words has one empty window.

    Args:
        sizes: number of tokens of each word.
        room: maximum tokens of a window.
        stride: number of words shared by neighbouring windows, at most half of the earlier one.
    """
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
    """A window as an example with a tag for each token.

    Args:
        window: words of the window and those to tag.
        pieces: ids of each word of the sentence.
        tags: class of each word, assigned to its first token; None assigns class 0 to these tokens
            as a mark.
        builder: adds the special tokens.
        continuation: for each class, the class of a word's other tokens; None: they have no tag.
        words: see ``Example``.
    """
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
    """Combine the windows of a sentence into one example.

    Args:
        examples: windows; passing an iterator avoids holding a long text in memory twice.
        marks: whether tags only mark words, so that arrays may be small.
    """
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
