"""Explains blends: by their predictions for texts without some of their words, or, if they only
consist of linear models, by the exact contributions of words. C labels, N rows.

An output of a linear model is a sum over the n-grams of a text, so no approximation is needed.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from typing import Any

import numpy as np

from ownbert.inference.blend import Blend
from ownbert.inference.opened_blend import OpenedBlend, score_all
from ownbert.inspect.explain.explanation import Word
from ownbert.inspect.explain.methods import OCCLUSION, method_named
from ownbert.inspect.explain.targets import chosen_labels, likeliest
from ownbert.tasks.classification import SingleLabelTask
from ownbert.tasks.rows import Row
from ownbert.views.linear_models import LinearModel
from ownbert.views.ngram_counts import character_occurrences
from ownbert.views.tokens import lowered, spans_of, text_kind, word_spans
from ownbert.views.view_features import (
    CHARACTER_ORDERS,
    CharacterView,
    LsaView,
    NgramView,
    Texts,
    View,
)

CONTRIBUTIONS = "contributions"


@dataclass(frozen=True)
class OccludedRow:
    """A row of which words are removed; ``score`` maps N rows to the explained output (N)."""

    row: Row
    words: Sequence[Word]
    score: Callable[[Sequence[Row]], np.ndarray]

    def without(self, indices: Sequence[int]) -> Row:
        """The row without the words at ``indices``."""
        texts = [*self.row.texts]
        for word in sorted((self.words[i] for i in indices), key=lambda word: -word.start):
            text = texts[word.text]
            texts[word.text] = text[: word.start] + text[word.end :]
        return replace(self.row, texts=tuple(texts))

    def values(self, inputs: Sequence[Row]) -> np.ndarray:
        """The explained output (N) for N inputs."""
        return score_all(lambda rows: self.score(rows), inputs)


class BlendWords:
    """The words of a row that a blend's prediction depends on; ``methods``: their names, the
    default first."""

    methods = OCCLUSION

    def __init__(self, opened: OpenedBlend) -> None:
        self.predictor = opened

    def targets(self, row: Row, target: str | None, most: int) -> list[tuple[int, str, float]]:
        """(index, name, probability or value) of each target to explain."""
        task: Any = self.predictor.task
        outputs = self._outputs(row)
        chosen = chosen_labels(task, outputs, target, most)
        return [(i, str(task.labels[i]), float(outputs[i])) for i in chosen]

    def answers(self, row: Row) -> tuple[tuple[str, float], ...]:
        """The most probable labels of a row, for single-label tasks."""
        task: Any = self.predictor.task
        single = isinstance(task, SingleLabelTask)
        return likeliest(self._outputs(row), task.labels.__getitem__) if single else ()

    def _outputs(self, row: Row) -> np.ndarray:
        return np.asarray(self.predictor.raws([row])[0][0])

    def words(self, row: Row) -> list[Word]:
        """The words of a row: separated by spaces, or single characters in scripts without
        spaces; codes joined by separators are words."""
        spans = word_spans(row.texts, unspaced=self._kind(row) == "chinese")
        return [
            Word(number, start, end, ()) for number, own in enumerate(spans) for start, end in own
        ]

    def _kind(self, row: Row) -> str:
        return text_kind(row.texts)

    def relevance(self, row: Row, target: int, words: Sequence[Word], method: str) -> np.ndarray:
        """The relevance (words) of words for the output of a label, relative to the other labels if
        only one of them is predicted."""
        blend, single = self.predictor.blend, isinstance(self.predictor.task, SingleLabelTask)

        def score(rows: Sequence[Row]) -> np.ndarray:
            logits = self.predictor.scores(rows, np.asarray(blend.offsets))
            return logits[:, target] - (logits.mean(1) if single else 0.0)

        return method_named(method)(OccludedRow(row, words, score)).values


def answers_linearly(blend: Blend) -> bool:
    """Whether a folder's predictions come from linear models only."""
    return {member.kind for member in blend.members} == {"linear"}


class LinearShares(BlendWords):
    """Contributions of words in the linear models of a folder that predicts with these only."""

    methods = (CONTRIBUTIONS,)

    def _kind(self, row: Row) -> str:
        return next(view.kind for _, view in self._views())

    def _views(self) -> Iterator[tuple[float, Any]]:
        """Yield each linear model with its weight."""
        members = self.predictor.scores.models
        for member, models in zip(self.predictor.blend.members, members, strict=True):
            for view in models:
                yield member.weight / len(models), view

    def relevance(
        self, row: Row, target: int, words: Sequence[Word], method: str = CONTRIBUTIONS
    ) -> np.ndarray:
        """Contributions (words) to the output for a label, relative to the other labels."""
        shares = [np.zeros(len(text)) for text in row.texts]
        for weight, view in self._views():
            direction = _direction(view.model, target)
            parts = contributions(view.view, row.texts, view.kind, direction)
            shares = [one + weight * other for one, other in zip(shares, parts, strict=True)]
        return np.asarray([shares[word.text][word.start : word.end].sum() for word in words])


def _direction(model: LinearModel, target: int) -> np.ndarray:
    """(F) weights of an output; for softmax, minus the mean over outputs."""
    weights = model.weights[:, target].astype(np.float64)
    return weights - model.weights.mean(1) if model.link == "softmax" else weights


# A character span in one of the texts: (text index, start, end).
_Span = tuple[int, int, int]


def contributions(
    view: View, texts: tuple[str, ...], kind: str, weights: np.ndarray
) -> list[np.ndarray]:
    """Contributions of the characters of a row's texts to ``features @ weights``, for weights (F)
    of one output of the linear model: one array per text. ``kind``: kind of text, for the
    tokenisation."""
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
