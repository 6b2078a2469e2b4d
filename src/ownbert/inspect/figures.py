"""Pictures that a command writes where it is told to."""

from pathlib import Path
from typing import Any

from ownbert.errors import InputError
from ownbert.files import atomic_path

DPI = 110


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


def save_figure(figure: Any, path: Path) -> None:
    """Write a figure, completely or not at all."""
    with atomic_path(path) as temporary:
        figure.savefig(temporary, format="png", dpi=DPI)
