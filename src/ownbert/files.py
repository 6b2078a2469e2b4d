"""Reading text files, JSON and YAML with clear errors, and writing files atomically."""

import contextlib
import errno
import gzip
import io
import json
import os
import secrets
import signal
import stat
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any, AnyStr, BinaryIO, cast

from ownbert.checks import Check
from ownbert.encodings import (
    UTF8,
    current_encoding,
    has_option,
    has_plain_line_feeds,
    likely_encoding,
)
from ownbert.errors import InputError

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
    b"\x93NUMPY": "a NumPy array",
    b"SQLite format 3": "a SQLite database",
    b"BZh": "compressed by bzip2; unpack it, or compress it by gzip",
    b"\xfd7zXZ": "compressed by xz; unpack it, or compress it by gzip",
    b"\x28\xb5\x2f\xfd": "compressed by zstd; unpack it, or compress it by gzip",
    b"7z\xbc\xaf": "a 7z archive; unpack it",
    b"\xd0\xcf\x11\xe0": "a document of old Word or Excel; save its content as text or csv",
}
UTF16_BOMS = (b"\xff\xfe", b"\xfe\xff")
READ_BUFFER = 1 << 20
# Most bytes of a JSON file (the largest published tokenizer.json has 35 MB) and of a recipe.
_MOST_JSON = 1 << 28
_MOST_YAML = 1 << 20
# Most bytes of a line of text; longer lines are a gzip bomb, or a file without line ends.
_MOST_LINE = 1 << 26
# Maximum nesting of objects and lists: far below Python's recursion limit, so that values can be
# copied, compared and written.
_MOST_NESTED = 100
# Most objects and lists in a recipe. YAML aliases can expand exponentially.
_MOST_PARTS = 100_000
WRITE_FAILURES = frozenset(
    code
    for name in ("ENOSPC", "EDQUOT", "EFBIG", "EACCES", "EPERM", "EROFS", "EIO", "ENAMETOOLONG")
    if (code := getattr(errno, name, None)) is not None
)


# Files whose renaming is postponed: temporary path, final path, and folders that were created.
_Waiting = list[tuple[Path, Path, list[Path]]]
_waiting: ContextVar[_Waiting | None] = ContextVar("waiting", default=None)


class WriteFailed(InputError):
    """Writing failed: the disk is full, a quota is reached or a permission is missing."""


@contextlib.contextmanager
def explained(output: str | os.PathLike[str]) -> Iterator[None]:
    """Turn write errors into ``WriteFailed``, which names ``output``."""
    try:
        yield
    except OSError as error:
        if error.errno in WRITE_FAILURES:
            raise WriteFailed(f"cannot write {output}: {error.strerror}") from error
        raise


def lock_file(file: BinaryIO | int, output: str | os.PathLike[str]) -> None:
    """Lock an open file, or a folder by its descriptor, until this process closes it.

    Raises:
        InputError: another process has locked it, and is writing ``output``; the file is closed.
    """
    try:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file) if isinstance(file, int) else file.close()
        raise InputError(f"another process is writing {output}; wait for it or end it") from None
    except (ImportError, OSError):
        pass  # locks are not supported


