"""Reads text files, plain or gzip, line by line or as a whole, with clear errors."""

import contextlib
import gzip
import io
import os
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, AnyStr, BinaryIO, cast

from ownbert.exceptions import InputError
from ownbert.files.encodings import (
    UTF8,
    current_encoding,
    has_option,
    has_plain_line_feeds,
    likely_encoding,
)
from ownbert.files.input_files import open_input, refuse_second_reading
from ownbert.language.messages import Message, Option

GZIP_MAGIC = b"\x1f\x8b"
UTF8_BOM = b"\xef\xbb\xbf"
# Signatures of binary files whose names suggest text.
_BINARY_KINDS = {
    b"\x89PNG": "a PNG image",
    b"\xff\xd8\xff": "a JPEG image",
    b"GIF8": "a GIF image",
    b"%PDF-": "a PDF document; save its text as a file",
    b"PK\x03\x04": "a ZIP archive, or a document of Word or Excel; save its content as text or csv",
    b"PAR1": "a Parquet file; its name must end with .parquet",
    b"ARROW1": "a Feather or Arrow file; save it as parquet or csv",
    b"\x80\x04\x95": "a Python pickle; save its content as parquet or csv",
    b"\x80\x05\x95": "a Python pickle; save its content as parquet or csv",
    b"$FL2@(#)": "an SPSS file; save its content as parquet or csv",
    b"\x93NUMPY": "a NumPy array",
    b"SQLite format 3": "a SQLite database",
    b"BZh": "compressed by bzip2; unpack it, or compress it by gzip",
    b"\xfd7zXZ": "compressed by xz; unpack it, or compress it by gzip",
    b"\x28\xb5\x2f\xfd": "compressed by zstd; unpack it, or compress it by gzip",
    b"7z\xbc\xaf": "a 7z archive; unpack it",
    b"\xd0\xcf\x11\xe0": "a document of old Word or Excel; save its content as text or csv",
}
# The first control character that is common in text, a tab.
_FIRST_OF_TEXT = 9
UTF16_BOMS = (b"\xff\xfe", b"\xfe\xff")
READ_BUFFER = 1 << 20
# Maximum bytes of a line of text; longer ones are gzip bombs, or files without line ends.
_MOST_LINE = 1 << 26
# Temporary files of this process, which are read with the same functions as users' files.
_own_files: set[str] = set()


def read_text(path: str | os.PathLike[str], *, most: int, pipe: bool = False) -> str:
    """Read a file of UTF-8 text, plain or gzip.

    Args:
        most: maximum size in bytes, uncompressed.
        pipe: whether the path may be a pipe; reading a pipe in a folder from elsewhere could block.

    Raises:
        InputError: the file is missing, unreadable, too large, not regular or not UTF-8.
    """
    source = Path(path)
    if not pipe and source.exists() and not (source.is_file() or source.is_dir()):
        raise InputError("{source} is a pipe or a device, a file is needed", source)
    with _read_errors(source), open(source, "rb") as raw, _unpacked(raw) as stream:
        data = stream.read(most + 1)
    if len(data) > most:
        raise InputError(
            "{source} is larger than {most} MB, too large for a file of this kind",
            source,
            most >> 20,
        )
    data = data.removeprefix(UTF8_BOM)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        number = data.count(b"\n", 0, error.start) + 1
        raise InputError(_undecodable(source, data, number, data, error)) from error


def own_text(path: str | os.PathLike[str]) -> Path:
    """Register ``path`` as a temporary file of this process, always UTF-8 in ``reading_as``."""
    _own_files.add(os.path.abspath(path))
    return Path(path)


