"""Long texts in parts whose tokens are those of the whole text."""

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import tokenizers

T = TypeVar("T")

# Characters of a part, and of the parts that are encoded together: what the tokenizers library
# returns takes a hundred bytes for each token.
PART, TOGETHER = 1 << 14, 1 << 19
# No special token with blanks around it ends or begins with a letter.
_BLANK = r"(?<=\w)(?=[ \n]\w)"
_CHINESE = r"(?<=[\u4e00-\u9fff])(?=[\u4e00-\u9fff])"
# Byte-level BPE keeps letters or digits together, and ends such a run where punctuation begins: in
# texts without blanks nothing else is a place between two of its words.
_STOP = r"(?<=[^\W_])(?=[\u3001\u3002\uff01\uff0c\uff1a\uff1b\uff1f])"


def places_to_cut(backend: "tokenizers.Tokenizer") -> "re.Pattern[str] | None":
    """Where a text can be cut without changing its tokens; None: nowhere.

    A tokenizer that splits words first has the same tokens on both sides of such a place.
    """
    splits = [
        pattern
        for pattern, *halves in (
            (_BLANK, "a", " b"),
            (_CHINESE, "\u4e00", "\u4e00"),
            (_STOP, "a", "\uff0c"),
        )
        if _splits(backend, *halves)
    ]
    return re.compile("|".join(splits)) if splits else None


def _splits(backend: "tokenizers.Tokenizer", *halves: str) -> bool:
    """Whether the words of a text are those of its halves."""
    if backend.pre_tokenizer is None:
        return False
    words = [
        [word for word, _ in backend.pre_tokenizer.pre_tokenize_str(_normal(backend, text))]
        for text in ("".join(halves), *halves)
    ]
    return len(words[0]) > 1 and words[0] == words[1] + words[2]


def _normal(backend: "tokenizers.Tokenizer", text: str) -> str:
    return text if backend.normalizer is None else backend.normalizer.normalize_str(text)


def parts_of(text: str, places: "re.Pattern[str] | None", size: int = PART) -> Iterator[str]:
    """A text in parts of about ``size`` characters, or more where it cannot be cut."""
    start = 0
    while places is not None and len(text) - start > size:
        if (found := places.search(text, start + size)) is None:
            break
        yield text[start : found.start()]
        start = found.start()
    yield text[start:]


def together(parts: Iterable[tuple[T, str]]) -> Iterator[list[tuple[T, str]]]:
    """Parts, each with what it belongs to, in lists of about ``TOGETHER`` characters."""
    group: list[tuple[T, str]] = []
    size = 0
    for each in parts:
        group.append(each)
        size += len(each[1])
        if size >= TOGETHER:
            yield group
            group, size = [], 0
    if group:
        yield group
