"""Explanations of predictions. U words of a row."""

import html
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ownbert.batches.example import Example
from ownbert.inspect.explain.input_words import Word
from ownbert.inspect.explain.targets import Target


@dataclass(frozen=True)
class Explanation:
    """The relevance of a row's words for a prediction.

    Args:
        row: index among the given rows; rows without words have no explanation.
        texts: texts of the row.
        target: explained target, such as a label.
        probability: probability of the target, or its value.
        method: name of the method.
        words: U words as character spans in the texts.
        values: (U) relevance of each word, positive if it supports the target.
        gap: for integrated gradients, see ``Relevance``.
        answers: most probable predictions with their probabilities, for discrete predictions.
        of_network: whether the prediction is that of the network of a folder whose predictions
            come from a blend.
    """

    row: int
    texts: tuple[str, ...]
    target: str
    probability: float
    method: str
    words: tuple[Word, ...]
    values: np.ndarray
    gap: float | None = None
    answers: tuple[tuple[str, float], ...] = ()
    of_network: bool = False

    def word(self, index: int) -> str:
        """The word as written in its text."""
        word = self.words[index]
        return self.texts[word.text][word.start : word.end]

    def pieces(self, number: int) -> Iterator[tuple[str, float]]:
        """Yield the parts of a text; words with their share of the largest value, others with 0."""
        largest = float(np.abs(self.values).max(initial=0)) or 1.0
        text, end = self.texts[number], 0
        for word, value in zip(self.words, self.values.tolist(), strict=True):
            if word.text == number and word.start >= end:
                yield text[end : word.start], 0.0
                yield text[word.start : word.end], value / largest
                end = word.end
        yield text[end:], 0.0

    def to_dict(self) -> dict[str, Any]:
        """The explanation as JSON values."""
        return {
            "texts": list(self.texts),
            "target": self.target,
            "score": round(self.probability, 6),
            "method": self.method,
            **({"model": "network"} if self.of_network else {}),
            "words": [
                {"word": self.word(i), "text": word.text, "start": word.start, "end": word.end}
                | {"value": float(f"{value:.6g}")}
                for i, (word, value) in enumerate(zip(self.words, self.values, strict=False))
            ],
            **({} if self.gap is None else {"gap": round(self.gap, 6)}),
        }

    def __repr__(self) -> str:
        order = np.argsort(-np.abs(self.values), kind="stable")[:5]
        most = ", ".join(f"{self.word(i)} {self.values[i]:+.3g}" for i in order)
        of = " of the network" if self.of_network else ""
        return f"Explanation({self.target!r}{of}, {self.probability:.3f}: {most})"

    def _repr_html_(self) -> str:
        """HTML for notebooks: supporting words in blue, opposing words in red."""
        shown = [f"<b>{html.escape(self.target)}</b> {self.probability:.3f}"]
        for number in range(len(self.texts)):
            line = ""
            for text, share in self.pieces(number):
                color = f"rgba({'33,102,172' if share > 0 else '178,24,43'},{abs(share):.2f})"
                escaped = html.escape(text)
                line += f'<span style="background:{color}">{escaped}</span>' if share else escaped
            shown.append(line)
        return "<br>".join(shown)


@dataclass(frozen=True)
class ExplainedRow:
    """A row as model input; tagged words are joined into one text.

    Args:
        number: index among the given rows.
    """

    number: int
    texts: tuple[str, ...]
    example: Example
    words: Sequence[Word]
    targets: Sequence[Target]

    def explanation(self, target: str, probability: float, method: str, *found: Any) -> Explanation:
        """The explanation of a target by values, their gap and the most probable answers."""
        words = tuple(self.words)
        return Explanation(self.number, self.texts, target, probability, method, words, *found)
