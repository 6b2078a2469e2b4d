"""Saved states on disk: a folder ``checkpoints/step-N`` for each.

Tensors are in safetensors files, one per process, written and read by torch.distributed.checkpoint,
so that a run can be resumed with another number of processes. ``state.json`` contains everything
else, and a checksum of each file.
"""

import contextlib
import json
import shutil
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor

from ownbert.exceptions import InputError
from ownbert.files.json_files import read_json, write_json
from ownbert.files.writing import WRITE_FAILURES, checksum, flush_to_disk
from ownbert.train.distributed import World

STATES = "checkpoints"
STATE = "state.json"
FORMAT = 1
_KEYS = {"format", "identity", "phase", "position", "clock", "best", "sums", "files"}
_PARTS = "DCP_SHARDING_INFO"  # key in the metadata of files with shards
_SHARD = "shard-{:05d}-model-00001-of-00001.safetensors"


def list_states(folder: Path) -> list[Path]:
    """The saved states of the run in ``folder``, oldest first."""
    return sorted((folder / STATES).glob("step-*"))


def newest_state(folder: Path) -> Path | None:
    """The last saved state of the run in ``folder``."""
    return next(reversed(list_states(folder)), None)


def step_of(path: Path) -> int:
    """The step at which a state was saved."""
    return int(path.name.removeprefix("step-"))


def find_state(folder: Path, step: int | None = None) -> Path | None:
    """The state to resume from: the one of ``step``, or the newest one, if any.

    Raises:
        InputError: there is no state of ``step``.
    """
    if step is None:
        return newest_state(folder)
    states = {step_of(path): path for path in list_states(folder)}
    if step not in states:
        known = ", ".join(map(str, states)) or "none"
        raise InputError(
            "{folder} has no saved state of step {step}; there are {options}", folder, step, known
        )
    return states[step]


@dataclass(frozen=True)
class SavedState:
    """A saved state with its ``state.json``."""

    path: Path
    metadata: Mapping[str, Any]

    @classmethod
    def read(cls, path: Path) -> "SavedState":
        """Read ``state.json``.

        Raises:
            DamagedState: the file is damaged.
            InputError: the file has another format.
        """
        file = path / STATE
        try:
            metadata = read_json(file)
            if metadata.pop("crc32") != _metadata_crc(metadata):
                raise _damaged(file, path, "its checksum differs")
            if missing := _KEYS - metadata.keys():
                raise KeyError(*missing)
        except DamagedState:
            raise
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            raise _damaged(file, path, "it is missing or cannot be read") from None
        if metadata["format"] != FORMAT:
            raise InputError(
                "{path} has format {metadata}, this version reads {format}",
                path,
                metadata["format"],
                FORMAT,
            )
        return cls(path, metadata)

    def verify(self) -> None:
        """Compare every file with its checksum.

        Raises:
            DamagedState: a file is missing or differs.
        """
        for name, entry in self.metadata["files"].items():
            file = self.path / name
            size = file.stat().st_size if file.exists() else 0
            if size != entry["bytes"]:
                raise _damaged(file, self.path, f"it has {size:,} bytes, not {entry['bytes']:,}")
            if checksum(file) != entry:
                raise _damaged(file, self.path, "its checksum differs")


def is_interim(path: Path) -> bool:
    """Whether a state was saved only because its run was stopped."""
    try:
        return bool(SavedState.read(path).metadata.get("interim"))  # missing in older states
    except InputError:
        return False


def write_state(path: Path, metadata: dict[str, Any]) -> None:
    """Write ``state.json`` including a checksum of itself."""
    write_json(path, metadata | {"crc32": _metadata_crc(metadata)})


def _metadata_crc(metadata: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(metadata, sort_keys=True).encode())


class DamagedState(InputError):
    """A saved state whose content has changed."""


def _damaged(file: Path, path: Path, reason: str) -> DamagedState:
    """The error for an unusable state; its message suggests the previous state."""
    earlier = [other for other in list_states(path.parents[1]) if other < path]
    advice = "start over with --overwrite"
    if earlier:
        advice = f"remove {path}, and use --resume to continue from step {step_of(earlier[-1]):,}"
    return DamagedState(f"{file} is damaged ({reason}); {advice}")


