"""Fine-tuning: a pretrained folder and labelled files in, a folder that answers out."""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ownbert.checkpoint import describe, load, load_tokenizer, save
from ownbert.config import EncoderConfig
from ownbert.data.loader import Loader
from ownbert.data.sampling import labels_per_class
from ownbert.errors import InputError
from ownbert.files import write_text
from ownbert.nn.model import Model
from ownbert.objectives import Learner, Objective
from ownbert.tasks.begun import claim, finished, resolve_begun
from ownbert.tasks.card import write_card
from ownbert.tasks.checks import Part, check_rows
from ownbert.tasks.forward import answers
from ownbert.tasks.frame import Encoded, Frame
from ownbert.tasks.measures import Scores
from ownbert.tasks.objectives import Twice
from ownbert.tasks.pictures import CONFUSION, draw_confusion
from ownbert.tasks.recipe import FinetuneRecipe
from ownbert.tasks.rows import Columns, Row
from ownbert.tasks.task import task_class, task_of
from ownbert.tasks.words import WordsInUse
from ownbert.train.display import Display
from ownbert.train.distributed import asked
from ownbert.train.job import Job, Phase, Watch
from ownbert.train.log import need_tensorboard
from ownbert.train.loop import train
from ownbert.train.machine import pick_device, pick_precision
from ownbert.train.optim import make_optimizer
from ownbert.train.output import RECIPE
from ownbert.train.saved import remove_states
from ownbert.train.settings import dump
from ownbert.train.state import TrainState

if TYPE_CHECKING:
    from ownbert.tasks.ensemble import Ensemble

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
# Measures of which less is better.
_LOWER = ("loss", "mae", "mse", "rmse")


def finetune(
    task: str | None = None,
    *,
    output: str | Path,
    config: str | Path | None = None,
    overrides: Sequence[str] = (),
    resume: bool = False,
    overwrite: bool = False,
    quiet: bool = False,
    **options: Any,
) -> "Model | Ensemble":
    """Fine-tune a model folder on labelled files and save the best weights in ``output``; with
    ``folds`` or ``seeds`` several models, of which an ``Ensemble`` is returned.

    task: one of ``ownbert.tasks.task.TASKS`` ("classify" by default). options: settings of
    ``FinetuneRecipe`` by name: ``model`` (the folder), ``train``, ``dev``, ``epochs``, ... Raises
    ``InputError`` for files, labels and settings that cannot be used; ``output`` is not touched
    then.
    """
    if asked():
        raise InputError("fine-tuning runs in one process; start it without torchrun")
    output = Path(output)
    asked_for = given(task, options)
    recipe = resolve_begun(
        output, config=config, overrides=overrides, resume=resume, options=asked_for
    )
    if resume and finished(output):
        Display("finetune", quiet=quiet).say(
            f"{output} is finished: nothing is left to do; start anew with --overwrite"
        )
        return task_of(describe(output), output).load(output)
    run, how = Finetuning(recipe), {"resume": resume, "quiet": quiet}
    if recipe.search.asked:
        from ownbert.tasks.search import search

        return search(run, output, overwrite=overwrite, **how)
    if recipe.run.folds or recipe.run.seeds:
        from ownbert.tasks.ensemble import train_ensemble

        return train_ensemble(run, output, overwrite=overwrite, **how)
    run.check_adapting()
    claim(output, resume=resume, overwrite=overwrite, identity=run.identity)
    run.adapt(output, **how)
    return run.train(output, **how)


def given(task: str | None, options: Mapping[str, Any]) -> dict[str, Any]:
    """Options as a recipe names them."""
    named = {("model.folder" if k == "model" else k): v for k, v in options.items()}
    if named.pop("search", False):  # the flag of the command line
        named["search.usual"] = True
    if task is not None:
        named["task.name"] = task_class(task).name
    return {k: str(v) if isinstance(v, Path) else v for k, v in named.items()}


