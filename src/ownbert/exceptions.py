"""The exception for users' mistakes, the warning about inputs, values in messages, and advice."""

import contextlib
import math
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sized
from dataclasses import fields
from functools import lru_cache
from typing import Any

from ownbert.language.messages import Message, Option, join

_LONGEST = 60  # characters of a value in a message
# Messages of torch about failed allocations, on a CPU, on a GPU, and in C++.
_ALLOCATIONS = ("can't allocate memory", "out of memory", "std::bad_alloc")
# Messages of oneDNN when memory runs out; those about unsupported operations are longer.
_NO_PRIMITIVE = ("could not create a primitive", "could not execute a primitive")


class InputError(ValueError):
    """A file, value or setting that cannot be used.

    The message is one line: what is wrong, where, and what would be right. The command line
    prints it and exits with code 2; in Python it is a subclass of ``ValueError``, and the message
    names arguments instead of options.
    """

    def __init__(self, template: str = "", /, *values: Any) -> None:
        super().__init__(Message(template, *values))

    @property
    def message(self) -> Message:
        """The message with its template and values, which can be translated."""
        return self.args[0]


class MissingError(InputError, OSError):
    """A missing model file or folder; an ``OSError`` as well, as scripts for Transformers
    expect."""


@contextlib.contextmanager
def needing(template: str, /, *values: Any) -> Iterator[None]:
    """Import optional packages inside the block: ``InputError`` with the message without them."""
    try:
        yield
    except ImportError as error:
        raise InputError(template, *values) from error


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed; torch has no exception type for failures on a CPU."""
    message = str(error)
    if isinstance(error, MemoryError) or message in _NO_PRIMITIVE:
        return True
    return isinstance(error, RuntimeError) and any(part in message for part in _ALLOCATIONS)


@contextlib.contextmanager
def explaining_memory(sizes: Callable[[], Mapping[str, Any]]) -> Iterator[None]:
    """Turn a failed allocation into an ``InputError`` that names the settings to lower.

    Args:
        sizes: returns the settings that determine how much memory is needed, with their values;
            None: chosen by the command.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        options = [
            Option(name, *([value] if isinstance(value, int) else []))
            for name, value in sizes().items()
        ]
        if not options:
            raise InputError("out of memory; use a smaller model or a smaller input") from error
        lower = "out of memory; lower {options}, or use a smaller model or a smaller input"
        raise InputError(lower, join(map(str, options), " or ")) from error


class InputWarning(UserWarning):
    """Something suspicious in an input that can be read all the same."""


def warn_of_input(template: str, /, *values: Any) -> None:
    """Warn the user about an input; repeated messages are shown once."""
    warnings.warn(Message(template, *values), InputWarning, stacklevel=2)


def counted(count: int, noun: str) -> Message:
    """A number and its noun: 1 word, 2 words."""
    return Message(f"{{count:,}} {noun}{'' if count == 1 else 's'}", count)


def percent(share: float) -> str:
    """A share from 0 to 1 in per cent, with one decimal or as many as a share of a few rows needs:
    two of 10,000 rows are 0.02%, not 0.0%."""
    distance = 100 * min(share, 1 - share)
    places = min(6, max(1, math.ceil(-math.log10(distance)))) if distance > 0 else 1
    return f"{100 * share:.{places}f}%"


def in_short(value: Any) -> str:
    """A value as shown in messages, truncated if it is long."""
    if isinstance(value, int) and value.bit_length() > 8 * _LONGEST:
        return Message("a number of about {bit_length:,} digits", int(value.bit_length() * 0.30103))
    try:
        shown = repr(value).replace("\n", " ")  # of tensors and arrays
    except (ValueError, RecursionError):  # huge numbers, or deep nesting
        return Message("a {kind} that is too long to show", type(value).__name__)
    return shown if len(shown) <= _LONGEST else f"{shown[:_LONGEST]}…"


def named_repr(kind: Any, *values: Any, **facts: Any) -> str:
    """The text for ``__repr__``: the class and values, in brief: users' texts and arrays are not
    printed, so a notebook does not save them by accident."""
    parts = [*map(_brief, values), *(f"{name}={_brief(value)}" for name, value in facts.items())]
    return f"{type(kind).__name__}({', '.join(parts)})"


def fields_repr(made: Any) -> str:
    """``__repr__`` of a dataclass whose fields may be large (``named_repr``)."""
    return named_repr(made, **{field.name: getattr(made, field.name) for field in fields(made)})


def _brief(value: Any) -> str:
    if isinstance(value, str | os.PathLike):
        return in_short(os.fspath(value))
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, Sized):
        return f"<{counted(len(value), 'value')}>"
    return in_short(value)


@lru_cache
def other_names(of: str) -> dict[str, str]:
    """What to use instead of names of other libraries, by a section of ``other_names.yaml``."""
    from importlib.resources import files

    import yaml

    table = yaml.safe_load(files("ownbert").joinpath("other_names.yaml").read_text("utf-8"))
    return {name: instead for instead, names in table[of].items() for name in names}