def require_same_identity(path: Path, before: Mapping[str, str], now: Mapping[str, str]) -> None:
    """Raise ``InputError`` if the content of ``path`` was trained on other data."""
    for name in before.keys() | now.keys():
        if before.get(name) != now.get(name):
            if name not in before:
                raise InputError(
                    f"cannot resume from {path}: an earlier version of ownbert began it with other "
                    f"{name}; continue with that version, or start over with --overwrite"
                )
            raise InputError(
                f"cannot resume from {path}: the {name} was {before[name]} and is now "
                f"{now.get(name)}; use the same, or start over with --overwrite"
            )


def write_tensors(folder: Path, tensors: Mapping[str, Tensor], world: World) -> None:
    """Write named tensors, sharded or not; all processes must call it."""
    if world.size == 1:
        # Same file as the distributed writer's, whose planning takes longer than writing.
        complete = {name: _whole(tensor.detach().cpu()) for name, tensor in tensors.items()}
        file = folder / _SHARD.format(1)
        file.write_bytes(to_bytes(complete, metadata={"format": "pt"}))
        flush_to_disk(file)
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
    """A tensor with its own memory, as safetensors requires: views are copied."""
    view = tensor.untyped_storage().nbytes() != tensor.nbytes or not tensor.is_contiguous()
    return tensor.clone(memory_format=torch.contiguous_format) if view else tensor


def read_tensors(folder: Path, into: Mapping[str, Tensor], world: World) -> None:
    """Fill the tensors in ``into`` by name from a saved state; all processes must call it."""
    if world.size == 1 and (whole := _whole_file(folder)):
        # The distributed reader would wrap a signal's exception.
        with safe_open(whole, "pt") as file:
            for name, tensor in into.items():
                tensor.detach().copy_(file.get_tensor(name))
        return
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.state_dict_loader import load

    with _quiet():
        reader = HuggingFaceStorageReader(str(folder))
        load(dict(into), storage_reader=reader, no_dist=world.size == 1)


def _whole_file(folder: Path) -> Path | None:
    """The file with complete tensors, if the state was written by one process."""
    files = list(folder.glob("*.safetensors"))
    if len(files) != 1:
        return None
    with safe_open(files[0], "pt") as file:
        return None if _PARTS in (file.metadata() or {}) else files[0]


def tensor_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """The names and shapes of the tensors in a saved state."""
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader

    metadata = HuggingFaceStorageReader(str(folder)).read_metadata().state_dict_metadata
    return {name: tuple(entry.size) for name, entry in metadata.items()}  # pyright: ignore


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    # torch warns if there is only one process, which is the usual case here.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield


def files_of_rank(world: World, folder: Path) -> list[Path]:
    """The files that this process wrote: their names contain its number, from 1."""
    file = folder / _SHARD.format(world.rank + 1)
    return [file] if file.exists() else []


def write_problem(write: Callable[[], object], path: Path) -> str | None:
    """Call ``write``; if the state ``path`` cannot be written, return a message for the user."""
    try:
        write()
    except (OSError, InputError) as error:
        if isinstance(error, OSError) and error.errno not in WRITE_FAILURES:
            raise
        why = error.strerror if isinstance(error, OSError) else str(error).splitlines()[0]
        advice = "no state is saved yet: make room, and run the same command again"
        if list_states(path.parents[1]):
            advice = "earlier states are complete: continue with --resume"
        return f"cannot write {path}: {why}; {advice}"
    return None


def unfinished(path: Path) -> Path:
    """The temporary path of a state while it is written or deleted, which ``list_states`` ignores
    if a killed process leaves it behind."""
    return path.with_name(f".{path.name}.tmp")


def remove_state(path: Path) -> None:
    """Delete a saved state atomically, even if interrupted."""
    hidden = unfinished(path)
    shutil.rmtree(hidden, ignore_errors=True)
    with contextlib.suppress(OSError):
        path.rename(hidden)
    shutil.rmtree(hidden, ignore_errors=True)


def remove_states(folder: Path) -> None:
    """Delete the saved states of a finished run, newest last."""
    for path in list_states(folder):
        remove_state(path)
    shutil.rmtree(folder / STATES, ignore_errors=True)


def remove_states_after(folder: Path, step: int) -> None:
    """Delete the states after ``step``, and incomplete ones.

    A run resumed from that step replaces them.
    """
    for path in list_states(folder):
        if step_of(path) > step:
            remove_state(path)
    for path in (folder / STATES).glob(".step-*.tmp"):
        shutil.rmtree(path, ignore_errors=True)
