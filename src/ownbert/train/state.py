"""The complete state of a run at one step: saved atomically, and verified when restored.

A saved state is a folder ``checkpoints/step-N``. Tensors are in safetensors files, one per process,
written and read by torch.distributed.checkpoint, so that a run can be resumed with another number
of processes. ``state.json`` contains everything else, and a checksum of each file.
"""

import contextlib
import json
import shutil
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor

from ownbert.batches.loader import Position
from ownbert.exceptions import InputError
from ownbert.files.json_files import read_json, write_json
from ownbert.files.writing import WRITE_FAILURES, checksum, flush_to_disk, make_folder
from ownbert.language.messages import Message
from ownbert.objectives.learner import Learner
from ownbert.train.distributed import ALONE, World, reshard

STATES = "checkpoints"
STATE = "state.json"
FORMAT = 1
_KEYS = {"format", "identity", "phase", "position", "clock", "best", "sums", "files", "interim"}
_CLOCK = ("step", "tokens", "seconds", "reserved")
_PARTS = "DCP_SHARDING_INFO"  # key in the metadata of files with shards
_SHARD = "shard-{:05d}-model-00001-of-00001.safetensors"


def list_states(folder: Path) -> list[Path]:
    """The saved states of the run in ``folder``, oldest first."""
    return sorted((folder / STATES).glob("step-*"))


def newest_state(folder: Path) -> Path | None:
    return next(reversed(list_states(folder)), None)


def step_of(path: Path) -> int:
    return int(path.name.removeprefix("step-"))


def find_state(folder: Path, step: int | None = None) -> Path | None:
    """The state to resume from: the one of ``step``, or the newest one, if any."""
    if step is None:
        return newest_state(folder)
    states = {step_of(path): path for path in list_states(folder)}
    if step not in states:
        options = ", ".join(map(str, states)) or "none"
        raise InputError(
            "{folder} has no saved state of step {step}; there are {options}", folder, step, options
        )
    return states[step]


@dataclass(frozen=True)
class SavedState:
    """A saved state with its ``state.json``."""

    path: Path
    metadata: Mapping[str, Any]

    @classmethod
    def read(cls, path: Path) -> "SavedState":
        """Read ``state.json``; raise ``DamagedState`` if the file is damaged."""
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
        """Compare every file with its checksum; raise ``DamagedState`` if one is missing or
        differs."""
        for name, entry in self.metadata["files"].items():
            file = self.path / name
            size = file.stat().st_size if file.exists() else 0
            if size != entry["bytes"]:
                reason = Message("it has {size:,} bytes, not {expected:,}", size, entry["bytes"])
                raise _damaged(file, self.path, reason)
            if checksum(file) != entry:
                raise _damaged(file, self.path, "its checksum differs")


def is_interim(path: Path) -> bool:
    """Whether a state was saved only because its run was stopped."""
    try:
        return bool(SavedState.read(path).metadata["interim"])
    except InputError:
        return False


def _metadata_crc(metadata: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(metadata, sort_keys=True).encode())


class DamagedState(InputError):
    """A saved state whose content has changed."""


def _damaged(file: Path, path: Path, reason: str) -> DamagedState:
    """The error for an unusable state; its message suggests the previous state."""
    earlier = [other for other in list_states(path.parents[1]) if other < path]
    advice = Message("start over with {--overwrite}")
    if earlier:
        advice = "remove {path}, and use {--resume} to continue from step {step:,}"
        advice = Message(advice, path, step_of(earlier[-1]))
    return DamagedState("{file} is damaged ({reason!t}); {advice}", file, reason, advice)


