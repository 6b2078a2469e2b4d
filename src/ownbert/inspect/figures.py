"""Plots written by commands."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ownbert.errors import InputError
from ownbert.files.writing import atomic_path

DPI = 110


def figure_class(path: Path) -> Any:
    """Import matplotlib's Figure and check the file name, before anything is computed.

    Raises:
        InputError: matplotlib is missing, or the name has no image extension.
    """
    if path.suffix.lower() != ".png":
        raise InputError(f"{path}: the name of a picture must end with .png")
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise InputError("a picture needs matplotlib: pip install 'ownbert[plot]'") from None
    return Figure


def save_figure(figure: Any, path: Path) -> None:
    """Write a figure atomically."""
    with atomic_path(path) as temporary:
        figure.savefig(temporary, format="png", dpi=DPI)


def draw_layers(values: Sequence[float], name: str, path: Path) -> None:
    """Plot a metric by layer, from the embeddings (0) to the last layer."""
    figure = figure_class(path)(figsize=(7, 3.6), layout="constrained")
    axis = figure.subplots()
    best = max(range(len(values)), key=lambda layer: values[layer])
    axis.plot(range(len(values)), values, marker="o")
    axis.annotate(
        f"{values[best]:.3f}",
        (best, values[best]),
        (0, 7),
        textcoords="offset points",
        ha="center",
        fontsize=9,
    )
    axis.set(xlabel="layer (0: embeddings)", ylabel=name, xticks=range(len(values)))
    axis.margins(y=0.15)
    axis.grid(alpha=0.3)
    save_figure(figure, path)
