"""Explanations of predictions, and the words of an input with the positions of their tokens.

U words of a row, T tokens of an example.
"""

import html
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ownbert.batches.example import Example
from ownbert.inspect.explain.targets import Target
from ownbert.text.text_parts import span_in, split_sentences
from ownbert.text.tokenizer import Tokenizer

_BYTES = np.dtype(np.int64).itemsize


@dataclass(frozen=True)
class Word:
    """A word in a row's texts, or a longer span: the index of the text, the characters from
    ``start`` to ``end`` (exclusive), and the positions of all its tokens in the example, in all
    windows that contain it."""

    text: int
    start: int
    end: int
    positions: tuple[int, ...]


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
    """A row as model input; tagged words are joined into one text. ``number``: index among the
    rows."""

    number: int
    texts: tuple[str, ...]
    example: Example
    words: Sequence[Word]
    targets: Sequence[Target]

    def explanation(self, target: str, probability: float, method: str, *found: Any) -> Explanation:
        """The explanation of a target by values, their gap and the most probable answers."""
        words = tuple(self.words)
        return Explanation(self.number, self.texts, target, probability, method, words, *found)


def words_of(
    example: Example, texts: Sequence[str], tokenizer: Tokenizer, *, are_words: bool = False
) -> list[Word]:
    """The words of a row that the model sees, in order; truncated words are missing. Texts are
    located in the example by their ids, so this works for all tasks.

    ``are_words``: whether the texts are the words of one text (tagging).
    """
    encodings = tokenizer.encodings(list(texts))
    tokens = [[(t, i) for i in range(len(e.ids))] for t, e in enumerate(encodings)]
    if are_words:
        tokens = [[token for text_tokens in tokens for token in text_tokens]]
    known = [encoding.ids for encoding in encodings]  # each access creates a new list
    ids = [
        np.asarray([known[t][i] for t, i in text_tokens], dtype=np.int64).tobytes()
        for text_tokens in tokens
    ]
    places: dict[tuple[int, int], list[int]] = {}  # (text, token) -> positions
    used: set[tuple[int, int]] = set()
    for start, stretch in _segments(example, tokenizer):
        number, first = _locate(ids, stretch, used)
        if number is None:
            continue
        used.add((number, first))
        for i, token in enumerate(tokens[number][first : first + len(stretch)]):
            places.setdefault(token, []).append(start + i)
    numbers, spans = [e.word_ids for e in encodings], [e.offsets for e in encodings]
    words: dict[tuple[int, int], list[tuple[int, int]]] = {}  # (text, word) -> its tokens
    for text, token in sorted(places):
        word = 0 if are_words else numbers[text][token]
        words.setdefault((text, token if word is None else word), []).append((text, token))
    all_words: list[Word] = []
    for (text, _), text_words in words.items():
        offsets = [spans[text][token] for _, token in text_words]
        start, end = min(a for a, _ in offsets), max(b for _, b in offsets)
        start, end = span_in(texts[text], start, end)
        positions = sorted(p for token in text_words for p in places[token])
        word = Word(text, start, end, tuple(positions))
        # A combining accent that is a separate token belongs to its letter.
        follows = all_words and all_words[-1].text == text and start < all_words[-1].end
        all_words[-1:] = [joined([all_words[-1], word])] if follows else [*all_words[-1:], word]
    return all_words


def in_one_text(words: Sequence[Word], texts: Sequence[str]) -> tuple[list[Word], str]:
    """Join texts that are words into one text; return the words as spans in it, and the text."""
    starts = np.cumsum([0, *(len(text) + 1 for text in texts)]).tolist()
    moved = [
        Word(0, starts[word.text] + word.start, starts[word.text] + word.end, word.positions)
        for word in words
    ]
    return moved, " ".join(texts)


def sentences_of(words: Sequence[Word], texts: Sequence[str]) -> list[Word]:
    """Merge words into the sentences that contain them."""
    sentences: list[Word] = []
    for number, text in enumerate(texts):
        end = 0
        for sentence in split_sentences(text):
            start = text.find(sentence, end)
            start, end = (end if start < 0 else start), max(start, end) + len(sentence)
            inside = [w for w in words if w.text == number and start <= w.start < end]
            if inside:
                sentences.append(joined(inside))
    return sentences


def joined(words: Sequence[Word]) -> Word:
    """Merge neighbouring words of a text into one span."""
    positions = sorted(p for word in words for p in word.positions)
    return Word(words[0].text, words[0].start, words[-1].end, tuple(positions))


def _segments(example: Example, tokenizer: Tokenizer) -> list[tuple[int, np.ndarray]]:
    """The segments of ids between special tokens, with their positions in the example."""
    borders = {*tokenizer.start_ids, tokenizer.sep_id, tokenizer.pad_id}
    ends = set(np.cumsum(example.lengths).tolist())
    segments, start = [], 0
    for position, index in enumerate([*example.token_ids.tolist(), tokenizer.sep_id]):
        if index in borders or position in ends:
            if position > start:
                segments.append((start, example.token_ids[start:position]))
            start = position + (index in borders)
    return segments


def _locate(
    texts: Sequence[bytes], stretch: np.ndarray, used: set[tuple[int, int]]
) -> tuple[int | None, int]:
    """Find a segment in the texts, preferably in an unused text: return the index of the text and
    of the first token; None if no text contains the segment."""
    needle, first_place = stretch.astype(np.int64).tobytes(), (None, 0)
    for number, text in enumerate(texts):
        start = text.find(needle)
        while start >= 0:
            place = (number, start // _BYTES)
            if start % _BYTES == 0:
                if place not in used:
                    return place
                first_place = place if first_place[0] is None else first_place
            start = text.find(needle, start + 1)
    return first_place