@contextlib.contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path beside ``path``, and rename it when the block succeeds.

    The parent folder is created. On any exception, including an interrupt, the temporary file and
    the created folders are removed, and ``path`` is unchanged. Inside ``together`` the file is
    renamed at the end of that block.

    Raises:
        InputError: the disk is full, a quota is reached, a permission is missing, or ``path`` is an
            input (see ``protected``).
    """
    target = Path(path)
    refuse_unwritable(target)
    new = missing_folders(target.parent)
    make_folder(target.parent)
    temporary = target.with_name(f".{target.name[:100]}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    waiting, written = _waiting.get(), False
    try:
        yield temporary
        flush_to_disk(temporary)
        if waiting is None:
            os.replace(temporary, target)
        else:
            waiting.append((temporary, target, new))
            written = True
    except OSError as error:
        # OSErrors about other files (such as inputs that the block reads) are left to the caller.
        ours = error.filename is None or Path(os.fsdecode(error.filename)) == temporary
        if ours and error.errno in WRITE_FAILURES:
            raise InputError(f"cannot write {target}: {error.strerror}") from error
        raise
    finally:
        if not written:
            _drop(temporary, new)


@contextlib.contextmanager
def together() -> Iterator[None]:
    """Make all files that the block writes with ``atomic_path`` appear at its end, or none of them.

    Raises:
        InputError: a file cannot be renamed.
    """
    files: _Waiting = []
    token = _waiting.set(files)
    try:
        yield
        with uninterrupted():
            for temporary, target, _ in files:
                with explained(target):
                    os.replace(temporary, target)
    finally:
        _waiting.reset(token)
        for temporary, _, new in reversed(files):  # the first file created the folder
            _drop(temporary, new)


def _drop(temporary: Path, new: Iterable[Path]) -> None:
    """Remove a temporary file if it exists, and the folders created for it if they are empty."""
    with contextlib.suppress(OSError):
        temporary.unlink()
    remove_empty(new)


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Delay Ctrl-C and SIGTERM until the end of the block, which replaces several files
    together."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals are delivered to the main thread
        return
    arrived: list[int] = []
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        signal.signal(number, lambda number, frame: arrived.append(number))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
    if arrived:
        signal.raise_signal(arrived[0])


def missing_folders(folder: Path) -> list[Path]:
    """``folder`` and its parents that do not exist, innermost first."""
    return [one for one in (folder, *folder.parents) if not one.exists()]


def remove_empty(folders: Iterable[Path]) -> None:
    """Remove folders, innermost first, until one is not empty."""
    with contextlib.suppress(OSError):
        for folder in folders:
            folder.rmdir()


def refuse_unwritable(path: Path) -> None:
    """Check that ``path`` may be replaced by a new file.

    Raises:
        InputError: it is a folder, a device (which root would replace), a pipe, or an input (see
            ``protected``).
    """
    if path.is_dir():
        raise InputError(f"cannot write {path}: it is a folder, a file name is needed")
    if path.exists() and not path.is_file():
        raise InputError(f"cannot write {path}: it is a device or a pipe, a file name is needed")
    refuse_input(path)


def make_folder(folder: str | os.PathLike[str]) -> Path:
    """Create ``folder`` and its parents; ``InputError`` if there is a file of that name."""
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise InputError(f"cannot make the folder {folder}: a file has that name") from error
    except OSError as error:
        raise InputError(f"cannot make the folder {folder}: {error.strerror}") from error
    return Path(folder)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write ``text`` as UTF-8 with ``\\n`` line ends, atomically."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(text.encode("utf-8"))


def require_json_name(path: str | os.PathLike[str]) -> None:
    """Raise ``InputError`` unless the name ends with .json or has no extension."""
    if Path(path).suffix.lower() not in ("", ".json"):
        raise InputError(f"{path}: the output is JSON; its name must end with .json")


def write_json(path: str | os.PathLike[str], value: Any) -> None:
    """Write ``value`` as indented JSON, atomically."""
    write_text(path, json.dumps(value, ensure_ascii=False, indent=2) + "\n")


def read_json(
    path: str | os.PathLike[str],
    kind: type = dict,
    *,
    missing: Any = None,
    check: Check | None = None,
    pipe: bool = False,
) -> Any:
    """Read a JSON file.

    Args:
        path: the file, in UTF-8.
        kind: required type of the value: dict, list, or object for any.
        missing: value for a missing file; by default that is an error.
        check: schema of the value, see ``ownbert.checks``.
        pipe: whether the path may be a pipe.

    Raises:
        InputError: the file cannot be read, or does not contain JSON of that type.
    """
    if missing is not None and not Path(path).exists():
        return missing
    value = _parsed(path, read_text(path, most=_MOST_JSON, pipe=pipe), json.loads, "valid JSON")
    if not isinstance(value, kind):
        raise InputError(
            f"{path} must contain a JSON {'object' if kind is dict else kind.__name__}"
        )
    if check is not None:
        check(str(path), value)
    return value


def read_yaml(path: str | os.PathLike[str]) -> Any:
    """Read a YAML file. Raises ``InputError`` if it cannot be read."""
    return parse_yaml(read_text(path, most=_MOST_YAML), path)


def parse_yaml(text: str, source: str | os.PathLike[str]) -> Any:
    """Parse YAML; the ``InputError`` for malformed text names ``source``."""
    import yaml

    return _parsed(source, text, yaml.safe_load, "YAML")


def _parsed(
    source: str | os.PathLike[str], text: str, parse: Callable[[str], Any], language: str
) -> Any:
    try:
        value = parse(text)
        level, parts = [v for v in [value] if isinstance(v, dict | list)], 0
        for _ in range(_MOST_NESTED):
            inner = (v.values() if isinstance(v, dict) else v for v in level)
            level = [v for each in inner for v in each if isinstance(v, dict | list)]
            parts += len(level)
            if not level:
                return value
            if language == "YAML" and parts > _MOST_PARTS:
                raise InputError(f"{source} contains too many objects and lists")
        raise RecursionError
    except InputError:
        raise
    except Exception as error:  # errors of yaml, and of the constructors that it calls
        reason = " ".join(str(error).split())
        if isinstance(error, RecursionError):
            reason = "it is nested too deeply"
        elif isinstance(error, ValueError) and "integer string conversion" in reason:
            reason = "a whole number has too many digits"
        raise InputError(f"{source} is not {language}: {reason}") from None


def read_text(path: str | os.PathLike[str], *, most: int, pipe: bool = False) -> str:
    """Read a file of UTF-8 text, plain or gzip.

    Args:
        path: the file.
        most: maximum size in bytes, uncompressed.
        pipe: whether the path may be a pipe; reading a pipe in a folder from elsewhere could block.

    Raises:
        InputError: the file is missing, unreadable, too large, not regular or not UTF-8.
    """
    source = Path(path)
    if not pipe and source.exists() and not (source.is_file() or source.is_dir()):
        raise InputError(f"{source} is a pipe or a device, a file is needed")
    with _read_errors(source), open(source, "rb") as raw, _unpacked(raw) as stream:
        data = stream.read(most + 1)
    if len(data) > most:
        raise InputError(
            f"{source} is larger than {most >> 20} MB, too large for a file of this kind"
        )
    data = data.removeprefix(UTF8_BOM)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        number = data.count(b"\n", 0, error.start) + 1
        raise InputError(_undecodable(source, data, number, data, error)) from error


def inside(folder: Path, name: str, source: str | os.PathLike[str]) -> Path:
    """Resolve a path that a file contains; it must be below ``folder``.

    Args:
        folder: folder of the file.
        name: path relative to the folder.
        source: the file, for messages.

    Raises:
        InputError: the path is outside the folder.
    """
    if Path(name).is_absolute() or ".." in Path(name).parts or "\0" in name:
        raise InputError(f"{source} names {name!r}, which is outside its folder")
    return folder / name


# Temporary files of this process, which are read with the same functions as users' files.
_own_files: set[str] = set()


def own_text(path: str | os.PathLike[str]) -> Path:
    """Register ``path`` as a temporary file of this process, always UTF-8 in ``reading_as``."""
    _own_files.add(os.path.abspath(path))
    return Path(path)


def open_text(path: str | os.PathLike[str], *, internal: bool = False) -> Iterator[tuple[int, str]]:
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

    Raises:
        InputError: at the call, if the file is missing, a folder or unreadable; during iteration,
            for bytes of another encoding and for corrupt gzip data.
    """
    source = Path(path)
    refuse_unreadable(source)
    internal = internal or os.path.abspath(path) in _own_files
    return _lines(source, UTF8 if internal else current_encoding(), internal=internal)


