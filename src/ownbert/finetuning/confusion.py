"""Which labels are taken for which, as a picture and in words. C labels."""

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ownbert.files import atomic_path
from ownbert.tasks.metrics import Scores
from ownbert.tasks.rows import shortened

CONFUSION = "confusion.png"

# Up to so many labels the cells have numbers, and all labels their names.
_NUMBERS, _NAMES = 15, 40
# So many labels have a name where not all have.
_NAMED = 24
_LONGEST = 28  # characters of a name
_DPI = 120
# Fonts with Chinese, Japanese and Korean characters, beside matplotlib's own.
_FONTS = (
    *("Noto Sans CJK SC", "Noto Sans SC", "Source Han Sans SC", "WenQuanYi Zen Hei"),
    *("WenQuanYi Micro Hei", "PingFang SC", "Heiti SC", "Hiragino Sans GB", "Microsoft YaHei"),
    *("SimHei", "Noto Sans CJK JP", "Noto Sans CJK KR", "Droid Sans Fallback", "Arial Unicode MS"),
)
_PLAIN = "DejaVu Sans"


def most_confused(scores: Scores, most: int = 3) -> list[str]:
    """The most frequent confusions in words ("film taken for album: 12"), fewer where there are;
    none of scores without a confusion matrix."""
    if scores.confusion is None:
        return []
    labels = [score.label for score in scores.labels]
    wrong = scores.confusion.copy()
    np.fill_diagonal(wrong, 0)
    order = np.argsort(-wrong, axis=None, kind="stable")[:most]
    cells = (divmod(int(place), len(labels)) for place in order)
    return [f"{labels[i]} taken for {labels[j]}: {wrong[i, j]:,}" for i, j in cells if wrong[i, j]]


def draw_confusion(path: Path, scores: Scores, *, fonts: Sequence[str] = _FONTS) -> str | None:
    """The confusion matrix as a PNG: the colour is a cell's share of its row, the true label.

    Numbers in the cells are counts. With many labels only the most confused ones are named.
    fonts: by name, those to take where matplotlib's own lacks a character. Returns what to tell
    people, if anything: without matplotlib nothing is drawn; where no font has the characters of
    the labels, these have their numbers as in config.json's id2label. Scores without a confusion
    matrix have no picture; one of before is removed.
    """
    path.unlink(missing_ok=True)
    if (confusion := scores.confusion) is None:
        return None
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return "no picture of the confusion matrix; it needs: pip install 'ownbert[plot]'"
    labels, told = [score.label for score in scores.labels], None
    family = fitting_fonts(labels, fonts)
    if family is None:
        family, labels = [_PLAIN], [str(i) for i in range(len(labels))]
        told = (
            f"{path.name}: no font here has the labels' characters; it shows their numbers "
            "(id2label in config.json)"
        )
    plan = _plan(confusion, labels)
    figure = Figure(figsize=(plan.width, plan.height))
    axis = figure.add_axes(plan.at(plan.left, plan.bottom, plan.side, plan.side))
    image = _cells(axis, confusion)
    _names(axis, labels, family, plan)
    bar = figure.add_axes(plan.at(plan.left + plan.side + 0.15, plan.bottom, 0.13, plan.side))
    _bar(figure, image, bar)
    if len(plan.named) < len(labels):
        words = f"the {len(plan.named)} most confused of {len(labels)} labels are named"
        figure.text(0.01, 0.01, words, fontsize=9)
    with atomic_path(path) as temporary:
        # Packed less tightly: a little larger, in a quarter of the time.
        figure.savefig(temporary, format="png", dpi=_DPI, pil_kwargs={"compress_level": 1})
    return told


