"""Lines of standard input."""

import sys
from collections.abc import Iterator

from ownbert.errors import InputError


def stdin_lines() -> Iterator[str]:
    """Each line without its end. ``InputError``, with its number, for one that is not UTF-8."""
    for number, line in enumerate(sys.stdin.buffer, 1):
        try:
            yield line.decode("utf-8").rstrip("\r\n")
        except UnicodeDecodeError:
            raise InputError(f"standard input, line {number}: not UTF-8") from None
