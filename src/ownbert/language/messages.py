"""Messages: a template and its values, which stay as they are in every language.

    Message("{file} has no column {name!r}; choose with {--text-column}", path, name)

A message is its English sentence, a ``str``. Its translation is that of its template, filled with
the same values. Values that are messages are translated, too, and words of ours that are marked in
a template or a translation, as in ``{kind!t}``. ``{--text-column}`` is an option, which is an
argument in Python.
"""

import contextlib
import re
import shlex
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from string import Formatter
from typing import Any

from ownbert.language.catalogue import ENGLISH, catalogue, current_language

_SWITCHES = {"resume", "overwrite", "network", "dry_run"}
# Starts of any line.
_START = re.compile("(?:warning|note|error): ")
_state = {"on_command_line": False}
# Options of this command, mapped to the spelling that was typed.
typed_options: dict[str, str] = {}


@contextlib.contextmanager
def on_command_line() -> Iterator[None]:
    """Make messages inside the block name command line options instead of arguments."""
    before, _state["on_command_line"] = _state["on_command_line"], True
    try:
        yield
    finally:
        _state["on_command_line"] = before


def is_on_command_line() -> bool:
    """Whether the program was started from the command line, not through the Python API."""
    return _state["on_command_line"]


class Option:
    """An option in a message: ``--dev-share 0.1``, or ``dev_share=0.1`` in Python.

    Args:
        name: ``--dev-share``, with hyphens or underscores, or ``-o``.
        values: alternative values.
    """

    def __init__(self, name: str, *values: Any) -> None:
        self.name = f"--{name.lstrip('-').replace('_', '-')}" if name != "-o" else name
        self.values = values

    def __str__(self) -> str:
        return self.shown(is_on_command_line())

    def shown(self, on_command_line: bool) -> str:
        """As on the command line, or as an argument in Python."""
        if on_command_line:
            name = typed_options.get(self.name, self.name)
            values = [shlex.quote(str(value)) for value in self.values]
            return f"{name} {' or '.join(values)}" if values else name
        name = "output" if self.name == "-o" else self.name[2:].replace("-", "_")
        values = [repr(value) for value in self.values] or ["True"] * (name in _SWITCHES)
        return f"{name}={' or '.join(values)}" if values and self.name != "-o" else name


class Message(str):
    """A sentence in English, with the template and the values that it was made from.

    Args:
        template: a format string. Its names are for translators, who may change their order.
        values: the values of the names in the order of the template, once each: anything that can
            be formatted, also messages, errors and options, or lists of words.
    """

    template: str
    values: Mapping[str, Any]

    def __new__(cls, template: str, /, *values: Any) -> "Message":
        if isinstance(template, Message):
            return template
        named = dict(zip(names_of(template), map(_kept, values), strict=True))
        shown = _Filled(ENGLISH, is_on_command_line()).vformat(template, (), named)
        message = super().__new__(cls, shown)
        message.template, message.values = template, named
        return message

    @classmethod
    def ready(cls, shown: str, template: str, **values: Any) -> "Message":
        """A message with its English sentence, faster, for places that are named for every row."""
        message = str.__new__(cls, shown)
        message.template, message.values = template, values
        return message

    def __add__(self, other: str) -> "Message":
        return join((self, other), "")

    def __radd__(self, other: str) -> "Message":
        return join((other, self), "")

    def __reduce__(self) -> Any:
        return Message, (self.template, *self.values.values())

    def replaced(self, names: Mapping[Any, str]) -> "Message":
        """The message with other values, also in the messages in it."""
        values = (
            value.replaced(names)
            if isinstance(value, Message)
            else names.get(value, value)
            if isinstance(value, Hashable)
            else value
            for value in self.values.values()
        )
        return Message(self.template, *values)

    def shown(self, language: str | None = None, *, on_command_line: bool | None = None) -> str:
        """The message in a language, that of the locale by default."""
        language = language or current_language()
        if on_command_line is None:
            on_command_line = is_on_command_line()
        template = translation_of(self.template, language)
        return _Filled(language, on_command_line).vformat(template, (), self.values)


def join(parts: Iterable[str], by: str = ", ") -> Message:
    """Texts and messages as one message, in which each is translated, as is ``by``."""
    first, *others = parts
    names = {"first": first, "by": by, **{f"part{i}": part for i, part in enumerate(others)}}
    if not others:
        del names["by"]
    template = "{first!t}" + "".join(
        f"{{by!t}}{{{name}!t}}" for name in names if name[:4] == "part"
    )
    return Message.ready(by.join((first, *others)), template, **names)


def sentences(parts: Iterable[str]) -> Message:
    """Sentences as one message; Chinese ones have no spaces between them."""
    values = list(filter(None, parts))
    return Message("".join(f"{{part{i}!{'n' if i else 't'}}}" for i in range(len(values))), *values)


def translation_of(text: str, language: str) -> str:
    """The translation of a text or template; a text without one stays as it is."""
    if language == ENGLISH:
        return text
    texts = catalogue(language)[""]
    if start := _START.match(text):
        return texts[start[0]] + texts.get(text[start.end() :], text[start.end() :])
    return texts.get(text, text)


def names_of(template: str, *, options: bool = False) -> list[str]:
    """The names of the values of a template, or its ``options``, once each."""
    names = dict.fromkeys(name for _, name, _, _ in Formatter().parse(template) if name)
    return [name for name in names if name.startswith("-") == options]


def _kept(value: Any) -> Any:
    """A value of a message; errors may hold objects that cannot be pickled."""
    if isinstance(value, BaseException):
        return value.args[0] if value.args and isinstance(value.args[0], Message) else str(value)
    return value


class _Filled(Formatter):
    def __init__(self, language: str, on_command_line: bool) -> None:
        self.language, self.on_command_line = language, on_command_line

    def get_field(self, field_name: str, args: Any, kwargs: Any) -> Any:
        if field_name.startswith("-"):
            name, *values = field_name.split()
            return Option(name, *map(_number, values)), name
        return kwargs[field_name], field_name

    def convert_field(self, value: Any, conversion: Any) -> Any:
        if conversion == "n":  # the next sentence
            return " " * (self.language == ENGLISH) + self.convert_field(value, "t")
        if conversion == "t" and type(value) is str:
            return translation_of(value, self.language)
        conversion = None if conversion == "t" else conversion
        if isinstance(value, Option):
            return value.shown(self.on_command_line)
        if isinstance(value, Message):
            value = value.shown(self.language, on_command_line=self.on_command_line)
        elif isinstance(value, list | tuple) and conversion is None and _has_words(value):
            return ", ".join(self.convert_field(each, "s") for each in value)
        return super().convert_field(value, conversion)


def _has_words(values: Sequence[Any]) -> bool:
    """Whether values are listed; a shape is written as it is."""
    return any(isinstance(value, str | Option) for value in values)


def _number(text: str) -> Any:
    with contextlib.suppress(ValueError):
        return int(text)
    with contextlib.suppress(ValueError):
        return float(text)
    return text