@dataclass(frozen=True)
class _Plan:
    """Where everything is, in inches: letting matplotlib find it out takes many times as long.

    named: the labels that have a name.
    """

    named: Sequence[int]
    side: float
    left: float
    bottom: float
    font: float

    @property
    def width(self) -> float:
        return self.left + self.side + 0.85

    @property
    def height(self) -> float:
        return self.bottom + self.side + 0.25

    def at(self, left: float, bottom: float, width: float, height: float) -> Any:
        """The same in shares of the picture, as matplotlib has it."""
        return left / self.width, bottom / self.height, width / self.width, height / self.height


def _plan(confusion: np.ndarray, labels: Sequence[str]) -> _Plan:
    count = len(labels)
    side = min(11.0, max(2.2, count * (0.55 if count <= _NUMBERS else 0.27)))
    font = min(9.0, max(5.0, 0.85 * 72 * side / count))
    named: Sequence[int] = range(count)
    if count > _NAMES:
        named = _worst(confusion, apart=font / 72 * count / side)
    room = 0.5 + 0.0085 * font * max(_columns(_shown(labels[i])) for i in named)
    return _Plan(named, side, left=room, bottom=room + 0.1, font=font)


def _worst(confusion: np.ndarray, apart: float) -> list[int]:
    """The labels that are most often confused, whose names do not overlap."""
    wrong = confusion.sum(0) + confusion.sum(1) - 2 * np.diag(confusion)
    named: list[int] = []
    for label in np.argsort(-wrong, kind="stable").tolist():
        if len(named) < _NAMED and all(abs(label - other) >= apart for other in named):
            named.append(label)
    return sorted(named)


def _cells(axis: Any, confusion: np.ndarray) -> Any:
    from matplotlib.colors import PowerNorm

    shares = confusion / np.maximum(confusion.sum(1, keepdims=True), 1)
    # By the root, or what is rare could not be told from what never happens.
    image = axis.imshow(shares, cmap="Blues", norm=PowerNorm(0.5, 0, 1), interpolation="nearest")
    if len(confusion) <= _NUMBERS:
        for (i, j), count in np.ndenumerate(confusion):
            color = "white" if shares[i, j] > 0.35 else "0.15"
            if count:
                said = f"{count}" if count < 100_000 else f"{count / 1000:.0f}k"
                axis.text(j, i, said, ha="center", va="center", color=color, fontsize=8)
    return image


def _names(axis: Any, labels: Sequence[str], family: list[str], plan: _Plan) -> None:
    names = [_shown(labels[i]) for i in plan.named]
    # A name may hold a dollar, which is no mathematics here.
    style = {"fontsize": plan.font, "fontfamily": family, "parse_math": False}
    axis.set_xticks(plan.named, names, rotation=90, **style)
    axis.set_yticks(plan.named, names, **style)
    axis.tick_params(length=2)
    axis.set_xlabel("predicted", fontsize=9)
    axis.set_ylabel("true", fontsize=9)


def _bar(figure: Any, image: Any, axis: Any) -> None:
    bar = figure.colorbar(image, cax=axis, ticks=[0, 0.01, 0.05, 0.2, 0.5, 1])
    bar.ax.set_yticklabels(["0", "1%", "5%", "20%", "50%", "100%"], fontsize=8)
    bar.outline.set_visible(False)


def fitting_fonts(labels: Sequence[str], fonts: Sequence[str] = _FONTS) -> list[str] | None:
    """Fonts that have all characters of the labels together; None where there are none."""
    from matplotlib import font_manager

    def known(font: str) -> set[int]:
        path = font_manager.findfont(font, fallback_to_default=False)
        return set(font_manager.get_font(path).get_charmap())

    missing = {ord(c) for label in labels for c in _shown(label)} - known(_PLAIN)
    if not missing:
        return [_PLAIN]
    there = {font.name for font in font_manager.fontManager.ttflist}
    fitting = (font for font in fonts if font in there and missing <= known(font))
    found = next(fitting, None)
    return None if found is None else [_PLAIN, found]


def _shown(label: str) -> str:
    return shortened(" ".join(label.split()), _LONGEST)


def _columns(text: str) -> int:
    """How wide a text is; Chinese characters are two wide."""
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)
