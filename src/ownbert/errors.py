"""The exception for every mistake of a user, the warning, and values as messages show them."""

import warnings
from typing import Any

_LONGEST = 60


class InputError(ValueError):
    """A file, value or setting that cannot be used.

    The message is one line: what is wrong, where, and what would be right. The command line
    prints it and exits with code 2; in Python it is a subclass of ``ValueError``.
    """


class MissingError(InputError, OSError):
    """A folder or a file of a model that is not there; scripts expect Transformers' ``OSError``."""


class InputWarning(UserWarning):
    """Something in an input that is read, but may not be as meant."""


def warn_of_input(message: str) -> None:
    """Warn the user of something in an input, once for the same message."""
    warnings.warn(message, InputWarning, stacklevel=2)


def in_short(value: Any) -> str:
    """A value as a message shows it: the beginning of one that would fill the screen."""
    if isinstance(value, int) and value.bit_length() > 8 * _LONGEST:
        return f"a number of about {int(value.bit_length() * 0.30103):,} digits"
    try:
        shown = repr(value)
    except (ValueError, RecursionError):  # a list with such a number, or a very deep one
        return f"a {type(value).__name__} that is too long to show"
    return shown if len(shown) <= _LONGEST else f"{shown[:_LONGEST]}…"
