"""Words as pieces, sentences as windows. L tokens of an example, W words of a sentence."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ownbert.data.batch import Example
from ownbert.tasks.text_input import TextInputBuilder, join

# The tag of a token that has none.
NOTHING = -1


@dataclass(frozen=True, slots=True)
class WordWindow:
    """Words ``start`` to ``stop`` of a sentence, of which it answers those from ``first`` to
    ``last``: where it has more context on the nearer side than the windows beside it."""

    start: int
    stop: int
    first: int
    last: int


def pieces_of(words: Sequence[str], builder: TextInputBuilder) -> dict[str, list[int]]:
    """The ids of each different word, by itself; at least one, and no more than a window holds.

    The same as of ``is_split_into_words`` in Transformers, with ``add_prefix_space`` for
    byte-level pieces.
    """
    tokenizer, room = builder.tokenizer, builder.room
    different = list(dict.fromkeys(words))
    # Byte-level pieces tell the start of a word by the blank before it.
    blank = " " if tokenizer.kind == "bpe" else ""
    found = builder.ids([blank + word for word in different])
    # Of control characters alone nothing is left.
    return {w: ids[:room] or [tokenizer.unk_id] for w, ids in zip(different, found, strict=True)}


def windows_of(sizes: Sequence[int], room: int, stride: int) -> list[WordWindow]:
    """Windows of words with these numbers of pieces, as many words as fit in ``room`` pieces.

    Neighbours share ``stride`` words, or half of the earlier one's if that is less. One without
    words does for a sentence without words; one that would answer nothing is left out.
    """
    spans = list(_spans(sizes, room, stride))
    words, far = np.arange(len(sizes)), len(sizes)
    best = np.full(far, -1)
    chosen = np.zeros(far, dtype=np.int64)
    for number, (start, stop) in enumerate(spans):
        here = words[start:stop]
        # The ends of the sentence are no edges: there is nothing beyond to be missed.
        left = here - start if start else np.full(stop - start, far)
        right = stop - 1 - here if stop < far else np.full(stop - start, far)
        distance = np.minimum(left, right)
        better = distance > best[start:stop]
        chosen[start:stop][better] = number
        best[start:stop][better] = distance[better]
    # What a window answers is one stretch: from the point where it is the better of two on.
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
    further: Sequence[int] | None = None,
) -> Example:
    """A window as a sequence, with ``tags`` (L).

    tags: a class for each word of the sentence, at its first piece; without them class 0 marks
    these places. further: by class, that of the other pieces of a word; without it they have none.
    """
    ids: list[int] = []
    places = [NOTHING]  # of [CLS]
    for word in range(window.start, window.stop):
        own = pieces[word]
        ids += own
        tag = rest = NOTHING
        if window.first <= word < window.last:
            tag = 0 if tags is None else tags[word]
            rest = NOTHING if further is None else further[tag]
        places += [tag, *[rest] * (len(own) - 1)]
    return builder.example([ids], tags=np.asarray([*places, NOTHING], dtype=np.int64))[0]


def join_windows(examples: Sequence[Example]) -> Example:
    """The windows of a sentence, or one of them, as an example with one answer."""
    tags = np.concatenate([e.tags for e in examples if e.tags is not None])
    return join(examples, tags=tags)
