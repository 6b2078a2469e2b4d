"""Translates command-line output into the language of the locale: English or Chinese."""

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache
from typing import Any

from ownbert.language.catalogue import CHINESE, ENGLISH, catalogue, current_language
from ownbert.language.messages import Message

_EXAMPLE = "Example: "
# A Chinese character or punctuation mark, and marks that do not start a line.
_HAN, _CLOSING = "[\u3000-\u303f\u4e00-\u9fff\uff00-\uffef“”]", "[，。、；：）”？！]"
_NUMBER = re.compile(r"\d[\d,]*")
# Placeholder for a value in a translation: its number and kind.
PLACE = re.compile(r"\{(\d?)([~*]?)\}")
# Templates of messages have names for values.
NAMED = re.compile(r"\{[a-z-]")
_SENTENCES = re.compile(r"(?<=[.?!]) (?=[A-Z])")
# "train.csv, line 7: " or "row 7: " at the start of a message, whose rest is Chinese.
_PLACE_IN_FILE = re.compile(r"^(.*?)(?:, )?\b(?:line|row) ([\d,]+)：")
# Patterns with fewer letters ("{} to {}") stand for numbers and names, not for sentences.
_FEW_LETTERS = 10
# Prefixes of any line.
_STARTS = ("warning: ", "note: ", "error: ")
# Maximum nesting of values, and maximum number of sentences, because messages quote foreign texts.
_DEEPEST, _MOST_SENTENCES = 5, 20


def translated_help(text: str) -> str:
    """A help text in the current language, translated by paragraph; unknown ones are unchanged."""
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
            shown.append(_translation_of(help_texts, paragraph) or paragraph)
    return "\n\n".join(shown)


def paragraphs(text: str) -> list[str]:
    """The paragraphs of a help text, each on one line."""
    return [" ".join(part.split()) for part in inspect.cleandoc(text).split("\n\n")]


def needs_translation(paragraph: str) -> bool:
    """Whether a paragraph, or the description of a default, lacks a required translation."""
    # A command, or a literal value.
    is_code = paragraph.startswith((_EXAMPLE, "ownbert ")) or re.fullmatch(r"[a-z\d.,]+", paragraph)
    known = _translation_of(_table("help"), paragraph) or _matched(_table("default"), paragraph)
    return not is_code and not known


def translated(text: str, /, *values: Any) -> str:
    """Translate output text into the current language: a message, a line, a heading.

    Args:
        text: a text, or the template of a ``Message`` with its values.

    The code uses English; translations are looked up when a text is shown. A text without an entry
    is looked up sentence by sentence, and unknown sentences are unchanged.
    """
    if values or isinstance(text, Message):
        message = Message(text, *values)
        if _is_template(message):
            return message.shown()
        text = str(message)
    if current_language() == ENGLISH:
        return text
    return _translated(text)


def _is_template(message: Message) -> bool:
    """Whether a message is translated by its template, not yet as a finished sentence."""
    nested = any(isinstance(value, Message) for value in message.values.values())
    return nested or current_language() == ENGLISH or message.template in _table()


def translated_message(text: str) -> str:
    """Translate an error message, including a location at its start."""
    if isinstance(text, Message):
        if _is_template(text):
            return text.shown()
        text = str(text)
    if current_language() == ENGLISH:
        return text
    shown = _translated(text)
    if shown == text:  # a location followed by a problem
        start, colon, rest = text.partition(": ")
        shown = f"{start}：{_translated(rest)}" if colon and _translated(rest) != rest else text
    return _PLACE_IN_FILE.sub(lambda at: f"{at[1] + ' ' * bool(at[1])}第 {at[2]} 行：", shown)


@lru_cache(maxsize=4096)
def _translated(text: str, depth: int = 0) -> str:
    """Translate a text; ``depth`` is its nesting as a value of other texts."""
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
    """Translate by the pattern that shares most with a text; ``across``: a value may extend into
    the next sentence."""
    for pieces, translation in _patterns():
        values = _values(pieces, text)
        if values is None or not _plausible(pieces, translation, values):
            continue
        if across or not any(map(_SENTENCES.search, values)):
            return _filled(translation, values, lambda value: _translated(value, depth + 1))
    return None


