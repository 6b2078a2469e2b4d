"""Pictures of faithfulness: the fall of the answer against the share of masked words."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ownbert.errors import InputError
from ownbert.files import atomic_path
from ownbert.inspect.explain.faithfulness import RANDOM, SHARES, Faithfulness


def figure_class(path: Path) -> Any:
    """matplotlib's, before anything is measured.

    Raises:
        InputError: matplotlib is missing, or the name is no picture's.
    """
    if path.suffix.lower() != ".png":
        raise InputError(f"{path}: the name of a picture ends with .png")
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise InputError("a picture needs matplotlib: pip install 'ownbert[plot]'") from None
    return Figure


def draw_curves(found: Mapping[str, Faithfulness], path: Path) -> None:
    """Plot the fall of the answer against the share of masked, or of kept, words."""
    figure = figure_class(path)(figsize=(10, 4), layout="constrained")
    panels = (
        ("without the words it names", "comprehensiveness"),
        ("with these words alone", "sufficiency"),
    )
    for axis, (title, attribute) in zip(figure.subplots(1, 2, sharey=True), panels, strict=True):
        for name, each in found.items():
            style = {"color": "0.5", "linestyle": "--"} if name == RANDOM else {}
            means = getattr(each, attribute).mean(0)
            axis.plot([100 * share for share in SHARES], means, marker="o", label=name, **style)
        axis.set_title(title)
        axis.set_xlabel("words, %")
        axis.grid(alpha=0.3)
    figure.axes[0].set_ylabel("fall of the answer")
    figure.axes[1].legend(fontsize=8, frameon=False)
    with atomic_path(path) as temporary:
        figure.savefig(temporary, format="png", dpi=110)
