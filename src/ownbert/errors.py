"""The exception for every mistake of a user, the warning, and values as messages show them."""

import contextlib
import re
import shlex
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

_LONGEST = 60
# Options in messages, and values that follow some of them there. In Python they are arguments.
_VALUES = r"'[^']*'|\d[\d.]*|float32|bfloat16|auto|cpu|cuda(?::\d+)?|onnx|openvino|torch|mlm"
_VALUES += r"|classify|multilabel|regress|utf-16|cp\d+|gb18030|big5|euc_\w+|shift_jis|latin-1"
_OPTION = re.compile(
    rf"(?<![\w-])--([a-z][a-z0-9-]*[a-z0-9])(?: ({_VALUES})(?![\w-]))?|(?<!\S)-o(?: FILE)?\b"
)
_SWITCHES = {"resume", "overwrite", "network", "dry_run"}
# Lines for a shell, whose options stay.
_COMMAND = re.compile(r"(\bownbert [a-z]+(?: [^;,:(]*)?)")
_state = {"on_command_line": False}


@contextlib.contextmanager
def on_command_line() -> Iterator[None]:
    """Messages name options as a command takes them, not arguments, within this."""
    before, _state["on_command_line"] = _state["on_command_line"], True
    try:
        yield
    finally:
        _state["on_command_line"] = before


def is_on_command_line() -> bool:
    """Whether a command has been given, not a call in Python."""
    return _state["on_command_line"]


def option_with(option: str, values: Sequence[str]) -> str:
    """An option with one of these values, as a shell takes it, or the argument in Python."""
    if is_on_command_line():
        return f"{option} {' or '.join(map(shlex.quote, values))}"
    return f"{_argument(option)}={' or '.join(map(repr, values))}"


def as_said_here(message: str) -> str:
    """A message with the names of options, or in Python with those of arguments."""
    if is_on_command_line() or "-" not in message:
        return message
    parts = _COMMAND.split(message)
    return "".join(p if i % 2 else _OPTION.sub(_in_python, p) for i, p in enumerate(parts))


def _in_python(found: re.Match[str]) -> str:
    if found[1] is None:
        return "output"
    name, value = _argument(found[1]), found[2]
    if value is not None:
        as_it_is = value[0] == "'" or value[0].isdigit()
        return f"{name}={value if as_it_is else repr(value)}"
    return f"{name}=True" if name in _SWITCHES else name


def _argument(option: str) -> str:
    return option.removeprefix("--").replace("-", "_")


class InputError(ValueError):
    """A file, value or setting that cannot be used.

    The message is one line: what is wrong, where, and what would be right. The command line
    prints it and exits with code 2; in Python it is a subclass of ``ValueError``, and the message
    names arguments instead of options.
    """

    def __init__(self, *about: Any) -> None:
        super().__init__(*(as_said_here(each) if isinstance(each, str) else each for each in about))


class MissingError(InputError, OSError):
    """A folder or a file of a model that is not there; scripts expect Transformers' ``OSError``."""


class InputWarning(UserWarning):
    """Something in an input that is read, but may not be as meant."""


def warn_of_input(message: str) -> None:
    """Warn the user of something in an input, once for the same message."""
    warnings.warn(as_said_here(message), InputWarning, stacklevel=2)


def in_short(value: Any) -> str:
    """A value as a message shows it: the beginning of one that would fill the screen."""
    if isinstance(value, int) and value.bit_length() > 8 * _LONGEST:
        return f"a number of about {int(value.bit_length() * 0.30103):,} digits"
    try:
        shown = repr(value)
    except (ValueError, RecursionError):  # a list with such a number, or a very deep one
        return f"a {type(value).__name__} that is too long to show"
    return shown if len(shown) <= _LONGEST else f"{shown[:_LONGEST]}…"
