"""One fine-tuning run: a pretrained folder and labelled rows in, a fine-tuned folder out."""

import contextlib
import copy
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from operator import is_
from pathlib import Path
from typing import Any

from ownbert.batches.loader import Loader
from ownbert.batches.word_features import describe_features
from ownbert.checkpoint import save
from ownbert.exceptions import InputError, counted
from ownbert.files.text_files import own_text
from ownbert.files.writing import make_folder
from ownbert.finetuning.default_settings import (
    FEW,
    DefaultSettings,
    epochs_per_evaluation,
    is_small_and_own,
)
from ownbert.finetuning.finetune_folder import PRETRAINED, FinetuneFolder
from ownbert.finetuning.finetuned_card import CONFUSION, draw_confusion, write_card
from ownbert.finetuning.initial_model import WordsInUse, knows_labels, make_model
from ownbert.finetuning.labelled_splits import LabelledSplits, Rows, Sources
from ownbert.finetuning.linear_baseline import (
    MOST_TOKENS,
    LinearBaseline,
    can_be_compared,
    score_baseline,
    seconds_for_baseline,
    start_at_linear,
)
from ownbert.finetuning.row_checks import check_rows
from ownbert.inference.row_summary import write_training_rows
from ownbert.language.messages import Message, Option
from ownbert.nn.model import Model
from ownbert.nn.variants.ngram_embeddings import RATE_OF_FEW, ngram_tables
from ownbert.objectives.learner import Learner
from ownbert.pretraining.vocabulary_alignment import BERT_TYPES
from ownbert.run.packed_encoder import PrecisionCheck
from ownbert.run.run_folder import RunFolder
from ownbert.run.training_run import Say, TrainingRun
from ownbert.tables.columns import ColumnNames
from ownbert.tasks.classification import ClassificationTask
from ownbert.tasks.finetune_recipe import TEXT_TASKS, FinetuneRecipe
from ownbert.tasks.metrics import Scores
from ownbert.tasks.row_objectives import RDrop
from ownbert.tasks.rows import is_soft
from ownbert.tasks.task import Task, task_class
from ownbert.train.device import pick_precision
from ownbert.train.distributed import ALONE, World
from ownbert.train.log import read_log
from ownbert.train.loop import Job, Monitor, Phase
from ownbert.train.metric_names import BALANCED, LOWER, shown_name
from ownbert.train.state import remove_states

# Gain of the dev score in the last epoch (relative, where lower is better) from which it is
# reported as still rising.
_STILL_RISES = 0.005
# Number of tokens in an example from which gradient checkpointing is used.
_LONG = 4096
# Tokens per micro-batch: larger batches are split, with the same gradient.
MICRO_TOKENS = 16_384
# Tokens per batch of continued pretraining, and its minimum number of full-length sequences.
_ADAPT_TOKENS, _ADAPT_SEQUENCES = 2048, 8


