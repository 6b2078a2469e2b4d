"""One training: a pretrained folder and rows in, a folder that answers out."""

import contextlib
import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ownbert.checkpoint import save
from ownbert.config import EncoderConfig
from ownbert.data.loader import Loader
from ownbert.data.readers.columns import ColumnNames
from ownbert.errors import InputError
from ownbert.files import write_text
from ownbert.finetuning.checks import check_rows
from ownbert.finetuning.confusion import CONFUSION, draw_confusion
from ownbert.finetuning.finetuned_card import write_card
from ownbert.finetuning.init_weights import make_model
from ownbert.finetuning.labelled_splits import Lesson, Rows
from ownbert.finetuning.word_table import WordsInUse
from ownbert.nn.model import Model
from ownbert.objectives import Learner
from ownbert.run.run_folder import RECIPE
from ownbert.settings import dump
from ownbert.tasks.metrics import Scores
from ownbert.tasks.recipe import FinetuneRecipe
from ownbert.tasks.row_objectives import Twice
from ownbert.tasks.task import Task, task_class
from ownbert.train.device import pick_device, pick_precision
from ownbert.train.display import Display
from ownbert.train.job import Job, Phase, Watch
from ownbert.train.log import need_tensorboard
from ownbert.train.loop import train
from ownbert.train.metric_names import LOWER, shown_name
from ownbert.train.optim.optimizers import make_optimizer
from ownbert.train.state import TrainState
from ownbert.train.state_files import remove_states

# Peak learning rates by hidden size for few examples; half of it for many. Tiny was measured (with
# 280 and 7,000 examples); the larger ones are BERT's usual range.
_RATES = ((128, 1e-3), (256, 5e-4), (512, 2e-4), (768, 5e-5))
_LARGE_RATE = 2e-5

# Few examples are seen more often, in smaller batches.
_FEW = 3000
# A document longer than this is computed twice, and kept in memory once (gradient checkpointing).
_LONG = 4096
# Tokens in one pass: a batch of more is learnt from in several, with the same gradient.
MICRO_TOKENS = 16_384


