"""Reading text files and JSON with clear errors, and writing files atomically."""

import contextlib
import errno
import gzip
import io
import json
import os
import secrets
import stat
import zlib
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any, BinaryIO, cast

from ownbert.errors import InputError

GZIP_MAGIC = b"\x1f\x8b"
UTF8_BOM = b"\xef\xbb\xbf"
# How files begin that are taken for text where their names say so.
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
WRITE_FAILURES = frozenset(
    code
    for name in ("ENOSPC", "EDQUOT", "EFBIG", "EACCES", "EPERM", "EROFS", "EIO", "ENAMETOOLONG")
    if (code := getattr(errno, name, None)) is not None
)


class WriteFailed(InputError):
    """The disk is full, a quota is reached or a permission is missing."""


@contextlib.contextmanager
def explained(output: str | os.PathLike[str]) -> Iterator[None]:
    """Turn failures to write into ``WriteFailed``, which names ``output``."""
    try:
        yield
    except OSError as error:
        if error.errno in WRITE_FAILURES:
            raise WriteFailed(f"cannot write {output}: {error.strerror}") from error
        raise


def lock_file(file: BinaryIO, output: str | os.PathLike[str]) -> None:
    """Lock an open file for this process; the system releases the lock when the file is closed.

    Raises:
        InputError: another process holds the lock, and so is writing ``output``; the file is closed
            then.
    """
    try:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise InputError(f"another process is writing {output}; wait for it or end it") from None
    except (ImportError, OSError):
        pass  # no such lock on this system