def refuse_second_reading(path: Path) -> None:
    """Refuse to read a pipe twice: the second reading would block forever."""
    pipes = _pipes.get()
    if pipes is None or not path.is_fifo():
        return
    status = os.stat(path)
    if (status.st_dev, status.st_ino) in pipes:
        raise InputError(f"{path} is a pipe, which can be read only once; write it to a file")
    pipes.add((status.st_dev, status.st_ino))


def refuse_unreadable(path: Path) -> None:
    """Check that ``path`` is a file or pipe that can be opened.

    Raises:
        InputError: it is not.
    """
    with _read_errors(path), path.open("rb") if not path.is_fifo() else contextlib.nullcontext():
        pass


def _lines(path: Path, encoding: str, *, internal: bool) -> Iterator[tuple[int, str]]:
    number, start = 0, b""
    refuse_second_reading(path)
    by_bytes = has_plain_line_feeds(encoding)
    with _read_errors(path, lambda: number), open(path, "rb") as raw, _unpacked(raw) as stream:
        if not by_bytes:
            text = io.TextIOWrapper(cast(Any, stream), encoding, newline="\n")
            try:
                for number, line in enumerate(_split(path, text, "\n", "\r"), start=1):
                    yield number, line.removeprefix("\ufeff") if number == 1 else line
            except UnicodeError:
                raise InputError(
                    f"{path}, line {number + 1} or soon after it: not {encoding}; name the "
                    "encoding of the file with --encoding"
                ) from None
            return
        lines = _split(path, stream, b"\n", b"\r", returns=not internal)
        for number, line in enumerate(lines, start=1):
            if number == 1:
                start = line
                if line.startswith(UTF8_BOM):  # overrides the given encoding
                    line, encoding = line.removeprefix(UTF8_BOM), UTF8
            try:
                yield number, line.decode(encoding)
            except UnicodeDecodeError as error:
                hint = not internal and has_option()
                message = _undecodable(path, start, number, line, error, encoding, hint=hint)
                raise InputError(message) from error


