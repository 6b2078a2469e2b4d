"""All that a run is made of at one moment, saved whole or not at all, and verified when read.

What it looks like on disk is in ``ownbert.train.state_files``.
"""

import contextlib
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from ownbert.data.loader import Position
from ownbert.errors import InputError
from ownbert.files import make_folder
from ownbert.objectives import Learner
from ownbert.train.distributed import ALONE, World, reshard
from ownbert.train.state_files import (
    FOLDER,
    FORMAT,
    STATE,
    SavedState,
    read_tensors,
    refuse_other,
    saved,
    shapes_in,
    step_of,
    summed,
    trying,
    write_state,
    write_tensors,
    written_by,
)


@dataclass
class TrainState:
    """A run: weights, optimiser, where the loader stands, clocks, and the best evaluation.

    phase: number of the one that is being learnt. seconds: time in the loop, over all resumptions.
    best: {"step", "value", "since"} of the measure that is watched, since when the value has stood;
    best_weights: the weights then, where they are to be restored at the end. average: a running
    mean of the weights, where there is one. sums: what the next
    row of the log has seen so far. identity: what the run learns from; a run that is resumed on
    something else is another run.
    """

    learner: Learner
    optimizer: torch.optim.Optimizer
    identity: Mapping[str, str] = field(default_factory=dict)
    position: Position = field(default_factory=Position)
    phase: int = 0
    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    best: dict[str, float] | None = None
    best_weights: dict[str, Tensor] | None = None
    average: dict[str, Tensor] | None = None
    sums: dict[str, list[float]] = field(default_factory=dict)

    def save(self, folder: Path, *, keep: int = 2, world: World = ALONE) -> Path:
        """Write the state of this step below ``folder``; of older ones the last ``keep`` and that
        of the best evaluation stay. All processes must call it.

        Raises ``InputError`` on a full disk; nothing that was saved before is lost then.
        """
        path = folder / FOLDER / f"step-{self.step:08d}"
        if path.exists():
            return path  # It is the one that this process went on from.
        temporary = path.with_name(f".{path.name}.tmp")
        if world.first:
            shutil.rmtree(temporary, ignore_errors=True)
            make_folder(temporary)
        world.wait()
        try:
            world.agree(trying(lambda: write_tensors(temporary, self._tensors(), world), path))
            sums = world.gather({p.name: summed(p) for p in written_by(world, temporary)})
            files = {name: entry for part in sums for name, entry in part.items()}
            world.agree(trying(lambda: self._finish(temporary, path, files, world), path))
        finally:
            if world.first:
                shutil.rmtree(temporary, ignore_errors=True)
        if world.first:
            self._prune(path.parent, keep)
        return path

    def _finish(self, temporary: Path, path: Path, files: dict, world: World) -> None:
        if not world.first:
            return
        metadata = {
            "format": FORMAT,
            "identity": dict(self.identity),
            "phase": self.phase,
            "position": asdict(self.position),
            "clock": {"step": self.step, "tokens": self.tokens, "seconds": self.seconds},
            "best": self.best,
            "sums": self.sums,
            "files": files,
        }
        write_state(temporary / STATE, metadata)
        temporary.rename(path)

    def _prune(self, folder: Path, keep: int) -> None:
        best = self.best["step"] if self.best else None
        for old in [path for path in saved(folder.parent) if step_of(path) != best][:-keep]:
            shutil.rmtree(old, ignore_errors=True)

    def restore(self, state: SavedState, *, world: World = ALONE) -> None:
        """Go back to a saved state. Raises ``InputError`` for one that is damaged, naming the file
        and what to do, and for one of another run."""
        state.verify()
        path, metadata = state.path, state.metadata
        refuse_other(path, metadata["identity"], self.identity)
        there = shapes_in(path)
        tensors = self._tensors()
        for name, parameter in self.learner.named_parameters():
            mark = f"optimizer.{name}:"
            for key in [key for key in there if key.startswith(mark)]:
                like = self._like(parameter, there[key])
                self.optimizer.state[parameter][key.removeprefix(mark)] = tensors[key] = like
            for key in (f"best.{name}", f"average.{name}"):
                if key in there:
                    tensors[key] = torch.empty_like(parameter.detach())
        differing = set(there) ^ set(tensors)
        differing |= {n for n in set(there) & set(tensors) if there[n] != tuple(tensors[n].shape)}
        if differing:
            raise InputError(f"{path} is of another model: it differs in {min(differing)}")
        read_tensors(path, tensors, world)
        self.best = metadata["best"]
        self.best_weights = _after("best.", tensors) or None
        self.average = _after("average.", tensors) or None
        self.phase, self.position = metadata["phase"], Position(**metadata["position"])
        self.step, self.tokens = metadata["clock"]["step"], metadata["clock"]["tokens"]
        self.seconds, self.sums = metadata["clock"]["seconds"], metadata["sums"]

    def _like(self, parameter: Tensor, shape: tuple[int, ...]) -> Tensor:
        """Room for what the optimiser keeps of a parameter: of its shape, or a few numbers."""
        if shape == tuple(parameter.shape):
            return torch.zeros_like(parameter.detach())
        # A fused optimiser counts its steps on the device, others on the CPU.
        fused = any(group.get("fused") for group in self.optimizer.param_groups)
        return torch.zeros(shape, device=parameter.device if shape or fused else None)

    @torch.no_grad()
    def take_average(self, decay: float) -> None:
        """Move the running mean of the weights towards them. In the first steps it follows faster,
        or it would be a mean with the weights of the start."""
        parameters = dict(self.learner.named_parameters())
        if self.average is None:
            self.average = {name: p.detach().clone() for name, p in parameters.items()}
        share = 1 - min(decay, (1 + self.step) / (10 + self.step))
        for name, mean in self.average.items():
            mean.lerp_(parameters[name], share)

    @contextlib.contextmanager
    def averaged(self) -> Iterator[None]:
        """The running mean in the place of the weights for a while, where there is one."""
        if self.average is None:
            yield
            return
        kept = {name: p.detach().clone() for name, p in self.learner.named_parameters()}
        self._put(self.average)
        try:
            yield
        finally:
            self._put(kept)

    def use_best(self) -> None:
        """Put the best weights in the place of the last; where none were kept, their mean if there
        is one."""
        self._put(self.best_weights or self.average or {})

    def _put(self, weights: Mapping[str, Tensor]) -> None:
        with torch.no_grad():
            for name, parameter in self.learner.named_parameters():
                if name in weights:
                    parameter.copy_(weights[name])

    def _tensors(self) -> dict[str, Tensor]:
        """Weights, what the optimiser has of each, and the best weights, by name."""
        reshard(self.learner)
        parameters = dict(self.learner.named_parameters())
        tensors = {name: p.detach() for name, p in parameters.items()}
        for name, p in parameters.items():
            for key, value in self.optimizer.state.get(p, {}).items():
                if isinstance(value, Tensor):
                    tensors[f"optimizer.{name}:{key}"] = value
        tensors |= {f"best.{n}": t for n, t in (self.best_weights or {}).items()}
        return tensors | {f"average.{n}": t for n, t in (self.average or {}).items()}


def _after(mark: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors whose names begin with ``mark``, without it."""
    return {n.removeprefix(mark): t for n, t in tensors.items() if n.startswith(mark)}