def translated_page(source: str) -> str:
    """Translate the words in a page template or its script."""
    if current_language() == ENGLISH:
        return source
    templates = _table("page")
    for english in sorted(templates, key=len, reverse=True):
        source = source.replace(english, templates[english])
    return source


@cache
def _patterns() -> list[tuple[list[str], str]]:
    """The texts with ``{}``, split at the placeholders; those with the most words first."""
    texts = [(text, shown) for text, shown in _table().items() if not NAMED.search(text)]
    found = [(text.split("{}"), translation) for text, translation in texts if "{}" in text]
    return sorted(found, key=lambda one: -sum(map(len, one[0])))


def _plausible(pieces: Sequence[str], translation: str, values: Sequence[str]) -> bool:
    """Whether the values matched in a short text are plausible, and not parts of a sentence."""
    if sum(map(str.isalpha, "".join(pieces))) >= _FEW_LETTERS:
        return True
    found = enumerate(PLACE.findall(translation))
    places = [(int(at) if at else i, kind) for i, (at, kind) in found]
    return all(kind or " " not in values[at] for at, kind in places)


def _table(context: str = "") -> Mapping[str, str]:
    """The translations of a ``msgctxt`` in zh.po by English text; "" for entries without one."""
    return catalogue(CHINESE)[context]


def _matched(table: Mapping[str, str], text: str) -> str | None:
    """The translation of a text by patterns, in which ``{}`` matches any characters."""
    for known, translation in table.items():
        if (values := _values(known.split("{}"), text)) is not None:
            return _filled(translation, values)
    return None


def _values(pieces: Sequence[str], text: str) -> list[str] | None:
    """The shortest texts between ``pieces`` in ``text``; None if it does not match. In linear time,
    unlike a regular expression, because messages quote foreign texts."""
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


def _translation_of(table: Mapping[str, str], text: str) -> str | None:
    """The translation of a text; its numbers may differ from those in the table."""
    if text in table:
        return table[text]
    numbers = _NUMBER.findall(text)
    found = table.get(_NUMBER.sub("{}", text)) if numbers else None
    return None if found is None else _filled(found, numbers)


def _filled(text: str, values: Sequence[str], translate: Callable[[str], str] = str) -> str:
    """Fill the placeholders of ``text``.

    ``{}`` are filled in order, ``{1}`` by number, ``{~}`` and ``{1~}`` with the translated value,
    ``{*}`` like ``{}``. ``str.format`` would also interpret braces of JSON.
    """
    order = iter(values)

    def value(place: re.Match[str]) -> str:
        found = values[int(place[1])] if place[1] else next(order)
        return translate(found) if place[2] == "~" else found

    return PLACE.sub(value, text)


def translate_command(command: Any, translate: Callable[[str], str] = translated_help) -> None:
    """Translate the help of a typer command, of its options, and of its subcommands."""
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
    """The option --help, which is created when it is shown."""
    if option is not None and option.help:
        option.help = translate(option.help)
    return option


def translate_frames() -> None:
    """Translate typer's own words around help texts, and break lines between Chinese characters:
    rich only breaks at spaces, and truncates longer lines."""
    if current_language() == ENGLISH:
        return
    from rich import _wrap
    from rich.text import Text
    from typer import rich_utils

    # rich compares the number of characters, not their width, so that a space behind a full line
    # would remain, and the line be truncated.
    Text.rstrip_end = lambda self, size: self.rstrip() if self.cell_len > size else None
    _wrap.re_word = re.compile(rf"\s*(?:{_HAN}{_CLOSING}*|(?:(?!{_HAN})\S)+{_CLOSING}*)\s*")
    for name, text in _table("frame").items():
        setattr(rich_utils, name, text)
