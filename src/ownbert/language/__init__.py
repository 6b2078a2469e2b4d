"""The language of what people read on the command line, by the locale: English or Chinese."""

import inspect
import os
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache
from typing import Any

# The first of these that is set decides, as for gettext; our own comes before the system's.
_VARIABLES = ("OWNBERT_LANGUAGE", "LC_ALL", "LC_MESSAGES", "LANG")
ENGLISH, CHINESE = "en", "zh"
_EXAMPLE = "Example: "
# A Chinese character or sign, and signs that do not begin a line.
_HAN, _CLOSING = "[\u3000-\u303f\u4e00-\u9fff\uff00-\uffef“”]", "[，。、；：）”？！]"
_NUMBER = re.compile(r"\d[\d,]*")
# Where a value goes in a translation; its number and kind.
PLACE = re.compile(r"\{(\d?)([~*]?)\}")
_SENTENCES = re.compile(r"(?<=[.?!]) (?=[A-Z])")
# "train.csv, line 7: " or "row 7: ", after which all is Chinese.
_PLACE_IN_FILE = re.compile(r"^(.*?)(?:, )?\b(?:line|row) ([\d,]+)：")
# Texts with fewer letters of their own ("{} to {}") stand for numbers and names, not for sentences.
_FEW_LETTERS = 10
# What stands before any line.
_STARTS = ("warning: ", "note: ", "error: ")
# Values within values, and sentences: messages quote what others have written.
_DEEPEST, _MOST_SENTENCES = 5, 20


def current_language() -> str:
    """``CHINESE`` where the locale says so (zh_CN, zh_TW, ...), else ``ENGLISH``."""
    value = next((os.environ[name] for name in _VARIABLES if os.environ.get(name)), "")
    return CHINESE if value.lower().startswith(CHINESE) else ENGLISH


def translated_help(text: str) -> str:
    """A help text in the current language, paragraph by paragraph; what is unknown stays."""
    if current_language() == ENGLISH:
        return text
    help_texts = _table("help")
    if default := _matched(_table("default"), text):
        return default
    shown = []
    for paragraph in paragraphs(text):
        if paragraph.startswith(_EXAMPLE):
            shown.append(help_texts[_EXAMPLE] + paragraph.removeprefix(_EXAMPLE))
        else:
            shown.append(_found(help_texts, paragraph) or paragraph)
    return "\n\n".join(shown)


def paragraphs(text: str) -> list[str]:
    """The paragraphs of a help text, each on one line."""
    return [" ".join(part.split()) for part in inspect.cleandoc(text).split("\n\n")]


def needs_translation(paragraph: str) -> bool:
    """Whether a paragraph, or what is said of a default, should be in the table and is not."""
    # A command, or a value as it is written.
    is_code = paragraph.startswith((_EXAMPLE, "ownbert ")) or re.fullmatch(r"[a-z\d.,]+", paragraph)
    known = _found(_table("help"), paragraph) or _matched(_table("default"), paragraph)
    return not is_code and not known


def translated(text: str) -> str:
    """A text that leaves the program, in the current language: a message, a line, a heading.

    The code speaks English; the table of translations is asked where a text is shown. A text that
    it does not have is looked up sentence by sentence, and what is unknown stays.
    """
    if current_language() == ENGLISH:
        return text
    return _translated(text)


def translated_message(text: str) -> str:
    """The message of a mistake; where it begins with a place, the place too."""
    if current_language() == ENGLISH:
        return text
    shown = _translated(text)
    if shown == text:  # a place, and what is wrong there
        start, colon, rest = text.partition(": ")
        shown = f"{start}：{_translated(rest)}" if colon and _translated(rest) != rest else text
    return _PLACE_IN_FILE.sub(lambda at: f"{at[1] + ' ' * bool(at[1])}第 {at[2]} 行：", shown)


@lru_cache(maxsize=4096)
def _translated(text: str, depth: int = 0) -> str:
    """The translation of a text; ``depth``: that of the text that it is a value of, and so on."""
    if not text or depth > _DEEPEST:
        return text
    texts = _table()
    if (found := texts.get(text)) is not None:
        return found
    if "\n" in text:
        return "\n".join(_translated(line, depth + 1) for line in text.split("\n"))
    for start in _STARTS:
        if text.startswith(start):
            return texts[start] + _translated(text.removeprefix(start), depth + 1)
    whole = _by_pattern(text, depth, across=False)
    if whole is not None:
        return whole
    sentences = _SENTENCES.split(text)
    several = 1 < len(sentences) <= _MOST_SENTENCES
    shown = [_translated(one, depth + 1) for one in sentences] if several else []
    if all(map(str.__ne__, shown, sentences)) and shown:
        return "".join(one if one[-1:] in "。？！" else f"{one} " for one in shown).rstrip()
    return _by_pattern(text, depth, across=True) or text