def _split(
    path: Path, stream: Any, feed: AnyStr, turn: AnyStr, *, returns: bool = True
) -> Iterator[AnyStr]:
    """Yield lines without their ends.

    Args:
        path: the file, for messages.
        stream: stream of text or bytes.
        feed: a line feed.
        turn: a carriage return.
        returns: whether a carriage return alone may end a line.
    """
    line: AnyStr = stream.readline(READ_BUFFER)
    if not line.endswith(feed):
        if returns and turn in line.rstrip(turn):
            yield from _split_at_returns(path, line, stream, feed, turn)
            return
        line += stream.readline(_MOST_LINE - len(line))
    number = 1
    while line:
        if len(line) >= _MOST_LINE and not line.endswith(feed):
            _refuse_long(path, number)
        yield line.removesuffix(feed).removesuffix(turn)
        line, number = stream.readline(_MOST_LINE), number + 1


def _split_at_returns(path: Path, rest: Any, stream: Any, feed: Any, turn: Any) -> Iterator[Any]:
    number, more = 1, rest
    while more:
        # Later line feeds end lines as well.
        *lines, rest = rest.replace(turn + feed, turn).replace(feed, turn).split(turn)
        yield from lines
        number += len(lines)
        if len(rest) > _MOST_LINE:
            _refuse_long(path, number)
        more = stream.read(READ_BUFFER)
        rest += more
    if rest:
        yield rest


def _refuse_long(path: Path, number: int) -> None:
    raise InputError(
        f"{path}, line {number} is longer than {_MOST_LINE >> 20} MB; put each text on a "
        "separate line"
    )


@contextlib.contextmanager
def _read_errors(path: Path, lines: Callable[[], int] = lambda: 0) -> Iterator[None]:
    """Turn read errors into ``InputError``; ``lines`` returns the number of lines read so far."""
    try:
        yield
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        where = f"after line {number}" if (number := lines()) else "at its start"
        raise InputError(f"{path}: the gzip data is damaged or cut short {where}") from error
    except FileNotFoundError as error:
        raise InputError(f"no such file: {path}") from error
    except IsADirectoryError as error:
        raise InputError(f"{path} is a folder, a file is needed") from error
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error


