"""What the loop is given."""

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
class Watch:
    """Keep what is best by ``measure``: the highest, or the lowest if ``lower``.

    With ``patience`` the weights are kept in memory (the latest of equal ones), and the run ends
    so many evaluations after the best value was first reached; without it the best saved state
    is kept.
    """

    measure: str
    lower: bool = False
    patience: int | None = None


@dataclass(frozen=True)
class Phase:
    """What is learnt from what until a share of the run is done. evaluate: measures of held-out
    data, or none."""

    loader: Loader
    objectives: Sequence[Objective]
    evaluate: Callable[[], Mapping[str, float]]
    until: float = 1.0


@dataclass
class Job:
    """What ``train`` needs. ``run`` must have max_steps or max_minutes; on_save is called after
    each saved state, in all processes."""

    state: TrainState
    phases: Sequence[Phase]
    optim: Optim
    run: Run
    folder: Path
    display: Display
    watch: Watch
    seed: int = 0
    world: World = ALONE
    on_save: Callable[[], None] = lambda: None
    meter: Meter = field(default_factory=Meter)

    @property
    def progress(self) -> float:
        """Share of the run that is done, by steps or by the clock, whichever is further."""
        run, state = self.run, self.state
        steps = state.step / run.max_steps if run.max_steps else 0.0
        clock = state.seconds / (60 * run.max_minutes) if run.max_minutes else 0.0
        return min(1.0, max(steps, clock))

    @property
    def midway(self) -> float:
        """Progress in the middle of the coming step, or the first one would have no rate."""
        ahead = 0.5 / self.run.max_steps if self.run.max_steps else 0.0
        return min(1.0, self.progress + ahead)

    @property
    def numbered(self) -> dict[str, int]:
        """The phase, for a row of the log, where there are several."""
        return {"phase": self.state.phase + 1} if len(self.phases) > 1 else {}

    @property
    def phase(self) -> Phase:
        return self.phases[self.state.phase]
