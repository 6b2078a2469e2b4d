"""Translates command-line output into the language of the locale: English or Chinese."""

import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any

from ownbert.language.catalogue import CHINESE, ENGLISH, catalogue, current_language
from ownbert.language.messages import Message, translation_of

_EXAMPLE = "Example: "
# A Chinese character or punctuation mark, and marks that do not start a line.
_HAN, _CLOSING = "[\u3000-\u303f\u4e00-\u9fff\uff00-\uffef“”]", "[，。、；：）”？！]"


def translated_help(text: str) -> str:
    """A help text in the current language, translated by paragraph; unknown ones are unchanged."""
    if isinstance(text, Message):
        return text.shown()
    if current_language() == ENGLISH:
        return text
    if default := _table("default").get(text):
        return default
    help_texts, shown = _table("help"), []
    for paragraph in paragraphs(text):
        if paragraph.startswith(_EXAMPLE):
            shown.append(help_texts[_EXAMPLE] + paragraph.removeprefix(_EXAMPLE))
        else:
            shown.append(help_texts.get(paragraph, paragraph))
    return "\n\n".join(shown)


def paragraphs(text: str) -> list[str]:
    """The paragraphs of a help text, each on one line."""
    return [" ".join(part.split()) for part in inspect.cleandoc(text).split("\n\n")]


def needs_translation(paragraph: str) -> bool:
    """Whether a paragraph, or the description of a default, lacks a required translation."""
    # A command, or a literal value.
    is_code = paragraph.startswith((_EXAMPLE, "ownbert ")) or re.fullmatch(r"[a-z\d.,]+", paragraph)
    return not is_code and not any(paragraph in _table(name) for name in ("help", "default"))


def translated(text: str, /, *values: Any) -> str:
    """Translate output text into the current language: a message, a line, a heading.

    Args:
        text: a text, or the template of a ``Message`` with its values.

    The code uses English; the translation of a text or template is looked up when it is shown. A
    text without an entry is unchanged.
    """
    if values or isinstance(text, Message):
        return Message(text, *values).shown()
    return translation_of(text, current_language())


def translated_page(source: str) -> str:
    """Translate the words in a page template or its script."""
    if current_language() == ENGLISH:
        return source
    templates = _table("page")
    for english in sorted(templates, key=len, reverse=True):
        source = source.replace(english, templates[english])
    return source


def _table(context: str) -> Mapping[str, str]:
    """The translations of a ``msgctxt`` in zh.po by English text."""
    return catalogue(CHINESE)[context]


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