class FinetuningRun(TrainingRun):
    """A fine-tuning recipe with its labelled rows.

    Args:
        rows: training rows, and dev rows or None, instead of the recipe's files; training rows may
            have soft targets (``tasks/rows.py``).
        sources: rows in memory that the task reads instead of the training and dev files.
        labels: labels of the task, in the order of soft targets; by default learnt from the rows.
        like: another run, whose task (with its labels) and model are reused.
        with_card: whether to write a model card and plots of the log and the confusion matrix.

    Attributes:
        given: the recipe before completion.
    """

    command = "finetune"

    def __init__(
        self,
        recipe: FinetuneRecipe,
        rows: Rows | None = None,
        *,
        sources: Sources = (None, None),
        labels: Sequence[str] = (),
        like: "FinetuningRun | None" = None,
        with_card: bool = True,
    ) -> None:
        super().__init__(recipe.run)
        self.with_card = self.with_curves = with_card
        self.task = _task(recipe, labels) if like is None else copy.copy(like.task)
        self.task.seed = recipe.seed
        description = self.task.describe_base(recipe.model) if like is None else like.description
        self.splits = LabelledSplits(
            self.task, recipe, rows, sources=sources, learnt=like is not None
        )
        self.description = description or self.task.describe_new(recipe, self.splits.train_rows)
        self.config = self.description.config
        layers, most = recipe.model.freeze, self.config.num_hidden_layers
        if layers and self.description.decoder is not None:
            raise InputError(
                "model.freeze is for models without a decoder, but a {architecture} has one",
                self.description.architecture,
            )
        if layers > most:
            raise InputError("model.freeze is {layers}; the model has {most} layers", layers, most)
        length, longest = recipe.data.max_length, self.config.longest
        if length is not None and not 8 <= length <= longest:
            raise InputError(
                "max_length {length} must be from 8 to {longest}, the number of the model's "
                "positions",
                length,
                longest,
            )
        self.builder = self.task.input_builder(self.description, length or longest)
        self.task.max_length = self.max_length = self.builder.max_length
        self.splits.encode(self.builder)
        self.monitor = self._monitor(recipe)
        self.given = recipe
        self.recipe = self._completed(recipe)
        self.splits.draw_sample(self._trained_per_evaluation)
        self.adapted: Path | None = None if like is None else like.adapted
        if like is not None:
            self.callbacks = like.callbacks
        self.name: str | None = None  # name in the model card, by default the folder's
        # Final metrics of the saved weights on all dev rows.
        self.metrics: Mapping[str, float] = {}
        # Baselines by metric for these rows, or the reason why there is none.
        self.baselines: dict[str, LinearBaseline | str] = {}
        if like is not None and all(map(is_, self.splits.rows, like.splits.rows)):
            self.baselines = like.baselines
        self.identity = {"training data": self.splits.train_data.identity()}

    def _monitor(self, recipe: FinetuneRecipe) -> Monitor:
        metrics = (*self.task.metrics, *(["loss"] if self.task.has_dev_loss else []))
        metric = recipe.run.measure or metrics[0]
        if metric not in metrics:
            raise InputError(
                "run.measure is {metric!r}; {name} has {options}",
                metric,
                self.task.name,
                ", ".join(metrics),
            )
        if metric != "loss":
            self.task.monitor(metric)
        return Monitor(metric, lower=metric in LOWER, patience=recipe.run.patience)

    def _completed(self, recipe: FinetuneRecipe) -> FinetuneRecipe:
        """The recipe with defaults that depend on the machine, the model and the data."""
        task, defaults = self.task, self.defaults
        recipe = task.complete_recipe(recipe, self.builder)
        # With few, imbalanced rows, weights of labels gained three to six points of macro-F1
        # (docs/lab/fine-tuning.md).
        applies = recipe.task.class_weights is None and self.monitor.metric in BALANCED
        applies = applies and defaults.few and not self._has_soft_targets
        if isinstance(task, ClassificationTask) and applies and task.balance():
            recipe = replace(recipe, task=replace(recipe.task, class_weights="balanced"))
        batch_size = recipe.data.batch_size or defaults.batch_size
        if batch_size < self.task.min_batch_size:
            raise InputError(
                "data.batch_size is {batch_size}; {name} compares the rows of a batch, so it "
                "must be {min_batch_size} or more",
                batch_size,
                self.task.name,
                self.task.min_batch_size,
            )
        data, steps_of, share = self.splits.train_data, recipe.run.steps_of, 1.0
        batches = -(-len(data) // batch_size)
        if recipe.task.train_windows is not None:  # windows of long documents are sampled
            share = data.sizes.sum() / max(1, sum(len(e.token_ids) for e in data.examples))
        epochs = recipe.run.epochs or defaults.epochs(steps_of(batches), share)
        between = 1 if recipe.run.epochs else epochs_per_evaluation(epochs)
        run = replace(
            recipe.run,
            device=self.device.type,
            precision=pick_precision(recipe.run.precision, self.device),
            epochs=epochs,
            max_steps=recipe.run.max_steps or steps_of(epochs * batches),
            eval_every=recipe.run.eval_every or steps_of(between * batches),
        )
        rate = recipe.optim.learning_rate or defaults.learning_rate
        return replace(
            recipe,
            data=replace(recipe.data, batch_size=batch_size),
            optim=replace(recipe.optim, learning_rate=rate),
            run=run,
        )

    @property
    def sizes(self) -> dict[str, Any]:
        of_text = {} if self.task.reads_arrays else {"max_length": self.max_length}
        return super().sizes | of_text

    @property
    def _trained_per_evaluation(self) -> float:
        """Number of training examples between evaluations."""
        recipe, count = self.recipe, len(self.splits.train_data)
        assert recipe.run.eval_every is not None
        assert recipe.data.batch_size is not None
        batches = -(-count // recipe.data.batch_size)  # per epoch
        passes = 2 if recipe.task.rdrop else 1
        return recipe.run.eval_every * recipe.run.accumulate * passes * count / batches

    @cached_property
    def defaults(self) -> DefaultSettings:
        """Default settings for the rows and the model."""
        model, size = self.given.model, self.config.hidden_size
        own = not model.new and is_small_and_own(model.folder, size)
        return DefaultSettings(len(self.splits.train_data), size, own, self.starts_linear)

    @cached_property
    def starts_linear(self) -> bool:
        """Whether the head is initialised as a linear model on the frozen network."""
        given, rows = self.given.model, self.splits.train_rows
        if self.splits.train_data.sizes.sum() > MOST_TOKENS:
            return False
        fits = self.task.name in TEXT_TASKS and self.given.task.ngrams is None
        if not fits or given.head_init == "random" or self.keeps_head:
            return False
        if given.head_init is None and (given.new or len(rows) >= FEW):
            return False
        return not self._has_soft_targets

    @property
    def keeps_head(self) -> bool:
        """Whether training continues with the folder's head, which has these labels."""
        kinds = {spec.kind for spec in self.description.specs}
        known = self.task.head in kinds and knows_labels(self.description, self.task)
        return known and not self.given.model.new

    @cached_property
    def _has_soft_targets(self) -> bool:
        """Whether rows have soft targets predicted by another model."""
        soft = self.task.takes_soft_targets
        return soft and any(is_soft(row.target) for row in self.splits.train_rows)

    def check_adapting(self) -> None:
        """Raise ``InputError`` if the recipe requests continued pretraining and the model is no
        BERT."""
        kind = str(self.description.values.get("model_type"))
        if self.recipe.model.pretrain_steps and kind not in BERT_TYPES:
            raise InputError(
                "model.pretrain_steps is for BERT, and {folder} has model_type {kind!r}; leave it "
                "out",
                self.recipe.model.folder,
                kind,
            )

    def check_model(self) -> None:
        """Load and discard the model, so that errors (damaged weights, a missing package) are
        reported before anything is written."""
        make_model(self.description, self.task, self.recipe)

    def adapt(self, folder: FinetuneFolder, *, quiet: bool) -> None:
        """Continue pretraining on the texts of the task, if the recipe requests it (Gururangan et
        al. 2020).

        On resumption, a finished model is kept and an interrupted run continues. The texts are
        deleted from disk at the end.
        """
        if not self.recipe.model.pretrain_steps:
            return
        recipe, output = self.recipe, folder.member(f"{PRETRAINED}/model")
        self.adapted = output.path
        if output.resume and output.finished:
            return
        from ownbert.corpus.store import prepare
        from ownbert.pretraining.pretraining_run import pretrain

        parent = output.path.parent
        corpus, tokens = own_text(parent / "texts.jsonl"), parent / "tokens"
        make_folder(parent)
        try:
            with corpus.open("w", encoding="utf-8") as file:
                for text in self.splits.distinct_texts():
                    file.write(json.dumps({"text": text}) + "\n")
            prepare(corpus, tokens, tokenizer=recipe.model.folder, text_column="text")
            pretrain(
                tokens,
                output.path,
                resume=output.resume,
                overwrite=output.overwrite,
                quiet=quiet,
                init_from=recipe.model.folder,
                objectives=("mlm",),
                max_steps=recipe.model.pretrain_steps,
                max_length=self.max_length,
                batch_tokens=max(_ADAPT_TOKENS, _ADAPT_SEQUENCES * self.max_length),
                learning_rate=self.defaults.learning_rate,
                dropout=recipe.model.dropout,
                precision=recipe.run.precision,
                device=recipe.run.device,
                seed=recipe.seed,
            )
        finally:
            # The texts may be private, and token ids can be decoded.
            corpus.unlink(missing_ok=True)
            shutil.rmtree(tokens, ignore_errors=True)
        remove_states(output.path)

    def make_learner(self, world: World, *, fresh: bool, say: Say) -> Learner:
        recipe, data = self.recipe, self.splits.train_data
        if recipe.task.ngrams is not None and world.size > 1:
            raise InputError("task.ngrams is trained in one process; run it without torchrun")
        model = make_model(self.description, self.task, recipe, adapted=self.adapted)
        if fresh and not recipe.model.new and not knows_labels(self.description, self.task):
            say(
                Message(
                    "{folder} has a head for other labels; a new one is initialised",
                    recipe.model.folder,
                ),
            )
        if self.keeps_head:
            self.task.begin(model)
        model = model.to(self.device)
        for stack in filter(None, (model.encoder, model.decoder)):
            stack.gradient_checkpointing = bool(data.sizes.max() > _LONG)
        if self.defaults.few:
            for table in ngram_tables(model):
                table.rate = RATE_OF_FEW
        learns_words = self.config.image is None and not recipe.model.freeze
        self.words = WordsInUse(model, data) if learns_words else None
        # Also used for evaluation on dev rows, without the second pass of R-Drop.
        self.objective = self.task.objective(model)
        if fresh and self.starts_linear:
            with self.words.all() if self.words else contextlib.nullcontext():
                inputs = model, self.task, self.splits.train_rows, data.examples
                few, precision = self.defaults.few, recipe.run.precision
                start_at_linear(*inputs, precision=precision, few=few)
        rdrop = recipe.task.rdrop
        return Learner(model, [RDrop(self.objective, rdrop) if rdrop else self.objective])

    def phases(self, learner: Learner, world: World) -> list[Phase]:
        recipe = self.recipe
        loader = Loader(
            self.words.data if self.words else self.splits.train_data,
            recipe.seed,
            batch_size=recipe.data.batch_size or 16,
            repeat=2 if recipe.task.rdrop else 1,
            most_tokens=0 if self.task.needs_full_batch else MICRO_TOKENS,
            device=self.device.type,
            precision=recipe.run.precision,
        )
        # The initial weights are a candidate if they are better than random.
        first = self.starts_linear or self.task.made is not None
        evaluate = partial(self._evaluate, learner)
        return [Phase(loader, learner.objectives, evaluate, evaluate_first=first)]

    def _evaluate(self, learner: Learner) -> Mapping[str, float]:
        """Metrics on the dev rows, if any, with the full word embedding table."""
        with self.words.all() if self.words else contextlib.nullcontext():
            scores = self.splits.evaluate(
                learner.model,
                precision=self.recipe.run.precision,
                objective=self.objective,
                sampled=True,
            )
        return {} if scores is None else scores.values

    def finish(self, job: Job, folder: RunFolder) -> Model:
        """Save the best weights, with thresholds tuned on the dev rows, and the model card."""
        job.state.use_best()
        if self.words:
            self.words.restore()
        model, scores, checked = self._save_best(job, folder.path)
        if self.with_card:
            if not self.task.reads_arrays:
                write_training_rows(self.task, self.splits.train_rows, folder.path)
            for line in self._describe(scores or Scores({}), checked, folder.path):
                job.display.say(line)
        return model

    def _save_best(
        self, job: Job, output: Path
    ) -> tuple[Model, Scores | None, PrecisionCheck | None]:
        """Tune thresholds, evaluate and save in float32, and check bfloat16 against it."""
        model, best = job.state.learner.model, job.state.best
        scores = self.splits.evaluate(model, precision="float32", objective=self.objective)
        if scores is not None:
            self.metrics = scores.values
            losses = ("loss", f"{self.objective.name}_loss")
            values = {n: value for n, value in scores.values.items() if n not in losses}
            scores = replace(scores, values=values)
        if best is not None:
            name = shown_name(self.monitor.metric)
            line = Message(
                "best dev {metric!t} {value:.3f} at step {step:,}",
                name,
                best["value"],
                best["step"],
            )
            if self.splits.sample is not None:
                all_rows = " on the sample, {value:.3f} on all rows"
                line += Message(all_rows, self.metrics[self.monitor.metric])
            job.display.say(line)
        if line := self._still_rising(job, output):
            job.display.say(line)
        for line in () if scores is None else (*self.task.missed, *scores.warnings):
            job.display.say(Message("warning: {line!t}", line))
        checked = self._check_precision(model)
        model = self._save_model(model, output)
        if checked is not None:
            checked.record(output)
        remove_states(output)
        return model, scores, checked

    def _save_model(self, model: Model, output: Path) -> Model:
        model = self.task.finish(model)
        save(model, output, tokenizer=self.builder.tokenizer, values=self.task.values())
        self.task.write(output, model)
        return model

    def save_start(self, output: Path) -> None:
        """Save the model before the first step."""
        learner = self.make_learner(ALONE, fresh=True, say=lambda _: None)
        if self.words:
            self.words.restore()
        self._save_model(learner.model, output)

    def _still_rising(self, job: Job, output: Path) -> str:
        """A note if the last of all epochs was clearly the best evaluation."""
        best, step, name = job.state.best, job.state.step, self.monitor.metric
        scores = [row[name] for row in read_log(output) if row.get("evaluation") and name in row]
        finished = job.run.max_steps is not None and step >= job.run.max_steps
        last_is_best = best is not None and best["step"] >= step and len(scores) > 1
        # More epochs of pairs made from single texts would separate similar texts.
        fixed = self.given.run.max_steps is not None or self.task.made is not None
        if fixed or not finished or not last_is_best:
            return ""
        gain = scores[-1] - scores[-2]
        if self.monitor.lower:
            gain = -gain / (abs(scores[-2]) or 1)
        if gain < _STILL_RISES:
            return ""
        epochs = Option("--epochs", 2 * (self.recipe.run.epochs or 0))
        if self.monitor.lower:
            return Message("the dev score was still falling: try {epochs}", epochs)
        return Message("the dev score was still rising: try {epochs}", epochs)

    def _check_precision(self, model: Model) -> PrecisionCheck | None:
        """Compare bfloat16 with float32, if the processor supports bfloat16."""
        if self.device.type != "cpu" or pick_precision("auto", self.device) != "bfloat16":
            return None
        # Predictions have no loss; use a metric of the task if a loss is monitored.
        metric = self.task.metrics[0] if self.monitor.lower else self.monitor.metric
        return self.splits.check_bfloat16(model, metric)

    def _describe(self, scores: Scores, checked: PrecisionCheck | None, output: Path) -> list[str]:
        """Write the model card and the plot of the confusion matrix; return warnings."""
        baseline = self.baseline()
        warnings = (
            draw_confusion(output / CONFUSION, scores),  # first, because the card includes it
            write_card(
                output,
                self.recipe,
                self.splits.parts,
                metrics={name: [value] for name, value in scores.values.items()},
                labels=scores.labels,
                precision="" if checked is None else checked.sentences(),
                baseline=baseline.sentence if isinstance(baseline, LinearBaseline) else "",
                name=self.name,
            ),
        )
        return [line for line in warnings if line]

    def baseline(self) -> LinearBaseline | str | None:
        """The score of a linear model on the same rows, or the reason why there is none; None if it
        is disabled."""
        train, dev = self.splits.train_rows, self.splits.dev_rows
        wanted = self.recipe.run.baseline and can_be_compared(self.task, train, dev)
        if dev is None or not wanted:
            return None
        metric = self.task.metrics[0] if self.monitor.metric == "loss" else self.monitor.metric
        if metric not in self.baselines:
            seconds = seconds_for_baseline(self.recipe.run.max_minutes)
            self.baselines[metric] = score_baseline(self.task, train, dev, metric, seconds=seconds)
        return self.baselines[metric]

    def closing_lines(self) -> list[str]:
        if not self.with_card or (baseline := self.baseline()) is None:
            return []
        if isinstance(baseline, str):
            return [baseline]
        return baseline.lines(self.metrics[baseline.metric])

    def _duration(self) -> str:
        steps, epochs = self.given.run.max_steps, self.recipe.run.epochs
        if steps:
            duration = counted(steps, "step")
        else:
            duration = counted(epochs or 0, "epoch")
        minutes = self.recipe.run.max_minutes
        return (
            Message("{duration} or {minutes:g} minutes", duration, minutes) if minutes else duration
        )

    def summary(self) -> list[str]:
        recipe, task, splits = self.recipe, self.task, self.splits
        start = Message("scratch") if recipe.model.new else recipe.model.folder
        dev = "no" if splits.dev_rows is None else f"{len(splits.dev_rows):,}"
        labels = Message(", {count} {unit!t}", len(task.labels), task.label_unit)
        lines = [
            Message(
                "{train:,} training and {dev!t} dev {unit!t}{labels}, from {start}; {duration} of "
                "batches of {size} on {device} in {precision}",
                *(len(splits.train_rows), dev, task.unit, labels if len(task.labels) > 1 else ""),
                *(start, self._duration()),
                *(recipe.data.batch_size, recipe.run.device, recipe.run.precision),
            ),
            *splits.columns_read(),
            *task.notes(),
            *splits.notes,
        ]
        if recipe.task.class_weights != self.given.task.class_weights:
            lines.append("rare labels have more weight (--class-weights equal turns this off)")
        if self.given.model.head_init == "linear" and not self.starts_linear:
            lines.append(
                Message(
                    "{--head-init linear} has no effect: it is for new heads of classify, "
                    "multilabel and regress without {--ngrams}, and for up to {most_tokens:,} "
                    "tokens of training rows",
                    MOST_TOKENS,
                )
            )
        lines += self._describe_features()
        lines += [*splits.truncation_warnings(), *splits.unknown_warnings()]
        if splits.sample is not None:
            lines.append(
                Message(
                    "evaluates {count:,} of the dev {unit!t} during training, all of them at the "
                    "end",
                    *(len(splits.sample), task.unit),
                )
            )
        if splits.dev_rows is None:
            lines.append(
                "no --dev: all epochs are run and the last weights are saved, whether or not they "
                "are the best"
            )
        return lines + [Message("warning: {line!t}", line) for line in task.warnings()]

    def _describe_features(self) -> Iterator[str]:
        """The columns of word features, and whether they continue those of pretraining."""
        if self.task.features:
            yield describe_features(self.task.features)
        known, folder = ", ".join(self.task.pretrained_features), self.recipe.model.folder
        if not known:
            return
        if self.task.pretrained_head(self.description):
            yield Message("they start from those of {folder}", folder)
        elif self.task.features:
            yield (
                Message(
                    "they start from scratch: {folder} was trained with others (columns "
                    "{options}, or another {--feature-size})",
                    folder,
                    known,
                )
            )

    def warnings(self) -> Iterator[str]:
        return (f.line for f in check_rows(*self.splits.parts) if f.severe)


def _task(recipe: FinetuneRecipe, labels: Sequence[str]) -> Task:
    data = recipe.data
    columns = ColumnNames(
        data.text_column, data.second_column, data.label_column, features=data.feature_columns
    )
    return task_class(recipe.task.name)(recipe.task, columns, labels)