def open_text(
    path: str | os.PathLike[str], *, internal: bool = False, keep_returns: bool = False
) -> Iterator[tuple[int, str]]:
    """Yield ``(line number from 1, line without its end)`` of a text file, plain or gzip.

    Gzip is recognised by its first two bytes, whatever the name. Only ``\\n`` and ``\\r\\n`` end a
    line; other Unicode separators (U+2028, form feed, ...) are part of the text. ``\\r`` alone ends
    lines if the first megabyte contains no ``\\n``, as in files of old Macs. A byte order mark is
    dropped. Only one line is in memory at a time.

    Args:
        path: a file in the encoding of ``reading_as``, by default UTF-8; a UTF-8 byte order mark
            overrides it.
        internal: whether the file belongs to a model or was written by a command; then it is UTF-8
            with lines that end in ``\\n``.
        keep_returns: whether a line that ends in ``\\r\\n`` keeps its ``\\r``, which is text if the
            line ends inside a quoted field.

    Raises:
        InputError: at the call, if the file is missing, a folder or unreadable; during iteration,
            for bytes of another encoding and for corrupt gzip data.
    """
    source = Path(path)
    refuse_unreadable(source)
    internal = internal or os.path.abspath(path) in _own_files
    encoding = UTF8 if internal else current_encoding()
    return _lines(source, encoding, internal=internal, keep_returns=keep_returns)


def refuse_unreadable(path: Path) -> None:
    """Check that ``path`` is a file or pipe that can be opened.

    Raises:
        InputError: it is not.
    """
    with _read_errors(path), open_input(path) if not path.is_fifo() else contextlib.nullcontext():
        pass


def is_misnamed_gzip(path: Path) -> bool:
    """Whether a file named .gz is not gzip."""
    if not path.name.lower().endswith(".gz") or not path.is_file():
        return False
    with _read_errors(path), open_input(path) as file:
        return file.read(2) != GZIP_MAGIC


def _lines(
    path: Path, encoding: str, *, internal: bool, keep_returns: bool
) -> Iterator[tuple[int, str]]:
    number, start = 0, b""
    refuse_second_reading(path)
    by_bytes = has_plain_line_feeds(encoding)
    with _read_errors(path, lambda: number), open_input(path) as raw, _unpacked(raw) as stream:
        if not by_bytes:
            text = io.TextIOWrapper(cast(Any, stream), encoding, newline="\n")
            try:
                lines = _split(path, text, "\n", "\r", keep_returns=keep_returns)
                for number, line in enumerate(lines, start=1):
                    yield number, line.removeprefix("\ufeff") if number == 1 else line
            except UnicodeError:
                raise InputError(
                    "{path}, line {number} or soon after it: not {encoding}; name the encoding "
                    "of the file with {--encoding}",
                    path,
                    number + 1,
                    encoding,
                ) from None
            return
        how = {"lone_cr": not internal, "keep_returns": keep_returns}
        lines = _split(path, stream, b"\n", b"\r", **how)
        for number, line in enumerate(lines, start=1):
            if number == 1:
                start = line
                if line.startswith(UTF8_BOM):  # overrides the given encoding
                    line, encoding = line.removeprefix(UTF8_BOM), UTF8
                if (kind := _binary_kind(start)) and min(line) < _FIRST_OF_TEXT:
                    raise InputError("{path} is not text but {kind!t}", path, kind)
            try:
                yield number, line.decode(encoding)
            except UnicodeDecodeError as error:
                hint = not internal and has_option()
                message = _undecodable(path, start, number, line, error, encoding, hint=hint)
                raise InputError(message) from error


def _split(
    path: Path,
    stream: Any,
    lf: AnyStr,
    cr: AnyStr,
    *,
    lone_cr: bool = True,
    keep_returns: bool = False,
) -> Iterator[AnyStr]:
    """Yield lines without their ends, which are ``lf`` or ``cr`` and ``lf``, or with ``lone_cr``
    also ``cr`` alone; with ``keep_returns``, a ``cr`` before ``lf`` is part of the line."""
    line: AnyStr = stream.readline(READ_BUFFER)
    if not line.endswith(lf):
        if lone_cr and cr in line.rstrip(cr):
            yield from _split_at_returns(path, line, stream, lf, cr)
            return
        line += stream.readline(_MOST_LINE - len(line))
    number = 1
    while line:
        if len(line) >= _MOST_LINE and not line.endswith(lf):
            _refuse_long(path, number)
        line = line.removesuffix(lf)
        yield line if keep_returns else line.removesuffix(cr)
        line, number = stream.readline(_MOST_LINE), number + 1


