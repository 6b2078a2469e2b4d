"""Parts of texts: long texts are split without changing their tokens; spans of characters."""

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import tokenizers


T = TypeVar("T")

# Characters per part, and in all parts that are encoded together: results of the tokenizers library
# take a hundred bytes per token.
PART, BATCH = 1 << 14, 1 << 19
# A blank between word characters. Special tokens that absorb blanks do not begin or end with these.
_BLANK, _LINE_FEED = r"(?<=\w)(?= \w)", r"(?<=\w)(?=\n\w)"
_CHINESE = r"(?<=[\u4e00-\u9fff])(?=[\u4e00-\u9fff])"
# Punctuation after a letter or digit. Byte-level BPE does not split runs of letters or digits, so
# these are its only word boundaries in texts without blanks.
_STOP = r"(?<=[^\W_])(?=[\u3001\u3002\uff01\uff0c\uff1a\uff1b\uff1f])"


def places_to_cut(backend: "tokenizers.Tokenizer") -> "re.Pattern[str] | None":
    """A pattern for the positions where a text can be cut without changing its tokens, which are
    word boundaries for this tokenizer, because tokens do not cross words; None if there are
    none."""
    splits = [
        pattern
        for pattern, *halves in (
            (_BLANK, "a", " b"),
            (_LINE_FEED, "a", "\nb"),  # not where a part gets a space before it, as in BPE
            (_CHINESE, "\u4e00", "\u4e00"),
            (_STOP, "a", "\uff0c"),
        )
        if _splits(backend, *halves)
    ]
    return re.compile("|".join(splits)) if splits else None


def _splits(backend: "tokenizers.Tokenizer", *halves: str) -> bool:
    """Whether the words of a text are the same as those of its two halves."""
    if backend.pre_tokenizer is None:
        return False
    texts = ["".join(halves), *halves]
    if backend.normalizer is not None:
        texts = [backend.normalizer.normalize_str(text) for text in texts]
    words = [[w for w, _ in backend.pre_tokenizer.pre_tokenize_str(text)] for text in texts]
    return len(words[0]) > 1 and words[0] == words[1] + words[2]


def parts_of(text: str, places: "re.Pattern[str] | None", size: int = PART) -> Iterator[str]:
    """Split a text at ``places_to_cut`` into parts of about ``size`` characters, or more where it
    cannot be cut."""
    start = 0
    while places is not None and len(text) - start > size:
        if (match := places.search(text, start + size)) is None:
            break
        yield text[start : match.start()]
        start = match.start()
    yield text[start:]


def together(parts: Iterable[tuple[T, str]]) -> Iterator[list[tuple[T, str]]]:
    """Group pairs of a key and a part into lists of about ``BATCH`` characters."""
    return grouped(parts, BATCH, lambda pair: len(pair[1]))


def grouped(items: Iterable[T], size: int, size_of: Callable[[T], int]) -> Iterator[list[T]]:
    """Group items into lists of about ``size``, the sum of their sizes."""
    group: list[T] = []
    total = 0
    for item in items:
        group.append(item)
        total += size_of(item)
        if total >= size:
            yield group
            group, total = [], 0
    if group:
        yield group


def span_in(text: str, start: int, end: int) -> tuple[int, int]:
    """Strip blanks from a span of characters, and extend it by combining marks of the last letter:
    some tokenizers include the blank before a word in its first token, and some drop accents that
    are separate characters."""
    while start < end and text[start].isspace():
        start += 1
    while start < end and text[end - 1].isspace():
        end -= 1
    while end < len(text) and unicodedata.category(text[end]).startswith("M"):
        end += 1
    return start, end
