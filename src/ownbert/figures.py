"""Pictures drawn with matplotlib, which is an optional package."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ownbert.exceptions import InputError
from ownbert.files.folders import PICTURE_METADATA
from ownbert.files.writing import atomic_path

DPI = 110


def figure_class(path: Path | None = None) -> Any:
    """Import matplotlib's Figure and check the file name, before anything is computed.

    Raises:
        InputError: matplotlib is missing, or the name does not end with .png.
    """
    if path is not None and path.suffix.lower() != ".png":
        raise InputError("{path}: the name of a picture must end with .png", path)
    if (figure := installed_figure()) is None:
        raise InputError("a picture needs matplotlib: pip install 'ownbert[plot]'")
    return figure


def installed_figure() -> Any:
    """matplotlib's Figure, or None if matplotlib is missing."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return None
    return Figure


def save_figure(figure: Any, path: Path, dpi: int = DPI, **options: Any) -> None:
    """Write a figure as PNG, completely or not at all; ``options`` are those of ``savefig``."""
    with atomic_path(path) as temporary:
        figure.savefig(temporary, format="png", dpi=dpi, metadata=PICTURE_METADATA, **options)


@contextmanager
def plotted(
    path: Path, width: float, height: float, panels: int = 1, **options: Any
) -> Iterator[Any]:
    """Yield the axes of panels side by side, with a grid, and write them to a file.

    Args:
        width, height: size in inches.
        options: those of ``subplots``.
    """
    figure = figure_class(path)(figsize=(width, height), layout="constrained")
    axes = figure.subplots(1, panels, squeeze=False, **options)[0]
    for axis in axes:
        axis.grid(alpha=0.3)
    yield axes
    save_figure(figure, path)
