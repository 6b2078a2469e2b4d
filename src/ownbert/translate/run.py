"""From pairs of texts to an encoder-decoder model."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ownbert.checkpoint.translation import save_translation
from ownbert.config import EncoderConfig
from ownbert.data.batch import Batch
from ownbert.data.loader import Loader, once
from ownbert.errors import InputError
from ownbert.files import write_text
from ownbert.nn.model import Model
from ownbert.objectives import Learner, Translation
from ownbert.run.run_folder import RECIPE, claim_output, refuse_taken, resolve_run
from ownbert.settings import dump
from ownbert.train import distributed
from ownbert.train.device import autocast, pick_device, pick_precision
from ownbert.train.display import Display
from ownbert.train.job import Job, Phase, Watch
from ownbert.train.log import need_tensorboard
from ownbert.train.loop import train
from ownbert.train.meter import add_up, measures_of
from ownbert.train.optim.optimizers import describe_groups, make_optimizer
from ownbert.train.schedule import NOAM_STEPS
from ownbert.train.state import TrainState
from ownbert.train.state_files import newest
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
    ``d_model=512``). resume: go on from the last saved state, also with more ``epochs``. Raises
    ``InputError`` if ``output`` holds a model and neither ``resume`` nor ``overwrite`` is given,
    and for everything in the files or settings that cannot be used.
    """
    output = Path(output)
    refuse_taken(output, resume=resume, overwrite=overwrite)
    begun = resume and newest(output) is not None
    recipe = resolve_run(
        TranslateRecipe, output, config=config, overrides=overrides, begun=begun, options=options
    )
    run = Training(recipe, saved=output if begun else None)
    world = distributed.join(run.device)
    try:
        world.first_does(lambda: run.claim(output, resume=resume, overwrite=overwrite))
        return run.train(output, world, resume=resume, quiet=quiet)
    finally:
        distributed.leave(world)


class Training:
    """A resolved recipe with its pairs and vocabularies; ``train`` makes the model.

    saved: the folder of a run that is gone on with, which has the vocabularies.
    """

    def __init__(self, recipe: TranslateRecipe, *, saved: Path | None = None) -> None:
        if recipe.run.tensorboard:
            need_tensorboard()
        self.device = pick_device(recipe.run.device)
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
        self.recipe, self.run = self._completed(recipe)
        self.config = self._config()
        self.identity = {"training pairs": self.data.identity()}

    def _completed(self, recipe: TranslateRecipe) -> tuple[TranslateRecipe, TranslateRun]:
        """The recipe with everything that depends on the machine and the data filled in, and how it
        is run: epochs in steps. These are not in the recipe, so that a run that is gone on with
        may have more epochs."""
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

    def claim(self, output: Path, *, resume: bool, overwrite: bool) -> None:
        """Take the output folder, and write the recipe and the vocabularies into it."""
        claim_output(output, resume=resume, overwrite=overwrite, identity=self.identity)
        write_text(output / RECIPE, dump(self.recipe))
        save_vocabularies(output, self.source, self.target)

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

    def model(self) -> Model:
        """New weights, a function of the seed."""
        torch.manual_seed(self.recipe.seed)
        shared = self.source is self.target
        return from_configs(self.config, self.config, share_embeddings=shared)

    def train(self, output: Path, world: distributed.World, *, resume: bool, quiet: bool) -> Model:
        """Run to the end and save. See ``train_translation``."""
        recipe = self.recipe
        display = Display("translate", quiet=quiet or not world.first)
        model = self.model()
        for line in self.summary(model):
            display.say(line)
        learner = Learner(model.to(self.device), ())
        optimizer = make_optimizer(learner, recipe.optim)
        display.say(f"{recipe.optim.name}: {describe_groups(optimizer)}")
        loader = replace(self.loader, process=world.rank, processes=world.size)
        batches = list(once(self.dev, batch_tokens=recipe.data.batch_tokens))

        def evaluate() -> Mapping[str, float]:
            return measure(learner, batches, recipe.run.precision)

        job = Job(
            state=TrainState(learner, optimizer, self.identity),
            phases=[Phase(loader, [Translation(recipe.task.label_smoothing)], evaluate)],
            optim=recipe.optim,
            run=self.run,
            folder=output,
            display=display,
            watch=Watch("loss", lower=True),
            seed=recipe.seed,
            world=world,
            on_save=lambda: self.save(learner, output, world),
        )
        train(job, resume=resume)
        job.state.use_best()  # a running mean, where there is one
        count = 1 if recipe.optim.ema else recipe.task.average
        measures = use_average(learner, output, count, world, evaluate=evaluate, say=display.say)
        if count > 1:  # else the loop has saved what stays
            self.save(learner, output, world)
        if world.first and (said := self.card(output, learner.model, measures)):
            display.say(said)
        display.say(f"saved {output}")
        return learner.model.eval()

    def save(self, learner: Learner, output: Path, world: distributed.World) -> None:
        """Write the model as it is into its folder."""
        complete = distributed.put_together(learner.model)
        if not world.first:
            return
        # What Transformers generates by if it is asked for nothing else.
        values = {
            "num_beams": 4,
            "length_penalty": 0.6,
            "forced_eos_token_id": None,
            "bos_token_id": self.target.cls_id,
            "decoder_start_token_id": self.target.cls_id,
            "eos_token_id": self.target.sep_id,
        }
        save_translation(complete, output, values=values)

    def card(self, output: Path, model: Model, measures: Mapping[str, float]) -> str | None:
        """Write the model card."""
        return write_card(
            output,
            replace(self.recipe, run=self.run),
            pairs={"training": len(self.data), "dev": len(self.dev)},
            parameters=sum(p.numel() for p in model.parameters()),
            shared=self.source is self.target,
            measures=measures,
        )

    def summary(self, model: Model) -> list[str]:
        """What is about to be learnt from what, for people."""
        recipe, data, run = self.recipe, self.data, self.run
        kind = recipe.vocabulary.kind
        words = f"{self.target.vocab_size:,} {kind} tokens for both sides"
        if self.source is not self.target:
            words = f"{self.source.vocab_size:,} and {self.target.vocab_size:,} {kind} tokens"
        length = f"{run.max_steps:,} steps" if run.max_steps else f"{run.max_minutes:g} minutes"
        if run.epochs:
            length = f"{run.epochs} epochs at most, {length}"
        net, count = recipe.model, sum(p.numel() for p in model.parameters())
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
def measure(learner: Learner, batches: Sequence[Batch], precision: str) -> dict[str, float]:
    """Cross entropy a token, without smoothing, and how many are right."""
    learner.eval()
    device, objective = learner.model.device, Translation(smoothing=0.0)
    sums: dict[str, list] = {}
    for batch in batches:
        there = batch.to(device)
        with autocast(device, precision):
            logits = learner.model(there, [objective.head]).logits[objective.head]
            add_up(sums, {objective.name: objective(logits, there)})
    found = measures_of(sums)
    return {"loss": found[f"{objective.name}_loss"], **found}
