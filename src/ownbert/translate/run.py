"""From pairs of texts to an encoder-decoder model."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from ownbert.checkpoint.translation import save_translation
from ownbert.config import EncoderConfig
from ownbert.data.batch import Batch
from ownbert.data.loader import Loader, batches_once
from ownbert.errors import InputError
from ownbert.nn.model import Model
from ownbert.objectives import Learner, Translation
from ownbert.run.run_folder import RunFolder
from ownbert.run.training_run import Say, TrainingRun, bounded_steps
from ownbert.train.device import autocast, pick_precision
from ownbert.train.distributed import World, gather_full_model
from ownbert.train.job import Job, Phase
from ownbert.train.meter import add_up, mean_metrics
from ownbert.train.schedule import NOAM_STEPS
from ownbert.transformer import from_configs, transformer_config
from ownbert.translate.average import use_average
from ownbert.translate.pairs import PairData, held_out, read_pairs
from ownbert.translate.recipe import DEFAULT_EPOCHS, TranslateRecipe, TranslateRun
from ownbert.translate.translation_card import write_card
from ownbert.translate.vocabulary import (
    learn_vocabularies,
    load_vocabularies,
    save_vocabularies,
)

# The paper warms up for 4,000 steps; so many times through the data are enough for a small one.
_WARMUP_EPOCHS = 4
# What other schedules begin with.
_RATE = 7e-4


def train_translation(
    output: str | Path,
    *,
    config: str | Path | None = None,
    overrides: Sequence[str] = (),
    resume: bool = False,
    overwrite: bool = False,
    quiet: bool = False,
    **options: Any,
) -> Model:
    """Learn vocabularies and a Transformer from pairs of texts; save it, its log, curves and recipe
    in ``output``.

    options: settings of ``TranslateRecipe`` by name (``source="a.de"``, ``target="a.en"``,
    ``d_model=512``). resume: continue from the last saved state, also with more ``epochs``. Raises
    ``InputError`` if ``output`` holds a model and neither ``resume`` nor ``overwrite`` is given,
    and for everything in the files or settings that cannot be used.
    """
    folder = RunFolder(output, resume=resume, overwrite=overwrite)
    recipe = folder.resolve(TranslateRecipe, config=config, overrides=overrides, options=options)
    run = TranslationRun(recipe, saved=folder.path if folder.saved else None)
    return run.execute(folder, quiet=quiet)


class TranslationRun(TrainingRun):
    """A recipe with its pairs of texts and vocabularies.

    saved: the folder of a run that is resumed, which has the vocabularies.
    """

    command = "translate"

    def __init__(self, recipe: TranslateRecipe, *, saved: Path | None = None) -> None:
        super().__init__(recipe.run)
        pairs, dev = read_pairs(recipe.data), read_pairs(recipe.data, dev=True)
        if pairs is None:
            raise InputError("--source and --target are needed: pairs of texts to learn from")
        self.empty = pairs.empty
        if dev is None:
            pairs, dev = held_out(pairs, recipe.data.held_out, recipe.seed)
        self.source, self.target = (
            learn_vocabularies(pairs, recipe.vocabulary)
            if saved is None
            else load_vocabularies(saved)
        )
        longest = recipe.data.max_length
        self.data = PairData(pairs, self.source, self.target, max_length=longest)
        self.dev = PairData(dev, self.source, self.target, max_length=longest)
        self.loader = Loader(self.data, recipe.seed, batch_tokens=recipe.data.batch_tokens)
        self.recipe, self._limits = self._completed(recipe)
        self.config = self._config()
        self.identity = {"training pairs": self.data.identity()}

    def _completed(self, recipe: TranslateRecipe) -> tuple[TranslateRecipe, TranslateRun]:
        """The recipe with everything that depends on the machine and the data filled in, and how it
        is run: epochs in steps. The steps are not in the recipe, so that a resumed run may have
        more epochs."""
        run, optim = recipe.run, recipe.optim
        steps = max(1, self.loader.batches_per_epoch() // run.accumulate)
        epochs = run.epochs
        if epochs is None and run.max_steps is None and run.max_minutes is None:
            epochs = DEFAULT_EPOCHS
        run = replace(
            run,
            epochs=epochs,
            eval_every=run.eval_every or steps,
            save_every=run.save_every or (steps if recipe.task.average > 1 else None),
            keep=max(run.keep, recipe.task.average),
            device=self.device.type,
            precision=pick_precision(run.precision, self.device),
        )
        if optim.schedule == "noam":
            warmup = optim.warmup_steps or min(NOAM_STEPS, _WARMUP_EPOCHS * steps)
            peak = (recipe.model.d_model * warmup) ** -0.5
            optim = replace(optim, warmup_steps=warmup)
        else:
            peak = _RATE
        optim = replace(optim, learning_rate=optim.learning_rate or peak)
        limits = [n for n in (run.max_steps, epochs and epochs * steps) if n]
        by_steps = replace(run, max_steps=min(limits, default=None))
        return replace(recipe, run=run, optim=optim), by_steps

    @property
    def limits(self) -> TranslateRun:
        return self._limits

    def reserve(self, folder: RunFolder) -> None:
        super().reserve(folder)
        save_vocabularies(folder.path, self.source, self.target)

    def _config(self) -> EncoderConfig:
        """Of both stacks."""
        net = self.recipe.model
        return transformer_config(
            # Transformers' Marian has tables of one size: the smaller vocabulary has rows to spare.
            max(self.source.vocab_size, self.target.vocab_size),
            net.N,
            net.d_model,
            net.d_ff,
            net.h,
            net.dropout,
            norm_first=net.norm_first,
            position_embedding_type="sinusoidal_halves",
            # For Transformers, whose table of them has an end.
            max_position_embeddings=max(512, 2 * self.recipe.data.max_length),
            pad_token_id=self.target.pad_id,
        )

    def new_model(self) -> Model:
        """New weights, a function of the seed."""
        torch.manual_seed(self.recipe.seed)
        shared = self.source is self.target
        return from_configs(self.config, self.config, share_embeddings=shared)

    def make_learner(self, world: World, *, fresh: bool, say: Say) -> Learner:
        objective = Translation(self.recipe.task.label_smoothing)
        return Learner(self.new_model().to(self.device), [objective])

    def phases(self, learner: Learner, world: World) -> list[Phase]:
        loader = replace(self.loader, process=world.rank, processes=world.size)
        return [Phase(loader, learner.objectives, lambda: self._evaluate(learner))]

    @cached_property
    def _dev_batches(self) -> list[Batch]:
        return list(batches_once(self.dev, batch_tokens=self.recipe.data.batch_tokens))

    def _evaluate(self, learner: Learner) -> Mapping[str, float]:
        return evaluate(learner, self._dev_batches, self.recipe.run.precision)

    def finish(self, job: Job, folder: RunFolder) -> Model:
        """The mean of the last saved states where that is better, and the model card."""
        learner, world, recipe = job.state.learner, job.world, self.recipe
        job.state.use_best()  # a running mean, where there is one
        count = 1 if recipe.optim.ema else recipe.task.average
        metrics = use_average(
            learner,
            folder.path,
            count,
            world,
            evaluate=lambda: self._evaluate(learner),
            say=job.display.say,
        )
        if count > 1:  # else the loop has saved the final weights
            self.save(learner, folder, world)
        if world.first and (warning := self._write_card(folder, learner.model, metrics)):
            job.display.say(warning)
        return learner.model

    def save(self, learner: Learner, folder: RunFolder, world: World) -> None:
        complete = gather_full_model(learner.model)
        if not world.first:
            return
        # Transformers' defaults for generate().
        values = {
            "num_beams": 4,
            "length_penalty": 0.6,
            "forced_eos_token_id": None,
            "bos_token_id": self.target.cls_id,
            "decoder_start_token_id": self.target.cls_id,
            "eos_token_id": self.target.sep_id,
        }
        save_translation(complete, folder.path, values=values)

    def _write_card(
        self, folder: RunFolder, model: Model, metrics: Mapping[str, float]
    ) -> str | None:
        return write_card(
            folder.path,
            replace(self.recipe, run=self.limits),
            pairs={"training": len(self.data), "dev": len(self.dev)},
            parameters=sum(p.numel() for p in model.parameters()),
            shared=self.source is self.target,
            measures=metrics,
        )

    def summary(self) -> list[str]:
        recipe, data, run = self.recipe, self.data, self.limits
        kind = recipe.vocabulary.kind
        words = f"{self.target.vocab_size:,} {kind} tokens for both sides"
        if self.source is not self.target:
            words = f"{self.source.vocab_size:,} and {self.target.vocab_size:,} {kind} tokens"
        length = bounded_steps(run)
        if run.epochs:
            length = f"{run.epochs} epochs at most, {length}"
        with torch.device("meta"):  # shapes without numbers: this model is only counted
            count = sum(p.numel() for p in self.new_model().parameters())
        net = recipe.model
        lines = [
            f"{len(data):,} training and {len(self.dev):,} dev pairs, {words}",
            f"{net.N} + {net.N} layers of {net.d_model}, {net.h} heads, {count:,} parameters; "
            f"{length} of batches of {recipe.data.batch_tokens:,} tokens on {run.device} in "
            f"{run.precision}",
        ]
        for count, what in (
            (self.empty, "blank on one side"),
            (data.long, f"longer than {recipe.data.max_length} tokens on a side"),
        ):
            if count:
                lines.append(f"warning: {count:,} training pairs are {what} and left out")
        return lines


@torch.no_grad()
def evaluate(learner: Learner, batches: Sequence[Batch], precision: str) -> dict[str, float]:
    """Cross entropy per token, without label smoothing, and accuracy."""
    learner.eval()
    device, objective = learner.model.device, Translation(smoothing=0.0)
    sums: dict[str, list] = {}
    for batch in batches:
        there = batch.to(device)
        with autocast(device, precision):
            logits = learner.model(there, [objective.head]).logits[objective.head]
            add_up(sums, {objective.name: objective(logits, there)})
    found = mean_metrics(sums)
    return {"loss": found[f"{objective.name}_loss"], **found}
