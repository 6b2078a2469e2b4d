"""Parts of texts: long texts are split without changing their tokens; sentences; spans.

Sentences of plain text in English and Chinese are split by a rule that takes linear time. An
English sentence ends after ``.``, ``!`` or ``?`` (and closing quotes and brackets) if whitespace
and a character that can start a sentence follow; the marks of Hindi, Arabic, Urdu, Armenian,
Ethiopic, Burmese and Khmer follow the same rule. A full stop after a common abbreviation, a single
initial or the number of a list item does not end a sentence. A Chinese sentence ends after a run of
``。！？；……`` and closing quotes, with or without whitespace. A line break ends any sentence.
"""

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


CLOSING = "\"'”’»)]}）】》」』〉〕"
ENDS = ".!?。！？；…｡।॥؟۔։።။។"
# A match always takes the whole run, so no character is scanned twice.
RUN = re.compile(rf"([{ENDS}]+[{re.escape(CLOSING)}]*)(\s*)")
CHINESE_END = re.compile(r"[。！？；｡]|……")
OPENING = frozenset("\"'“‘«([{（【《「『〈〔¿¡")
LOOK_BACK = 24
LAST_WORD = re.compile(r"[^\s(\[{\"'“‘（「『,;:/—–-]*\Z")
DOTTED = re.compile(r"(?:[^\W\d_]\.)+[^\W\d_]\Z")

_ALWAYS = """
mr mrs ms mx dr prof st mt ft messrs mme mlle rev hon fr sr jr gov sen rep pres gen col maj capt
cmdr lt sgt cpl pvt adm supt insp vs viz cf al approx ca inc ltd co corp bros dept univ assn est
jan feb mar apr jun jul aug sep sept oct nov dec ave blvd rd ph.d
"""
# Abbreviations only before a number: "No. 5", but not "No. I will not."
_BEFORE_NUMBER = "no nos vol vols fig figs p pp ch sec art op eq ed nr"
ABBREVIATIONS = frozenset(_ALWAYS.split())
BEFORE_NUMBER = frozenset(_BEFORE_NUMBER.split())


def split_sentences(text: str) -> list[str]:
    """Split ``text`` into stripped sentences, which contain all its characters but whitespace."""
    return [sentence for line in text.splitlines() for sentence in _split_line(line)]


def _split_line(line: str) -> list[str]:
    sentences = []
    start = 0
    for run in RUN.finditer(line):
        if _ends_sentence(line, start, run):
            sentences.append(line[start : run.end()].strip())
            start = run.end()
    sentences.append(line[start:].strip())
    return [sentence for sentence in sentences if sentence]


def _ends_sentence(line: str, start: int, run: re.Match[str]) -> bool:
    if CHINESE_END.search(run[1]):
        # The mark is part of a title, and the sentence continues: 《哦，街车！》.
        return "》" not in run[1]
    after = line[run.end() : run.end() + 1]
    if not run[2] or not after:
        return False
    if after not in OPENING and (not after.isalnum() or after.islower()):
        return False
    return run[1] != "." or not _is_abbreviation(line, start, run.start(), after)


def _is_abbreviation(line: str, start: int, dot: int, after: str) -> bool:
    word = LAST_WORD.search(line[max(start, dot - LOOK_BACK) : dot])
    last = word[0] if word else ""
    if DOTTED.match(last) or (len(last) == 1 and last.isupper()):
        return True
    if last.isdigit():
        # "1. Introduction" is one sentence, "in 1999. The" is two.
        return len(last) <= 3 and not line[start : dot - len(last)].strip()
    last = last.lower()
    return last in ABBREVIATIONS or (last in BEFORE_NUMBER and after.isdigit())