class Finetuning:
    """A resolved recipe with its examples; the model is made by ``train``.

    rows: training rows, and dev rows or none, in the place of the files of the recipe; labels: the
    names of their columns, where a task takes them from there. like: another run, whose task has
    learnt already what it must know.
    """

    def __init__(
        self,
        recipe: FinetuneRecipe,
        rows: Rows | None = None,
        *,
        labels: Sequence[str] = (),
        like: "Finetuning | None" = None,
    ) -> None:
        if recipe.run.tensorboard:
            need_tensorboard()
        self.device = pick_device(recipe.run.device)
        self.task = _task(recipe, labels) if like is None else copy.copy(like.task)
        self.task.seed = recipe.seed
        said = self.task.origin(recipe.model) if like is None else like.said
        self.lesson = Lesson(self.task, recipe, rows, learnt=like is not None)
        self.said = said or self.task.designed(recipe, self.lesson.train_rows)
        self.config = self.said.config
        _refuse_freezing(recipe.model.freeze, self.config)
        length = _max_length(recipe.data.max_length, self.config)
        self.frame = self.task.frame(recipe.model.folder, self.config, length)
        self.task.max_length = self.max_length = self.frame.max_length
        self.lesson.encode(self.frame)
        self.watch = self._watch(recipe)
        self.asked, self.recipe = recipe, self._completed(recipe)
        self.adapted: Path | None = None if like is None else like.adapted
        self.name: str | None = None  # in the model card, if not that of the output
        self.identity = {"training data": self.lesson.train_data.identity()}

    def _watch(self, recipe: FinetuneRecipe) -> Watch:
        known = (*self.task.measures, "loss")
        measure = recipe.run.measure or known[0]
        if measure not in known:
            raise InputError(f"run.measure is {measure!r}; {self.task.name} has {', '.join(known)}")
        return Watch(measure, lower=measure in LOWER, patience=recipe.run.patience)

    def _completed(self, recipe: FinetuneRecipe) -> FinetuneRecipe:
        """The recipe with everything that depends on the machine, the size and the data."""
        recipe = self.task.completed(recipe, self.frame)
        few = len(self.lesson.train_data) < _FEW
        batch_size = recipe.data.batch_size or (16 if few else 32)
        if batch_size < self.task.smallest_batch:
            raise InputError(
                f"data.batch_size is {batch_size}; {self.task.name} compares the rows of a batch, "
                f"so it must be {self.task.smallest_batch} or more"
            )
        epochs = recipe.run.epochs or (12 if few else 4)
        batches = -(-len(self.lesson.train_data) // batch_size)
        steps = max(1, batches // recipe.run.accumulate)
        run = replace(
            recipe.run,
            device=self.device.type,
            precision=pick_precision(recipe.run.precision, self.device),
            epochs=epochs,
            max_steps=recipe.run.max_steps or epochs * steps,
            eval_every=recipe.run.eval_every or steps,
        )
        rate = recipe.optim.learning_rate or self.usual_rate
        return replace(
            recipe,
            data=replace(recipe.data, batch_size=batch_size),
            optim=replace(recipe.optim, learning_rate=rate),
            run=run,
        )

    @property
    def usual_rate(self) -> float:
        """The peak learning rate by the size of the model and the number of examples."""
        peak = next((r for size, r in _RATES if self.config.hidden_size <= size), _LARGE_RATE)
        return peak if len(self.lesson.train_data) < _FEW else peak / 2

    def check_adapting(self) -> None:
        """``InputError`` where the model cannot learn from the texts of the task first."""
        if self.recipe.model.pretrain_steps:
            from ownbert.finetuning.adapt import refuse_unfit

            refuse_unfit(self)

    def adapt(self, output: Path, *, resume: bool, quiet: bool) -> None:
        """Learn masked words from the texts of the task first, where the recipe says so."""
        if self.recipe.model.pretrain_steps:
            from ownbert.finetuning.adapt import adapt

            self.adapted = adapt(self, output, resume=resume, quiet=quiet)

    def train(self, output: Path, *, resume: bool, quiet: bool, described: bool = True) -> Model:
        """Run to the end and save the best weights, ``described`` by a model card and a picture
        of the confusions. See ``finetune``."""
        write_text(output / RECIPE, dump(self.recipe))
        display = Display("finetune", quiet=quiet)
        for line in self.summary():
            display.say(line)
        for finding in () if quiet else check_rows(*self.lesson.parts):
            if finding.grave:
                display.say(f"warning: {finding.line}")
        recipe = self.recipe
        model = make_model(self.said, self.task, recipe, adapted=self.adapted).to(self.device)
        model.encoder.gradient_checkpointing = bool(self.lesson.train_data.sizes.max() > _LONG)
        trained = self.config.image is None and not recipe.model.freeze
        words = WordsInUse(model, self.lesson.train_data) if trained else None
        whole = words.all if words else contextlib.nullcontext
        learner = Learner(model, ())
        objective = self.task.objective(model)

        def evaluate() -> Mapping[str, float]:
            precision = recipe.run.precision
            with whole():
                scores = self.lesson.measure(model, precision=precision, objective=objective)
            return {} if scores is None else scores.values

        twice = recipe.task.rdrop > 0
        loader = Loader(
            words.data if words else self.lesson.train_data,
            recipe.seed,
            batch_size=recipe.data.batch_size or 16,
            repeat=2 if twice else 1,
            most_tokens=0 if self.task.whole_batches else MICRO_TOKENS,
        )
        learnt = Twice(objective, recipe.task.rdrop) if twice else objective
        job = Job(
            state=TrainState(learner, make_optimizer(learner, recipe.optim), self.identity),
            phases=[Phase(loader, [learnt], evaluate)],
            optim=recipe.optim,
            run=recipe.run,
            folder=output,
            display=display,
            watch=self.watch,
            seed=recipe.seed,
        )
        train(job, resume=resume)
        job.state.use_best()
        if words:
            words.restore()
        model, scores = self._finish(model, job.state.best, output, display)
        for line in self._describe(scores or Scores({}), output) if described else ():
            display.say(line)
        display.say(f"saved {output}")
        return model.eval()

    def _finish(
        self, model: Model, best: Mapping[str, float] | None, output: Path, display: Display
    ) -> tuple[Model, Scores | None]:
        """Choose thresholds, measure, and save; in float32, as the folder will be used."""
        scores = self.lesson.measure(model, precision="float32")
        if best is not None:
            name = shown_name(self.watch.measure)
            display.say(f"best dev {name} {best['value']:.3f} at step {best['step']:,}")
        for line in () if scores is None else scores.warnings:
            display.say(f"warning: {line}")
        model = self.task.finish(model)
        save(model, output, tokenizer=self.frame.tokenizer, values=self.task.values())
        self.task.write(output, model)
        remove_states(output)
        return model, scores

    def _describe(self, scores: Scores, output: Path) -> list[str]:
        """Write the model card and the picture of the confusions; what to tell of these."""
        values = {name: [value] for name, value in scores.values.items()}
        told = (
            write_card(
                output,
                self.recipe,
                self.lesson.parts,
                measures=values,
                labels=scores.labels,
                name=self.name,
            ),
            draw_confusion(output / CONFUSION, scores),
        )
        return [line for line in told if line]

    def _duration(self) -> str:
        steps, epochs = self.asked.run.max_steps, self.recipe.run.epochs
        if steps:
            return f"{steps:,} step{'s' if steps > 1 else ''}"
        return f"{epochs} epoch{'s' if epochs != 1 else ''}"

    def summary(self) -> list[str]:
        """What is about to be learnt from what, for people."""
        recipe, task, lesson = self.recipe, self.task, self.lesson
        start = "new weights" if recipe.model.new else recipe.model.folder
        dev = "no" if lesson.dev_rows is None else f"{len(lesson.dev_rows):,}"
        labels = f", {len(task.labels)} {task.label_unit}" if len(task.labels) > 1 else ""
        lines = [
            f"{len(lesson.train_rows):,} training and {dev} dev {task.unit}{labels}, from {start}; "
            f"{self._duration()} of batches of {recipe.data.batch_size} on "
            f"{recipe.run.device} in {recipe.run.precision}",
            *lesson.cuts(),
            *lesson.unknown(),
        ]
        if lesson.dev_rows is None:
            lines.append(
                "no --dev: all epochs are run and the last weights are saved, whether or not they "
                "are the best"
            )
        return lines + [f"warning: {line}" for line in task.warnings()]


def _task(recipe: FinetuneRecipe, labels: Sequence[str]) -> Task:
    data = recipe.data
    columns = ColumnNames(data.text_column, data.second_column, data.label_column)
    return task_class(recipe.task.name)(recipe.task, columns, labels)


def _refuse_freezing(layers: int, config: EncoderConfig) -> None:
    if layers > config.num_hidden_layers:
        raise InputError(
            f"model.freeze is {layers}; the model has {config.num_hidden_layers} layers"
        )


def _max_length(asked: int | None, config: EncoderConfig) -> int:
    longest = config.longest
    if asked is not None and not 8 <= asked <= longest:
        raise InputError(f"max_length {asked} must be from 8 to {longest}, the model's positions")
    return asked or longest
