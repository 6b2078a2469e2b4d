"""Saved states on disk: a folder ``checkpoints/step-N`` each.

Tensors are safetensors, one file a process, as torch.distributed.checkpoint writes and reads
them, so that a run may go on with another number of processes. ``state.json`` has everything else,
and the checksum of each file.
"""

import contextlib
import json
import os
import shutil
import warnings
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save as to_bytes
from torch import Tensor

from ownbert.errors import InputError
from ownbert.files import WRITE_FAILURES, write_json
from ownbert.train.distributed import World

FOLDER = "checkpoints"
STATE = "state.json"
FORMAT = 1
_SHARD = "shard-{:05d}-model-00001-of-00001.safetensors"


def saved(folder: Path) -> list[Path]:
    """The states saved below ``folder``, the oldest first."""
    return sorted((folder / FOLDER).glob("step-*"))


def newest(folder: Path) -> Path | None:
    """The last state saved below ``folder``."""
    return next(reversed(saved(folder)), None)


def step_of(path: Path) -> int:
    return int(path.name.removeprefix("step-"))


def find_state(folder: Path, step: int | None = None) -> Path | None:
    """The state to resume from: that of ``step``, or the newest one, if any."""
    if step is None:
        return newest(folder)
    states = {step_of(path): path for path in saved(folder)}
    if step not in states:
        known = ", ".join(map(str, states)) or "none"
        raise InputError(f"{folder} has no saved state of step {step}; there are {known}")
    return states[step]


@dataclass(frozen=True)
class SavedState:
    """A saved state and its ``state.json``."""

    path: Path
    metadata: Mapping[str, Any]

    @classmethod
    def read(cls, path: Path) -> "SavedState":
        """Raises ``Damaged`` where ``state.json`` is not as it was written."""
        return cls(path, read_state(path))

    def verify(self) -> None:
        """Compare every file with its checksum. Raises ``Damaged``."""
        for name, entry in self.metadata["files"].items():
            file = self.path / name
            size = file.stat().st_size if file.exists() else 0
            if size != entry["bytes"]:
                raise damaged(file, self.path, f"it has {size:,} bytes, not {entry['bytes']:,}")
            if summed(file) != entry:
                raise damaged(file, self.path, "its checksum differs")


def read_state(path: Path) -> dict[str, Any]:
    """``state.json`` of a saved state. Raises ``InputError`` where it is damaged."""
    try:
        metadata = json.loads((path / STATE).read_text(encoding="utf-8"))
        if metadata.pop("crc32") != _metadata_crc(metadata):
            raise damaged(path / STATE, path, "its checksum differs")
        _ = [
            metadata[k] for k in ("identity", "phase", "position", "clock", "best", "sums", "files")
        ]
    except Damaged:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise damaged(path / STATE, path, "it is missing or cannot be read") from None
    if metadata["format"] != FORMAT:
        raise InputError(f"{path} has format {metadata['format']}, this version reads {FORMAT}")
    return metadata


def write_state(path: Path, metadata: dict[str, Any]) -> None:
    """Write ``state.json`` with a checksum of its own."""
    write_json(path, metadata | {"crc32": _metadata_crc(metadata)})


def _metadata_crc(metadata: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(metadata, sort_keys=True).encode())


class Damaged(InputError):
    """A saved state that is not as it was written."""


def damaged(file: Path, path: Path, reason: str) -> Damaged:
    """What to say of a state that cannot be used: the one before it is offered."""
    earlier = [other for other in saved(path.parents[1]) if other < path]
    way = "start anew with --overwrite"
    if earlier:
        way = f"remove {path}, and --resume goes on from step {step_of(earlier[-1]):,}"
    return Damaged(f"{file} is damaged ({reason}); {way}")


def refuse_other(path: Path, before: Mapping[str, str], now: Mapping[str, str]) -> None:
    """``InputError`` if a state was saved in learning from something else."""
    for name in before.keys() | now.keys():
        if before.get(name) != now.get(name):
            raise InputError(
                f"cannot resume from {path}: the {name} was {before.get(name)} and is now "
                f"{now.get(name)}; take the same, or start anew with --overwrite"
            )