# Names of files that loading a model folder reads; predictions in the same folder are not.
_READ_OF_FOLDERS = (
    *("config.json", "tokenizer*.json", "vocab.*", "merges.txt", "*.model", "*.safetensors"),
    *("*.bin", "ensemble.json", "blend.json", "modules.json"),
)
_IS_INPUT = "read by this command; write to another file or folder"
# Device and inode of a file or folder.
_Identity = tuple[int, int]
_protected: ContextVar[frozenset[_Identity]] = ContextVar("protected", default=frozenset())
# Pipes read since the start of the outermost ``protected`` block.
_pipes: ContextVar[set[_Identity] | None] = ContextVar("pipes", default=None)


def refuse_same(sources: Any, output: str | os.PathLike[str] | None) -> None:
    """Refuse to overwrite an input with an output.

    Args:
        sources: a path, or a list or tuple of paths of files or folders. Other values, such as
            arrays or iterators, and missing paths are ignored.
        output: the file or folder to write; None: nothing is written.

    Raises:
        InputError: the output is an input, under any name, or a model file in an input folder.
    """
    if output is not None and _identity(output) in _identities(sources):
        raise InputError(f"{output} is {_IS_INPUT}")


def refuse_input(path: Path) -> None:
    """Raise ``InputError`` if ``path`` is an input of the enclosing ``protected`` block."""
    if _identity(path) in _protected.get():
        raise InputError(f"{path} is {_IS_INPUT}")


@contextlib.contextmanager
def protected(sources: Any) -> Iterator[None]:
    """Refuse, inside the block, to overwrite its inputs and to read a pipe twice.

    Args:
        sources: as for ``refuse_same``.
    """
    token = _protected.set(_protected.get() | _identities(sources))
    pipes = _pipes.set(_pipes.get() or set())
    try:
        yield
    finally:
        _protected.reset(token)
        _pipes.reset(pipes)


def _identities(sources: Any) -> frozenset[_Identity]:
    found = set()
    for source in sources if isinstance(sources, list | tuple) else [sources]:
        if isinstance(source, str | os.PathLike) and (identity := _identity(source)):
            read = (file for name in _READ_OF_FOLDERS for file in Path(source).glob(name))
            found |= {identity, *map(_identity, read)}
    return frozenset(found - {None})


def _identity(path: str | os.PathLike[str]) -> _Identity | None:
    """The identity of a file or folder; None for missing paths, terminals and pipes."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    kept = stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)
    return (status.st_dev, status.st_ino) if kept else None


@contextlib.contextmanager
def _unpacked(raw: io.BufferedReader) -> Iterator[BinaryIO]:
    if raw.peek(2)[:2] != GZIP_MAGIC:
        yield raw
        return
    # GzipFile yields lines slowly; the buffer reads a megabyte at a time.
    with gzip.GzipFile(fileobj=raw) as packed, io.BufferedReader(packed, READ_BUFFER) as stream:
        yield cast(BinaryIO, stream)


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
            return f"{path} is UTF-16: give --encoding utf-16, or save it as UTF-8"
        return f"{path} is UTF-16: save it as UTF-8"
    for magic, kind in _BINARY_KINDS.items():
        if start.startswith(magic):
            return f"{path} is not text but {kind}"
    byte, shown = line[error.start], "UTF-8" if encoding == UTF8 else encoding
    if hint and encoding == UTF8:
        return (
            f"{path}, line {number}: not UTF-8 (byte 0x{byte:02x}); save the file as UTF-8, or "
            f"name its encoding, as in --encoding {likely_encoding(line)}"
        )
    if hint:
        return (
            f"{path}, line {number}: not {shown} (byte 0x{byte:02x}); name the encoding of the "
            "file with --encoding"
        )
    return f"{path}, line {number}: not {shown} (byte 0x{byte:02x}); save the file as UTF-8"


def flush_to_disk(path: Path) -> None:
    """Flush a file to disk."""
    # Some file systems report a full disk only at this point.
    descriptor = os.open(path, os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def checksum(path: Path) -> dict[str, int]:
    """Size and CRC-32 of a file."""
    crc, size = 0, 0
    with path.open("rb") as file:
        while data := file.read(1 << 24):
            crc, size = zlib.crc32(data, crc), size + len(data)
    return {"bytes": size, "crc32": crc}
