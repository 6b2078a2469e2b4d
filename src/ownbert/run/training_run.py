"""The skeleton of a training run, for pretraining, fine-tuning and translation."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, ClassVar

from ownbert.files.writing import write_text
from ownbert.language.messages import Message
from ownbert.nn.model import Model
from ownbert.objectives.learner import Learner
from ownbert.run.file_names import RECIPE
from ownbert.run.run_folder import RunFolder
from ownbert.settings import dump
from ownbert.text.tokenizer import Tokenizer
from ownbert.threads import fixed_threads
from ownbert.time_limit import clock_seconds
from ownbert.train import distributed
from ownbert.train.device import pick_device
from ownbert.train.display import Display
from ownbert.train.distributed import ALONE, World
from ownbert.train.log import need_tensorboard
from ownbert.train.loop import Callbacks, Job, Monitor, Phase, train
from ownbert.train.meter import Meter
from ownbert.train.optimizers import describe_groups, make_optimizer
from ownbert.train.state import TrainState
from ownbert.train.training_settings import Run

Say = Callable[[str], None]


class TrainingRun(ABC):
    """A resolved recipe with its data; ``train`` creates and trains the model.

    The constructor reads and checks the data, and ``train`` creates the model and restores a saved
    state before it reserves the folder, so that errors are reported before anything is written.

    Attributes:
        recipe: complete recipe, as written to recipe.yaml.
        identity: identity of the training data; a run cannot be resumed with other data.
        monitor: metric that determines the best weights.
        callbacks: functions of the user.
        vocabularies: if not empty, a tokenizer in the output folder must equal one of these.
        with_card: whether to write a model card, for which precisions are compared.
        with_curves: whether to plot the log.
    """

    command: ClassVar[str]
    recipe: Any
    identity: Mapping[str, str]
    monitor = Monitor("loss", lower=True)
    with_card = True
    with_curves = True
    vocabularies: tuple[Tokenizer, ...] = ()
    callbacks = Callbacks()

    def __init__(self, run: Run) -> None:
        if run.tensorboard:
            need_tensorboard()
        self.device = pick_device(run.device)

    @property
    def limits(self) -> Run:
        """The run section of the recipe for the training loop, with max_steps or max_minutes."""
        return self.recipe.run

    @property
    def sizes(self) -> dict[str, Any]:
        """The settings that determine how much memory training takes, with their values."""
        data = self.recipe.data
        names = ("batch_tokens", "batch_size", "max_length")
        return {name: getattr(data, name) for name in names if getattr(data, name, None)}

    def execute(self, folder: RunFolder, *, quiet: bool) -> Model:
        """Train in ``folder``, together with the other processes under torchrun; return the model
        in evaluation mode."""
        world = distributed.join(self.device)
        try:
            return self.train(folder, world, quiet=quiet)
        finally:
            distributed.leave(world)

    def reserve(self, folder: RunFolder) -> None:
        """Prepare the folder and write the recipe."""
        folder.reserve(self.identity, self.vocabularies)
        write_text(folder.path / RECIPE, dump(self.recipe))

    def train(self, folder: RunFolder, world: World = ALONE, *, quiet: bool) -> Model:
        """Reserve ``folder``, train to the end and save the model there.

        With a fixed number of steps a resumed run equals an uninterrupted one, so the number of
        threads is fixed from the initial weights on.
        """
        with fixed_threads() if self.recipe.run.max_steps else nullcontext():
            return self._train(folder, world, quiet=quiet)

    def _train(self, folder: RunFolder, world: World, *, quiet: bool) -> Model:
        start = clock_seconds()
        world.on_rank_zero(lambda: folder.check(self.identity, self.vocabularies))
        display = Display(self.command, quiet=quiet or not world.first)
        if not display.quiet:
            warnings = (Message("warning: {line!t}", line) for line in self.warnings())
            for line in (*folder.notes(), *self.summary(), *warnings):
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
            on_start=lambda: world.on_rank_zero(lambda: self.reserve(folder)),
            on_save=lambda: self.save(learner, folder, world),
            callbacks=self.callbacks,
            meter=Meter(self.peak_flops(world)),
            with_curves=self.with_curves,
            setup_seconds=clock_seconds() - start,
        )
        train(job, resume_from=folder.saved)
        model = self.finish(job, folder)
        display.say("saved {path}", folder.path)
        for line in self.closing_lines():
            display.say(line)
        return model.eval()

    @abstractmethod
    def summary(self) -> Sequence[str]:
        """Lines for the user: data, model and duration."""

    def warnings(self) -> Iterable[str]:
        return ()

    @abstractmethod
    def make_learner(self, world: World, *, fresh: bool, say: Say) -> Learner:
        """The model with its initial weights, equal in all processes; ``fresh`` is False if a saved
        state will replace them, and ``say`` prints a line for the user."""

    @abstractmethod
    def phases(self, learner: Learner, world: World) -> list[Phase]:
        """The phases of the run, in order."""

    def save(self, learner: Learner, folder: RunFolder, world: World) -> None:
        """Write the current model into the folder; called after each saved state."""
        return

    def finish(self, job: Job, folder: RunFolder) -> Model:
        """Finish the run after the last step: final weights, their metrics, the model card."""
        return job.state.learner.model

    def closing_lines(self) -> Iterable[str]:
        return ()

    def peak_flops(self, world: World) -> float:
        """Measured matmul peak of all processes in FLOP/s, for the MFU; 0 if not measured."""
        return 0.0


def describe_limit(limits: Run) -> str:
    if limits.max_steps:
        return Message("{max_steps:,} steps", limits.max_steps)
    return Message("{max_minutes:g} minutes", limits.max_minutes)
