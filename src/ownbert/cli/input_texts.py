"""Texts to work on: from the command line, a file or standard input."""

import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from ownbert.errors import InputError


def input_texts(
    texts: Sequence[str],
    input: Path | None,
    read: Callable[[Path], Iterator[str]],
    *,
    missing: str,
) -> Iterator[str]:
    """``texts``; or what ``read`` makes of the file ``input``; or, without either or with -, the
    lines of standard input. ``InputError``: both are given, or nothing is (``missing``)."""
    if texts and input is not None:
        raise InputError("texts and --input are both given; give one of them")
    if texts:
        return iter(texts)
    if input is not None and str(input) != "-":
        return read(input)
    if input is None and sys.stdin.isatty():
        raise InputError(missing)
    return _stdin_lines()


def _stdin_lines() -> Iterator[str]:
    for number, line in enumerate(sys.stdin.buffer, 1):
        try:
            yield line.decode("utf-8").rstrip("\r\n")
        except UnicodeDecodeError:
            raise InputError(f"standard input, line {number}: not UTF-8") from None
