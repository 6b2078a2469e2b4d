"""Plots of faithfulness: drop of the prediction by share of masked words."""

from collections.abc import Mapping
from pathlib import Path

from ownbert.inspect.explain.faithfulness import RANDOM, SHARES, Faithfulness
from ownbert.inspect.figures import figure_class, save_figure


def draw_curves(found: Mapping[str, Faithfulness], path: Path) -> None:
    """Plot the drop of the prediction by the share of masked and of kept words."""
    figure = figure_class(path)(figsize=(10, 4), layout="constrained")
    panels = (
        ("without the top words", "comprehensiveness"),
        ("with only the top words", "sufficiency"),
    )
    for axis, (title, attribute) in zip(figure.subplots(1, 2, sharey=True), panels, strict=True):
        for name, each in found.items():
            style = {"color": "0.5", "linestyle": "--"} if name == RANDOM else {}
            means = getattr(each, attribute).mean(0)
            axis.plot([100 * share for share in SHARES], means, marker="o", label=name, **style)
        axis.set_title(title)
        axis.set_xlabel("words, %")
        axis.grid(alpha=0.3)
    figure.axes[0].set_ylabel("drop in probability")
    figure.axes[1].legend(fontsize=8, frameon=False)
    save_figure(figure, path)
