"""The skeleton of a run, which pretraining, fine-tuning and translation fill in."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

from ownbert.files import write_text
from ownbert.nn.model import Model
from ownbert.objectives import Learner
from ownbert.run.run_folder import RECIPE, RunFolder
from ownbert.settings import dump
from ownbert.text.tokenizer import Tokenizer
from ownbert.train import distributed
from ownbert.train.device import pick_device
from ownbert.train.display import Display
from ownbert.train.distributed import ALONE, World
from ownbert.train.job import Job, Monitor, Phase
from ownbert.train.log import need_tensorboard
from ownbert.train.loop import train
from ownbert.train.meter import Meter
from ownbert.train.optim.optimizers import describe_groups, make_optimizer
from ownbert.train.recipe import Run
from ownbert.train.state import TrainState

Say = Callable[[str], None]


class TrainingRun(ABC):
    """A resolved recipe with its data; ``train`` makes the model.

    Its constructor reads and checks everything that can be refused, so that nothing is written
    before. recipe: what recipe.yaml says of the run. limits: the recipe's run section as the loop
    takes it. identity: what is learnt from; a run resumed on something else is refused. monitor:
    the metric that decides which weights are best. with_curves: whether the log is plotted.
    """

    command: ClassVar[str]
    recipe: Any
    identity: Mapping[str, str]
    monitor = Monitor("loss", lower=True)
    with_curves = True
    # What a tokenizer in the output folder must be equal to, where the model is for that one.
    vocabulary: Tokenizer | None = None

    def __init__(self, run: Run) -> None:
        if run.tensorboard:
            need_tensorboard()
        self.device = pick_device(run.device)

    @property
    def limits(self) -> Run:
        return self.recipe.run

    def execute(self, folder: RunFolder, *, quiet: bool) -> Model:
        """Reserve ``folder`` and train, together with the processes that torchrun has started."""
        world = distributed.join(self.device)
        try:
            world.on_rank_zero(lambda: self.reserve(folder))
            return self.train(folder, world, quiet=quiet)
        finally:
            distributed.leave(world)

    def reserve(self, folder: RunFolder) -> None:
        """Make the folder ready and write the recipe. Raises ``InputError``."""
        folder.reserve(self.identity, self.vocabulary)
        write_text(folder.path / RECIPE, dump(self.recipe))

    def train(self, folder: RunFolder, world: World = ALONE, *, quiet: bool) -> Model:
        """Train to the end and save the model in ``folder``, which has been reserved."""
        display = Display(self.command, quiet=quiet or not world.first)
        if not display.quiet:
            for line in (*self.summary(), *(f"warning: {line}" for line in self.warnings())):
                display.say(line)
        learner = self.make_learner(world, fresh=folder.saved is None, say=display.say)
        optimizer = make_optimizer(learner, self.recipe.optim)
        display.say(f"{self.recipe.optim.name}: {describe_groups(optimizer)}")
        job = Job(
            state=TrainState(learner, optimizer, self.identity),
            phases=self.phases(learner, world),
            optim=self.recipe.optim,
            run=self.limits,
            folder=folder.path,
            display=display,
            monitor=self.monitor,
            seed=self.recipe.seed,
            world=world,
            on_save=lambda: self.save(learner, folder, world),
            meter=Meter(self.peak_flops(world)),
            with_curves=self.with_curves,
        )
        train(job, resume_from=folder.saved)
        model = self.finish(job, folder)
        display.say(f"saved {folder.path}")
        return model.eval()

    @abstractmethod
    def summary(self) -> Sequence[str]:
        """Lines for people: what is about to be learnt from what."""

    def warnings(self) -> Iterable[str]:
        """What looks wrong about the data."""
        return ()

    @abstractmethod
    def make_learner(self, world: World, *, fresh: bool, say: Say) -> Learner:
        """Weights to start from, the same in all processes; not ``fresh`` ones are overwritten by
        those of a saved state."""

    @abstractmethod
    def phases(self, learner: Learner, world: World) -> list[Phase]:
        """What is learnt, one phase after the other."""

    def save(self, learner: Learner, folder: RunFolder, world: World) -> None:
        """Write the model as it is into the folder, at every saved state."""
        return

    def finish(self, job: Job, folder: RunFolder) -> Model:
        """What follows the last step: the final weights, their metrics, the model card."""
        return job.state.learner.model

    def peak_flops(self, world: World) -> float:
        """Floating-point operations per second of all processes, for the MFU; 0: not measured."""
        return 0.0


def bounded_steps(limits: Run) -> str:
    """How long a run takes at most, for people."""
    if limits.max_steps:
        return f"{limits.max_steps:,} steps"
    return f"{limits.max_minutes:g} minutes"
