"""What the training loop receives: a job with its phases, and the metric to monitor."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ownbert.batches.loader import Loader
from ownbert.objectives import Objective
from ownbert.train.distributed import ALONE, World
from ownbert.train.state import TrainState
from ownbert.train.training_settings import Optim, Run
from ownbert.train.watch.callbacks import Callbacks
from ownbert.train.watch.display import Display
from ownbert.train.watch.meter import Meter


class Interrupted(KeyboardInterrupt):
    """The run was stopped by a signal; its state is saved, and the message says how to resume."""


@dataclass(frozen=True)
class Monitor:
    """The metric that decides which weights are best.

    Args:
        lower: whether the lowest value is the best, not the highest.
        patience: with it (early stopping) the best weights are kept in memory, the latest of
            equally good ones, and the run stops this many evaluations after the best value was
            first reached. Without it the saved state of the best evaluation is kept.
    """

    metric: str
    lower: bool = False
    patience: int | None = None


@dataclass(frozen=True)
class Phase:
    """A part of the run with its own batches and objectives.

    Args:
        evaluate: returns the metrics of held-out data, empty if there are none.
        until: share of the run, in (0, 1], at which the phase ends.
        evaluate_first: also before the first step, whose weights may be the best.
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
        run: its max_steps or max_minutes must be set.
        on_start: called before anything is written, in all processes; a saved state has been
            restored then, so that what is damaged is refused first.
        on_save: called after each saved state, in all processes.
        callbacks: the user's functions.
        with_curves: whether the log is plotted in ``curves.png`` at the end.
        warned: whether the warning about a run that does not learn has been shown.
        setup_seconds: what the run took before its loop.
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
        """The share of the run that is done, by steps or by time, whichever is larger."""
        return min(1.0, max(self._progress_by_steps, self._progress_by_time))

    @property
    def limited_by_time(self) -> bool:
        """Whether the run is going to end by the clock and not by its number of steps."""
        return self._progress_by_time > self._progress_by_steps

    @property
    def _progress_by_steps(self) -> float:
        return self.state.step / self.run.max_steps if self.run.max_steps else 0.0

    @property
    def _progress_by_time(self) -> float:
        if not self.run.max_minutes:
            return 0.0
        limit = 60 * self.run.max_minutes
        # Half of the time is for training, however long the rest takes.
        return self.state.seconds / max(limit / 2, limit - self.state.reserved)

    @property
    def midway(self) -> float:
        """Progress in the middle of the next step, for the learning rate.

        With progress at its start the rate of the first step would be 0.
        """
        ahead = 0.5 / self.run.max_steps if self.run.max_steps else 0.0
        return min(1.0, self.progress + ahead)

    @property
    def phase_number(self) -> dict[str, int]:
        """The phase for log rows, counted from 1; empty if there is only one."""
        return {"phase": self.state.phase + 1} if len(self.phases) > 1 else {}

    @property
    def phase(self) -> Phase:
        return self.phases[self.state.phase]
