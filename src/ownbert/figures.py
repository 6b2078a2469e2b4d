"""Pictures drawn with matplotlib, which is an optional package, and fonts for their texts."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ownbert.exceptions import InputError
from ownbert.files.folders import PICTURE_METADATA
from ownbert.files.writing import atomic_path

DPI = 110
# Fonts with Chinese, Japanese and Korean characters, which matplotlib's default lacks.
CJK_FONTS = (
    *("Noto Sans CJK SC", "Noto Sans SC", "Source Han Sans SC", "WenQuanYi Zen Hei"),
    *("WenQuanYi Micro Hei", "PingFang SC", "Heiti SC", "Hiragino Sans GB", "Microsoft YaHei"),
    *("SimHei", "Noto Sans CJK JP", "Noto Sans CJK KR", "Droid Sans Fallback", "Arial Unicode MS"),
)
PLAIN_FONT = "DejaVu Sans"
# Prefix of fonts for single scripts, such as Noto Sans Devanagari.
_OF_SCRIPTS = "Noto Sans "


def figure_class(path: Path | None = None) -> Any:
    """Import matplotlib's Figure and check the file name, before anything is computed."""
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
    """Yield the axes of panels side by side, with a grid, and write them to a file; width and
    height are in inches, ``options`` those of ``subplots``."""
    figure = figure_class(path)(figsize=(width, height), layout="constrained")
    axes = figure.subplots(1, panels, squeeze=False, **options)[0]
    for axis in axes:
        axis.grid(alpha=0.3)
    yield axes
    save_figure(figure, path)


def fonts_for(
    texts: Iterable[str], fonts: Sequence[str] = CJK_FONTS
) -> tuple[list[str], frozenset[str]]:
    """Find fonts that together cover the characters of texts, and the characters that no font has.

    Characters that matplotlib's default lacks are looked for in ``fonts``, in order, then in those
    for single scripts. The names are a font family for matplotlib.
    """
    from matplotlib import font_manager

    def known(font: str) -> set[int]:
        path = font_manager.findfont(font, fallback_to_default=False)
        return set(font_manager.get_font(path).get_charmap())

    family = [PLAIN_FONT]
    missing = {ord(c) for text in texts for c in text} - known(PLAIN_FONT)
    if missing:
        installed = {font.name for font in font_manager.fontManager.ttflist}
        scripts = sorted(name for name in installed if name.startswith(_OF_SCRIPTS))
        candidates = [name for name in dict.fromkeys((*fonts, *scripts)) if name in installed]
        for font in candidates:
            if missing & (covered := known(font)):
                family.append(font)
                missing -= covered
    return family, frozenset(map(chr, missing))


def fitting_fonts(texts: Iterable[str], fonts: Sequence[str] = CJK_FONTS) -> list[str] | None:
    """Fonts that together cover all characters of texts; None if there are none."""
    family, missing = fonts_for(texts, fonts)
    return None if missing else family