class Finetuning:
    """A resolved recipe with its examples; the model is made by ``train``.

    rows: training rows, and dev rows or none, in the place of the files of the recipe; labels: the
    names of their columns, where a task takes them from there. known: rows that labels and scales
    are learnt from, by default the training rows.
    """

    def __init__(
        self,
        recipe: FinetuneRecipe,
        rows: tuple[Sequence[Row], Sequence[Row] | None] | None = None,
        labels: Sequence[str] = (),
        known: Sequence[Row] | None = None,
    ) -> None:
        if not recipe.model.folder:
            raise InputError("--model is needed: the folder to start from")
        if recipe.run.tensorboard:
            need_tensorboard()
        self.device = pick_device(recipe.run.device)
        self.said = describe(recipe.model.folder)
        self.config = self.said.config
        _refuse_freezing(recipe.model.freeze, self.config)
        self.tokenizer = load_tokenizer(recipe.model.folder, config=self.config)
        self.max_length = _max_length(recipe.data.max_length, self.config)
        data = recipe.data
        columns = Columns(data.text_column, data.second_column, data.label_column)
        self.task = task_class(recipe.task.name)(recipe.task, columns, labels)
        self.task.max_length = self.max_length
        self.train_rows, self.dev_rows = rows or self._read(recipe)
        self.train_data, self.dev_data = self._encode(recipe, known or self.train_rows)
        self.watch = self._watch(recipe)
        self.asked, self.recipe = recipe, self._completed(recipe)
        self.adapted: Path | None = None
        self.identity = {"training data": self.train_data.identity()}

    def _watch(self, recipe: FinetuneRecipe) -> Watch:
        known = (*self.task.measures, "loss")
        measure = recipe.run.measure or known[0]
        if measure not in known:
            raise InputError(f"run.measure is {measure!r}; {self.task.name} has {', '.join(known)}")
        return Watch(measure, lower=measure in _LOWER, patience=recipe.run.patience)

    def _read(self, recipe: FinetuneRecipe) -> tuple[Sequence[Row], Sequence[Row] | None]:
        data = recipe.data
        if not data.train:
            raise InputError("--train is needed: labelled rows to learn")
        rows = self.task.read(data.train)
        if data.labels_per_class is not None:
            if not all(isinstance(row.target, str) for row in rows):
                raise InputError(f"data.labels_per_class is of no use to {self.task.name}")
            labels = [row.target for row in rows]
            chosen = labels_per_class(labels, data.labels_per_class, recipe.seed)
            rows = [rows[i] for i in chosen]
        return rows, self.task.read(data.dev) if data.dev else None

    def _encode(
        self, recipe: FinetuneRecipe, learnt: Sequence[Row]
    ) -> tuple[Encoded, Encoded | None]:
        """Both sets of rows, after the task has learnt from the first what it must know."""
        task, source = self.task, recipe.data.train
        frame = Frame(self.tokenizer, self.config, self.max_length)
        known = f"the training data {source}"
        task.learn(learnt, source)
        task.check(self.train_rows, source, known)
        train = task.encode(self.train_rows, frame, training=True)
        if self.dev_rows is None:
            return train, None
        task.check(self.dev_rows, recipe.data.dev or "", known)
        return train, task.encode(self.dev_rows, frame, training=False)

    def _completed(self, recipe: FinetuneRecipe) -> FinetuneRecipe:
        """The recipe with everything that depends on the machine, the size and the data."""
        few = len(self.train_data) < _FEW
        batch_size = recipe.data.batch_size or (16 if few else 32)
        epochs = recipe.run.epochs or (12 if few else 4)
        batches = -(-len(self.train_data) // batch_size)
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
            data=replace(recipe.data, batch_size=batch_size, max_length=self.max_length),
            optim=replace(recipe.optim, learning_rate=rate),
            run=run,
        )

    @property
    def usual_rate(self) -> float:
        """The peak learning rate by the size of the model and the number of examples."""
        peak = next((r for size, r in _RATES if self.config.hidden_size <= size), _LARGE_RATE)
        return peak if len(self.train_data) < _FEW else peak / 2

    def check_adapting(self) -> None:
        """``InputError`` where the model cannot learn from the texts of the task first."""
        if self.recipe.model.pretrain_steps:
            from ownbert.tasks.adapt import refuse_unfit

            refuse_unfit(self)

    def adapt(self, output: Path, *, resume: bool, quiet: bool) -> None:
        """Learn masked words from the texts of the task first, where the recipe says so."""
        if self.recipe.model.pretrain_steps:
            from ownbert.tasks.adapt import adapt

            self.adapted = adapt(self, output, resume=resume, quiet=quiet)

    def make_model(self) -> Model:
        """The pretrained encoder (or, from scratch, one of its size) with a new head."""
        torch.manual_seed(self.recipe.seed)
        settings, spec = self.recipe.model, self.task.spec(self.said)
        pooler = self.task.pooler(self.said)
        if settings.from_scratch:
            config = replace(
                self.config,
                hidden_dropout_prob=settings.dropout,
                attention_probs_dropout_prob=settings.dropout,
            )
            head = replace(spec, dropout=None)
            kind = self.said.family.model_type
            made = {"labels": self.task.labels, "model_type": kind, "pooler": pooler}
            model = Model(config, [head], **made)
        else:
            model = load(
                settings.folder,
                heads=[spec],
                pooler=pooler,
                labels=self.task.labels,
                dropout=settings.dropout,
            )
        if self.adapted is not None:
            from ownbert.tasks.adapt import take_encoder

            take_encoder(model, self.adapted)
        _freeze(model, settings.freeze)
        model.encoder.gradient_checkpointing = bool(self.train_data.sizes.max() > _LONG)
        return model.to(self.device)

    def train(self, output: Path, *, resume: bool, quiet: bool) -> Model:
        """Run to the end and save the best weights. See ``finetune``."""
        write_text(output / RECIPE, dump(self.recipe))
        display = Display("finetune", quiet=quiet)
        for line in self.summary():
            display.say(line)
        for finding in () if quiet else check_rows(*self.parts):
            if finding.grave:
                display.say(f"warning: {finding.line}")
        model, recipe = self.make_model(), self.recipe
        words = None if recipe.model.freeze else WordsInUse(model, self.train_data)
        whole = words.all if words else contextlib.nullcontext
        learner = Learner(model, ())
        objective = self.task.objective(model)

        def evaluate() -> Mapping[str, float]:
            with whole():
                return self.evaluate(model, objective)

        twice = recipe.task.rdrop > 0
        loader = Loader(
            words.data if words else self.train_data,
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
        self._finish(model, job.state.best, output, display)
        return model.eval()

    def _finish(
        self, model: Model, best: Mapping[str, float] | None, output: Path, display: Display
    ) -> None:
        """Choose thresholds, measure, and save."""
        scores = self.measure(model)
        if best is not None:
            name = self.watch.measure.replace("_", " ")
            display.say(f"best dev {name} {best['value']:.3f} at step {best['step']:,}")
        for line in () if scores is None else scores.warnings:
            display.say(f"warning: {line}")
        model = self.task.finish(model)
        save(model, output, tokenizer=self.tokenizer, values=self.task.values())
        self.task.write(output, model)
        for line in self._describe(scores or Scores({}), output):
            display.say(line)
        remove_states(output)
        display.say(f"saved {output}")

    def _describe(self, scores: Scores, output: Path) -> list[str]:
        """Write the model card and the picture of the confusions; what to tell of these."""
        values = {name: [value] for name, value in scores.values.items()}
        told = (
            write_card(output, self.recipe, self.parts, measures=values, labels=scores.labels),
            draw_confusion(output / CONFUSION, scores),
        )
        return [line for line in told if line]

    @property
    def parts(self) -> list[Part]:
        """The rows with the files they come from."""
        data, task, sets = self.recipe.data, self.task, self.task.name == "multilabel"
        found = [Part("training", self.train_rows, data.train, task.unit, sets)]
        if self.dev_rows is not None:
            # Without a file of their own they are some of the training file.
            found.append(Part("dev", self.dev_rows, data.dev or data.train, task.unit, sets))
        return found

    def summary(self) -> list[str]:
        """What is about to be learnt from what, for people."""
        recipe, task = self.recipe, self.task
        start = "new weights" if recipe.model.from_scratch else recipe.model.folder
        dev = "no" if self.dev_rows is None else f"{len(self.dev_rows):,}"
        labels = f", {len(task.labels)} labels" if task.labels else ""
        lines = [
            f"{len(self.train_rows):,} training and {dev} dev {task.unit}{labels}, from {start}; "
            f"{recipe.run.epochs} epochs of batches of {recipe.data.batch_size} on "
            f"{recipe.run.device} in {recipe.run.precision}"
        ]
        for rows, data, what in (
            (self.train_rows, self.train_data, "training"),
            (self.dev_rows, self.dev_data, "dev"),
        ):
            if rows is not None and data is not None and data.cut:
                lines.append(
                    cut_warning(data.cut, len(rows), self.max_length, f"{what} {task.unit}")
                )
        if self.dev_rows is None:
            lines.append(
                "no --dev: all epochs are run and the last weights are saved, whether or not they "
                "are the best"
            )
        return lines + [f"warning: {line}" for line in task.warnings()]

    def evaluate(self, model: Model, objective: Objective) -> Mapping[str, float]:
        """Measures on the dev rows, for the log; none without them."""
        scores = self.measure(model, objective)
        return {} if scores is None else scores.values

    def measure(self, model: Model, objective: Objective | None = None) -> Scores | None:
        """Thresholds chosen on the dev rows, and how well these are answered then."""
        if self.dev_rows is None or self.dev_data is None:
            return None
        task, data, rows = self.task, self.dev_data, self.dev_rows
        found = answers(
            model,
            task,
            data.examples,
            precision=self.recipe.run.precision,
            objective=objective,
        )
        task.tune(found.raws, data, rows)
        decided = [task.decide(*each) for each in zip(found.raws, rows, data.notes, strict=True)]
        scores = task.score(rows, decided)
        if found.loss is None or objective is None:
            return scores
        # The second name is the one that it has in the rows of training.
        losses = {"loss": found.loss, f"{objective.name}_loss": found.loss}
        return replace(scores, values={**losses, **scores.values})


def cut_warning(cut: int, total: int, max_length: int, what: str) -> str:
    """What to tell of texts that were too long."""
    return (
        f"warning: {cut:,} of {total:,} {what} are longer than the model's {max_length} tokens "
        "and are cut there"
    )


def _refuse_freezing(layers: int, config: EncoderConfig) -> None:
    if layers > config.num_hidden_layers:
        raise InputError(
            f"model.freeze is {layers}; the model has {config.num_hidden_layers} layers"
        )


def _freeze(model: Model, layers: int) -> None:
    """Keep the embeddings and so many of the lower layers as they are."""
    if layers:
        for part in (model.encoder.embeddings, *model.encoder.blocks[:layers]):
            part.requires_grad_(False)


def _max_length(asked: int | None, config: EncoderConfig) -> int:
    longest = config.longest
    if asked is not None and not 8 <= asked <= longest:
        raise InputError(f"max_length {asked} must be from 8 to {longest}, the model's positions")
    return asked or longest