def _split_at_returns(path: Path, rest: Any, stream: Any, lf: Any, cr: Any) -> Iterator[Any]:
    number, more = 1, rest
    while more:
        held = cr if rest.endswith(cr) else rest[:0]  # a line feed may follow
        # Later line feeds end lines as well.
        rest = rest.removesuffix(held).replace(cr + lf, cr).replace(lf, cr)
        *lines, rest = rest.split(cr)
        yield from lines
        number += len(lines)
        if len(rest) > _MOST_LINE:
            _refuse_long(path, number)
        more = stream.read(READ_BUFFER)
        rest += held + more
    if rest:
        yield rest.removesuffix(cr)


def _refuse_long(path: Path, number: int) -> None:
    raise InputError(
        "{path}, line {number} is longer than {most_line} MB; put each text on a separate line",
        path,
        number,
        _MOST_LINE >> 20,
    )


@contextlib.contextmanager
def _read_errors(path: Path, lines: Callable[[], int] = lambda: 0) -> Iterator[None]:
    """Turn read errors into ``InputError``; ``lines`` returns the number of lines read so far."""
    try:
        yield
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        where = Message("after line {number}", number) if (number := lines()) else "at its start"
        raise InputError(
            "{path}: the gzip data is damaged or cut short {where}", path, where
        ) from error
    except FileNotFoundError as error:
        raise InputError("no such file: {path}", path) from error
    except IsADirectoryError as error:
        raise InputError("{path} is a folder, a file is needed", path) from error
    except OSError as error:
        raise InputError("cannot read {path}: {reason}", path, error.strerror or error) from error


@contextlib.contextmanager
def _unpacked(raw: io.BufferedReader) -> Iterator[BinaryIO]:
    if raw.peek(2)[:2] != GZIP_MAGIC:
        yield raw
        return
    # GzipFile yields lines slowly; the buffer reads a megabyte at a time.
    with gzip.GzipFile(fileobj=raw) as packed, io.BufferedReader(packed, READ_BUFFER) as stream:
        yield cast(BinaryIO, stream)


def _binary_kind(start: bytes) -> str | None:
    """The kind of a binary file, by its first bytes."""
    return next((kind for magic, kind in _BINARY_KINDS.items() if start.startswith(magic)), None)


def _undecodable(
    path: Path,
    start: bytes,
    number: int,
    line: bytes,
    error: UnicodeDecodeError,
    encoding: str = UTF8,
    *,
    hint: bool = False,
) -> str:
    """The message for text that is not in its encoding; ``hint``: mention --encoding."""
    if number == 1 and line.startswith(UTF16_BOMS):
        if hint:
            return Message("{path} is UTF-16: give {--encoding utf-16}, or save it as UTF-8", path)
        return Message("{path} is UTF-16: save it as UTF-8", path)
    if kind := _binary_kind(start):
        return Message("{path} is not text but {kind!t}", path, kind)
    byte, shown = line[error.start], "UTF-8" if encoding == UTF8 else encoding
    if hint and encoding == UTF8:
        return Message(
            "{path}, line {number}: not UTF-8 (byte 0x{byte:02x}); save the file as UTF-8, "
            "or name its encoding, as in {encoding}",
            path,
            number,
            byte,
            Option("--encoding", likely_encoding(line)),
        )
    if hint:
        return Message(
            "{path}, line {number}: not {shown} (byte 0x{byte:02x}); name the encoding of "
            "the file with {--encoding}",
            path,
            number,
            shown,
            byte,
        )
    return Message(
        "{path}, line {number}: not {shown} (byte 0x{byte:02x}); save the file as UTF-8",
        path,
        number,
        shown,
        byte,
    )
