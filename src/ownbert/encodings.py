"""The encoding in which the text files of users are read."""

import codecs
import contextlib
import functools
import io
import re
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, BinaryIO, ParamSpec, TypeVar, cast

from ownbert.errors import InputError, in_short

UTF8 = "utf-8"
ENCODING_HELP = "Encoding of text files, as in cp1252 or gb18030."
# Of the files of users; None: UTF-8, and the command has no option for another.
_encoding: ContextVar[str | None] = ContextVar("encoding", default=None)
Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


@contextlib.contextmanager
def reading_as(encoding: str | None) -> Iterator[None]:
    """While the block runs, ``open_text`` reads the files of users in this encoding.

    Args:
        encoding: any text encoding that Python knows; None: that of the block around, else UTF-8.

    Raises:
        InputError: Python knows no text encoding of that name.
    """
    name = (_encoding.get() or UTF8) if encoding is None else known_encoding(encoding)
    token = _encoding.set(name)
    try:
        yield
    finally:
        _encoding.reset(token)


def reads_encoding(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """A function whose keyword ``encoding`` is that of the files which it reads."""

    @functools.wraps(function)
    def call(*about: Parameters.args, **options: Parameters.kwargs) -> Result:
        encoding = options.get("encoding")
        with reading_as(None if encoding is None else str(encoding)):
            return function(*about, **options)

    return call


def known_encoding(encoding: str) -> str:
    """The name by which Python knows a text encoding.

    Raises:
        InputError: it knows none of that name.
    """
    try:
        name = codecs.lookup(encoding).name
        "text\n".encode(name)  # bytes to bytes, as of base64, is no encoding of text
    except (LookupError, UnicodeError, ValueError):
        raise InputError(
            f"encoding {in_short(encoding)} is not known; one such as utf-8, cp1252, gb18030, "
            "shift_jis or utf-16"
        ) from None
    return UTF8 if name == "utf-8-sig" else name


def check_encoding(name: str, value: str) -> None:
    """Check a setting; ``InputError`` unless it is a text encoding that Python knows."""
    known_encoding(value)


def current_encoding() -> str:
    """The encoding in which ``open_text`` reads the files of users."""
    return _encoding.get() or UTF8


def has_option() -> bool:
    """Whether the command that reads has --encoding, which messages may then name."""
    return _encoding.get() is not None


def decoded_lines(stream: BinaryIO, encoding: str) -> Iterator[str]:
    """The lines of a stream with their ends; ``UnicodeError`` where they are not in ``encoding``.

    Each is there as soon as it has been written, where a line feed is a byte in the encoding.
    """
    if has_plain_line_feeds(encoding):
        return (line.decode(encoding) for line in stream)
    return iter(io.TextIOWrapper(cast(Any, stream), encoding, newline="\n"))


def has_plain_line_feeds(encoding: str) -> bool:
    """Whether the byte of a line feed is one in this encoding; it is not in UTF-16."""
    return encoding == UTF8 or ("\n".encode(encoding) == b"\n" and b"\n".decode(encoding) == "\n")


def likely_encoding(line: bytes) -> str:
    """GB 18030 where the bytes beyond ASCII are mostly pairs of frequent Chinese characters and
    their punctuation (levels 0 and 1 of GB 2312), else Windows' for Western Europe."""
    beyond = sum(byte > 0x7F for byte in line)
    pairs = re.findall(rb"[\xa1-\xa3\xb0-\xd7][\xa1-\xfe]", line)
    return "gb18030" if 2 * len(pairs) >= 0.8 * beyond else "cp1252"