def require_same_identity(path: Path, before: Mapping[str, str], now: Mapping[str, str]) -> None:
    """Raise ``InputError`` if the content of ``path`` was trained on other data."""
    for name in before.keys() | now.keys():
        if before.get(name) != now.get(name):
            if name not in before:
                raise InputError(
                    "cannot resume from {path}: an earlier version of ownbert began it with other "
                    "{name}; continue with that version, or start over with {--overwrite}",
                    *(path, name),
                )
            raise InputError(
                "cannot resume from {path}: the {name} was {before} and is now {now}; use the "
                "same, or start over with {--overwrite}",
                *(path, name, before[name], now.get(name)),
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
        raise reason if isinstance(reason, OSError) else InputError("{reason}", reason) from None


def _whole(tensor: Tensor) -> Tensor:
    """A tensor with its own memory, as safetensors requires: views are copied."""
    view = tensor.untyped_storage().nbytes() != tensor.nbytes or not tensor.is_contiguous()
    return tensor.clone(memory_format=torch.contiguous_format) if view else tensor


def read_tensors(folder: Path, into: Mapping[str, Tensor], world: World) -> None:
    """Fill the tensors in ``into`` by name from a saved state; all processes must call it."""
    files = list(folder.glob("*.safetensors"))
    if world.size == 1 and len(files) == 1:
        with safe_open(files[0], "pt") as file:
            if _PARTS not in (file.metadata() or {}):
                # Written by one process. The distributed reader would wrap a signal's exception.
                for name, tensor in into.items():
                    tensor.detach().copy_(file.get_tensor(name))
                return
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.state_dict_loader import load

    with _quiet():
        reader = HuggingFaceStorageReader(str(folder))
        load(dict(into), storage_reader=reader, no_dist=world.size == 1)


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


def write_problem(write: Callable[[], object], path: Path) -> str | None:
    """Call ``write``; if the state ``path`` cannot be written, return a message for the user."""
    try:
        write()
    except (OSError, InputError) as error:
        if isinstance(error, OSError) and error.errno not in WRITE_FAILURES:
            raise
        why = error.strerror if isinstance(error, OSError) else str(error).splitlines()[0]
        advice = Message("no state is saved yet: make room, and run the same command again")
        if list_states(path.parents[1]):
            advice = Message("earlier states are complete: continue with {--resume}")
        return Message("cannot write {path}: {reason}; {advice}", path, why, advice)
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
    remove_states_after(folder, -1)
    shutil.rmtree(folder / STATES, ignore_errors=True)


def remove_states_after(folder: Path, step: int) -> None:
    """Delete the states after ``step``, which a run resumed from that step replaces, and incomplete
    ones."""
    for path in list_states(folder):
        if step_of(path) > step:
            remove_state(path)
    for path in (folder / STATES).glob(".step-*.tmp"):
        shutil.rmtree(path, ignore_errors=True)


@dataclass
class TrainState:
    """Weights, optimiser, loader position, clocks and the best evaluation of a run.

    Args:
        identity: identity of the training data; the run cannot be resumed with other data.
        position: loader position to continue from.
        phase: index of the current phase.
        seconds: time in the training loop, over all resumptions.
        reserved: part of max_minutes, in seconds, for the setup and the last evaluation, estimated
            by the longest one so far.
        best: {"step", "value", "since"} of the monitored metric; ``since`` is the step at which the
            value was first reached.
        best_weights: weights at that evaluation, if they will be restored at the end.
        average: running mean of the weights, if any.
        sums: sums for the next log row.
    """

    learner: Learner
    optimizer: torch.optim.Optimizer
    identity: Mapping[str, str] = field(default_factory=dict)
    position: Position = field(default_factory=Position)
    phase: int = 0
    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    reserved: float = 0.0
    best: dict[str, float] | None = None
    best_weights: dict[str, Tensor] | None = None
    average: dict[str, Tensor] | None = None
    sums: dict[str, list[float]] = field(default_factory=dict)

    def save(
        self, folder: Path, *, keep: int = 2, world: World = ALONE, interim: bool = False
    ) -> Path:
        """Save the state of this step, and return its path; all processes must call it. Older
        states are deleted, except the last ``keep`` and the one of the best evaluation.

        ``interim``: saved only because the run stops here. The next state replaces it, so that a
        resumed run ends with the same states as an uninterrupted one.
        """
        path = folder / STATES / f"step-{self.step:08d}"
        if path.exists():
            return path  # the run was resumed from this state
        temporary = unfinished(path)
        if world.first:
            shutil.rmtree(temporary, ignore_errors=True)
            make_folder(temporary)
        world.wait()
        try:
            world.agree(
                write_problem(lambda: write_tensors(temporary, self._tensors(), world), path)
            )
            # The names of files contain the number of the process that wrote them, from 1.
            file = temporary / _SHARD.format(world.rank + 1)
            parts = world.gather({file.name: checksum(file)} if file.exists() else {})
            files = {name: entry for part in parts for name, entry in part.items()}
            world.agree(
                write_problem(
                    lambda: self._write_metadata(temporary, path, files, world, interim), path
                )
            )
        finally:
            if world.first:
                shutil.rmtree(temporary, ignore_errors=True)
        if world.first:
            self._prune(path.parent, keep)
        return path

    def _write_metadata(
        self, temporary: Path, path: Path, files: dict, world: World, interim: bool
    ) -> None:
        if not world.first:
            return
        metadata = {
            "format": FORMAT,
            "identity": dict(self.identity),
            "phase": self.phase,
            "position": asdict(self.position),
            "clock": {name: getattr(self, name) for name in _CLOCK},
            "best": self.best,
            "sums": self.sums,
            "files": files,
            "interim": interim,
        }
        write_json(temporary / STATE, metadata | {"crc32": _metadata_crc(metadata)})
        temporary.rename(path)

    def _prune(self, folder: Path, keep: int) -> None:
        *earlier, _ = list_states(folder.parent)
        for old in filter(is_interim, earlier):
            remove_state(old)
        best = self.best["step"] if self.best else None
        for old in [path for path in list_states(folder.parent) if step_of(path) != best][:-keep]:
            remove_state(old)

    def restore(self, state: SavedState, *, world: World = ALONE) -> None:
        """Replace this state by a saved one.

        Raises:
            InputError: the saved state is damaged (the message names the file and the remedy), or
                belongs to another run or model.
        """
        state.verify()
        path, metadata = state.path, state.metadata
        require_same_identity(path, metadata["identity"], self.identity)
        shapes = tensor_shapes(path)
        tensors = self._tensors()
        for name, parameter in self.learner.named_parameters():
            prefix = f"optimizer.{name}:"
            for key in [key for key in shapes if key.startswith(prefix)]:
                tensors[key] = self._optimizer_tensor(parameter, shapes[key])
                self.optimizer.state[parameter][key.removeprefix(prefix)] = tensors[key]
            for key in (f"best.{name}", f"average.{name}"):
                if key in shapes:
                    tensors[key] = torch.empty_like(parameter.detach())
        differing = set(shapes) ^ set(tensors)
        differing |= {n for n in set(shapes) & set(tensors) if shapes[n] != tuple(tensors[n].shape)}
        if differing:
            raise InputError(
                "{path} belongs to another model: it differs in {differing}", path, min(differing)
            )
        read_tensors(path, tensors, world)
        self.best = metadata["best"]
        self.best_weights = _with_prefix("best.", tensors) or None
        self.average = _with_prefix("average.", tensors) or None
        self.phase, self.position = metadata["phase"], Position(**metadata["position"])
        self.sums = metadata["sums"]
        for name in _CLOCK:
            setattr(self, name, metadata["clock"][name])

    def _optimizer_tensor(self, parameter: Tensor, shape: tuple[int, ...]) -> Tensor:
        """Zeros for the optimiser state of a parameter: of its shape, or a few numbers."""
        if shape == tuple(parameter.shape):
            return torch.zeros_like(parameter.detach())
        # Fused optimisers count steps on the device, others on the CPU.
        fused = any(group.get("fused") for group in self.optimizer.param_groups)
        return torch.zeros(shape, device=parameter.device if shape or fused else None)

    @torch.no_grad()
    def take_average(self, decay: float) -> None:
        """Update the running mean of the weights. It moves faster in the first steps, so that the
        initial weights do not dominate it."""
        parameters = dict(self.learner.named_parameters())
        if self.average is None:
            self.average = {name: p.detach().clone() for name, p in parameters.items()}
        share = 1 - min(decay, (1 + self.step) / (10 + self.step))
        for name, mean in self.average.items():
            mean.lerp_(parameters[name], share)

    @contextlib.contextmanager
    def averaged(self) -> Iterator[None]:
        """A context in which the model has the running mean of the weights, if any."""
        if self.average is None:
            yield
            return
        kept = {name: p.detach().clone() for name, p in self.learner.named_parameters()}
        self._load_weights(self.average)
        try:
            yield
        finally:
            self._load_weights(kept)

    def use_best(self) -> None:
        """Load the best weights into the model, or else the running mean, if any."""
        self._load_weights(self.best_weights or self.average or {})

    def _load_weights(self, weights: Mapping[str, Tensor]) -> None:
        with torch.no_grad():
            for name, parameter in self.learner.named_parameters():
                if name in weights:
                    parameter.copy_(weights[name])

    def _tensors(self) -> dict[str, Tensor]:
        """Weights, optimiser state, best weights and running mean, by name."""
        reshard(self.learner)
        parameters = dict(self.learner.named_parameters())
        tensors = {name: p.detach() for name, p in parameters.items()}
        for name, p in parameters.items():
            for key, value in self.optimizer.state.get(p, {}).items():
                if isinstance(value, Tensor):
                    tensors[f"optimizer.{name}:{key}"] = value
        tensors |= {f"best.{n}": t for n, t in (self.best_weights or {}).items()}
        return tensors | {f"average.{n}": t for n, t in (self.average or {}).items()}


def _with_prefix(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors whose names start with ``prefix``, keyed by the rest of the name."""
    return {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
