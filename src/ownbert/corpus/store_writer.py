"""Writes a token store in a work folder that survives interruptions.

``.NAME.part`` contains ``made_for.json`` (settings and sources), ``state.json`` (number of chunks
written, with size and checksum of each file at that time) and ``store``, the folder that finally
replaces the output. A chunk is appended to the files before ``state.json`` is replaced, so anything
that a killed process wrote later is truncated.
"""

import contextlib
import json
import os
import shutil
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ownbert.corpus.text_encoding import EncodedChunk
from ownbert.exceptions import InputError
from ownbert.files.json_files import read_json
from ownbert.files.writing import checksum, explained, flush_to_disk, lock_file, make_folder

INDEX = "store.json"
_BLOCK = 1 << 24  # bytes


class WorkFolder:
    """The work folder of a token store, locked for one process; ``close`` it. Files of an
    interrupted run with another identity than ``made_for`` are removed."""

    def __init__(self, output: Path, made_for: dict[str, Any]) -> None:
        target = output.resolve()
        if target.exists() and not target.is_dir():
            raise InputError("cannot write the folder {output}: a file has that name", output)
        if target == Path.cwd():  # the current folder cannot be replaced
            raise InputError(
                "cannot write to {output}, the working folder; name a folder in it", output
            )
        make_folder(target.parent)
        self.output, self.target = output, target
        self.folder = work_folder(output)
        self.store, self.old = self.folder / "store", self.folder / "old"
        with explained(output):
            self.folder.mkdir(exist_ok=True)
            self.lock: BinaryIO = (self.folder / "lock").open("ab")
        lock_file(self.lock, output)
        try:
            with explained(output):
                self._restore()
                if _read(self.folder / "made_for.json") != made_for:
                    self._clear()
                    _replace(self.folder / "made_for.json", made_for)
                self.store.mkdir(exist_ok=True)
        except BaseException:
            self.close(keep=False)
            raise

    def _restore(self) -> None:
        """Restore an earlier store that a killed process had moved away."""
        if self.old.exists() and not self.target.exists():
            self.old.rename(self.target)

    def _clear(self) -> None:
        for path in self.folder.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            elif path.name != "lock":
                path.unlink()

    def state(self) -> dict[str, Any]:
        """The state of an interrupted run; empty if there is none."""
        return _read(self.folder / "state.json")

    def save(self, state: dict[str, Any]) -> None:
        _replace(self.folder / "state.json", state)

    def finish(self) -> None:
        """Replace the output by the finished store."""
        for path in self.store.iterdir():
            flush_to_disk(path)
        if self.target.exists():
            shutil.rmtree(self.old, ignore_errors=True)
            self.target.rename(self.old)
        try:
            self.store.rename(self.target)
        except BaseException:
            self._restore()
            raise

    def close(self, *, keep: bool) -> None:
        """Unlock the work folder, and remove it unless ``keep``."""
        if not keep:
            self._restore()
            shutil.rmtree(self.folder, ignore_errors=True)
        self.lock.close()


def remove_work(output: Path) -> None:
    """Remove the work folder of a process that was killed at the very end."""
    folder = work_folder(output)
    if folder.exists():
        with contextlib.suppress(InputError):
            WorkFolder(output, {}).close(keep=False)


def work_folder(output: Path) -> Path:
    target = output.resolve()
    return target.with_name(f".{target.name[:100]}.part")


def _read(path: Path) -> dict[str, Any]:
    """The object in a JSON file; empty if it is missing or damaged."""
    try:
        return read_json(path)
    except InputError:
        return {}


def _replace(path: Path, value: Any) -> None:
    """Write without fsync: checksums reveal what a power failure lost."""
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(value), encoding="utf-8")
    os.replace(temporary, path)


