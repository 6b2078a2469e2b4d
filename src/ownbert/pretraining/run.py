"""Pretraining: from a token store to a model folder."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch

from ownbert.checkpoint import CONFIG, save
from ownbert.data.corpus.store import Store
from ownbert.data.loader import Loader
from ownbert.data.masking import ordinary_tokens
from ownbert.errors import InputError
from ownbert.files import write_text
from ownbert.nn.model import Model
from ownbert.objectives import Learner
from ownbert.pretraining.init_weights import (
    head_start,
    new_config,
    new_learner,
    unigram_log_probabilities,
)
from ownbert.pretraining.phase_data import Lesson, make_lesson
from ownbert.pretraining.recipe import DEFAULT_MINUTES, PretrainRecipe
from ownbert.run.run_folder import RECIPE, claim_output, refuse_taken, resolve_run
from ownbert.settings import dump
from ownbert.train import distributed
from ownbert.train.device import pick_device, pick_precision
from ownbert.train.display import Display
from ownbert.train.flops import matmul_rate
from ownbert.train.job import Job, Phase, Watch
from ownbert.train.log import need_tensorboard
from ownbert.train.loop import train
from ownbert.train.meter import Meter
from ownbert.train.optim.optimizers import describe_groups, make_optimizer
from ownbert.train.state import TrainState
from ownbert.train.state_files import newest

# Peak learning rates by hidden size. Tiny and mini were measured on five-minute runs; the larger
# sizes are cautious values for the same small batches.
_RATES = {128: 2e-3, 256: 1.5e-3, 512: 7e-4, 768: 2e-4}
_LARGE_RATE = 1e-4


def pretrain(
    tokens: str | Path | None = None,
    output: str | Path = "own-bert",
    *,
    config: str | Path | None = None,
    overrides: Sequence[str] = (),
    resume: bool = False,
    resume_step: int | None = None,
    overwrite: bool = False,
    quiet: bool = False,
    **options: Any,
) -> Model:
    """Pretrain a model on a token store and save it, its log, curves and recipe in ``output``.

    options: settings of ``PretrainRecipe`` by name (``size="mini"``, ``max_minutes=30``).
    resume: go on from the last saved state (or that of ``resume_step``), by the recipe in
    ``output``; without one, start. Started by torchrun, all processes share the work and the
    first one writes. Raises ``InputError`` if ``output`` holds a model and neither ``resume`` nor
    ``overwrite`` is given, and for everything in the corpus or the settings that cannot be used.
    """
    output = Path(output)
    resume = resume or resume_step is not None
    refuse_taken(output, resume=resume, overwrite=overwrite)
    recipe = resolve_run(
        PretrainRecipe,
        output,
        config=config,
        overrides=overrides,
        begun=resume and newest(output) is not None,
        options=options | {"data.tokens": None if tokens is None else str(tokens)},
    )
    begun = resume and newest(output) is not None and (output / CONFIG).exists()
    run = Pretraining(recipe, saved=output if begun else None)
    world = distributed.join(run.device)
    try:
        world.first_does(lambda: run.claim(output, resume=resume, overwrite=overwrite))
        return run.train(output, world, resume=resume, resume_step=resume_step, quiet=quiet)
    finally:
        distributed.leave(world)


class Pretraining:
    """A resolved recipe with its corpus, vocabulary and examples; ``train`` makes the model."""

    def __init__(self, recipe: PretrainRecipe, *, saved: Path | None = None) -> None:
        if recipe.run.tensorboard:
            need_tensorboard()
        if not recipe.data.tokens:
            raise InputError("no token store given; make one with: ownbert prepare")
        self.store = Store.open(recipe.data.tokens)
        self.tokenizer = self.store.tokenizer()
        self.device = pick_device(recipe.run.device)
        self.config = new_config(recipe, self.tokenizer, saved)
        self.recipe = self._completed(recipe)
        self.identity = self._identity()
        self.ordinary = ordinary_tokens(self.config.vocab_size, self.tokenizer.special_ids)
        unigram = unigram_log_probabilities(self.store.counts, self.ordinary)
        self.lessons = [
            make_lesson(
                self.store,
                self.tokenizer,
                task,
                data,
                ordinary=self.ordinary,
                unigram=unigram,
                seed=recipe.seed,
            )
            for task, data in recipe.parts
        ]

    def _completed(self, recipe: PretrainRecipe) -> PretrainRecipe:
        """The recipe with everything that depends on the machine and the size filled in."""
        known = (rate for size, rate in _RATES.items() if size >= self.config.hidden_size)
        rate = recipe.optim.learning_rate or next(known, _LARGE_RATE)
        run = replace(
            recipe.run,
            device=self.device.type,
            precision=pick_precision(recipe.run.precision, self.device),
        )
        if run.max_steps is None and run.max_minutes is None:
            run = replace(run, max_minutes=DEFAULT_MINUTES)
        if run.max_steps and any(run.max_steps * p.share < 1 for p in recipe.phases):
            raise InputError(f"{run.max_steps} steps are too few: a phase would have none")
        return replace(recipe, optim=replace(recipe.optim, learning_rate=rate), run=run)

    def _identity(self) -> dict[str, str]:
        store, tokenizer = self.store, self.tokenizer
        return {
            "corpus": f"{store.documents:,} documents of {len(store.tokens):,} tokens "
            f"({store.identity})",
            "vocabulary": f"{tokenizer.vocab_size:,} tokens ({tokenizer.fingerprint()[:12]})",
        }

    def claim(self, output: Path, *, resume: bool, overwrite: bool) -> None:
        """Make ``output`` ready and write the recipe. Raises ``InputError``."""
        claim_output(
            output,
            resume=resume,
            overwrite=overwrite,
            vocabulary=self.tokenizer,
            identity=self.identity,
        )
        write_text(output / RECIPE, dump(self.recipe))

    def learner(
        self,
        world: distributed.World = distributed.ALONE,
        *,
        fresh: bool = True,
        say: Callable[[str], None] = lambda text: None,
    ) -> Learner:
        """New weights, the same in all processes; ``fresh`` ones with their head start."""
        learner = new_learner(self.recipe, self.config)
        if fresh:
            world.first_does(lambda: self._start(learner, say))
        learner.to(self.device)
        distributed.copy_from_first(learner, world)
        if self.recipe.run.shard and world.size > 1:
            distributed.shard(learner, world)
        return learner

    def _start(self, learner: Learner, say: Callable[[str], None]) -> None:
        """Give the weights their head start, and say what was copied, if anything was."""
        if report := head_start(learner, self.recipe, self.store, self.tokenizer):
            say(report)

    def phases(self, learner: Learner, world: distributed.World) -> list[Phase]:
        """The phases of the recipe, ready to be learnt."""
        shares = [phase.share for phase in self.recipe.phases] or [1.0]
        ends = [*[*accumulate(shares)][:-1], 1.0]
        return [self._phase(*pair, learner, world) for pair in zip(self.lessons, ends, strict=True)]

    def _phase(
        self, lesson: Lesson, until: float, learner: Learner, world: distributed.World
    ) -> Phase:
        held_out = lesson.batches()
        loader = Loader(
            lesson.data,
            self.recipe.seed,
            batch_tokens=lesson.settings.batch_tokens,
            process=world.rank,
            processes=world.size,
        )
        return Phase(
            loader,
            lesson.objectives(),
            lambda: lesson.evaluate(learner, held_out, self.recipe.run.precision),
            until,
        )

    def train(
        self,
        output: Path,
        world: distributed.World,
        *,
        resume: bool,
        resume_step: int | None,
        quiet: bool,
    ) -> Model:
        """Run to the end and save. See ``pretrain``."""
        display = Display("pretrain", quiet=quiet or not world.first)
        display.say(self.summary())
        fresh = not resume or newest(output) is None
        learner = self.learner(world, fresh=fresh, say=display.say)
        recipe = self.recipe
        optimizer = make_optimizer(learner, recipe.optim)
        display.say(f"{recipe.optim.name}: {describe_groups(optimizer)}")
        job = Job(
            state=TrainState(learner, optimizer, self.identity),
            phases=self.phases(learner, world),
            optim=recipe.optim,
            run=recipe.run,
            folder=output,
            display=display,
            watch=Watch("loss", lower=True),
            seed=recipe.seed,
            world=world,
            on_save=lambda: self.save(learner, output, world),
            meter=Meter(self._ceiling(world)),
        )
        train(job, resume=resume, resume_step=resume_step)
        display.say(f"saved {output}")
        return learner.model.eval()

    def _ceiling(self, world: distributed.World) -> float:
        """Operations a second that the machines of all processes can do."""
        kind = torch.bfloat16 if self.recipe.run.precision == "bfloat16" else torch.float32
        return world.total([matmul_rate(self.device, kind)])[0]

    def save(self, learner: Learner, output: Path, world: distributed.World) -> None:
        """Write the model as it is into its folder, and ELECTRA's generator into one inside."""
        self.tokenizer.max_length = self.config.longest
        folders = {output: learner.model, output / "generator": learner.generator}
        for folder, model in folders.items():
            if model is None:
                continue
            complete = distributed.put_together(model)
            if world.first:
                save(complete, folder, tokenizer=self.tokenizer)

    def summary(self) -> str:
        """What is about to be learnt from what, for people."""
        store, config, recipe = self.store, self.config, self.recipe
        with torch.device("meta"):  # shapes without numbers: this model is only counted
            shapes = new_learner(recipe, config)
        parameters = sum(p.numel() for p in shapes.model.parameters())
        run = recipe.run
        length = f"{run.max_steps:,} steps" if run.max_steps else f"{run.max_minutes:g} minutes"
        tasks = ", then ".join(" + ".join(lesson.task.objectives) for lesson in self.lessons)
        first = self.lessons[0]
        return (
            f"{store.documents:,} documents, {store.sentences:,} sentences, "
            f"{len(store.tokens):,} tokens, {config.vocab_size:,} in the vocabulary; "
            f"{len(first.data):,} sequences to learn from, {len(first.held_out):,} held out\n"
            f"{recipe.model.init_from or recipe.model.size}: {config.num_hidden_layers} layers "
            f"of {config.hidden_size}, {config.num_attention_heads} heads, "
            f"{parameters:,} parameters; {length} of {tasks} on {run.device} in {run.precision}"
        )
