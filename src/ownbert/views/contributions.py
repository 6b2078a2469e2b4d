"""Attribution: how much each character of a text contributes to an output of a linear model.

For a fixed text length the features are linear in the n-grams, so contributions sum to the output
minus the bias. An n-gram's contribution is divided among the characters of its words.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain, pairwise

import numpy as np

from ownbert.views.ngram_counts import character_occurrences
from ownbert.views.tokens import lowered, spans_of
from ownbert.views.view_features import (
    CHARACTER_ORDERS,
    CharacterView,
    LsaView,
    NgramView,
    Texts,
    View,
)

# A character span in one of the texts: (text index, start, end).
_Span = tuple[int, int, int]


def contributions(
    view: View, texts: tuple[str, ...], kind: str, weights: np.ndarray
) -> list[np.ndarray]:
    """Contributions of the characters of a row's texts to ``features @ weights``.

    Args:
        view: view of the model.
        texts: one or two texts of the row.
        kind: kind of text, for the tokenisation.
        weights: (F) weights of one output of the linear model.

    Returns:
        One array per text with a contribution for each character.
    """
    values = [np.zeros(len(text)) for text in texts]
    for spans, value in _parts(view, Texts([texts], kind), weights):
        share = value / sum(end - start for _, start, end in spans)
        for text, start, end in spans:
            values[text][start:end] += share
    return values


def _parts(view: View, row: Texts, weights: np.ndarray) -> Iterable[tuple[list[_Span], float]]:
    """Yield the character spans and the contribution of each occurrence of an n-gram."""
    if isinstance(view, CharacterView):
        spans, occurrences = _characters(view, row)
        features, outputs = view.features(row), weights
    elif isinstance(view, LsaView):
        spans, words = _spans(row), row.words[0]
        if len(words) < len(spans):  # words are pairs of adjacent tokens
            spans = [[*one, *two] for one, two in pairwise(spans)] or spans
        occurrences = list(view.ngrams.occurrences(words))
        features = view.weighted(row)
        length = np.linalg.norm(features @ view.components)
        outputs = view.components @ weights / max(float(length), 1e-12)
    else:
        assert isinstance(view, NgramView)
        spans, occurrences = _spans(row), list(view.ngrams.occurrences(row.tokens[0]))
        features, outputs = view.features(row), weights
    values = dict(zip(features.indices.tolist(), features.data.tolist(), strict=True))
    times = Counter(column for *_, column in occurrences)
    for first, size, column in occurrences:
        parts = [span for several in spans[first : first + size] for span in several]
        if parts and column in values:
            yield parts, values[column] * float(outputs[column]) / times[column]


def _spans(row: Texts) -> list[list[_Span]]:
    """The character spans of each token of a row; a token shared by both texts has spans in
    both."""
    texts = row.rows[0]
    spans = [
        [(number, start, end)]
        for number, text in enumerate(texts)
        for start, end in spans_of(text, row.kind)
    ]
    for token in row.tokens[0][len(spans) :]:  # \x03 and then the token
        known = zip(spans, row.tokens[0], strict=False)
        same = [own for own, name in known if name.removeprefix("\x02") == token[1:]]
        spans.append([*chain(*same)])
    return spans


def _characters(
    view: CharacterView, row: Texts
) -> tuple[list[list[_Span]], Sequence[tuple[int, int, int]]]:
    """The character spans of a lower-cased row, and its n-grams."""
    small, spans = [" "], [[]]
    for number, text in enumerate(row.rows[0]):
        pending = len(small) > 1
        for letter, place in zip(*lowered(text, row.kind), strict=True):
            if letter.isspace():
                pending = len(small) > 1
                continue
            if pending:
                small.append(" ")
                spans.append([])
                pending = False
            small.append(letter)
            spans.append([(number, place, place + 1)])
    text = "".join([*small, " "]) if len(small) > 1 else ""
    occurrences = character_occurrences(text, CHARACTER_ORDERS, len(view.idf))
    return [*spans, []], list(occurrences)
