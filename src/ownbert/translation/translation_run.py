"""Training a translation model: from pairs of texts to an encoder-decoder folder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ownbert.batches.batch import Batch
from ownbert.batches.loader import Loader, batches_once
from ownbert.checkpoint import save
from ownbert.config.encoder import EncoderConfig
from ownbert.exceptions import InputError, explaining_memory
from ownbert.files.folders import refuse_foreign, writing
from ownbert.language import translated
from ownbert.language.messages import Message, join
from ownbert.nn.model import Model
from ownbert.nn.undrawn import shapes_alone
from ownbert.objectives.learner import Learner
from ownbert.objectives.objective import Loss, Objective, cross_entropy_loss
from ownbert.run.model_card import changed_settings, in_words, pictures, save_card, sha256, table
from ownbert.run.run_folder import RunFolder
from ownbert.run.training_run import Say, TrainingRun, describe_limit
from ownbert.settings import dump, resolve
from ownbert.train.device import autocast, pick_precision
from ownbert.train.distributed import World, gather_full_model
from ownbert.train.log import CURVES
from ownbert.train.loop import Callbacks, Job, Phase
from ownbert.train.meter import add_up, mean_metrics
from ownbert.train.state import DamagedState, SavedState, list_states, read_tensors
from ownbert.train.training_settings import NOAM_STEPS
from ownbert.translation.transformer import from_configs, transformer_config
from ownbert.translation.translation_pairs import PairData, hold_out, read_pairs
from ownbert.translation.translation_recipe import (
    DEFAULT_EPOCHS,
    LENGTH_PENALTY,
    PairFiles,
    TranslateRecipe,
    TranslateRun,
)
from ownbert.translation.vocabulary import (
    SOURCE,
    learn_vocabularies,
    load_vocabularies,
    save_vocabularies,
)

if TYPE_CHECKING:
    from torch import Tensor

    from ownbert.batches.batch import Batch

# The paper warms up for 4,000 steps; for a small data set this many epochs are enough.
_WARMUP_EPOCHS = 4
# Fewest warm-up steps for the paper's peak learning rate, which falls with their square root: those
# of Multi30k. With 32 steps (2,000 short pairs) and their rate of .011 a model learnt nothing.
_STEPS_OF_RATE = 912
# Peak learning rate of schedules other than the paper's.
_RATE = 7e-4
_PREVIEWED_PAIRS = 3


def train_translation(
    output: str | Path,
    *,
    config: str | Path | None = None,
    overrides: Sequence[str] = (),
    resume: bool = False,
    overwrite: bool = False,
    quiet: bool = False,
    callbacks: Callbacks | None = None,
    **options: Any,
) -> Model:
    """Learn vocabularies and a Transformer from pairs of texts.

    The model, its log, curves and recipe are saved in ``output``.

    Args:
        output: folder to write.
        config: recipe file.
        overrides: settings as "section.name=value".
        resume: continue from the last saved state, possibly with more ``epochs``.
        overwrite: replace the model in ``output``.
        quiet: print nothing.
        callbacks: functions to call with each row of the log, evaluation and saved model.
        options: settings of ``TranslateRecipe`` by name (``source="a.de"``, ``target="a.en"``,
            ``d_model=512``).

    Raises:
        InputError: ``output`` contains a model and neither ``resume`` nor ``overwrite`` is given,
            or a file or setting cannot be used.
    """
    with writing(output):
        folder = RunFolder(output, resume=resume, overwrite=overwrite)
        refuse_foreign(output, [SOURCE])
        recipe = folder.resolve(
            TranslateRecipe, config=config, overrides=overrides, options=options
        )
        run = TranslationRun(recipe, saved=folder.path if folder.saved else None)
        run.callbacks = callbacks or run.callbacks
        with explaining_memory(lambda: run.sizes):
            return run.execute(folder, quiet=quiet)


class TranslationRun(TrainingRun):
    """A translation recipe with its pairs of texts and vocabularies.

    Args:
        saved: folder of a resumed run, which contains the vocabularies.
    """

    command = "translate"

    def __init__(self, recipe: TranslateRecipe, *, saved: Path | None = None) -> None:
        super().__init__(recipe.run)
        pairs, dev = read_pairs(recipe.data), read_pairs(recipe.data, dev=True)
        if pairs is None:
            raise InputError("{--source} and {--target} are needed: the training pairs")
        self.empty = pairs.empty
        if dev is None:
            pairs, dev = hold_out(pairs, recipe.data.held_out, recipe.seed)
        self.source, self.target = (
            learn_vocabularies(pairs, recipe.vocabulary)
            if saved is None
            else load_vocabularies(saved)
        )
        longest = recipe.data.max_length
        self.data = PairData(pairs, self.source, self.target, max_length=longest)
        self.dev = PairData(dev, self.source, self.target, max_length=longest)
        tokens = recipe.data.batch_tokens
        self.loader = Loader(self.data, recipe.seed, batch_tokens=tokens, device=self.device.type)
        self.recipe, self._limits = self._completed(recipe)
        self.config = self._config()
        self.identity = {"training pairs": self.data.identity()}

    def _completed(self, recipe: TranslateRecipe) -> tuple[TranslateRecipe, TranslateRun]:
        """The recipe with the settings that depend on the machine and the data, and its limits.

        In the limits epochs are converted to steps, but not in the recipe, so that a resumed run
        may have more epochs.
        """
        run, optim = recipe.run, recipe.optim
        batches, epochs = self.loader.batches_per_epoch(), run.epochs
        steps = run.steps_of(batches)
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
            enough = optim.warmup_steps or max(warmup, _STEPS_OF_RATE)
            peak = (recipe.model.d_model * enough) ** -0.5
            optim = replace(optim, warmup_steps=warmup)
        else:
            peak = _RATE
        optim = replace(optim, learning_rate=optim.learning_rate or peak)
        limits = [n for n in (run.max_steps, epochs and run.steps_of(epochs * batches)) if n]
        by_steps = replace(run, max_steps=min(limits, default=None))
        return replace(recipe, run=run, optim=optim), by_steps

    @property
    def limits(self) -> TranslateRun:
        return self._limits

    def reserve(self, folder: RunFolder) -> None:
        super().reserve(folder)
        save_vocabularies(folder.path, self.source, self.target)

    def _config(self) -> EncoderConfig:
        """The structure of both stacks."""
        net = self.recipe.model
        return transformer_config(
            # Transformers' Marian needs tables of equal size: the smaller one has unused rows.
            max(self.source.vocab_size, self.target.vocab_size),
            net.N,
            net.d_model,
            net.d_ff,
            net.h,
            net.dropout,
            norm_first=net.norm_first,
            position_embedding_type="sinusoidal_halves",
            # Transformers' position table has a fixed length.
            max_position_embeddings=max(512, 2 * self.recipe.data.max_length),
            pad_token_id=self.target.pad_id,
        )

    def new_model(self) -> Model:
        """New weights, determined by the seed."""
        torch.manual_seed(self.recipe.seed)
        shared = self.source is self.target
        return from_configs(self.config, self.config, share_embeddings=shared)

    def make_learner(self, world: World, *, fresh: bool, say: Say) -> Learner:
        objective = Translation(self.recipe.task.label_smoothing)
        return Learner(self.new_model().to(self.device), [objective])

    def phases(self, learner: Learner, world: World) -> list[Phase]:
        loader = replace(
            self.loader,
            process=world.rank,
            processes=world.size,
            precision=self.recipe.run.precision,
        )
        return [Phase(loader, learner.objectives, lambda: self._evaluate(learner))]

    @cached_property
    def _dev_batches(self) -> list[Batch]:
        return list(batches_once(self.dev, batch_tokens=self.recipe.data.batch_tokens))

    def _evaluate(self, learner: Learner) -> Mapping[str, float]:
        return evaluate(learner, self._dev_batches, self.recipe.run.precision)

    def finish(self, job: Job, folder: RunFolder) -> Model:
        """Average the last saved states if that is better, and write the model card."""
        learner, world, recipe = job.state.learner, job.world, self.recipe
        job.state.use_best()  # the running mean, if any
        metrics = self._evaluate(learner)
        if recipe.task.average > 1 and not recipe.optim.ema:
            metrics = self._use_state_mean(job, folder.path, metrics)
            self.save(learner, folder, world)
        if not world.first:
            return learner.model
        warning = write_card(
            folder.path,
            replace(recipe, run=self.limits),
            pairs={"training": len(self.data), "dev": len(self.dev)},
            parameters=sum(p.numel() for p in learner.model.parameters()),
            shared=self.source is self.target,
            metrics=metrics,
        )
        if warning:
            job.display.say(warning)
        return learner.model

    def _use_state_mean(
        self, job: Job, folder: Path, last: Mapping[str, float]
    ) -> Mapping[str, float]:
        """Load the mean of the last saved states' weights if its held-out loss is lower;
        return the resulting metrics.

        Early in a run the ``last`` weights are better. Source: Vaswani et al. 2017, section 6.1.
        """
        learner = job.state.learner
        weights = {name: p.detach().clone() for name, p in learner.named_parameters()}
        count = load_state_mean(learner, folder, self.recipe.task.average, job.world)
        mean = self._evaluate(learner)
        better = mean["loss"] <= last["loss"]
        if not better:
            _copy_weights(learner, weights)
        job.display.say(
            "held-out loss {loss:.3f}, with the mean of the last {count} saved states {mean:.3f}: "
            "{kept!t}",
            *(last["loss"], count, mean["loss"]),
            "the mean is kept" if better else "the last weights are kept",
        )
        return mean if better else last

    def save(self, learner: Learner, folder: RunFolder, world: World) -> None:
        complete = gather_full_model(learner.model)
        if not world.first:
            return
        # Defaults for generate() in Transformers.
        values = {
            "num_beams": 4,
            "length_penalty": LENGTH_PENALTY,
            "forced_eos_token_id": None,
            "bos_token_id": self.target.cls_id,
            "decoder_start_token_id": self.target.cls_id,
            "eos_token_id": self.target.sep_id,
        }
        save(complete, folder.path, values=values)

    def summary(self) -> list[str]:
        recipe, data, run = self.recipe, self.data, self.limits
        kind = recipe.vocabulary.kind
        sizes = self.source.vocab_size, self.target.vocab_size
        vocabulary = Message("{source:,} and {target:,} {kind} tokens", *sizes, kind)
        if self.source is self.target:
            vocabulary = Message("{size:,} {kind} tokens for both sides", sizes[0], kind)
        length = describe_limit(run)
        if run.epochs:
            length = Message("{epochs} epochs at most, {length}", run.epochs, length)
        with shapes_alone():
            parameters = sum(p.numel() for p in self.new_model().parameters())
        net = recipe.model
        lines: list[str] = [
            Message(
                "{train:,} training and {dev:,} dev pairs, {vocabulary}",
                *(len(data), len(self.dev), vocabulary),
            ),
            Message(
                "{count} + {count} layers of {d_model}, {value} heads, {parameters:,} "
                "parameters; {length} of batches of {batch_tokens:,} tokens on {device} in "
                "{precision}",
                net.N,
                net.d_model,
                net.h,
                parameters,
                length,
                recipe.data.batch_tokens,
                run.device,
                run.precision,
            ),
        ]
        for count, what in (
            (self.empty, "blank on one side"),
            (data.long, Message("longer than {length} tokens on a side", recipe.data.max_length)),
        ):
            if count:
                line = "warning: {count:,} training pairs are {what!t} and are skipped"
                lines.append(Message(line, count, what))
        return lines


@torch.no_grad()
def evaluate(learner: Learner, batches: Sequence[Batch], precision: str) -> dict[str, float]:
    """Compute the cross entropy per token without label smoothing, and the accuracy per token."""
    learner.eval()
    device, objective = learner.model.device, Translation(smoothing=0.0)
    sums: dict[str, list] = {}
    for batch in batches:
        batch = batch.to(device)
        with autocast(device, precision):
            logits = learner.model(batch, [objective.head]).logits[objective.head]
            add_up(sums, {objective.name: objective(logits, batch)})
    metrics = mean_metrics(sums, [objective])
    return {"loss": metrics[f"{objective.name}_loss"], **metrics}


def load_state_mean(learner: Learner, folder: Path, count: int, world: World) -> int:
    """Load the mean weights of the last ``count`` saved states in ``folder`` into the model.

    Damaged states are skipped; returns the number of states used.
    """
    paths = [path for path in list_states(folder)[-count:] if _is_intact(path)]
    parameters = dict(learner.named_parameters())
    total = {name: torch.zeros_like(p) for name, p in parameters.items()}
    for path in paths:
        weights = {name: torch.empty_like(p) for name, p in parameters.items()}
        read_tensors(path, weights, world)
        for name, tensor in weights.items():
            total[name] += tensor
    _copy_weights(learner, {name: tensor / len(paths) for name, tensor in total.items()})
    return len(paths)


def _is_intact(path: Path) -> bool:
    try:
        SavedState.read(path).verify()
    except DamagedState:
        return False
    return True


@torch.no_grad()
def _copy_weights(learner: Learner, weights: Mapping[str, torch.Tensor]) -> None:
    for name, parameter in learner.named_parameters():
        parameter.copy_(weights[name])


def preview_translation(
    *, config: str | Path | None = None, overrides: Sequence[str] = (), **options: Any
) -> str:
    """Describe what ``train_translation`` would do, without doing it."""
    recipe = resolve(TranslateRecipe, config=config, overrides=overrides, options=options)
    run = TranslationRun(recipe)
    lines = [dump(run.recipe), *run.summary()]
    for name, rows in (("source", run.data.sources), ("target", run.data.targets)):
        lengths = [len(row) for row in rows]
        median, p90 = np.percentile(lengths, (50, 90)).round().astype(int)
        line = "tokens per {name!t}: median {median}, 90% up to {p90}, longest {longest}"
        lines.append(Message(line, name, median, p90, max(lengths)))
    lines.append("the first pairs, as the model sees them:")
    pairs = zip(run.data.sources, run.data.targets, strict=True)
    for source, target in islice(pairs, _PREVIEWED_PAIRS):
        lines += [" ".join(run.source.tokens(source)), f"    {' '.join(run.target.tokens(target))}"]
    return join(lines, "\n")


@dataclass(frozen=True)
class Translation(Objective):
    """Cross entropy of each next token under a decoder that sees the source and all tokens before.

    With label smoothing (Szegedy et al. 2016, section 7) a share of each target is spread evenly
    over the vocabulary.
    """

    smoothing: float = 0.1
    name = "translation"
    head = "generator"

    def count(self, batch: Batch) -> int:
        return 0 if batch.tags is None else batch.tokens

    def __call__(self, logits: Tensor, batch: Batch) -> Loss:
        assert batch.tags is not None
        return cross_entropy_loss(logits, batch.tags, self.smoothing)  # (T, V), (T)


_ACCURACY = "translation_accuracy"
_SECTIONS = ("vocabulary", "model", "task", "optim", "run")


def write_card(
    folder: Path,
    recipe: TranslateRecipe,
    *,
    pairs: Mapping[str, int],
    parameters: int,
    shared: bool,
    metrics: Mapping[str, float],
) -> str | None:
    """Write README.md into a model folder; see ``ownbert.run.model_card.save_card``."""
    ours = recipe.model.norm_first or not shared
    shown = ((n, f"{metrics[k]:.4f}") for n, k in (("loss", "loss"), ("accuracy", _ACCURACY)))
    values = {
        "net": recipe.model,
        "kind": recipe.vocabulary.kind,
        "parameters": parameters,
        "shared": shared,
        "data": table(("", "file", "pairs", "sha256"), _files(recipe.data, pairs)),
        "settings": table(("setting", "value"), in_words(_settings(recipe))),
        "metrics": table(("metric", "value"), in_words(shown)),
        "pictures": pictures(folder, {CURVES: "Loss and accuracy during training"}),
        "ours": ours,
    }
    front = {"pipeline_tag": "translation"}
    front = front if ours else {"library_name": "transformers"} | front
    return save_card(folder, front, __file__, values)


def _files(data: PairFiles, pairs: Mapping[str, int]) -> Iterator[tuple[str, ...]]:
    for part, prefix in (("training", ""), ("dev", "dev_")):
        paths = [getattr(data, prefix + side) for side in ("pairs", "source", "target")]
        for path in filter(None, paths):
            yield translated(part), Path(path).name, f"{pairs[part]:,}", sha256(path)
        if not any(paths):
            source = translated("held out of the training pairs")
            yield translated(part), source, f"{pairs[part]:,}", ""


def _settings(recipe: TranslateRecipe) -> Iterator[tuple[str, str]]:
    """The most important settings, then all others with non-default values."""
    yield "peak learning rate", f"{recipe.optim.learning_rate:.3g}"
    steps = recipe.run.max_steps
    yield "steps", Message("{steps:,} at most", steps) if steps else "limited by time"
    yield "batch", Message("{batch_tokens:,} tokens of both sides", recipe.data.batch_tokens)
    yield "seed", str(recipe.seed)
    yield "computed on", f"{recipe.run.device}, {recipe.run.precision}"
    yield from changed_settings(recipe, TranslateRecipe(), _SECTIONS)