@contextlib.contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path beside ``path`` and move it there when the block succeeds.

    The parent folder is made. On any exception, including an interrupt, the temporary file and
    folders that were made are removed, and ``path`` stays as it was.

    Raises:
        InputError: the disk is full, a quota is reached, a permission is missing, or ``path`` is an
            input (see ``protected``).
    """
    target = Path(path)
    refuse_unwritable(target)
    new = missing_folders(target.parent)
    make_folder(target.parent)
    temporary = target.with_name(f".{target.name[:100]}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        yield temporary
        flush_to_disk(temporary)
        os.replace(temporary, target)
    except OSError as error:
        # An OSError about another file (an input that the block reads) is left to the caller.
        ours = error.filename is None or Path(os.fsdecode(error.filename)) == temporary
        if ours and error.errno in WRITE_FAILURES:
            raise InputError(f"cannot write {target}: {error.strerror}") from error
        raise
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()
        remove_empty(new)


def missing_folders(folder: Path) -> list[Path]:
    """``folder`` and those above it that do not exist, the innermost first."""
    return [one for one in (folder, *folder.parents) if not one.exists()]


def remove_empty(folders: Iterable[Path]) -> None:
    """Remove folders, each inside the next one, until one is not empty."""
    with contextlib.suppress(OSError):
        for folder in folders:
            folder.rmdir()


def refuse_unwritable(path: Path) -> None:
    """Check that ``path`` may be replaced by a new file.

    Raises:
        InputError: it is a folder, or an input (see ``protected``).
    """
    if path.is_dir():
        raise InputError(f"cannot write {path}: it is a folder, a file name is needed")
    if _identity(path) in _protected.get():
        raise InputError(f"{path} is {_IS_INPUT}")


def make_folder(folder: str | os.PathLike[str]) -> Path:
    """Make ``folder`` and its parents; ``InputError`` if there is a file of that name."""
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise InputError(f"cannot make the folder {folder}: a file has that name") from error
    except OSError as error:
        raise InputError(f"cannot make the folder {folder}: {error.strerror}") from error
    return Path(folder)


# The files of a model folder that are used here; only these are fetched.
_MODEL_FILES = ("*.json", "*.txt", "*.safetensors", "*.model", "pytorch_model*.bin")


def model_folder(name: str | os.PathLike[str]) -> Path:
    """The local folder of a model: ``name`` itself, or a copy of the model on the hub.

    Raises:
        InputError: there is neither, or the extra ``hub`` is not installed.
    """
    path = Path(name)
    if path.exists():
        return path
    parts = str(name).split("/")
    if len(parts) > 2 or not all(part.strip(".") for part in parts):
        raise InputError(f"no such folder: {name}")
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise InputError(
            f"no such folder: {name}; to fetch a model of that name: pip install 'ownbert[hub]'"
        ) from None
    try:
        return Path(snapshot_download(str(name), allow_patterns=list(_MODEL_FILES)))
    except Exception as error:  # the library's errors are of many kinds: no network, no such name
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise InputError(
            f"no such folder: {name}; nor could it be fetched from the hub: {reason[0]}"
        ) from None


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write ``text`` as UTF-8 with ``\\n`` line ends, atomically."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(text.encode("utf-8"))


def write_json(path: str | os.PathLike[str], value: Any) -> None:
    """Write ``value`` as indented JSON, atomically."""
    write_text(path, json.dumps(value, ensure_ascii=False, indent=2) + "\n")


def read_json(path: str | os.PathLike[str], kind: type = dict, *, missing: Any = None) -> Any:
    """The value of a JSON file.

    Args:
        path: the file, UTF-8.
        kind: what the value must be: dict, list, or object for anything.
        missing: returned if there is no such file; by default that is an error.

    Raises:
        InputError: the file cannot be read, or does not hold JSON of that kind.
    """
    if missing is not None and not Path(path).is_file():
        return missing
    text = "\n".join(line for _, line in open_text(path))
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        reason = str(error)
        if isinstance(error, RecursionError):
            reason = "it is nested too deeply"
        elif not isinstance(error, json.JSONDecodeError):  # the only other ValueError of json
            reason = "a whole number has too many digits"
        raise InputError(f"{path} is not valid JSON: {reason}") from None
    if not isinstance(value, kind):
        raise InputError(f"{path} must hold a JSON {'object' if kind is dict else kind.__name__}")
    return value


def open_text(path: str | os.PathLike[str]) -> Iterator[tuple[int, str]]:
    """Yield ``(line number from 1, line without its end)`` of a UTF-8 file, plain or gzip.

    Gzip is recognised by its first two bytes, whatever the name. Only ``\\n`` and ``\\r\\n`` end a
    line: other separators of Unicode (U+2028, form feed, ...) belong to the text. A byte order
    mark is dropped. Only one line is in memory at a time.

    Raises:
        InputError: at the call, for a file that is missing, a folder or unreadable; while reading,
            for bytes that are not UTF-8 and for damaged gzip data.
    """
    source = Path(path)
    refuse_unreadable(source)
    return _lines(source)


def refuse_unreadable(path: Path) -> None:
    """Check that ``path`` is a file (or a pipe) that can be opened.

    Raises:
        InputError: it is not.
    """
    try:
        with path.open("rb") if not path.is_fifo() else contextlib.nullcontext():
            pass
    except FileNotFoundError as error:
        raise InputError(f"no such file: {path}") from error
    except IsADirectoryError as error:
        raise InputError(f"{path} is a folder, a file is needed") from error
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    number, start = 0, b""
    try:
        with open(path, "rb") as raw, _unpacked(raw) as stream:
            for number, line in enumerate(stream, start=1):
                if number == 1:
                    start = line
                    line = line.removeprefix(UTF8_BOM)
                line = line.removesuffix(b"\n").removesuffix(b"\r")
                try:
                    yield number, line.decode("utf-8")
                except UnicodeDecodeError as error:
                    raise InputError(_not_utf8(path, start, number, line, error)) from error
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        where = f"after line {number}" if number else "at its start"
        raise InputError(f"{path}: the gzip data is damaged or cut short {where}") from error
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error


# What a model folder is read from; a table of predictions beside these is none of them.
_READ_OF_FOLDERS = (
    *("config.json", "tokenizer*.json", "vocab.*", "merges.txt", "*.model", "*.safetensors"),
    *("*.bin", "ensemble.json", "blend.json", "modules.json"),
)
_IS_INPUT = "read by this command; write to another file or folder"
# Device and inode of a file or folder.
_Identity = tuple[int, int]
_protected: ContextVar[frozenset[_Identity]] = ContextVar("protected", default=frozenset())


def refuse_same(sources: Any, output: str | os.PathLike[str] | None) -> None:
    """Refuse to overwrite an input with an output.

    Args:
        sources: a path, or a list or tuple of paths, files or folders. Anything else, such as
            arrays or an iterator, and paths that do not exist cannot be overwritten.
        output: the file or folder to be written; None is none.

    Raises:
        InputError: the output is one of the inputs, by whatever name, or a file of the model in one
            of them.
    """
    if output is not None and _identity(output) in _identities(sources):
        raise InputError(f"{output} is {_IS_INPUT}")


@contextlib.contextmanager
def protected(sources: Any) -> Iterator[None]:
    """While the block runs, nothing in this module writes to one of its inputs.

    Args:
        sources: as for ``refuse_same``.
    """
    token = _protected.set(_protected.get() | _identities(sources))
    try:
        yield
    finally:
        _protected.reset(token)


def _identities(sources: Any) -> frozenset[_Identity]:
    found = set()
    for source in sources if isinstance(sources, list | tuple) else [sources]:
        if isinstance(source, str | os.PathLike) and (own := _identity(source)):
            read = (file for name in _READ_OF_FOLDERS for file in Path(source).glob(name))
            found |= {own, *map(_identity, read)}
    return frozenset(found - {None})


def _identity(path: str | os.PathLike[str]) -> _Identity | None:
    """None if there is no such file or folder; terminals and pipes are none."""
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
    # GzipFile alone yields lines slowly; a buffer around it reads a megabyte at a time.
    with gzip.GzipFile(fileobj=raw) as packed, io.BufferedReader(packed, READ_BUFFER) as stream:
        yield cast(BinaryIO, stream)


def _not_utf8(path: Path, start: bytes, number: int, line: bytes, error: UnicodeDecodeError) -> str:
    if number == 1 and line.startswith(UTF16_BOMS):
        return f"{path} is UTF-16: save it as UTF-8"
    for magic, kind in _BINARY_KINDS.items():
        if start.startswith(magic):
            return f"{path} is no text but {kind}"
    byte = line[error.start]
    return f"{path}, line {number}: not UTF-8 (byte 0x{byte:02x}); save the file as UTF-8"


def flush_to_disk(path: Path) -> None:
    """Wait until a file is on the disk."""
    # Some file systems report a full disk only here.
    descriptor = os.open(path, os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
