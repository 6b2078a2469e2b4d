"""Notations of numbers in texts: decimal and thousands separators, and what is no number."""

import re
from collections.abc import Sequence

# Other texts among numbers are strays if they have at most this share of the rows, and the numbers
# have this many distinct values or more.
STRAY_SHARE, _AMONG_NUMBERS = 0.05, 21
# An identifier such as 001, unlike a number.
CODE = re.compile(r"0\d+", re.ASCII)
NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+", re.ASCII)
_THOUSANDS = re.compile(r"[+-]?\d{1,3}(,\d{3})+", re.ASCII)
_THOUSANDS_AND_POINT = re.compile(_THOUSANDS.pattern + r"\.\d+", re.ASCII)
# Numbers of which each may have a separator between thousands.
_MAYBE_GROUPED = re.compile(r"[+-]?(0|[1-9]\d{0,2}(,\d{3})*)", re.ASCII)
_UP_TO_THOUSANDS = re.compile(r"[+-]?(0|[1-9]\d{0,2}(\.\d{3})?)", re.ASCII)


def stray_texts(texts: Sequence[str]) -> list[str]:
    """The few texts among many different numbers that are none; empty if there are no such."""
    strays = [text for text in texts if not NUMBER.fullmatch(text)]
    if not 0 < len(strays) <= STRAY_SHARE * len(texts):
        return []
    numbers = {text for text in texts if NUMBER.fullmatch(text)}
    many = len(numbers) >= _AMONG_NUMBERS and not any(map(CODE.fullmatch, numbers))
    return strays if many else []


def decimal_numbers(texts: Sequence[str]) -> list[float] | None:
    """Convert texts to numbers; None if they are not numbers (see ``number_signs``)."""
    signs = number_signs(texts)
    if signs is None:
        return None
    numbers = [float(with_point(text, *signs)) for text in texts]
    return numbers if all(abs(number) < float("inf") for number in numbers) else None


def is_infinite(text: str) -> bool:
    try:
        return abs(float(text)) == float("inf")
    except ValueError:
        return False


def with_point(text: str, thousands: str, point: str) -> str:
    """A number as Python reads it; for the signs see ``number_signs``."""
    return text.replace(thousands, "").replace(point, ".")


def number_signs(texts: Sequence[str], *, sure: bool = False) -> tuple[str, str] | None:
    """The thousands separator ("" if there is none) and the decimal separator of numbers; None if
    the texts are not numbers of one notation.

    Numbers such as "1,234" alone are ambiguous: at least one number must have both separators, or
    the texts must be neither decimals nor sets of labels (``_separates_thousands``).

    Args:
        sure: whether the texts are known to be numbers, not pairs of labels.
    """
    if all(NUMBER.fullmatch(text) for text in texts):
        return "", "."
    for thousands, point in (",.", ".,"):
        usual = [text.translate(str.maketrans(thousands + point, ",.")) for text in texts]
        kinds = (_THOUSANDS_AND_POINT, _THOUSANDS, NUMBER)
        both = any(_THOUSANDS_AND_POINT.fullmatch(text) for text in usual)
        if both and all(any(kind.fullmatch(text) for kind in kinds) for text in usual):
            return thousands, point
        if _separates_thousands(usual, sure=sure or thousands == "."):
            return thousands, point
    commas = [text for text in texts if "," in text]
    if not commas or not all(_DECIMAL_COMMA.fullmatch(text) for text in commas):
        return None
    others = [text for text in texts if "," not in text]
    if any("." in text or not NUMBER.fullmatch(text) for text in others):
        return None
    if all(_THOUSANDS.fullmatch(text) for text in commas):
        return None
    if not sure and _are_pairs(texts):
        return None
    return "", ","


def _separates_thousands(texts: Sequence[str], *, sure: bool) -> bool:
    """Whether commas are between thousands: not decimal, because a number has two of them, or some
    end with 0 and others have none; and, unless ``sure``, not between labels."""
    grouped = [text for text in texts if "," in text]
    if not grouped or not all(map(_MAYBE_GROUPED.fullmatch, texts)):
        return False
    padded = len(grouped) < len(texts) and any(text.endswith("0") for text in grouped)
    not_decimal = padded or any(text.count(",") > 1 for text in grouped)
    return not_decimal and (sure or has_zero_groups(texts))


def has_zero_groups(texts: Sequence[str]) -> bool:
    """Whether commas may be between thousands and a group begins with 0, as in "1,045", which
    labels do not."""
    return all(map(_MAYBE_GROUPED.fullmatch, texts)) and any(",0" in text for text in texts)


def point_at_thousands(texts: Sequence[str]) -> str | None:
    """A number such as "1.080" whose point separates thousands; None if points are decimal.

    Decimals of three digits could have the same form, but of those that a program writes, either
    none ends with 0 or none is without a point.
    """
    if not all(map(_UP_TO_THOUSANDS.fullmatch, texts)) or all("." in text for text in texts):
        return None
    return next((text for text in texts if "." in text and text.endswith("0")), None)


def _are_pairs(texts: Sequence[str]) -> bool:
    """Whether texts such as "3,12" are sets of numbered labels rather than decimals.

    In sets, most numbers after commas also occur before one or alone, no set is written in both
    orders, and none has a number twice or with a leading zero.
    """
    pairs = {tuple(text.split(",")) for text in texts if "," in text}
    firsts, seconds = {text.partition(",")[0] for text in texts}, {two for _, two in pairs}
    return 2 * len(seconds & firsts) >= len(seconds) and not any(
        one == two or (two, one) in pairs or (len(two) > 1 and two[0] == "0") for one, two in pairs
    )
