"""Explanations of predictions, and the words of an input with the positions of their tokens; as an
HTML page (coloured texts, selection of method and prediction, and the model's internals), as a page
of the most unusual scored texts, and as a PNG image.

U words of a row, T tokens of an example.
"""

import html
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from heapq import heappush, heappushpop
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ownbert.batches.example import Example
from ownbert.exceptions import InputError
from ownbert.figures import DPI, figure_class, fonts_for, save_figure
from ownbert.files.writing import write_text
from ownbert.inference.score import ScoredText
from ownbert.inspect.explain.targets import Target
from ownbert.inspect.internals.observation import Observation, as_data, packed_bytes, view_page
from ownbert.language import translated
from ownbert.language.messages import Message
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


# Larger pages take long to open.
_MOST_BYTES = 50_000_000
# Maximum side of an image in pixels; larger images only make the page larger.
_SIDE = 512
# Method name of these explanations; the page uses another scale for it.
SURPRISAL = "surprisal"
# Maximum texts on the page.
_MOST = 200
# Pixels: width, margin, height of a line and of a word's background, and gap between blocks.
_WIDTH, _MARGIN, _LINE, _WORD, _GAP = 1000, 24, 27, 22, 16
_POINTS = 11  # font size
_MOST_LINES = 600  # about 16,000 pixels, which most programs can display
# Colours of supporting and opposing words, as on the page: blue and orange on white.
_SUPPORTING, _OPPOSING = (0x5A, 0x96, 0xD2), (0xE5, 0x8A, 0x2C)
_TEXT, _SOFT, _RULE = "#1c2126", "#5c6670", "#d3d9df"
_BAR = 90  # pixels for a probability of 1
# Line breaks are allowed between words, and around characters of scripts without spaces.
_PIECES = re.compile(r"\s+|[\u1100-\u11ff\u3000-\u9fff\uac00-\ud7af\uff00-\uffef]|[^\s\u1100-\u11ff"
                     r"\u3000-\u9fff\uac00-\ud7af\uff00-\uffef]+")  # fmt: skip


_UNKNOWN = "?"
_MEASURED = 400  # maximum measured characters of a word, more than a line


def write_page(
    explanations: Sequence[Explanation],
    path: Path,
    *,
    title: str,
    inside: Sequence[Observation | None] = (),
    pixels: Sequence[np.ndarray] = (),
) -> None:
    """Write a page of explanations atomically.

    Args:
        explanations: by one or several methods; those of the same row are consecutive.
        inside: internals of the model for each row.
        pixels: for image rows, (height, width, channels) from 0 to 1 for each image.

    Raises:
        InputError: there is nothing to show, or the page would be too large to open.
    """
    rows = [
        [each.to_dict() for each in group]
        for _, group in groupby(explanations, key=lambda each: each.row)
    ]
    if not rows:
        raise InputError("there is nothing to show on a page: no words, or nothing found in them")
    observed = [*inside, *[None] * (len(rows) - len(inside))]
    pictures = [picture_data(each) for each in pixels]
    data = {"rows": rows, "inside": [*map(as_data, observed)], "pictures": pictures}
    page = view_page("inspect/explain/page.html", title, {"title": title, **data}, observed)
    if len(page) > _MOST_BYTES:
        raise InputError(
            "the page would have {count:,.0f} MB; explain fewer rows, or use {--by} sentence",
            len(page) / 1000000.0,
        )
    write_text(path, page)


