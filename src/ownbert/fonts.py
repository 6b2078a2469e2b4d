"""Fonts for labels and texts in pictures (matplotlib)."""

from collections.abc import Iterable, Sequence

# Fonts with Chinese, Japanese and Korean characters, which matplotlib's default lacks.
CJK_FONTS = (
    *("Noto Sans CJK SC", "Noto Sans SC", "Source Han Sans SC", "WenQuanYi Zen Hei"),
    *("WenQuanYi Micro Hei", "PingFang SC", "Heiti SC", "Hiragino Sans GB", "Microsoft YaHei"),
    *("SimHei", "Noto Sans CJK JP", "Noto Sans CJK KR", "Droid Sans Fallback", "Arial Unicode MS"),
)
PLAIN_FONT = "DejaVu Sans"
# Prefix of fonts for single scripts, such as Noto Sans Devanagari.
_OF_SCRIPTS = "Noto Sans "


def fonts_for(
    texts: Iterable[str], fonts: Sequence[str] = CJK_FONTS
) -> tuple[list[str], frozenset[str]]:
    """Find fonts that together cover the characters of texts.

    Args:
        fonts: preferred fonts for characters that matplotlib's default lacks, in order; fonts for
            single scripts are tried last.

    Returns:
        Font names, usable as a font family in matplotlib, and the characters that no font has.
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
