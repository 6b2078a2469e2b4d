"""The encoding of users' text files."""

import codecs
import contextlib
import functools
import io
import re
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, BinaryIO, ParamSpec, TypeVar, cast

from ownbert.exceptions import InputError, in_short

UTF8 = "utf-8"
ENCODING_HELP = "Encoding of text files, such as cp1252 or gb18030."
# None: UTF-8, and the command has no option for another encoding.
_encoding: ContextVar[str | None] = ContextVar("encoding", default=None)
Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


@contextlib.contextmanager
def reading_as(encoding: str | None) -> Iterator[None]:
    """Make ``open_text`` read users' files in this encoding inside the block.

    Args:
        encoding: any text encoding known to Python; None: that of the enclosing block, else UTF-8.

    Raises:
        InputError: Python does not know the encoding.
    """
    name = (_encoding.get() or UTF8) if encoding is None else known_encoding(encoding)
    token = _encoding.set(name)
    try:
        yield
    finally:
        _encoding.reset(token)


def reads_encoding(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Decorate a function whose keyword ``encoding`` is the encoding of the files that it reads."""

    @functools.wraps(function)
    def call(*about: Parameters.args, **options: Parameters.kwargs) -> Result:
        encoding = options.get("encoding")
        with reading_as(None if encoding is None else str(encoding)):
            return function(*about, **options)

    return call


def known_encoding(encoding: str) -> str:
    """Python's name of a text encoding.

    Raises:
        InputError: Python does not know the encoding.
    """
    try:
        name = codecs.lookup(encoding).name
        "text\n".encode(name)  # rejects codecs from bytes to bytes, such as base64
    except (LookupError, UnicodeError, ValueError):
        raise InputError(
            "encoding {encoding} is not known; use one such as utf-8, cp1252, gb18030, "
            "shift_jis or utf-16",
            in_short(encoding),
        ) from None
    return UTF8 if name == "utf-8-sig" else name


def check_encoding(name: str, value: str) -> None:
    """Check a setting; ``InputError`` unless Python knows the text encoding."""
    known_encoding(value)


def current_encoding() -> str:
    """The encoding in which ``open_text`` reads users' files."""
    return _encoding.get() or UTF8


def has_option() -> bool:
    """Whether the running command has the option --encoding, which messages may then mention."""
    return _encoding.get() is not None


def decoded_lines(stream: BinaryIO, encoding: str) -> Iterator[str]:
    """Yield lines with their line ends; ``UnicodeError`` if they are not in ``encoding``.

    Lines are yielded as soon as they are written if a line feed is one byte in the encoding.
    """
    if has_plain_line_feeds(encoding):
        return (line.decode(encoding) for line in stream)
    return iter(io.TextIOWrapper(cast(Any, stream), encoding, newline="\n"))


def has_plain_line_feeds(encoding: str) -> bool:
    """Whether a line feed is a single byte in the encoding (not in UTF-16)."""
    return encoding == UTF8 or ("\n".encode(encoding) == b"\n" and b"\n".decode(encoding) == "\n")


def likely_encoding(line: bytes) -> str:
    """Guess the encoding of a line that is not UTF-8.

    Returns:
        GB 18030 if the bytes beyond ASCII are mostly pairs of frequent Chinese characters and
        punctuation (GB 2312, levels 0 and 1), else Windows-1252.
    """
    beyond = sum(byte > 0x7F for byte in line)
    pairs = re.findall(rb"[\xa1-\xa3\xb0-\xd7][\xa1-\xfe]", line)
    return "gb18030" if 2 * len(pairs) >= 0.8 * beyond else "cp1252"
