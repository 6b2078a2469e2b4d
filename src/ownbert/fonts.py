"""Fonts for the characters of labels and texts in pictures (matplotlib)."""

from collections.abc import Iterable, Sequence

# Fonts with Chinese, Japanese and Korean characters, to complement matplotlib's own.
CJK_FONTS = (
    *("Noto Sans CJK SC", "Noto Sans SC", "Source Han Sans SC", "WenQuanYi Zen Hei"),
    *("WenQuanYi Micro Hei", "PingFang SC", "Heiti SC", "Hiragino Sans GB", "Microsoft YaHei"),
    *("SimHei", "Noto Sans CJK JP", "Noto Sans CJK KR", "Droid Sans Fallback", "Arial Unicode MS"),
)
PLAIN_FONT = "DejaVu Sans"
# Fonts of single scripts, such as Noto Sans Devanagari.
_OF_SCRIPTS = "Noto Sans "


def fonts_for(
    texts: Iterable[str], fonts: Sequence[str] = CJK_FONTS
) -> tuple[list[str], frozenset[str]]:
    """Fonts that together have the characters of texts.

    Args:
        texts: to be drawn.
        fonts: names of fonts for characters that matplotlib's own lacks, the preferred ones first;
            behind them those of single scripts.

    Returns:
        Names of fonts, as matplotlib takes them for a family, and the characters that none has.
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
            if missing & (own := known(font)):
                family.append(font)
                missing -= own
    return family, frozenset(map(chr, missing))
