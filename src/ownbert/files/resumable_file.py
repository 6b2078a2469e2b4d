"""Output files that are written line by line over a long time, and resumed after an interruption.

The unfinished file is ``.NAME.part`` beside the output, and ``.NAME.part.json`` describes its
inputs. The file gets its final name when it is complete.
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

from ownbert.exceptions import InputError
from ownbert.files.encodings import UTF8, current_encoding
from ownbert.files.json_files import read_json, write_json
from ownbert.files.writing import (
    atomic_path,
    explained,
    flush_to_disk,
    lock_file,
    make_folder,
    missing_folders,
    refuse_unwritable,
    remove_empty,
)
from ownbert.language.messages import Message, Option

Item = TypeVar("Item")


class ResumableFile:
    """Lines for ``path``, compressed if the name ends with .gz.

    Args:
        path: the file that appears once it is complete.
        made_for: everything that the lines depend on; None: an interrupted run keeps nothing, so
            that none can be resumed.
        resume: whether to keep the lines of an interrupted run with the same ``made_for``.

    Attributes:
        done: the number of lines so far.

    Raises:
        InputError: the path cannot be written, another process is writing it, or the lines to
            resume have another ``made_for``.
    """

    def __init__(
        self, path: str | Path, made_for: Mapping[str, Any] | None, *, resume: bool
    ) -> None:
        require_identity(made_for, resume=resume)
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
                if not self.part.stat().st_size:  # keep an unfinished file
                    self.part.unlink()
                    self.metadata.unlink(missing_ok=True)
                    remove_empty(self._new_folders)
                raise

    def _start(self, resume: bool) -> None:
        """Truncate the file to the lines that are kept."""
        size = 0
        if resume and self.metadata.exists():
            try:
                before = read_json(self.metadata)
            except InputError:
                before = {}
            now = {**dict.fromkeys(before), **self.made_for}
            refuse_other_run(self.path, before, now, "start over without --resume")
            size = self._complete_size()
        self.file.truncate(size)
        write_json(self.metadata, self.made_for)

    def _complete_size(self) -> int:
        """The end of the last complete line, in bytes; sets ``done``."""
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
        """Write all missing lines, and give the file its final name.

        On any exception the file can be resumed, and the ``InputError`` or ``KeyboardInterrupt``
        says so.

        Args:
            convert: function from a block to its lines, one per input.
            progress: callback that receives the number of inputs so far.

        Returns:
            The number of inputs.
        """
        with contextlib.closing(self), saying_what_is_kept(self._kept):
            count = self.add(blocks, convert, progress)
            self.finish()
        return count

    def add(
        self,
        blocks: Iterable[Sequence[Any]],
        convert: Callable[[Sequence[Any]], Sequence[Any]],
        progress: Callable[[int], None] | None = None,
    ) -> int:
        """Write all missing lines; for arguments and result see ``fill``."""
        before, count = self.done, 0
        for block in blocks:
            count += len(block)
            if count > before:
                # A partial block is recomputed whole: other batch sizes round differently.
                self.write(convert(block)[max(0, before - count + len(block)) :])
            if progress is not None:
                progress(count)
        return count

    def write(self, lines: Sequence[Any]) -> None:
        """Append lines, which include their line ends."""
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
        """Stop writing; remove the file if it is empty or cannot be resumed."""
        if not (self.done and self.keeps):
            self.part.unlink(missing_ok=True)
            self.metadata.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # a full disk was already reported
            self.file.close()
        remove_empty(self._new_folders)

    def _kept(self) -> str:
        if not (self.done and self.keeps):
            return ""
        return Message("; {count:,} predictions are kept in {file}", self.done, self.part)


def require_identity(made_for: Mapping[str, Any] | None, *, resume: bool) -> None:
    """Raise ``InputError`` if a run is to be resumed whose inputs cannot be identified."""
    if resume and made_for is None:
        raise InputError("only rows of a file can be resumed; omit {--resume}")


def refuse_other_run(
    output: Any, before: Mapping[str, Any], made_for: Mapping[str, Any], otherwise: str
) -> None:
    """Raise ``InputError`` if the identity of a stopped run differs from that of this run.

    ``otherwise`` is what the user can do instead of resuming.
    """
    for name, value in made_for.items():
        if before.get(name) == value:
            continue
        if name == "precision" and isinstance(before.get(name), str):
            raise InputError(
                "cannot resume {output}: the precision differs from that of the stopped run; "
                "continue with {precision}, or {otherwise}",
                output,
                Option("--precision", before[name]),
                otherwise,
            )
        raise InputError(
            "cannot resume {output}: the stopped run differs in its {name}; {otherwise}",
            output,
            name,
            otherwise,
        )


@contextlib.contextmanager
def saying_what_is_kept(kept: Callable[[], str]) -> Iterator[None]:
    """Append the text of ``kept`` about the stopped run, if any, to errors and interrupts."""
    try:
        yield
    except InputError as error:
        raise InputError("{error}{kept}", error, kept()) from error
    except KeyboardInterrupt:
        way = "; run the same command with --resume to continue" if kept() else ""
        raise KeyboardInterrupt(Message("interrupted{kept}{way!t}", kept(), way)) from None


def first_read(blocks: Iterable[Item]) -> Iterator[Item]:
    """Return ``blocks`` with the first one already read, so that unreadable inputs are rejected
    before an output file is opened."""
    rest = iter(blocks)
    return chain(list(islice(rest, 1)), rest)


def identity_of(path: Path) -> list[Any]:
    """The path of a file or folder, and values that change with its content."""
    return [str(path.resolve()), *_state(path)]


def made_for(sources: Any, depends_on: Mapping[str, Any]) -> dict[str, Any] | None:
    """The identity of lines or rows made from files; None if a source is not a file.

    Args:
        sources: a file or folder, or several inputs in their order.
        depends_on: everything else that the output depends on.
    """
    if isinstance(sources, Path):
        identity = identity_of(sources)
    elif all(isinstance(source, Path) for source in sources):
        identity = [identity_of(source) for source in sources]
    else:
        return None
    encoded = {} if current_encoding() == UTF8 else {"encoding": current_encoding()}
    return {**depends_on, "input": identity, **encoded}


def _state(path: Path) -> list[Any]:
    if not path.is_dir():
        status = path.stat()
        return [status.st_size, status.st_mtime_ns]
    # Unfinished files are hidden.
    below = sorted(p for p in path.rglob("*") if p.is_file() and not p.name.startswith("."))
    states = [(str(p.relative_to(path)), *_state(p)) for p in below]
    return [hashlib.sha256(json.dumps(states).encode()).hexdigest()]


def _compress(source: Path, target: Path) -> None:
    # Without name and time, so that equal lines give equal files.
    with (
        source.open("rb") as rows,
        target.open("wb") as raw,
        gzip.GzipFile(filename="", fileobj=raw, mode="wb", mtime=0) as packed,
    ):
        shutil.copyfileobj(rows, packed, 1 << 20)
