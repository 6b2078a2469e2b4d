"""Character spans of tokens in a text."""

import unicodedata


def span_in(text: str, start: int, end: int) -> tuple[int, int]:
    """Strip blanks from a span of characters, and extend it by combining marks of the last letter.

    Some tokenizers include the blank before a word in its first token, and some drop accents that
    are separate characters.
    """
    while start < end and text[start].isspace():
        start += 1
    while start < end and text[end - 1].isspace():
        end -= 1
    while end < len(text) and unicodedata.category(text[end]).startswith("M"):
        end += 1
    return start, end
