"""Characters of tokens as they stand in a text."""

import unicodedata


def span_in(text: str, start: int, end: int) -> tuple[int, int]:
    """Characters without surrounding blanks and with the marks of the last letter, end exclusive.

    Some tokenizers count the blank before a word among its first token, and some drop accents that
    are characters of their own.
    """
    while start < end and text[start].isspace():
        start += 1
    while start < end and text[end - 1].isspace():
        end -= 1
    while end < len(text) and unicodedata.category(text[end]).startswith("M"):
        end += 1
    return start, end
