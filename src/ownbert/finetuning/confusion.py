"""Confusion matrices as plots, and the most frequent confusions in words."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ownbert.figures import CJK_FONTS, PLAIN_FONT, fitting_fonts, installed_figure, save_figure
from ownbert.run.file_names import CONFUSION as CONFUSION
from ownbert.tasks.metrics import Scores
from ownbert.tasks.rows import shortened

# Maximum number of labels for showing counts in cells, and for naming all labels.
_NUMBERS, _NAMES = 15, 40
# Maximum number of named labels if not all are named.
_NAMED = 24
_CONFUSED = 3  # confusions in words
_LONGEST = 28  # maximum characters of a name
_DPI = 120


def most_confused(scores: Scores) -> list[str]:
    """The most frequent confusions in words ("film taken for album: 12"), one line each; empty
    without a confusion matrix."""
    labels, pairs = [score.label for score in scores.labels], scores.confusions(_CONFUSED)
    return [f"{labels[i]} predicted as {labels[j]}: {rows:,}" for i, j, rows in pairs]


def draw_confusion(path: Path, scores: Scores, *, fonts: Sequence[str] = CJK_FONTS) -> str | None:
    """Plot the confusion matrix as a PNG file; colours are shares of the rows (true labels).

    Cells show counts. With many labels only the most confused ones are named. An earlier plot is
    removed, even if ``scores`` has no confusion matrix.

    Args:
        path: PNG file to write.
        scores: metrics with a confusion matrix.
        fonts: names of fonts for characters that matplotlib's default font lacks.

    Returns:
        A warning or None. Without matplotlib nothing is drawn; if no font has the characters of
        the labels, their indices (id2label in config.json) are shown.
    """
    if (confusion := scores.confusion) is None:
        path.unlink(missing_ok=True)
        return None
    if (figure_class := installed_figure()) is None:
        path.unlink(missing_ok=True)
        return "no plot of the confusion matrix; it needs: pip install 'ownbert[plot]'"
    labels, warning = [score.label for score in scores.labels], None
    family = fitting_fonts(map(_short_label, labels), fonts)
    if family is None:
        family, labels = [PLAIN_FONT], [str(i) for i in range(len(labels))]
        warning = (
            f"{path.name}: no installed font has the labels' characters; it shows their numbers "
            "(id2label in config.json)"
        )
    count = len(labels)
    side = min(11.0, max(2.2, count * (0.55 if count <= _NUMBERS else 0.27)))
    font = min(9.0, max(5.0, 0.85 * 72 * side / count))
    named: Sequence[int] = range(count)
    if count > _NAMES:
        named = _most_confused(confusion, distance=font / 72 * count / side)
    # The matrix fills the figure; names and colour bar are outside, and the saved box includes
    # them.
    figure = figure_class(figsize=(side, side), dpi=_DPI)
    axis = figure.add_axes((0, 0, 1, 1))
    image = _cells(axis, confusion)
    _names(axis, named, labels, font, family)
    _bar(figure, image, figure.add_axes((1 + 0.15 / side, 0, 0.13 / side, 1)))
    if len(named) < count:
        words = f"the {len(named)} most confused of {count} labels are shown"
        axis.set_title(words, fontsize=9, loc="left")
    # Same as bbox_inches="tight", without drawing everything twice.
    box = figure.get_tightbbox().padded(0.1)
    save_figure(figure, path, _DPI, bbox_inches=box)
    return warning


def _most_confused(confusion: np.ndarray, distance: float) -> list[int]:
    """The most confused labels, at least ``distance`` apart so that their names do not overlap."""
    wrong = confusion.sum(0) + confusion.sum(1) - 2 * np.diag(confusion)
    named: list[int] = []
    for label in np.argsort(-wrong, kind="stable").tolist():
        if len(named) < _NAMED and all(abs(label - other) >= distance for other in named):
            named.append(label)
    return sorted(named)


def _cells(axis: Any, confusion: np.ndarray) -> Any:
    from matplotlib.colors import PowerNorm

    shares = confusion / np.maximum(confusion.sum(1, keepdims=True), 1)
    # The square root makes rare confusions visible.
    image = axis.imshow(shares, cmap="Blues", norm=PowerNorm(0.5, 0, 1), interpolation="nearest")
    if len(confusion) <= _NUMBERS:
        for (i, j), count in np.ndenumerate(confusion):
            color = "white" if shares[i, j] > 0.35 else "0.15"
            if count:
                text = f"{count}" if count < 100_000 else f"{count / 1000:.0f}k"
                axis.text(j, i, text, ha="center", va="center", color=color, fontsize=8)
    return image


def _names(
    axis: Any, named: Sequence[int], labels: Sequence[str], font: float, family: list[str]
) -> None:
    names = [_short_label(labels[i]) for i in named]
    # Dollar signs in names do not start math mode.
    style = {"fontsize": font, "fontfamily": family, "parse_math": False}
    axis.set_xticks(named, names, rotation=90, **style)
    axis.set_yticks(named, names, **style)
    axis.tick_params(length=2)
    axis.set_xlabel("predicted", fontsize=9)
    axis.set_ylabel("true", fontsize=9)


def _bar(figure: Any, image: Any, axis: Any) -> None:
    bar = figure.colorbar(image, cax=axis, ticks=[0, 0.01, 0.05, 0.2, 0.5, 1])
    bar.ax.set_yticklabels(["0", "1%", "5%", "20%", "50%", "100%"], fontsize=8)
    bar.outline.set_visible(False)


def _short_label(label: str) -> str:
    return shortened(" ".join(label.split()), _LONGEST)
