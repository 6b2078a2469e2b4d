"""What may be given to a tokenizer as text."""

import re
from collections.abc import Iterator
from typing import Any

INPUTS = (
    "text must be a string, a list of strings (texts, or the words of one text with "
    "is_split_into_words=True) or a list of lists of words"
)
NOT_UNICODE = "text holds half of a surrogate pair, which is no character; was it read as UTF-8?"
LONE_SURROGATE = re.compile("[\ud800-\udfff]")


def is_text(value: Any) -> bool:
    """Whether ``value`` is one text, a list of texts or words, or a list of lists of words."""
    while isinstance(value, list | tuple):
        if not value:
            return True
        value = value[0]
    return isinstance(value, str)


def holds_ids(item: Any) -> bool:
    """Whether an item of a batch is ids or tokens, alone or as a pair, and not text."""
    if not isinstance(item, list | tuple) or not item:
        return False
    first = item[0]
    if isinstance(first, list | tuple):
        return True
    return not isinstance(first, str)


def texts_in(value: Any) -> Iterator[str]:
    """All strings in lists of lists."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from texts_in(item)


def why_refused(value: Any) -> str:
    """What is wrong with inputs that the library does not take."""
    lone = any(LONE_SURROGATE.search(text) for text in texts_in(value))
    return NOT_UNICODE if lone else INPUTS
