"""Words as pieces, and sentences as windows of words."""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ownbert.batches.example import Example
from ownbert.tasks.text_input import TextInputBuilder

# The tag of tokens without one.
NO_TAG = -1


@dataclass(frozen=True, slots=True)
class WordWindow:
    """Words of a sentence, and which of them the window tags.

    Args:
        start, stop: the words (stop exclusive).
        first, last: those that are tagged (last exclusive), because they have more context here
            than in the neighbours.
    """

    start: int
    stop: int
    first: int
    last: int


def encode_words(words: Iterable[str], builder: TextInputBuilder) -> dict[str, list[int]]:
    """The ids of each distinct word on its own: at least one, and no more than fit in a window.

    As with ``is_split_into_words`` in Transformers, and ``add_prefix_space`` for byte-level BPE.
    """
    tokenizer, room = builder.tokenizer, builder.room
    distinct = list(dict.fromkeys(words))
    # Byte-level BPE marks the start of a word by the blank before it.
    blank = " " if tokenizer.kind == "bpe" else ""
    encoded = builder.ids([blank + word for word in distinct])
    # A word of control characters has no ids.
    return {w: ids[:room] or [tokenizer.unk_id] for w, ids in zip(distinct, encoded, strict=True)}


def split_into_windows(sizes: Sequence[int], room: int, stride: int) -> list[WordWindow]:
    """The windows of a sentence, each of as many words as fit in ``room`` pieces.

    Windows that would tag no word are left out; a sentence without words has one empty window.

    Args:
        sizes: the number of pieces of each word.
        room: the most pieces of a window.
        stride: words that neighbours share, or half of the earlier window if that is less.
    """
    spans = list(_spans(sizes, room, stride))
    far = len(sizes)
    best = np.full(far, -1, dtype=np.int32)
    chosen = np.zeros(far, dtype=np.int32)
    for number, (start, stop) in enumerate(spans):
        here = np.arange(start, stop)
        # The ends of the sentence are not edges: no context is missing there.
        left = here - start if start else np.full(stop - start, far)
        right = stop - 1 - here if stop < far else np.full(stop - start, far)
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
        window: the words to read and to tag.
        pieces: the ids of each word of the sentence.
        tags: the class of each word, given to its first piece; None gives these pieces class 0, to
            mark them.
        builder: adds the special tokens.
        continuation: for each class, that of the other pieces of a word; None: they have no tag.
        words: as of an ``Example``.
    """
    ids: list[int] = []
    token_tags = [NO_TAG] * builder.format.before
    for word in range(window.start, window.stop):
        own = pieces[word]
        ids += own
        tag = rest = NO_TAG
        if window.first <= word < window.last:
            tag = 0 if tags is None else tags[word]
            rest = NO_TAG if continuation is None else continuation[tag]
        token_tags += [tag, *[rest] * (len(own) - 1)]
    token_tags += [NO_TAG] * builder.format.behind
    targets = {"tags": np.asarray(token_tags, dtype=np.int64), "words": words}
    return builder.example([ids], **targets)[0]


def join_windows(examples: Iterable[Example], *, marks: bool = False) -> Example:
    """Windows of a sentence as one example. Of a text of megabytes the tokens are in memory once if
    the windows are made one by one.

    Args:
        examples: the windows.
        marks: the tags only mark words, and the arrays may be small ones.
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
    arrays: dict[str, Any] = {
        name: np.frombuffer(column, kinds[name]) for name, column in columns.items()
    }
    return Example(**arrays, parts=tuple(parts), words=np.concatenate(words) if words else None)