def picture_data(pixels: np.ndarray) -> dict[str, Any]:
    """An image for a page's script: its size, and RGB bytes."""
    step = max(1, -(-max(pixels.shape[:2]) // _SIDE))
    small = torch.from_numpy(np.ascontiguousarray(pixels, dtype=np.float32)).permute(2, 0, 1)
    if step > 1:
        small = torch.nn.functional.avg_pool2d(small, step, ceil_mode=True)
    colours = small.expand(3, -1, -1) if len(small) == 1 else small
    raw = (255 * colours.permute(1, 2, 0)).round().byte().contiguous().numpy()
    height, width = raw.shape[:2]
    return {"width": width, "height": height, "pixels": packed_bytes(raw.tobytes())}


class MostUnusual:
    """Keeps the texts with the highest scores among all texts that it is called with; counts all,
    and the flagged ones (None without a profile of normal texts)."""

    def __init__(self) -> None:
        self._kept: list[tuple[float, int, ScoredText]] = []
        self.count, self.flagged = 0, None

    def __call__(self, scored: ScoredText) -> None:
        """Add a text, and drop the least unusual one if there are too many."""
        self.count += 1
        if scored.flag is not None:
            self.flagged = (self.flagged or 0) + scored.flag
        if scored.score is not None and scored.tokens:
            add = heappush if len(self._kept) < _MOST else heappushpop
            add(self._kept, (scored.score, -self.count, scored))

    def write(self, path: Path, *, title: str) -> None:
        """Write the page, most unusual text first; ``InputError`` if there were no texts."""
        kept = sorted(self._kept, reverse=True)
        explanations = [_explained(-number - 1, scored) for _, number, scored in kept]
        write_page(explanations, path, title=title)


def _explained(row: int, scored: ScoredText) -> Explanation:
    name = translated("row {row:,}", row + 1) if scored.id is None else str(scored.id)
    found = ["surprisal"] if scored.flag is None else ["flagged" if scored.flag else "not flagged"]
    target = "; ".join([f"{name}: {translated(found[0])}", *scored.reasons])
    words = [Word(0, start, end, (i,)) for i, (start, end) in enumerate(scored.spans)]
    values = np.array(scored.surprisals)
    return Explanation(
        row, (scored.text,), target, scored.score or 0.0, SURPRISAL, tuple(words), values
    )


def draw_explanations(explanations: Sequence[Explanation], path: Path, *, title: str) -> str | None:
    """Draw explanations, one block for each, into a PNG file; those of the same row are
    consecutive.

    Returns:
        A warning or None: characters without a font are drawn as question marks.

    Raises:
        InputError: matplotlib is missing, there is nothing to draw, the image would be too long, or
            most of the characters have no font.
    """
    make_figure = figure_class(path)
    if not explanations:
        raise InputError("there is nothing to draw: no words, or nothing found in them")
    shown = [title, *(f"{each.target} {each.texts}" for each in explanations)]
    shown += [name for each in explanations for name, _ in each.answers]
    family, missing = fonts_for({" ".join(text.split()) for text in shown})
    warning = _warning(missing, "".join(text for each in explanations for text in each.texts))
    figure = make_figure(figsize=(_WIDTH / DPI, 1), dpi=DPI)
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    FigureCanvasAgg(figure)  # needed for measuring
    picture = _Picture(figure, family, missing)
    picture.head(title)
    for number, (_, of_row) in enumerate(groupby(explanations, key=lambda each: each.row)):
        if number:
            picture.rule()
        for each in of_row:
            picture.block(each)
    picture.finish()
    save_figure(figure, path)
    return warning


def _warning(missing: frozenset[str], text: str) -> str | None:
    """A warning about characters that cannot be drawn."""
    if not missing:
        return None
    written = [c for c in text if not c.isspace()]
    unknown = [c for c in written if c in missing]
    names = "".join(sorted(missing)[:3])
    if 2 * len(unknown) > len(written):
        raise InputError(
            "no installed font has most of the characters, such as {names}; install one such as "
            "Noto Sans CJK, or write a page with {--html}",
            names,
        )
    return Message(
        "the picture shows {sign} for characters that no installed font has ({names}); install one "
        "such as Noto Sans CJK, or write a page with {--html}",
        *(_UNKNOWN, names),
    )


class _Picture:
    """Draws blocks from top to bottom."""

    def __init__(self, figure: Any, family: Sequence[str], missing: frozenset[str]) -> None:
        from matplotlib.font_manager import FontProperties

        self._figure, self._renderer = figure, figure.canvas.get_renderer()
        self._fonts = {
            weight: FontProperties(family=list(family), size=_POINTS, weight=weight)
            for weight in ("normal", "bold")
        }
        self._measure = cache(self._width)
        self._unknown = str.maketrans(dict.fromkeys(missing, _UNKNOWN))
        self._axis = figure.add_axes((0, 0, 1, 1))
        self._axis.set_axis_off()
        self._down = float(_MARGIN)
        self._lines = 0

    def _width(self, text: str, weight: str = "normal") -> float:
        """The width in pixels, including spaces at the ends."""
        # A space alone is measured with width 0.
        width, edge = (
            self._renderer.get_text_width_height_descent(label, self._fonts[weight], False)[0]
            for label in (f"|{text}|", "||")
        )
        return float(width - edge)

    def head(self, title: str) -> None:
        """Draw the title and the legend of colours."""
        self._text(title, _MARGIN, weight="bold")
        supporting, against = "for the prediction", "against the prediction"
        left = _WIDTH - _MARGIN - self._measure(supporting)
        self._text(supporting, left, color=_SOFT)
        left -= 92
        for step in range(41):
            self._box(left + 2 * step, 2.2, step / 20 - 1)
        self._text(against, left - 10 - self._measure(against), color=_SOFT)
        self._down += _LINE + _GAP

    def rule(self) -> None:
        """Draw a line between rows."""
        self._axis.plot(
            [_MARGIN, _WIDTH - _MARGIN], [self._down] * 2, color=_RULE, linewidth=1, zorder=0
        )
        self._down += _GAP

    def block(self, explanation: Explanation) -> None:
        """Draw a prediction, the most probable ones, and the coloured text."""
        method = explanation.method.replace("_", " ")
        right = _WIDTH - _MARGIN - self._measure(method)
        name = self._cut(explanation.target, right - _MARGIN - 120)
        self._text(name, _MARGIN, weight="bold")
        after = _MARGIN + self._measure(name, "bold") + 10
        self._text(f"{explanation.probability:.3f}", after, color=_SOFT)
        self._text(method, right, color=_SOFT)
        self._next()
        if len(explanation.answers) > 1:
            self._probabilities(explanation.answers)
        for number in range(len(explanation.texts)):
            self._next(1 + self._paragraph(explanation.pieces(number)))
        self._down += _GAP

    def _probabilities(self, answers: Sequence[tuple[str, float]]) -> None:
        left = float(_MARGIN)
        for name, probability in answers:
            name = self._cut(name, 300)
            wide = self._measure(name) + _BAR + 90
            if left + wide > _WIDTH - _MARGIN:
                left = float(_MARGIN)
                self._next()
            self._text(name, left, color=_SOFT)
            left += self._measure(name) + 8
            for width, color in ((_BAR, "#eef1f4"), (_BAR * probability, "#7a8590")):
                self._rectangle(left, 7, width, 10, color)
            self._text(f"{probability:.3f}", left + _BAR + 8, color=_SOFT)
            left += _BAR + 82
        self._next()

    def _paragraph(self, parts: Iterable[tuple[str, float]]) -> int:
        """Draw a text, broken into lines; return the number of the last line."""
        left, line, width = 0.0, 0, _WIDTH - 2 * _MARGIN
        for part, share in parts:
            for piece in _PIECES.findall(part):
                piece = " " if piece.isspace() else self._drawable(piece)
                for word in self._split(piece, width):
                    wide = self._measure(word)
                    if left and left + wide > width:
                        left, line = 0.0, line + 1
                    if share and (left or word != " "):
                        self._box(_MARGIN + left, wide, share, line * _LINE)
                    if word != " ":
                        self._text(word, _MARGIN + left, down=line * _LINE)
                    left += wide if left or word != " " else 0
        return line

    def _split(self, piece: str, width: float) -> Iterator[str]:
        """Split a word that is longer than a line."""
        while len(piece) > 1 and (wide := self._measure(piece[:_MEASURED])) > width:
            size = max(1, int(min(len(piece), _MEASURED) * width / wide) - 1)
            yield piece[:size]
            piece = piece[size:]
        yield piece

    def _box(self, left: float, width: float, share: float, down: float = 0) -> None:
        full = _SUPPORTING if share > 0 else _OPPOSING
        color = tuple((255 + abs(share) * (c - 255)) / 255 for c in full)
        self._rectangle(left, down, width, _WORD, color)

    def _rectangle(self, left: float, down: float, width: float, height: float, color: Any) -> None:
        from matplotlib.patches import Rectangle

        top = self._down + down
        self._axis.add_patch(Rectangle((left, top), width, height, color=color, linewidth=0))

    def _text(
        self, text: str, left: float, *, weight: str = "normal", color: str = _TEXT, down: float = 0
    ) -> None:
        style = {"fontproperties": self._fonts[weight], "color": color, "parse_math": False}
        self._axis.text(left, self._down + down + 16, self._drawable(text), **style)

    def _drawable(self, text: str) -> str:
        return " ".join(text.translate(self._unknown).split()) if text.strip() else text

    def _cut(self, text: str, width: float) -> str:
        """Truncate a name to the width."""
        text = self._drawable(text)
        if self._measure(text, "bold") <= width:
            return text
        while text and self._measure(text + "…", "bold") > width:
            text = text[:-1]
        return text + "…"

    def _next(self, lines: int = 1) -> None:
        self._down += lines * _LINE
        self._lines += lines
        if self._lines > _MOST_LINES:
            raise InputError(
                "the picture would have more than {most_lines} lines; draw fewer rows, or write "
                "a page with {--html}",
                _MOST_LINES,
            )

    def finish(self) -> None:
        """Set the height of the figure."""
        height = self._down + _MARGIN - _GAP
        self._axis.set(xlim=(0, _WIDTH), ylim=(height, 0))
        self._figure.set_size_inches(_WIDTH / DPI, height / DPI)
