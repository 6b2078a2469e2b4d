"""Statistics for the next log row: sums over steps, tokens, FLOPs and time."""

from collections.abc import Mapping, Sequence

from ownbert.objectives.objective import Loss, Objective
from ownbert.time_limit import clock_seconds
from ownbert.train.distributed import World
from ownbert.train.state import TrainState
from ownbert.train.step import StepStats, add

# Key of (sum of gradient norms, 0, number of steps); the other keys are names of objectives.
_NORM = "grad_norm"


class Meter:
    """Sums since the last log row.

    Args:
        peak_flops: measured matmul peak of all processes in FLOP per second; 0 if not measured.
    """

    def __init__(self, peak_flops: float = 0.0) -> None:
        self.peak_flops = peak_flops
        self.sums: dict[str, list] = {}
        self._clear()

    def _clear(self) -> None:
        self.sums = {}
        self.tokens, self.flops, self.seconds = 0, 0.0, 0.0
        self.pause()

    def pause(self) -> None:
        """Restart the clock, to exclude evaluations and saves from the training time."""
        self.started = clock_seconds()

    def add(self, stats: StepStats, tokens: int, flops: float, world: World) -> None:
        """Add a step; ``tokens`` and ``flops`` are totals of all processes."""
        now = clock_seconds()
        self.seconds += now - self.started
        self.started = now
        self.tokens += tokens
        self.flops += flops
        # The norm is equal in all processes, so it is counted once.
        norm = (stats.norm, 0, 1) if world.first else (0.0, 0, 0)
        for name, values in {**stats.sums, _NORM: norm}.items():
            add(self.sums, name, values)

    def collect(self, world: World) -> dict[str, list[float]]:
        """Move the sums of all processes to the first one, and return them for a saved state.

        A run resumed from the state then adds in the same order.
        """
        total = self._total(world)
        self._set_sums(total, world)
        return total

    def restore(self, sums: Mapping[str, Sequence[float]], world: World) -> None:
        """Continue with the sums of a saved state."""
        self._clear()
        self._set_sums(sums, world)

    def _set_sums(self, total: Mapping[str, Sequence[float]], world: World) -> None:
        self.sums = {n: list(v) if world.first else [0.0, 0, 0] for n, v in total.items()}

    def _total(self, world: World) -> dict[str, list[float]]:
        names = sorted(self.sums)
        flat = [float(value) for name in names for value in self.sums[name]]
        flat = world.total(flat) if flat else []
        return {name: flat[3 * i : 3 * i + 3] for i, name in enumerate(names)}

    def row(
        self,
        state: TrainState,
        objectives: Sequence[Objective],
        world: World,
        phase_number: Mapping[str, int],
    ) -> dict[str, float]:
        """The log row for the steps since the last row; resets the sums."""
        sums = self._total(world)
        norm, _, steps = sums.pop(_NORM)
        metrics = mean_metrics(sums, objectives)
        loss = sum(o.weight * metrics[f"{o.name}_loss"] for o in objectives)
        row = {
            "step": state.step,
            **phase_number,
            "loss": loss,
            **metrics,
            "grad_norm": norm / max(1, steps),
            "learning_rate": state.optimizer.param_groups[0]["lr"],
            "tokens_per_second": round(self.tokens / self.seconds),
        }
        if self.peak_flops:
            row["mfu"] = round(self.flops / self.seconds / self.peak_flops, 4)
        self._clear()
        seconds = round(state.seconds, 3)
        return row | {"tokens": state.tokens, "epoch": state.position.epoch, "seconds": seconds}


def mean_metrics(sums: Mapping[str, Sequence], objectives: Sequence[Objective]) -> dict[str, float]:
    """Mean loss of each objective, and accuracy where defined, from (sum of losses, correct,
    count)."""
    metrics = {}
    for objective in objectives:
        total, correct, count = sums[objective.name]
        metrics[f"{objective.name}_loss"] = float(total) / max(1, count)
        if objective.counts_correct:
            metrics[f"{objective.name}_accuracy"] = float(correct) / max(1, count)
    return metrics


def add_up(sums: dict[str, list], losses: Mapping[str, Loss]) -> None:
    """Add the losses of a batch to ``sums``."""
    for name, loss in losses.items():
        add(sums, name, (float(loss.total), int(loss.correct), loss.count))
