"""The inputs of the training loop: a job with its phases, and the metric to monitor."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ownbert.batches.loader import Loader
from ownbert.objectives.objective import Objective
from ownbert.train.distributed import ALONE, World
from ownbert.train.state import TrainState
from ownbert.train.training_settings import Optim, Run
from ownbert.train.watch.callbacks import Callbacks
from ownbert.train.watch.display import Display
from ownbert.train.watch.meter import Meter


class Interrupted(KeyboardInterrupt):
    """The run was stopped by a signal after saving its state; the message says how to resume."""


@dataclass(frozen=True)
class Monitor:
    """The metric that determines the best weights.

    Args:
        metric: name of the metric.
        lower: whether lower values are better.
        patience: early stopping after this many evaluations without a new best value; the best
            weights (the latest among equal ones) are kept in memory. Without it, the saved state
            of the best evaluation is kept.
    """

    metric: str
    lower: bool = False
    patience: int | None = None


@dataclass(frozen=True)
class Phase:
    """A part of the run with its own batches and objectives.

    Args:
        evaluate: returns held-out metrics; empty if there are no held-out data.
        until: share of the run, in (0, 1], at which the phase ends.
        evaluate_first: evaluate before the first step as well, because these weights may be best.
    """

    loader: Loader
    objectives: Sequence[Objective]
    evaluate: Callable[[], Mapping[str, float]]
    until: float = 1.0
    evaluate_first: bool = False


@dataclass
class Job:
    """Everything that ``train`` needs.

    Args:
        run: settings with max_steps or max_minutes.
        on_start: called in all processes before anything is written, after a saved state was
            restored, so that damaged states are reported first.
        on_save: called in all processes after each saved state.
        callbacks: functions of the user.
        with_curves: whether to plot the log in ``curves.png`` at the end.
        warned: whether the warning about stagnation has been shown.
        setup_seconds: time that the run spent before its loop.
    """

    state: TrainState
    phases: Sequence[Phase]
    optim: Optim
    run: Run
    folder: Path
    display: Display
    monitor: Monitor
    seed: int = 0
    world: World = ALONE
    on_start: Callable[[], None] = lambda: None
    on_save: Callable[[], None] = lambda: None
    callbacks: Callbacks = field(default_factory=Callbacks)
    meter: Meter = field(default_factory=Meter)
    with_curves: bool = True
    warned: bool = False
    setup_seconds: float = 0.0

    @property
    def progress(self) -> float:
        """The completed share of the run, by steps or by time, whichever is larger."""
        return self.progress_at(self.state.step, self.state.seconds)

    def progress_at(self, step: int, seconds: float) -> float:
        """``progress`` after this many steps and seconds."""
        return min(1.0, max(self._by_steps(step), self._by_time(seconds)))

    @property
    def limited_by_time(self) -> bool:
        """Whether the time limit will end the run before the step limit."""
        return self._by_time(self.state.seconds) > self._by_steps(self.state.step)

    def _by_steps(self, step: int) -> float:
        return step / self.run.max_steps if self.run.max_steps else 0.0

    def _by_time(self, seconds: float) -> float:
        if not self.run.max_minutes:
            return 0.0
        limit = 60 * self.run.max_minutes
        # At least half of the time is for training, however long the rest takes.
        return seconds / max(limit / 2, limit - self.state.reserved)

    @property
    def midway(self) -> float:
        """Progress in the middle of the next step, for the learning rate.

        Progress at the beginning of the first step would give a rate of 0.
        """
        ahead = 0.5 / self.run.max_steps if self.run.max_steps else 0.0
        return min(1.0, self.progress + ahead)

    @property
    def phase_number(self) -> dict[str, int]:
        """The phase number for log rows, from 1; empty if there is only one phase."""
        return {"phase": self.state.phase + 1} if len(self.phases) > 1 else {}

    @property
    def phase(self) -> Phase:
        return self.phases[self.state.phase]
