"""Output files that are written line by line over a long time, and resumed after a stop.

While it is being written, the file is ``.NAME.part`` beside the output, and ``.NAME.part.json``
describes what it is made from. It gets its final name when it is complete.
"""

import contextlib
import gzip
import hashlib
import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from ownbert.errors import InputError
from ownbert.files import (
    atomic_path,
    explained,
    flush_to_disk,
    lock_file,
    make_folder,
    missing_folders,
    read_json,
    refuse_unwritable,
    remove_empty,
    write_json,
)

Item = TypeVar("Item")


class ResumableFile:
    """Lines for ``path``, compressed where the name ends with .gz.

    Args:
        path: the file that appears once it is complete.
        made_for: what the lines depend on; None: a stopped run keeps nothing.
        resume: keep the lines of a stopped run with the same ``made_for`` instead of dropping them.

    Attributes:
        done: the number of lines so far.

    Raises:
        InputError: the path cannot be written, another process is writing it, or the lines to
            resume were made for something else.
    """

    def __init__(
        self, path: str | Path, made_for: Mapping[str, Any] | None, *, resume: bool
    ) -> None:
        self.path = Path(path)
        refuse_unwritable(self.path)
        self._new_folders = missing_folders(self.path.parent)
        make_folder(self.path.parent)
        self.part = self.path.with_name(f".{self.path.name[:200]}.part")
        self.metadata = self.part.with_name(f"{self.part.name}.json")
        self.keeps = made_for is not None
        self.made_for = json.loads(json.dumps(made_for or {}))
        self.done = 0
        with explained(self.path):
            self.file: BinaryIO = self.part.open("ab")
            lock_file(self.file, self.path)
            try:
                self._start(resume)
            except BaseException:
                self.file.close()
                if not self.part.stat().st_size:  # what was to be resumed stays
                    self.part.unlink()
                    self.metadata.unlink(missing_ok=True)
                    remove_empty(self._new_folders)
                raise

    def _start(self, resume: bool) -> None:
        """Truncate the file to the lines that are kept."""
        size = 0
        if resume and self.metadata.exists():
            self._refuse_other()
            size = self._complete_size()
        self.file.truncate(size)
        write_json(self.metadata, self.made_for)

    def _refuse_other(self) -> None:
        try:
            before = read_json(self.metadata)
        except InputError:
            before = {}
        for name in self.made_for:
            if before.get(name) != self.made_for[name]:
                if name == "precision" and isinstance(before.get(name), str):
                    raise InputError(
                        f"cannot resume {self.path}: the precision is not that of the stopped run; "
                        f"continue with --precision {before[name]}, or start anew without --resume"
                    )
                raise InputError(
                    f"cannot resume {self.path}: the {name} is not that of the stopped run; start "
                    "anew without --resume"
                )

    def _complete_size(self) -> int:
        """Where the last complete line ends, in bytes; sets ``done``."""
        end = 0
        with self.part.open("rb") as file:
            for line in file:
                if line.endswith(b"\n"):
                    end, self.done = end + len(line), self.done + 1
        return end

    def fill(
        self,
        blocks: Iterable[Sequence[Any]],
        convert: Callable[[Sequence[Any]], Sequence[Any]],
        progress: Callable[[int], None] | None = None,
    ) -> int:
        """Write all lines that are not there yet, and give the file its final name.

        Whatever ends it early, the file is left so that it can be resumed, and the ``InputError``
        or ``KeyboardInterrupt`` says so.

        Args:
            blocks: the inputs.
            convert: makes the lines of a block, one per input.
            progress: called with the number of inputs so far.

        Returns:
            How many inputs there are.
        """
        before, count = self.done, 0
        try:
            for block in blocks:
                count += len(block)
                if count > before:
                    # A partly written block is computed whole: other batches round differently.
                    self.write(convert(block)[max(0, before - count + len(block)) :])
                if progress is not None:
                    progress(count)
            self.finish()
        except InputError as error:
            raise InputError(f"{error}{self._kept()}") from error
        except KeyboardInterrupt:
            way = "; run the same command with --resume to continue" if self._kept() else ""
            raise KeyboardInterrupt(f"interrupted{self._kept()}{way}") from None
        finally:
            self.close()
        return count

    def write(self, lines: Sequence[Any]) -> None:
        """Append lines, each with its line end."""
        with explained(self.path):
            self.file.write("".join(lines).encode())
            self.file.flush()
        self.done += len(lines)

    def finish(self) -> None:
        """Give the file its final name."""
        with explained(self.path):
            flush_to_disk(self.part)
            if self.path.name.lower().endswith(".gz"):
                with atomic_path(self.path) as compressed:
                    _compress(self.part, compressed)
                self.part.unlink()
            else:
                self.part.replace(self.path)
            self.metadata.unlink()
            self.file.close()

    def close(self) -> None:
        """Stop writing; a file without lines, or one that keeps nothing, is removed."""
        if not (self.done and self.keeps):
            self.part.unlink(missing_ok=True)
            self.metadata.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # a full disk was reported before
            self.file.close()
        remove_empty(self._new_folders)

    def _kept(self) -> str:
        if not (self.done and self.keeps):
            return ""
        return f"; {self.done:,} answers are kept in {self.part}"


def first_read(blocks: Iterable[Item]) -> Iterator[Item]:
    """``blocks``, the first of which has been read by the time this returns.

    So an input that cannot be read at all is refused before a file is opened for its answers.
    """
    rest = iter(blocks)
    return chain(list(islice(rest, 1)), rest)


def identity_of(path: Path) -> list[Any]:
    """The path of a file or a folder, and values that change when its content does."""
    return [str(path.resolve()), *_state(path)]


def _state(path: Path) -> list[Any]:
    if not path.is_dir():
        status = path.stat()
        return [status.st_size, status.st_mtime_ns]
    # Files that are being written are hidden.
    below = sorted(p for p in path.rglob("*") if p.is_file() and not p.name.startswith("."))
    states = [(str(p.relative_to(path)), *_state(p)) for p in below]
    return [hashlib.sha256(json.dumps(states).encode()).hexdigest()]


def _compress(source: Path, target: Path) -> None:
    # Without name and time, so that the same lines give the same file.
    with (
        source.open("rb") as rows,
        target.open("wb") as raw,
        gzip.GzipFile(filename="", fileobj=raw, mode="wb", mtime=0) as packed,
    ):
        shutil.copyfileobj(rows, packed, 1 << 20)
