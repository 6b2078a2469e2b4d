"""Files that are written a line at a time for long: a stopped one is gone on with.

While it is written the file is ``.NAME.part`` beside the output, and ``.NAME.part.json`` says what
it is made of. It gets its name when it is whole.
"""

import contextlib
import gzip
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from ownbert.errors import InputError
from ownbert.files import atomic_path, explained, make_folder, write_json


class ResumableFile:
    """Lines for ``path``, packed where the name ends with .gz.

    made_for: what they are made of; ``resume`` keeps the lines of a stopped run that was made for
    the same, and without ``resume`` they are dropped. None: a stopped run keeps nothing. done: how
    many lines there are.
    """

    def __init__(
        self, path: str | Path, made_for: Mapping[str, Any] | None, *, resume: bool
    ) -> None:
        self.path = Path(path)
        if self.path.is_dir():
            raise InputError(f"cannot write {path}: it is a folder, a file name is needed")
        make_folder(self.path.parent)
        self.part = self.path.with_name(f".{self.path.name[:200]}.part")
        self.said = self.part.with_name(f"{self.part.name}.json")
        self.keeps = made_for is not None
        self.made_for = json.loads(json.dumps(made_for or {}))
        self.done = 0
        with explained(self.path):
            self.file: BinaryIO = self.part.open("ab")
            self._lock()
            try:
                self._begin(resume)
            except BaseException:
                self.file.close()
                raise

    def _begin(self, resume: bool) -> None:
        """Cut off what is not to stay."""
        size = 0
        if resume and self.said.exists():
            self._refuse_other()
            size = self._whole()
        self.file.truncate(size)
        write_json(self.said, self.made_for)

    def _refuse_other(self) -> None:
        try:
            before = json.loads(self.said.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            before = {}
        for name in self.made_for:
            if before.get(name) != self.made_for[name]:
                raise InputError(
                    f"cannot resume {self.path}: the {name} is not that of the stopped run; start "
                    "anew without --resume"
                )

    def _whole(self) -> int:
        """Where the last whole line ends, in bytes; sets ``done``."""
        end = 0
        with self.part.open("rb") as file:
            for line in file:
                if line.endswith(b"\n"):
                    end, self.done = end + len(line), self.done + 1
        return end

    def fill(
        self,
        blocks: Iterable[Sequence[Any]],
        made: Callable[[Sequence[Any]], Sequence[Any]],
        progress: Callable[[int], None] | None = None,
    ) -> int:
        """Write what is ``made`` of each block, an entry for an entry, but for the entries that are
        there; give the file its name. Returns how many there are; progress is told so far.

        Whatever ends it early, the file is left as it can be gone on with, and an ``InputError`` or
        an interrupt says so.
        """
        begun, seen = self.done, 0
        try:
            for block in blocks:
                seen += len(block)
                if seen > begun:
                    # A block that is half written is made whole: other batches round otherwise.
                    self.write(made(block)[max(0, begun - seen + len(block)) :])
                if progress is not None:
                    progress(seen)
            self.finish()
        except InputError as error:
            raise InputError(f"{error}{self._kept()}") from error
        except KeyboardInterrupt:
            way = "; the same command with --resume goes on from there" if self._kept() else ""
            raise KeyboardInterrupt(f"interrupted{self._kept()}{way}") from None
        finally:
            self.leave()
        return seen

    def write(self, lines: Sequence[Any]) -> None:
        """Append lines, each with its end."""
        with explained(self.path):
            self.file.write("".join(lines).encode())
            self.file.flush()
        self.done += len(lines)

    def finish(self) -> None:
        """Give the file its name."""
        with explained(self.path):
            os.fsync(self.file.fileno())
            if self.path.name.lower().endswith(".gz"):
                with atomic_path(self.path) as packed:
                    _pack(self.part, packed)
                self.part.unlink()
            else:
                os.replace(self.part, self.path)
            self.said.unlink()
            self.file.close()

    def leave(self) -> None:
        """End without a whole file; one without lines is removed."""
        if not (self.done and self.keeps):
            self.part.unlink(missing_ok=True)
            self.said.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # a full disk was told of before
            self.file.close()

    def _lock(self) -> None:
        """``InputError`` if another process is writing the same."""
        try:
            import fcntl

            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.file.close()
            raise InputError(f"another process is writing {self.path}; wait for its end") from None
        except (ImportError, OSError):
            pass  # no such lock on this system

    def _kept(self) -> str:
        if not (self.done and self.keeps):
            return ""
        return f"; {self.done:,} answers are kept in {self.part}"


def identity_of(path: Path) -> list[Any]:
    """Where a file or a folder is, and what changes when it does."""
    return [str(path.resolve()), *_state(path)]


def _state(path: Path) -> list[Any]:
    if not path.is_dir():
        status = path.stat()
        return [status.st_size, status.st_mtime_ns]
    # What is being written there is hidden.
    below = sorted(p for p in path.rglob("*") if p.is_file() and not p.name.startswith("."))
    states = [(str(p.relative_to(path)), *_state(p)) for p in below]
    return [hashlib.sha256(json.dumps(states).encode()).hexdigest()]


def _pack(source: Path, target: Path) -> None:
    # Without name and time, so that the same rows make the same file.
    with (
        source.open("rb") as rows,
        target.open("wb") as raw,
        gzip.GzipFile(filename="", fileobj=raw, mode="wb", mtime=0) as packed,
    ):
        shutil.copyfileobj(rows, packed, 1 << 20)