class StoreWriter:
    """Appends chunks to the files of a store, and tracks their sizes, checksums and counts."""

    def __init__(self, work: WorkFolder, vocab_size: int, *, words: bool, features: bool) -> None:
        self.work, self.folder = work, work.store
        self.counts = np.zeros(vocab_size, dtype=np.int64)
        dtypes = {
            "tokens": "<u2" if vocab_size <= 1 << 16 else "<u4",
            "sentences": "<i8",
            "documents": "<i8",
        }
        dtypes |= {"words": "|u1"} if words else {}
        dtypes |= {"features": "<u2"} if features else {}
        self.files = {n: {"dtype": t, "bytes": 0, "crc32": 0} for n, t in dtypes.items()}
        self.chunks = 0
        self.saved = 0  # documents saved so far
        # Input statistics if an interrupted run had reached the end of the corpus, else None.
        self.read: dict[str, int] | None = None
        self.last = {"sentences": 0, "documents": 0}
        self.stack = contextlib.ExitStack()
        with explained(work.output):
            self._resume(work.state())
            self.open: dict[str, BinaryIO] = {}
            for name in self.files:
                file = self._path(name).open("ab")
                self.stack.enter_context(file)
                file.truncate(self.files[name]["bytes"])
                self.open[name] = file

    def __enter__(self) -> "StoreWriter":
        return self

    def __exit__(self, *failure: object) -> None:
        # After a failure, a failing flush must not hide it.
        with contextlib.suppress(OSError):
            self.stack.close()

    @property
    def tokens(self) -> int:
        return self._length("tokens")

    @property
    def documents(self) -> int:
        return self._length("documents")

    def _length(self, name: str) -> int:
        return self.files[name]["bytes"] // np.dtype(self.files[name]["dtype"]).itemsize

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.bin"

    def _resume(self, state: dict[str, Any]) -> None:
        """Continue an interrupted run if its files are intact."""
        counts = np.zeros_like(self.counts)
        try:
            files = {name: dict(state["files"][name]) for name in self.files}
            for name, entry in files.items():  # the rest of a file is incomplete
                path = self._path(name)
                if not path.exists() or path.stat().st_size < entry["bytes"]:
                    return
                if checksum(path, entry["bytes"])["crc32"] != entry["crc32"]:
                    return
            for ids in self._read("tokens", files["tokens"]):
                counts += np.bincount(ids, minlength=len(counts))
            last = {name: self._last(name, files[name]) for name in self.last}
            chunks = int(state["parts"])
        except (KeyError, TypeError, ValueError):
            return
        self.files, self.counts, self.last, self.chunks = files, counts, last, chunks
        self.saved = self.documents
        self.read = state.get("read")

    def _read(self, name: str, entry: dict[str, Any]) -> Iterator[np.ndarray]:
        with open(self._path(name), "rb") as file:
            for start in range(0, entry["bytes"], _BLOCK):
                data = file.read(min(_BLOCK, entry["bytes"] - start))
                yield np.frombuffer(data, dtype=entry["dtype"])

    def _last(self, name: str, entry: dict[str, Any]) -> int:
        if not entry["bytes"]:
            return 0
        with open(self._path(name), "rb") as file:
            file.seek(entry["bytes"] - 8)
            return int.from_bytes(file.read(8), "little")

    def add(self, chunk: EncodedChunk) -> None:
        """Append a chunk and record it in ``state.json``."""
        before = self.tokens
        self._append("tokens", chunk.tokens)
        if chunk.words is not None:
            self._append("words", chunk.words)
        if chunk.features is not None:
            self._append("features", chunk.features)
        for name, ends in (("sentences", chunk.sentence_ends), ("documents", chunk.document_ends)):
            ends = ends + before
            # Sentences and documents without tokens are not counted.
            ends = ends[ends > self.last[name]]
            if len(ends):
                self.last[name] = int(ends[-1])
            self._append(name, ends)
        self.counts += np.bincount(chunk.tokens, minlength=len(self.counts))
        self.chunks += 1
        with explained(self.work.output):
            for file in self.open.values():
                file.flush()
            self.work.save({"parts": self.chunks, "files": self.files})
        self.saved = self.documents

    def _append(self, name: str, values: np.ndarray) -> None:
        entry = self.files[name]
        data = values.astype(entry["dtype"]).tobytes()
        with explained(self.work.output):
            self.open[name].write(data)
        entry["bytes"] += len(data)
        entry["crc32"] = zlib.crc32(data, entry["crc32"])

    def finish(self, read: dict[str, int]) -> dict[str, Any]:
        """Write the counts; return the entry of each file for the index."""
        with explained(self.work.output):
            self.work.save({"parts": self.chunks, "files": self.files, "read": read})
            for path in self.folder.iterdir():
                if path.suffix != ".bin":  # left by an interrupted run
                    path.unlink()
            data = self.counts.astype("<i8").tobytes()
            self._path("counts").write_bytes(data)
            self.stack.close()
        entry = {"dtype": "<i8", "bytes": len(data), "crc32": zlib.crc32(data)}
        return {**self.files, "counts": entry}
