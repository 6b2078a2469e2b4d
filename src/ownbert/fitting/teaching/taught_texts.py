"""Texts for distillation: pieces of unlabelled texts, and mixtures of labelled texts."""

import random
from collections.abc import Sequence

import numpy as np

from ownbert.fitting.rows.labelled_rows import LabelledRows
from ownbert.views.tokens import written_tokens
from ownbert.views.view_features import Texts

# Maximum number of mixed texts per labelled text, and in total.
_MIXED, _MOST_TEXTS = 8, 100_000

# Minimum characters of a piece.
_SHORTEST_PIECE = 40
# Maximum tokens of a span in a mixed text. With 2, 10 and 20 the distilled network was worse
# (docs/lab/distilled-network.md).
_LONGEST_SPAN = 5
# A mixed text with more than _LONG tokens has at most _MOST_SOURCES source texts. Long mixtures of
# many texts would all be similar, with similar predictions (docs/lab/distilled-network.md).
_LONG, _MOST_SOURCES = 40, 3


def taught_texts(
    rows: LabelledRows, labelled: Texts, unlabelled: Texts, count: int, *, given: bool, seed: int
) -> tuple[list[str], list[str]]:
    """Texts for distillation (docs/lab/distilled-network.md).

    Args:
        rows: the labelled rows.
        labelled: their texts, whose lengths determine the lengths of the pieces.
        unlabelled: unlabelled texts.
        count: number of texts wanted.
        given: whether the network was given by the user; it is not taught on mixed texts.
        seed: seed for sampling.

    Returns:
        Pieces of unlabelled texts and, if there are fewer than ``count``, mixtures of the first
        fold's training texts.
    """
    lengths = [sum(map(len, row)) for row in labelled.rows]
    order = np.random.default_rng(seed).permutation(len(unlabelled))
    texts = [unlabelled.rows[i][0] for i in order]
    learnt = [text for (text,) in rows.texts(rows.folds[0][0])]
    most = 0 if given else min(_MIXED * len(learnt), _MOST_TEXTS)
    pieces = pieces_of(texts, int(np.quantile(lengths, 0.9)))[:count]
    return pieces, mixed_texts(learnt, labelled.kind, min(most, count - len(pieces)), seed)


def pieces_of(texts: Sequence[str], longest: int) -> list[str]:
    """Cut texts into pieces of up to ``longest`` characters, the length of labelled texts.

    The first pieces of all texts come first, then the second pieces, and so on.
    """
    longest = max(longest, _SHORTEST_PIECE)
    pieces_by_index: dict[int, list[str]] = {}
    for text in texts:
        start, number = 0, 0
        while start < len(text):
            end = start + longest
            # A short remainder is part of the previous piece; cut at spaces, if there are any.
            end = len(text) if end + longest / 2 >= len(text) else text.rfind(" ", start, end)
            end = end if end > start else start + longest
            if piece := text[start:end].strip():
                pieces_by_index.setdefault(number, []).append(piece)
            start, number = end, number + 1
    return [piece for own in pieces_by_index.values() for piece in own]


def mixed_texts(texts: Sequence[str], kind: str, count: int, seed: int) -> list[str]:
    """Make texts from short spans of several texts; each is as long as one of the texts.

    A teacher's predictions for its own training texts are hardly more than their labels. Mixed
    texts have the same words and neighbours, but are new to the teacher.

    Args:
        texts: at least one text.
        kind: kind of the texts, one of ``ownbert.views.tokens.KINDS``.
        count: number of texts to make.
        seed: seed for sampling.

    Returns:
        ``count`` texts; none if no text has a token.

    Source: cf. Tang et al. 2019, "Distilling task-specific knowledge from BERT into simple neural
    networks", who sample one n-gram of a text.
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
