"""What the training loop receives: a job with its phases, and what to monitor."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ownbert.data.loader import Loader
from ownbert.objectives import Objective
from ownbert.train.display import Display
from ownbert.train.distributed import ALONE, World
from ownbert.train.meter import Meter
from ownbert.train.recipe import Optim, Run
from ownbert.train.state import TrainState


class Interrupted(KeyboardInterrupt):
    """The run was stopped from outside; its state is saved, and the message says how to go on."""


@dataclass(frozen=True)
class Monitor:
    """The metric by which the best weights are kept: the highest, or the lowest if ``lower``.

    With ``patience`` the best weights are kept in memory (the latest of equal ones), and the run
    stops that many evaluations after the best value was first reached; without it the saved state
    of the best evaluation is kept.
    """

    metric: str
    lower: bool = False
    patience: int | None = None


@dataclass(frozen=True)
class Phase:
    """A part of the run with its own batches and objectives, until a share of the run is done.

    evaluate: returns the metrics of held-out data, or nothing where there are none.
    """

    loader: Loader
    objectives: Sequence[Objective]
    evaluate: Callable[[], Mapping[str, float]]
    until: float = 1.0


@dataclass
class Job:
    """Everything ``train`` needs.

    run: has max_steps or max_minutes. on_save: called after each saved state, in all processes.
    with_curves: whether the log is plotted in ``curves.png`` at the end.
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
    on_save: Callable[[], None] = lambda: None
    meter: Meter = field(default_factory=Meter)
    with_curves: bool = True
    warned: bool = False

    @property
    def progress(self) -> float:
        """Share of the run that is done, by steps or by the clock, whichever is further."""
        run, state = self.run, self.state
        steps = state.step / run.max_steps if run.max_steps else 0.0
        clock = state.seconds / (60 * run.max_minutes) if run.max_minutes else 0.0
        return min(1.0, max(steps, clock))

    @property
    def midway(self) -> float:
        """Progress in the middle of the coming step; at its start the first rate would be 0."""
        ahead = 0.5 / self.run.max_steps if self.run.max_steps else 0.0
        return min(1.0, self.progress + ahead)

    @property
    def phase_number(self) -> dict[str, int]:
        """The phase as log rows have it; nothing where there is only one."""
        return {"phase": self.state.phase + 1} if len(self.phases) > 1 else {}

    @property
    def phase(self) -> Phase:
        return self.phases[self.state.phase]