def _by_pattern(text: str, depth: int, *, across: bool) -> str | None:
    """The translation by the pattern that has most in common with a text.

    Args:
        across: whether a value may go on into the next sentence.
    """
    for pieces, translation in _patterns():
        values = _values(pieces, text)
        if values is None or not _plausible(pieces, translation, values):
            continue
        if across or not any(map(_SENTENCES.search, values)):
            return _filled(translation, values, lambda value: _translated(value, depth + 1))
    return None


def translated_page(source: str) -> str:
    """The template of a page, or its script, with its words in the current language."""
    if current_language() == ENGLISH:
        return source
    templates = _table("page")
    for english in sorted(templates, key=len, reverse=True):
        source = source.replace(english, templates[english])
    return source


@cache
def _patterns() -> list[tuple[list[str], str]]:
    """The texts with ``{}`` as what stands around it; those with most words of their own first."""
    texts = _table().items()
    found = [(text.split("{}"), translation) for text, translation in texts if "{}" in text]
    return sorted(found, key=lambda one: -sum(map(len, one[0])))


def _plausible(pieces: Sequence[str], translation: str, values: Sequence[str]) -> bool:
    """Whether what is taken for a value of a short text can be one, and not half a sentence."""
    if sum(map(str.isalpha, "".join(pieces))) >= _FEW_LETTERS:
        return True
    found = enumerate(PLACE.findall(translation))
    places = [(int(at) if at else i, kind) for i, (at, kind) in found]
    return all(kind or " " not in values[at] for at, kind in places)


def _table(context: str = "") -> Mapping[str, str]:
    """The translations of one ``msgctxt`` of zh.po, by the English text; "": those without one."""
    from ownbert.language.catalogue import catalogue  # English needs no reader

    return catalogue(CHINESE)[context]


def _matched(table: Mapping[str, str], text: str) -> str | None:
    """The translation of a text, where ``{}`` in the table stands for any characters."""
    for known, translation in table.items():
        if (values := _values(known.split("{}"), text)) is not None:
            return _filled(translation, values)
    return None


def _values(pieces: Sequence[str], text: str) -> list[str] | None:
    """What stands between ``pieces`` in ``text``, the shortest; None if it does not consist of
    them. In linear time, as a regular expression would not be: messages quote others' texts."""
    first, *middle = pieces
    last = middle.pop() if middle else first
    if not text.startswith(first) or not text.endswith(last):
        return None
    at, end = len(first), len(text) - len(last)
    if len(pieces) == 1:
        return [] if text == first else None
    values = []
    for piece in middle:
        place = text.find(piece, at, end)
        if place < 0:
            return None
        values.append(text[at:place])
        at = place + len(piece)
    return None if at > end else [*values, text[at:end]]


def _found(table: Mapping[str, str], text: str) -> str | None:
    """The translation of a text; the numbers in it may be others than in the table."""
    if text in table:
        return table[text]
    numbers = _NUMBER.findall(text)
    found = table.get(_NUMBER.sub("{}", text)) if numbers else None
    return None if found is None else _filled(found, numbers)


def _filled(text: str, values: Sequence[str], translate: Callable[[str], str] = str) -> str:
    """``text`` with its places filled: ``{}`` in order, ``{1}`` by number; ``{~}`` and ``{1~}``
    with the translation of the value; ``{*}`` as ``{}``. ``format`` would read the braces of
    JSON."""
    order = iter(values)

    def value(place: re.Match[str]) -> str:
        own = values[int(place[1])] if place[1] else next(order)
        return translate(own) if place[2] == "~" else own

    return PLACE.sub(value, text)


def translate_command(command: Any, translate: Callable[[str], str] = translated_help) -> None:
    """Translate the help of a command of typer, of its options, and of the commands below it."""
    for name in ("help", "short_help", "epilog", "rich_help_panel"):
        if isinstance(text := getattr(command, name, None), str):
            setattr(command, name, translate(text))
    for parameter in getattr(command, "params", ()):
        for name in ("help", "rich_help_panel", "show_default"):
            if isinstance(text := getattr(parameter, name, None), str):
                setattr(parameter, name, translate(text))
    if (make := getattr(command, "get_help_option", None)) is not None:
        command.get_help_option = lambda ctx: _translated_option(make(ctx), translate)  # pyright: ignore
    for each in (getattr(command, "commands", None) or {}).values():
        if each is not None:
            translate_command(each, translate)


def _translated_option(option: Any, translate: Callable[[str], str]) -> Any:
    """The option --help, which is made when it is shown."""
    if option is not None and option.help:
        option.help = translate(option.help)
    return option


def translate_frames() -> None:
    """Translate the words that typer itself puts around a help text, and break lines between
    Chinese characters: rich breaks at blanks alone, and cuts off what is longer than a line."""
    if current_language() == ENGLISH:
        return
    from rich import _wrap
    from typer import rich_utils

    _wrap.re_word = re.compile(rf"\s*(?:{_HAN}{_CLOSING}*|(?:(?!{_HAN})\S)+{_CLOSING}*)\s*")
    for name, text in _table("frame").items():
        setattr(rich_utils, name, text)
