"""Pretraining: from a token store to a model folder."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ownbert.checkpoint import save
from ownbert.config import EncoderConfig
from ownbert.data.batch import Batch
from ownbert.data.cooccurrence import cooccurrence_vectors
from ownbert.data.loader import Loader, once
from ownbert.data.masking import Masking, ordinary_tokens
from ownbert.data.pairs import pretraining_data
from ownbert.data.store import Store
from ownbert.errors import InputError
from ownbert.files import write_text
from ownbert.nn.heads import MaskedLMHead
from ownbert.nn.model import Model
from ownbert.objectives import MaskedLM, NextSentence, Objective
from ownbert.text.tokenizer import Tokenizer
from ownbert.train.display import Display
from ownbert.train.loop import Job, autocast, measures_of, train
from ownbert.train.machine import pick_device, pick_precision
from ownbert.train.optim import make_optimizer
from ownbert.train.output import RECIPE, claim_output, resolve_run
from ownbert.train.recipe import PretrainRecipe
from ownbert.train.settings import dump
from ownbert.train.state import TrainState

# Peak learning rates by hidden size. Tiny and mini were measured on five-minute runs; the larger
# sizes are cautious values for the same small batches.
_RATES = {128: 2e-3, 256: 1.5e-3, 512: 7e-4, 768: 2e-4}
_LARGE_RATE = 1e-4

# Held-out tokens that an evaluation looks at: enough for two digits, little time.
_EVALUATION_TOKENS = 30_000

_DEFAULT_MINUTES = 5.0


def pretrain(
    tokens: str | Path | None = None,
    output: str | Path = "own-bert",
    *,
    config: str | Path | None = None,
    overrides: Sequence[str] = (),
    resume: bool = False,
    overwrite: bool = False,
    quiet: bool = False,
    **options: Any,
) -> Model:
    """Pretrain a model on a token store and save it, its log, curves and recipe in ``output``.

    options: settings of ``PretrainRecipe`` by name (``size="mini"``, ``max_minutes=30``).
    resume: go on from the last saved state, by the recipe in ``output``; without one, start.
    Raises ``InputError`` if ``output`` holds a model and neither ``resume`` nor ``overwrite`` is
    given, and for everything in the corpus or the settings that cannot be used.
    """
    output = Path(output)
    recipe = resolve_run(
        PretrainRecipe,
        output,
        config=config,
        overrides=overrides,
        resume=resume,
        options=options | {"data.tokens": None if tokens is None else str(tokens)},
    )
    run = Pretraining(recipe)
    claim_output(output, resume=resume, overwrite=overwrite, vocabulary=run.tokenizer)
    write_text(output / RECIPE, dump(run.recipe))
    return run.train(output, resume=resume, quiet=quiet)


class Pretraining:
    """A resolved recipe with its corpus, vocabulary and examples; ``train`` makes the model."""

    def __init__(self, recipe: PretrainRecipe) -> None:
        if not recipe.data.tokens:
            raise InputError("no token store given; make one with: ownbert prepare")
        self.store = Store.open(recipe.data.tokens)
        self.tokenizer = self.store.tokenizer()
        self.device = pick_device(recipe.run.device)
        self.config = EncoderConfig.of_size(
            recipe.model.size,
            vocab_size=self.tokenizer.vocab_size,
            max_position_embeddings=recipe.data.max_length,
            hidden_dropout_prob=recipe.model.dropout,
            attention_probs_dropout_prob=recipe.model.dropout,
            pad_token_id=self.tokenizer.pad_id,
        )
        self.recipe = self._completed(recipe)
        self.ordinary = ordinary_tokens(self.config.vocab_size, self.tokenizer.special_ids)
        self.data, self.held_out = pretraining_data(
            self.store,
            self.tokenizer,
            Masking(self.tokenizer.mask_id, self.ordinary, recipe.task.mask_rate),
            max_length=recipe.data.max_length,
            pairs="nsp" in recipe.task.objectives,
            held_out=recipe.data.held_out,
            seed=recipe.seed,
        )
        known: dict[str, Objective] = {
            "mlm": MaskedLM(),
            "nsp": NextSentence(weight=recipe.task.nsp_weight),
        }
        self.objectives = [known[name] for name in recipe.task.objectives]
        self.unigram = unigram_log_probabilities(self.store.counts, self.ordinary)

    def _completed(self, recipe: PretrainRecipe) -> PretrainRecipe:
        """The recipe with everything that depends on the machine and the size filled in."""
        rate = recipe.optim.learning_rate or _RATES.get(self.config.hidden_size, _LARGE_RATE)
        run = replace(
            recipe.run,
            device=self.device.type,
            precision=pick_precision(recipe.run.precision, self.device),
        )
        if run.max_steps is None and run.max_minutes is None:
            run = replace(run, max_minutes=_DEFAULT_MINUTES)
        return replace(recipe, optim=replace(recipe.optim, learning_rate=rate), run=run)

    def make_model(self) -> Model:
        """New weights: random as BERT's, then the head start of words and unigram frequencies."""
        torch.manual_seed(self.recipe.seed)
        model = Model(self.config, self.recipe.task.objectives)
        word = model.encoder.embeddings.word.weight.data
        if self.recipe.model.init_embeddings == "cooccurrence":
            vectors = torch.from_numpy(
                cooccurrence_vectors(
                    self.store, self.config.hidden_size, self.ordinary, seed=self.recipe.seed
                )
            )
            known = vectors.abs().sum(1) > 0
            word[known] = vectors[known]
        head = model.heads["mlm"]
        assert isinstance(head, MaskedLMHead)
        # The decoder need not spend its first steps on learning which words are frequent.
        head.decoder.bias.data.copy_(self.unigram)
        return model.to(self.device)

    def train(self, output: Path, *, resume: bool, quiet: bool) -> Model:
        """Run to the end and save. See ``pretrain``."""
        display = Display("pretrain", quiet=quiet)
        display.say(self.summary())
        model = self.make_model()
        recipe = self.recipe
        held_out = self.held_out_batches()
        job = Job(
            state=TrainState(model, make_optimizer(model, recipe.optim)),
            loader=Loader(self.data, recipe.seed, batch_tokens=recipe.data.batch_tokens),
            objectives=self.objectives,
            optim=recipe.optim,
            run=recipe.run,
            folder=output,
            evaluate=lambda: self.evaluate(model, held_out),
            display=display,
            on_save=lambda: save(model, output, tokenizer=self._tokenizer_to_save()),
        )
        train(job, resume=resume)
        display.say(f"saved {output}")
        return model.eval()

    def _tokenizer_to_save(self) -> Tokenizer:
        self.tokenizer.max_length = self.config.longest
        return self.tokenizer

    def summary(self) -> str:
        """What is about to be learnt from what, for people."""
        store, config, recipe = self.store, self.config, self.recipe
        with torch.device("meta"):  # shapes without numbers: this model is only counted
            shapes = Model(config, recipe.task.objectives)
        parameters = sum(p.numel() for p in shapes.parameters())
        run = recipe.run
        length = f"{run.max_steps:,} steps" if run.max_steps else f"{run.max_minutes:g} minutes"
        return (
            f"{store.documents:,} documents, {store.sentences:,} sentences, "
            f"{len(store.tokens):,} tokens, {config.vocab_size:,} in the vocabulary; "
            f"{len(self.data):,} sequences to learn from, {len(self.held_out):,} held out\n"
            f"{recipe.model.size}: {config.num_hidden_layers} layers of {config.hidden_size}, "
            f"{config.num_attention_heads} heads, {parameters:,} parameters; {length} of "
            f"{' + '.join(recipe.task.objectives)} on {run.device} in {run.precision}"
        )

    def held_out_batches(self) -> list[Batch]:
        """The same held-out examples with the same masks at every evaluation."""
        batches, tokens = [], 0
        for batch in once(self.held_out, batch_tokens=2 * self.recipe.data.batch_tokens):
            batches.append(batch)
            tokens += batch.tokens
            if tokens >= _EVALUATION_TOKENS:
                break
        return batches

    @torch.no_grad()
    def evaluate(self, model: Model, batches: Sequence[Batch]) -> Mapping[str, float]:
        """Losses and accuracies on ``batches``, and the unigram baseline of the same targets: a
        model that has not beaten it knows nothing but frequencies. Empty without batches."""
        model.eval()
        sums: dict[str, list] = {}
        baseline = 0.0
        for batch in batches:
            batch = batch.to(self.device)
            with autocast(self.device, self.recipe.run.precision):
                outputs = model(batch)
            for objective in self.objectives:
                loss = objective(outputs.logits[objective.head], batch)
                old = sums.get(objective.head, [0.0, 0, 0])
                new = (float(loss.total), int(loss.correct), loss.count)
                sums[objective.head] = [a + b for a, b in zip(old, new, strict=True)]
            assert batch.masked_ids is not None
            baseline -= float(self.unigram[batch.masked_ids.cpu()].sum())
        if not sums:
            return {}
        measures = measures_of(sums)
        loss = sum(measures[f"{o.head}_loss"] * o.weight for o in self.objectives)
        return {
            "loss": loss,
            "mlm_unigram_loss": baseline / max(1, sums["mlm"][2]),
            **measures,
        }


def unigram_log_probabilities(counts: np.ndarray, ordinary: np.ndarray) -> torch.Tensor:
    """(V) log probability of each token by its frequency in the corpus, one added to each count;
    special tokens, which are never predicted, as if seen once."""
    seen = np.where(ordinary, counts, 0) + 1.0
    return torch.from_numpy(np.log(seen / seen.sum()).astype(np.float32))
