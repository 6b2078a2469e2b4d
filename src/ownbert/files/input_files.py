"""The inputs of a command: they are not overwritten, and pipes are read only once; checksums."""

import contextlib
import hashlib
import io
import itertools
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any, TypeVar

from ownbert.exceptions import InputError

# Names of files that loading a model folder reads; predictions in the same folder are not.
_READ_OF_FOLDERS = (
    *("config.json", "tokenizer*.json", "vocab.*", "merges.txt", "*.model", "*.safetensors"),
    *("*.bin", "ensemble.json", "blend.json", "modules.json"),
)
_IS_INPUT = "read by this command; write to another file or folder"
_BLOCK = 1 << 20
# Device and inode of a file or folder.
_Identity = tuple[int, int]
_protected: ContextVar[frozenset[_Identity]] = ContextVar("protected", default=frozenset())
# Pipes read since the start of the outermost ``protected`` block.
_pipes: ContextVar[set[_Identity] | None] = ContextVar("pipes", default=None)
# Contents of the files of ``read_once`` by absolute path; None until a file is read.
_contents: ContextVar[dict[str, bytes | None] | None] = ContextVar("contents", default=None)
# Their rows so far, and the parsers of the further ones.
_parsed: ContextVar[dict[str, tuple[list[Any], Iterator[Any]]]] = ContextVar("parsed")
Item = TypeVar("Item")


@contextlib.contextmanager
def read_once(paths: Iterable[str | os.PathLike[str]]) -> Iterator[None]:
    """Open and parse each of these files at most once in the block: its bytes stay in memory, so
    that all that is read from it, and its checksum, are of the same content; so do its rows."""
    token = _contents.set({os.path.abspath(path): None for path in paths})
    parsed = _parsed.set({})
    try:
        yield
    finally:
        _contents.reset(token)
        _parsed.reset(parsed)


def parsed_once(
    path: str | os.PathLike[str], parse: Callable[[], Iterator[Item]]
) -> Iterator[Item]:
    """The rows that ``parse`` yields from a file; see ``read_once``."""
    name = os.path.abspath(path)
    if name not in (_contents.get() or {}):
        yield from parse()
        return
    rows, further = _parsed.get().setdefault(name, ([], parse()))
    for index in itertools.count():
        if index == len(rows):  # nobody has read this far
            try:
                rows.append(next(further))
            except StopIteration:
                return
            except BaseException:
                _parsed.get().pop(name, None)  # who reads it again gets the same error
                raise
        yield rows[index]


def open_input(path: str | os.PathLike[str]) -> io.BufferedReader:
    """Open a file to read its bytes; see ``read_once``."""
    contents, name = _contents.get() or {}, os.path.abspath(path)
    if name not in contents:
        return open(path, "rb")
    if (content := contents[name]) is None:
        with open(path, "rb") as file:
            content = contents[name] = file.read()
    return io.BufferedReader(io.BytesIO(content))  # pyright: ignore[reportArgumentType]


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    digest = hashlib.sha256()
    with open_input(path) as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def allow_open_files(count: int) -> None:
    """Raise the limit of open files, usually 1,024, to ``count`` and some more, or as far as the
    system permits."""
    with contextlib.suppress(ImportError, ValueError, OSError):  # resource exists on Unix only
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        needed = count + 256
        most = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        if soft != resource.RLIM_INFINITY and most > soft:
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def refuse_second_reading(path: Path) -> None:
    """Refuse to read a pipe twice: the second reading would block forever."""
    pipes = _pipes.get()
    if pipes is None or not path.is_fifo() or os.path.abspath(path) in (_contents.get() or {}):
        return
    status = os.stat(path)
    if (status.st_dev, status.st_ino) in pipes:
        raise InputError("{path} is a pipe, which can be read only once; write it to a file", path)
    pipes.add((status.st_dev, status.st_ino))


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
        raise InputError("{output} is {is_input}", output, _IS_INPUT)


def refuse_input(path: Path) -> None:
    """Raise ``InputError`` if ``path`` is an input of the enclosing ``protected`` block."""
    if _identity(path) in _protected.get():
        raise InputError("{path} is {is_input}", path, _IS_INPUT)


@contextlib.contextmanager
def protected(sources: Any) -> Iterator[None]:
    """Refuse, inside the block, to overwrite its inputs and to read a pipe twice; ``sources`` are
    as for ``refuse_same``."""
    token = _protected.set(_protected.get() | _identities(sources))
    pipes = _pipes.set(set() if (known := _pipes.get()) is None else known)
    try:
        yield
    finally:
        _protected.reset(token)
        _pipes.reset(pipes)


@contextlib.contextmanager
def changed_in_place(sources: Any) -> Iterator[None]:
    """Permit, inside the block, to overwrite these inputs; ``sources`` are as for
    ``refuse_same``."""
    token = _protected.set(_protected.get() - _identities(sources))
    try:
        yield
    finally:
        _protected.reset(token)


def _identities(sources: Any) -> frozenset[_Identity]:
    identities = set()
    for source in sources if isinstance(sources, list | tuple) else [sources]:
        if isinstance(source, str | os.PathLike) and (identity := _identity(source)):
            read = (file for name in _READ_OF_FOLDERS for file in Path(source).glob(name))
            identities |= {identity, *map(_identity, read)}
    return frozenset(identities - {None})


def _identity(path: str | os.PathLike[str]) -> _Identity | None:
    """The identity of a file or folder; None for missing paths, terminals and pipes."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    has_identity = stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)
    return (status.st_dev, status.st_ino) if has_identity else None
