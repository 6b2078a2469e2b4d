"""The language of what people read on the command line, by the locale: English or Chinese."""

import inspect
import os
import re
from collections.abc import Callable, Mapping
from typing import Any

# The first of these that is set decides, as for gettext; our own comes before the system's.
_VARIABLES = ("OWNBERT_LANGUAGE", "LC_ALL", "LC_MESSAGES", "LANG")
ENGLISH, CHINESE = "en", "zh"
_EXAMPLE = "Example: "
# A Chinese character or sign, and signs that do not begin a line.
_HAN, _CLOSING = "[\u3000-\u303f\u4e00-\u9fff\uff00-\uffef“”]", "[，。、；：）”？！]"
_NUMBER = re.compile(r"\d[\d,]*")


def current_language() -> str:
    """``CHINESE`` where the locale says so (zh_CN, zh_TW, ...), else ``ENGLISH``."""
    value = next((os.environ[name] for name in _VARIABLES if os.environ.get(name)), "")
    return CHINESE if value.lower().startswith(CHINESE) else ENGLISH


def translated_help(text: str) -> str:
    """A help text in the current language, paragraph by paragraph; what is unknown stays."""
    if current_language() == ENGLISH:
        return text
    from ownbert.language.zh import DEFAULTS, EXAMPLE, HELP

    if default := _matched(DEFAULTS, text):
        return default
    shown = []
    for paragraph in paragraphs(text):
        if paragraph.startswith(_EXAMPLE):
            shown.append(EXAMPLE + paragraph.removeprefix(_EXAMPLE))
        else:
            shown.append(_found(HELP, paragraph) or paragraph)
    return "\n\n".join(shown)


def paragraphs(text: str) -> list[str]:
    """The paragraphs of a help text, each on one line."""
    return [" ".join(part.split()) for part in inspect.cleandoc(text).split("\n\n")]


def needs_translation(paragraph: str) -> bool:
    """Whether a paragraph, or what is said of a default, should be in the table and is not."""
    from ownbert.language.zh import DEFAULTS, HELP

    # A command, or a value as it is written.
    is_code = paragraph.startswith((_EXAMPLE, "ownbert ")) or re.fullmatch(r"[a-z\d.]+", paragraph)
    return not is_code and not _found(HELP, paragraph) and not _matched(DEFAULTS, paragraph)


def translated_message(text: str) -> str:
    """The message of a mistake in the current language, where it is one of the most common."""
    if current_language() == ENGLISH:
        return text
    from ownbert.language.zh import MESSAGES

    return _matched(MESSAGES, text) or text


def _matched(table: Mapping[str, str], text: str) -> str | None:
    """The translation of a text, where ``{}`` in the table stands for any characters."""
    for known, translation in table.items():
        pattern = "(.+?)".join(map(re.escape, known.split("{}")))
        if found := re.fullmatch(pattern, text):
            return _filled(translation, found.groups())
    return None


def _found(table: Mapping[str, str], text: str) -> str | None:
    """The translation of a text; the numbers in it may be others than in the table."""
    if text in table:
        return table[text]
    numbers = _NUMBER.findall(text)
    found = table.get(_NUMBER.sub("{}", text)) if numbers else None
    return None if found is None else _filled(found, numbers)


def _filled(text: str, values: "list[str] | tuple[str, ...]") -> str:
    """``text`` with its ``{}`` replaced in order; ``format`` would read the braces of JSON."""
    for value in values:
        text = text.replace("{}", value, 1)
    return text


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

    from ownbert.language.zh import FRAMES

    _wrap.re_word = re.compile(rf"\s*(?:{_HAN}{_CLOSING}*|(?:(?!{_HAN})\S)+{_CLOSING}*)\s*")
    for name, text in FRAMES.items():
        setattr(rich_utils, name, text)