def write_tensors(folder: Path, tensors: Mapping[str, Tensor], world: World) -> None:
    if world.size == 1:
        # What the writer for several processes would make; planning takes it longer than writing.
        whole = {name: _whole(tensor.detach().cpu()) for name, tensor in tensors.items()}
        with (folder / _SHARD.format(1)).open("wb") as file:
            file.write(to_bytes(whole, metadata={"format": "pt"}))
            file.flush()
            os.fsync(file.fileno())
        return
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    writer = HuggingFaceStorageWriter(str(folder), save_distributed=True)
    try:
        with _quiet():
            save(dict(tensors), storage_writer=writer)
    except CheckpointException as error:
        reason = next(iter(error.failures.values()))[0]
        raise reason if isinstance(reason, OSError) else InputError(str(reason)) from None


def _whole(tensor: Tensor) -> Tensor:
    """A tensor with memory of its own, as safetensors takes it: a view is copied."""
    view = tensor.untyped_storage().nbytes() != tensor.nbytes or not tensor.is_contiguous()
    return tensor.clone(memory_format=torch.contiguous_format) if view else tensor


def read_tensors(folder: Path, into: Mapping[str, Tensor], world: World) -> None:
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.state_dict_loader import load

    with _quiet():
        reader = HuggingFaceStorageReader(str(folder))
        load(dict(into), storage_reader=reader, no_dist=world.size == 1)


def shapes_in(folder: Path) -> dict[str, tuple[int, ...]]:
    """The tensors of a saved state and their shapes."""
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader

    metadata = HuggingFaceStorageReader(str(folder)).read_metadata().state_dict_metadata
    return {name: tuple(entry.size) for name, entry in metadata.items()}  # pyright: ignore


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    # It warns that there is only one process, which is the usual case here.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield


def written_by(world: World, folder: Path) -> list[Path]:
    """The files that a process wrote: their names begin with its number from 1."""
    file = folder / _SHARD.format(world.rank + 1)
    return [file] if file.exists() else []


def summed(path: Path) -> dict[str, int]:
    crc, size = 0, 0
    with path.open("rb") as file:
        while data := file.read(1 << 24):
            crc, size = zlib.crc32(data, crc), size + len(data)
    return {"bytes": size, "crc32": crc}


def summed_model(folder: Path) -> list[tuple[str, dict[str, int]]]:
    """The files of a model folder that its answers may depend on, with their sums. A file that is
    being written there is hidden."""
    kinds = (".safetensors", ".bin", ".json", ".txt", ".model")
    paths = (*folder.iterdir(), *folder.glob("source/*"))  # a vocabulary of sources
    found = sorted(p for p in paths if p.suffix in kinds and not p.name.startswith("."))
    return [(str(path.relative_to(folder)), summed(path)) for path in found]


def trying(write: Any, path: Path) -> str | None:
    """What went wrong in writing, in one line."""
    try:
        write()
    except (OSError, InputError) as error:
        if isinstance(error, OSError) and error.errno not in WRITE_FAILURES:
            raise
        why = error.strerror if isinstance(error, OSError) else str(error).splitlines()[0]
        return f"cannot write {path}: {why}; what was saved before is whole: --resume goes on there"
    return None


def remove_states(folder: Path) -> None:
    """Delete the saved states of a run that has come to its end."""
    shutil.rmtree(folder / FOLDER, ignore_errors=True)


def remove_later(folder: Path, step: int) -> None:
    """Delete the states after ``step``: of a future that did not come, or half-written."""
    for path in saved(folder):
        if step_of(path) > step:
            shutil.rmtree(path, ignore_errors=True)
    for path in (folder / FOLDER).glob(".step-*.tmp"):
        shutil.rmtree(path, ignore_errors=True)
