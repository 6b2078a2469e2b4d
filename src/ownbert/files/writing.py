"""Writes files completely or not at all, several together."""

import contextlib
import errno
import os
import secrets
import signal
import sys
import tempfile
import threading
import zlib
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import BinaryIO

from ownbert.exceptions import InputError
from ownbert.files.input_files import refuse_input
from ownbert.language.messages import Message

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
            raise WriteFailed(
                Message("cannot write {output}: {reason}", output, error.strerror)
            ) from error
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
        raise InputError(
            "another process is writing {output}; wait for it or end it", output
        ) from None
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
            raise InputError("cannot write {target}: {reason}", target, error.strerror) from error
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


@contextlib.contextmanager
def temporary_folder(prefix: str) -> Iterator[Path]:
    """A new temporary folder, which stays unless the block leaves it empty."""
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    try:
        yield folder
    finally:
        remove_empty([folder])


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
        raise InputError("cannot write {path}: it is a folder, a file name is needed", path)
    if path.exists() and not path.is_file():
        raise InputError(
            "cannot write {path}: it is a device or a pipe, a file name is needed", path
        )
    refuse_input(path)


def make_folder(folder: str | os.PathLike[str]) -> Path:
    """Create ``folder`` and its parents; ``InputError`` if there is a file of that name."""
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise InputError("cannot make the folder {folder}: a file has that name", folder) from error
    except OSError as error:
        raise InputError(
            "cannot make the folder {folder}: {reason}", folder, error.strerror
        ) from error
    return Path(folder)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write ``text`` as UTF-8 with ``\\n`` line ends, atomically."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(text.encode("utf-8"))


def flush_to_disk(path: Path) -> None:
    """Flush a file to disk."""
    # Some file systems report a full disk only at this point.
    descriptor = os.open(path, os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def checksum(path: Path, most: int = sys.maxsize) -> dict[str, int]:
    """Size and CRC-32 of a file, or of its first ``most`` bytes."""
    crc, size = 0, 0
    with path.open("rb") as file:
        while data := file.read(min(1 << 24, most - size)):
            crc, size = zlib.crc32(data, crc), size + len(data)
    return {"bytes": size, "crc32": crc}
