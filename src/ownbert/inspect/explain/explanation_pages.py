"""Explanations as an HTML page (coloured texts, selection of method and prediction, and the model's
internals), as a page of the most unusual scored texts, and as a PNG image.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from heapq import heappush, heappushpop
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ownbert.exceptions import InputError
from ownbert.figures import DPI, figure_class, fonts_for, save_figure
from ownbert.files.writing import write_text
from ownbert.inference.score import ScoredText
from ownbert.inspect.explain.explanation import Explanation, Word
from ownbert.inspect.internals.observation import Observation, as_data, packed_bytes, view_page
from ownbert.language import translated

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
    name = translated(f"row {row + 1:,}") if scored.id is None else str(scored.id)
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
    return (
        f"the picture shows {_UNKNOWN} for characters that no installed font has ({names}); "
        "install one such as Noto Sans CJK, or write a page with --html"
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
