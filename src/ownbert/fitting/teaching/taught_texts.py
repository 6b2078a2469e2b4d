"""The texts that a network is taught on: pieces of unlabelled ones, and mixed labelled ones."""

import random
from collections.abc import Sequence

import numpy as np

from ownbert.fitting.rows.labelled_rows import LabelledRows
from ownbert.views.tokens import written_tokens
from ownbert.views.view_features import Texts

# Mixed texts for each labelled one, and texts, at most.
_MIXED, _MOST_TEXTS = 8, 100_000

# Characters of a piece of a text, at least.
_SHORTEST_PIECE = 40
# Tokens of a span of a mixed text, at most. With spans of up to 2, 10 and 20 the taught network was
# worse (docs/lab/distilled-network.md).
_LONGEST_SPAN = 5
# Texts that a mixed one of more than so many tokens is made of, at most. Long texts made of any
# number of them are all alike, and no teacher tells them apart (docs/lab/distilled-network.md).
_LONG, _MOST_SOURCES = 40, 3


def taught_texts(
    rows: LabelledRows, labelled: Texts, unlabelled: Texts, count: int, *, given: bool, seed: int
) -> tuple[list[str], list[str]]:
    """``count`` texts to be taught on: pieces of unlabelled ones and, where these run short and the
    network was not given, mixed labelled ones (docs/lab/distilled-network.md), none of them of the
    first fold's held-out rows."""
    lengths = [sum(map(len, row)) for row in labelled.rows]
    order = np.random.default_rng(seed).permutation(len(unlabelled))
    texts = [unlabelled.rows[i][0] for i in order]
    learnt = [text for (text,) in rows.texts(rows.folds[0][0])]
    most = 0 if given else min(_MIXED * len(learnt), _MOST_TEXTS)
    pieces = pieces_of(texts, int(np.quantile(lengths, 0.9)))[:count]
    return pieces, mixed_texts(learnt, labelled.kind, min(most, count - len(pieces)), seed)


def pieces_of(texts: Sequence[str], longest: int) -> list[str]:
    """Texts in pieces of up to ``longest`` characters, so that they are as long as labelled ones:
    first the first piece of each, then the second ones, and so on."""
    longest = max(longest, _SHORTEST_PIECE)
    found: dict[int, list[str]] = {}
    for text in texts:
        start, number = 0, 0
        while start < len(text):
            end = start + longest
            # A short rest stays with the piece before it; words are not cut, where there are any.
            end = len(text) if end + longest / 2 >= len(text) else text.rfind(" ", start, end)
            end = end if end > start else start + longest
            if piece := text[start:end].strip():
                found.setdefault(number, []).append(piece)
            start, number = end, number + 1
    return [piece for own in found.values() for piece in own]


def mixed_texts(texts: Sequence[str], kind: str, count: int, seed: int) -> list[str]:
    """Texts each of which is made of short spans of several texts, long ones of up to three, and as
    long as one of them.

    What a teacher says of the texts that it has learnt from is little more than their labels. These
    have the same words and neighbours, and are new to it. (Tang et al. 2019, "Distilling
    task-specific knowledge from BERT into simple neural networks", sample one n-gram of a text.)

    Args:
        texts: at least one.
        kind: of the texts, one of ``ownbert.views.tokens.KINDS``.
        count: of the texts to make.
        seed: of the drawing.
    """
    split = written_tokens(kind)
    tokens = [own for own in map(split, texts) if own]
    if not tokens:
        return []
    drawn = random.Random(seed)
    between = "" if kind == "chinese" else " "
    mixed = []
    for _ in range(count):
        length, sources = len(drawn.choice(tokens)), tokens
        if length > _LONG:
            sources = drawn.sample(tokens, min(len(tokens), drawn.randint(1, _MOST_SOURCES)))
        spans: list[str] = []
        while length > 0:
            source = drawn.choice(sources)
            size = min(drawn.randint(1, _LONGEST_SPAN), len(source), length)
            start = drawn.randint(0, len(source) - size)
            spans += source[start : start + size]
            length -= size
        mixed.append(between.join(spans))
    return mixed
