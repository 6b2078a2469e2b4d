"""Detects the kind of a text, and tokenises it for linear models."""

import re
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from itertools import groupby, islice
from unicodedata import category, normalize

from ownbert.checks import known
from ownbert.corpus.joined_codes import are_joined, part_spans

# ids: space-separated tokens, unchanged. words: letters and punctuation (also of codes joined by
# separators), lower-cased. chinese: the
# same, but each character of a script without spaces is a token. marked: like chinese, but words
# include their combining marks, and both ways of writing them (NFC and NFD) are equal.
KINDS = ("ids", "words", "chinese", "marked")

# Scripts without spaces: kana, Chinese characters, Thai, Lao, Khmer, Burmese.
_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    "\U00020000-\U0003134f"
)
_UNSPACED_CHARACTER = re.compile(f"[{_UNSPACED}]")
_WORD = re.compile(r"\w+|[^\w\s]")
_NON_SPACES = re.compile(r"\S+")
_CHARACTER_OR_WORD = re.compile(rf"[{_UNSPACED}]|[^\W{_UNSPACED}]+|[^\w\s]")
# The end of a Korean syllable that is written as separate letters, and joiners inside words.
_VOWELS, _JOINERS = "\u1160-\u11ff", "\u200c\u200d"
# A code-like token: no letters at all, or letters and digits.
_CODE = re.compile(r"[\W\d_]+|(?=.*\d)(?=.*[^\W\d_]).+")

_LOOKED_AT = 2_000  # texts inspected
_CHARACTERS = 2_000  # characters inspected per text
_CODES = 0.8  # minimum share of code-like tokens for ids
_CHINESE = 0.2  # minimum share of characters for a script without spaces


@cache
def marks() -> str:
    """Combining marks (accents, vowel signs), which ``\\w`` does not contain, as ranges for a
    character class of a regular expression."""
    runs = groupby(range(0x300, 0x1F000), lambda code: category(chr(code)).startswith("M"))
    spans = [[*run] for are_marks, run in runs if are_marks]
    return "".join(f"{chr(span[0])}-{chr(span[-1])}" for span in spans)


def text_kind(texts: Iterable[str]) -> str:
    """Detect from the first texts whether they are ids or codes, words, or a script without spaces.

    Returns:
        One of ``KINDS``.
    """
    sample = [text[:_CHARACTERS] for text in islice(texts, _LOOKED_AT)]
    tokens = [token for text in sample for token in text.split()]
    if not tokens:
        return "words"
    letters = sum(map(len, tokens))
    unspaced = sum(len(_UNSPACED_CHARACTER.findall(token)) for token in tokens)
    # Checked first, because a sentence without spaces but with a digit looks like a code.
    if unspaced >= _CHINESE * letters:
        return "chinese"
    if _are_codes(tokens):
        # Codes joined by separators (A01,B20) are split at these, as words are.
        return "words" if are_joined(tokens) else "ids"
    # Texts to be predicted may be written in the other way (NFC or NFD).
    apart = re.compile(rf"[^\W\d_][{marks()}{_VOWELS}]")
    wide = (normalize("NFD", text.lower()) for text in sample if not text.isascii())
    return "marked" if any(map(apart.search, wide)) else "words"


def _are_codes(tokens: Sequence[str]) -> bool:
    codes = sum(_CODE.fullmatch(token) is not None for token in tokens)
    return codes >= _CODES * len(tokens)


def word_spans(texts: Sequence[str], *, unspaced: bool = False) -> list[list[tuple[int, int]]]:
    """The character spans (start, end) of the words of each text of a row, to show: between spaces,
    codes that are joined by separators apart, and single characters in scripts without spaces
    (``unspaced``)."""
    kind = "marked" if unspaced else "ids"  # vowel signs stay with letters
    spans = [spans_of(text, kind) for text in texts]
    tokens = [text[a:b] for text, own in zip(texts, spans, strict=True) for a, b in own]
    if unspaced or not _are_codes(tokens) or not are_joined(tokens):
        return spans
    return [
        [(a + start, a + end) for a, b in own for start, end in part_spans(text[a:b])]
        for text, own in zip(texts, spans, strict=True)
    ]


def splitter(kind: str) -> Callable[[str], list[str]]:
    """A function that splits texts of this kind into tokens."""
    if kind == "ids":
        return str.split
    known(*KINDS)("kind", kind)
    pattern = _pattern(kind)
    return lambda text: pattern.findall(in_lower_case(text, kind))


@cache
def _pattern(kind: str) -> re.Pattern[str]:
    if kind != "marked":
        return {"ids": _NON_SPACES, "words": _WORD}.get(kind, _CHARACTER_OR_WORD)
    letters, inside = rf"[^\W{_UNSPACED}]", rf"(?![\0-\u02ff])[{marks()}{_JOINERS}]+"
    return re.compile(rf"[{_UNSPACED}][{marks()}]*|{letters}+(?:{inside}{letters}*)*|[^\w\s]")


def in_lower_case(text: str, kind: str) -> str:
    """A text of this kind as its tokens are compared."""
    return normalize("NFC", text.lower()) if kind == "marked" else text.lower()


def spans_of(text: str, kind: str) -> list[tuple[int, int]]:
    """The character spans (start, end) of the tokens in a text of this kind."""
    text = text.replace("\0", " ")  # as in ``tokens_of``
    small, where = (text, range(len(text))) if kind == "ids" else lowered(text, kind)
    ends = [*where[1:], len(text)]
    return [
        (where[each.start()], max(ends[each.end() - 1], where[each.start()] + 1))
        for each in _pattern(kind).finditer(small)
    ]


def lowered(text: str, kind: str) -> tuple[str, Sequence[int]]:
    """A text as in ``in_lower_case``, and the index in ``text`` of each of its characters: one
    letter may become two, and a letter and its accents one."""
    small = in_lower_case(text, kind)
    if small == text or (kind != "marked" and len(small) == len(text)):
        return small, range(len(text))
    with_marks = rf"(?s:.)[{marks()}{_VOWELS}]*" if kind == "marked" else "(?s:.)"
    letters = [(each.start(), each[0]) for each in re.finditer(with_marks, text)]
    return small, [i for i, letter in letters for _ in in_lower_case(letter, kind)]


def written_tokens(kind: str) -> Callable[[str], list[str]]:
    """A function that splits a text of this kind into pieces as written: at spaces, or at every
    character, with its vowel and tone signs, in a script without spaces."""
    if kind != "chinese":
        return str.split
    return re.compile(rf"[{_UNSPACED}][{marks()}]*|[^\s{_UNSPACED}]+").findall


def tokens_of(texts: Sequence[str], split: Callable[[str], list[str]]) -> list[str]:
    """The tokens of one text, or of a pair; tokens of the second text and tokens shared by both are
    marked."""
    # Saved words are separated by zero bytes.
    first, *rest = (split(text.replace("\0", " ")) for text in texts)
    if not rest:
        return first
    second = rest[0]
    shared = sorted(set(first) & set(second))
    return [*first, *(f"\x02{t}" for t in second), *(f"\x03{t}" for t in shared)]
