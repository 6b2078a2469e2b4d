"""The complete state of a run at one step: saved atomically, and verified when restored.

Its files are described in ``ownbert.train.state_files``.
"""

import contextlib
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from ownbert.batches.loader import Position
from ownbert.exceptions import InputError
from ownbert.files.writing import checksum, make_folder
from ownbert.objectives.learner import Learner
from ownbert.train.distributed import ALONE, World, reshard
from ownbert.train.state_files import (
    FORMAT,
    STATE,
    STATES,
    SavedState,
    files_of_rank,
    is_interim,
    list_states,
    read_tensors,
    remove_state,
    require_same_identity,
    step_of,
    tensor_shapes,
    unfinished,
    write_problem,
    write_state,
    write_tensors,
)


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
        """Save the state of this step, and return its path; all processes must call it.

        Older states are deleted, except the last ``keep`` and the one of the best evaluation.

        Args:
            interim: whether it is saved only because the run stops here. The next state replaces
                it, so that a resumed run ends with the same states as an uninterrupted one.

        Raises:
            InputError: the disk is full; earlier states are kept.
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
            parts = world.gather({p.name: checksum(p) for p in files_of_rank(world, temporary)})
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
            "clock": {
                "step": self.step,
                "tokens": self.tokens,
                "seconds": self.seconds,
                "reserved": self.reserved,
            },
            "best": self.best,
            "sums": self.sums,
            "files": files,
            "interim": interim,
        }
        write_state(temporary / STATE, metadata)
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
            InputError: the saved state is damaged (the message names the file and the remedy),
                or belongs to another run or model.
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
        self.step, self.tokens = metadata["clock"]["step"], metadata["clock"]["tokens"]
        self.seconds, self.sums = metadata["clock"]["seconds"], metadata["sums"]
        self.reserved = metadata["clock"].get("reserved", 0.0)  # missing in older states

    def _optimizer_tensor(self, parameter: Tensor, shape: tuple[int, ...]) -> Tensor:
        """Zeros for the optimiser state of a parameter: of its shape, or a few numbers."""
        if shape == tuple(parameter.shape):
            return torch.zeros_like(parameter.detach())
        # Fused optimisers count steps on the device, others on the CPU.
        fused = any(group.get("fused") for group in self.optimizer.param_groups)
        return torch.zeros(shape, device=parameter.device if shape or fused else None)

    @torch.no_grad()
    def take_average(self, decay: float) -> None:
        """Update the running mean of the weights.

        It moves faster in the first steps, so that the initial weights do not dominate it.
        """
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
