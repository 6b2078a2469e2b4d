"""What the next row of the log has seen: sums over steps, tokens and time."""

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ownbert.data.batch import Batch
from ownbert.objectives import Learner, Loss
from ownbert.train.distributed import World
from ownbert.train.flops import training_flops
from ownbert.train.step import Seen, add

if TYPE_CHECKING:
    from ownbert.train.job import Job

# Stands among the sums of the objectives: the norms of the gradients, and how many.
_NORM = "grad_norm"


class Meter:
    """Sums since the last row. ``ceiling``: floating-point operations a second that the machine
    can do, of all processes together, or 0 where that was not measured."""

    def __init__(self, ceiling: float = 0.0) -> None:
        self.ceiling = ceiling
        self.sums: dict[str, list] = {}
        self._clear()

    def _clear(self) -> None:
        self.sums = {}
        self.tokens, self.flops, self.seconds = 0, 0.0, 0.0
        self.pause()

    def pause(self) -> None:
        """Leave out of the clock what was not training."""
        self.started = time.perf_counter()

    def add(self, seen: Seen, tokens: int, flops: float, world: World) -> None:
        """Take in a step of ``tokens`` tokens and ``flops`` operations in all processes."""
        now = time.perf_counter()
        self.seconds += now - self.started
        self.started = now
        self.tokens += tokens
        self.flops += flops
        # The norm is the same in all processes: it must be counted once.
        norm = (seen.norm, 0, 1) if world.first else (0.0, 0, 0)
        for name, values in {**seen.sums, _NORM: norm}.items():
            add(self.sums, name, values)

    def saved(self, world: World) -> dict[str, list[float]]:
        """The sums of all processes, for a saved state. From here on the first process has them:
        a run that goes on from the state adds up in the same order."""
        total = self._total(world)
        self._take(total, world)
        return total

    def restore(self, sums: Mapping[str, Sequence[float]], world: World) -> None:
        """Go on from the sums of a saved state."""
        self._clear()
        self._take(sums, world)

    def _take(self, total: Mapping[str, Sequence[float]], world: World) -> None:
        self.sums = {n: list(v) if world.first else [0.0, 0, 0] for n, v in total.items()}

    def _total(self, world: World) -> dict[str, list[float]]:
        names = sorted(self.sums)
        flat = [float(value) for name in names for value in self.sums[name]]
        flat = world.total(flat) if flat else []
        return {name: flat[3 * i : 3 * i + 3] for i, name in enumerate(names)}

    def row(self, job: "Job") -> dict[str, float]:
        """The row of a step, and begin anew."""
        state = job.state
        sums = self._total(job.world)
        norm, _, steps = sums.pop(_NORM)
        measures = measures_of(sums)
        weights = {o.name: o.weight for o in state.learner.objectives}
        for objective in state.learner.objectives:
            if not getattr(objective, "right", True):
                del measures[f"{objective.name}_accuracy"]
        row = {
            "step": state.step,
            **job.numbered,
            "loss": sum(weights[name] * measures[f"{name}_loss"] for name in weights),
            **measures,
            "grad_norm": norm / max(1, steps),
            "learning_rate": state.optimizer.param_groups[0]["lr"],
            "tokens_per_second": round(self.tokens / self.seconds),
        }
        if self.ceiling:
            row["ceiling"] = round(self.flops / self.seconds / self.ceiling, 4)
        row |= {
            "tokens": state.tokens,
            "epoch": state.position.epoch,
            "seconds": round(state.seconds, 3),
        }
        self._clear()
        return row


def measures_of(sums: Mapping[str, Sequence]) -> dict[str, float]:
    """Mean loss and accuracy by objective out of (sum of losses, right answers, count)."""
    measures = {}
    for name, (total, correct, count) in sums.items():
        measures[f"{name}_loss"] = float(total) / max(1, count)
        measures[f"{name}_accuracy"] = float(correct) / max(1, count)
    return measures


def add_up(sums: dict[str, list], losses: Mapping[str, Loss]) -> None:
    """Add the losses of a batch to ``sums``, as numbers."""
    for name, loss in losses.items():
        add(sums, name, (float(loss.total), int(loss.correct), loss.count))


def operations(learner: Learner, micro: Sequence[Batch]) -> float:
    """Floating-point operations of the matrix products of a step, forward and backward."""
    flops = 0.0
    for batch in micro:
        if batch.dummy:
            continue
        counts = {o.input_view: o.count(batch) for o in learner.objectives if o.head == "mlm"}
        for view in {o.input_view for o in learner.objectives}:
            config = learner.model_of(view).config
            flops += training_flops(config, batch.layout.lengths, counts.get(view, 0))
    return flops
