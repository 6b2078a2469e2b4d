"""Plots of heads: their importance, and the score by the number of remaining heads or layers."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ownbert.figures import figure_class, plotted, save_figure
from ownbert.inspect.heads.pruning import PruningRound
from ownbert.train.watch.metric_names import shown_name

# Inches per cell, enough for a number of three digits.
_CELL = 0.6


def draw_importance(
    importance: np.ndarray, left: Sequence[tuple[int, int]], title: str, path: Path
) -> None:
    """Plot importance (L, H) as a heat map, first layer at the bottom; pruned heads stay white.

    Raises:
        InputError: matplotlib is missing, or the name has no image extension.
    """
    layers, heads = importance.shape
    size = (max(4.0, _CELL * heads + 2), max(2.0, _CELL * layers + 1.2))
    figure = figure_class(path)(figsize=size, layout="constrained")
    axis = figure.subplots()
    shown = np.full(importance.shape, np.nan)
    for at in left:
        shown[at] = importance[at]
    picture = axis.imshow(shown, cmap="cividis", origin="lower", aspect="equal")
    middle = (np.nanmin(shown) + np.nanmax(shown)) / 2
    for layer, head in left:
        value = shown[layer, head]
        color = "white" if value < middle else "black"
        axis.text(head, layer, f"{value:.2g}", ha="center", va="center", color=color, fontsize=8)
    axis.set(title=title, xlabel="head", ylabel="layer", xticks=range(heads), yticks=range(layers))
    figure.colorbar(picture, ax=axis)
    save_figure(figure, path)


def draw_rounds(rounds: Sequence[PruningRound], path: Path) -> None:
    """Plot score and speed of each round by the number of remaining heads or layers.

    Raises:
        InputError: matplotlib is missing, or the name has no image extension.
    """
    layers = len({each.layers for each in rounds}) > 1
    left = [each.layers if layers else each.heads for each in rounds]
    panels = (
        (shown_name(rounds[0].metric), [each.score for each in rounds]),
        ("thousand tokens per second", [each.tokens_per_second / 1000 for each in rounds]),
    )
    with plotted(path, 9, 3.6, len(panels)) as axes:
        for axis, (label, values) in zip(axes, panels, strict=True):
            axis.plot(left, values, marker="o")
            axis.set(ylabel=label, xlabel=f"{'layers' if layers else 'heads'} that are left")
            axis.set_ylim(min(0.0, *values), 1.05 * max(*values, 1e-9))
            axis.invert_xaxis()
            axis.xaxis.get_major_locator().set_params(integer=True)
