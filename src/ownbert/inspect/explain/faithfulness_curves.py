"""Plots of faithfulness: drop of the prediction by share of masked words."""

from collections.abc import Mapping
from pathlib import Path

from ownbert.figures import plotted
from ownbert.inspect.explain.faithfulness import RANDOM, SHARES, Faithfulness

_TITLES = {"comprehensiveness": "without the top words", "sufficiency": "with only the top words"}


def draw_curves(curves: Mapping[str, Faithfulness], path: Path) -> None:
    """Plot the drop of the prediction by the share of masked and of kept words."""
    with plotted(path, 10, 4, len(_TITLES), sharey=True) as axes:
        for axis, (attribute, title) in zip(axes, _TITLES.items(), strict=True):
            for name, each in curves.items():
                style = {"color": "0.5", "linestyle": "--"} if name == RANDOM else {}
                means = getattr(each, attribute).mean(0)
                axis.plot([100 * share for share in SHARES], means, marker="o", label=name, **style)
            axis.set(title=title, xlabel="words, %")
        axes[0].set_ylabel("drop in probability")
        axes[1].legend(fontsize=8, frameon=False)
