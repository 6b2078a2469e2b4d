"""The weights that pretraining starts from. V vocabulary, D hidden, E embedding size."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from ownbert.config import EncoderConfig, HeadSpec
from ownbert.data.corpus.store import Store
from ownbert.data.examples.cooccurrence import cooccurrence_vectors
from ownbert.data.masking import ordinary_tokens
from ownbert.nn.heads import MaskedLMHead
from ownbert.nn.model import Model
from ownbert.objectives import Learner, Objective
from ownbert.pretraining.recipe import PretrainRecipe
from ownbert.pretraining.vocabulary_alignment import init_config, transfer
from ownbert.text.tokenizer import Tokenizer

# Width of a head of the generator: that of all published sizes.
_HEAD = 64


def new_config(
    recipe: PretrainRecipe, tokenizer: Tokenizer, saved: Path | None = None
) -> EncoderConfig:
    """The structure that a recipe asks for, or that of the model to start from; one that only
    predicts next words is a decoder. saved: the folder of a run that is resumed, which no longer
    needs what it started from."""
    if recipe.model.init_from:
        return init_config(saved or recipe.model.init_from, tokenizer, recipe)
    objectives = {name for task, _ in recipe.parts for name in task.objectives}
    return EncoderConfig.of_size(
        recipe.model.size,
        vocab_size=tokenizer.vocab_size,
        max_position_embeddings=max(data.max_length for _, data in recipe.parts),
        hidden_dropout_prob=recipe.model.dropout,
        attention_probs_dropout_prob=recipe.model.dropout,
        pad_token_id=tokenizer.pad_id,
        is_decoder=objectives == {"clm"},
    )


def new_learner(
    recipe: PretrainRecipe, config: EncoderConfig, objectives: Sequence[Objective]
) -> Learner:
    """Random weights for ``objectives``, those of all phases: with replaced tokens a discriminator
    and a generator, else an encoder with the heads of all phases."""
    torch.manual_seed(recipe.seed)
    names = {name for task, _ in recipe.parts for name in task.objectives}
    if "rtd" in names:
        model = Model(config, ["discriminator"], pooler=False, model_type="electra")
        return Learner(model, objectives, generator=_generator(model, recipe.model.generator))
    heads = ["mlm"] + ["nsp"] * bool(names & {"nsp", "sop"})
    return Learner(Model(config, heads), objectives)


def _generator(model: Model, share: float) -> Model:
    """A narrower network with the discriminator's embeddings (Clark et al. 2020, section 3.1)."""
    config = model.config
    width = max(_HEAD, round(config.hidden_size * share / _HEAD) * _HEAD)
    narrow = replace(
        config,
        hidden_size=width,
        num_attention_heads=width // _HEAD,
        intermediate_size=4 * width,
        embedding_size=config.hidden_size if width != config.hidden_size else None,
    )
    spec = HeadSpec("mlm", activation="gelu")
    generator = Model(narrow, [spec], pooler=False, model_type="electra")
    ours, theirs = generator.encoder.embeddings, model.encoder.embeddings
    ours.word, ours.position, ours.token_type = theirs.word, theirs.position, theirs.token_type
    generator.tie()
    return generator


def initialise(
    learner: Learner, recipe: PretrainRecipe, store: Store, tokenizer: Tokenizer
) -> str | None:
    """Set the first weights; returns a report of what was copied from another model, if any was.

    Word vectors come from the model of ``init_from``, or from the corpus's co-occurrences unless
    the recipe wants random ones. The MLM decoder's bias starts at the unigram log probabilities,
    so that the first steps are not spent on learning which words are frequent.
    """
    ordinary, report = ordinary_tokens(tokenizer.vocab_size, tokenizer.special_ids), None
    word = learner.model.encoder.embeddings.word.weight.data
    if recipe.model.init_from:
        report = transfer(
            learner.model,
            recipe.model.init_from,
            tokenizer,
            store,
            counts_file=recipe.model.init_counts,
            seed=recipe.seed,
        )
    elif recipe.model.init_embeddings == "cooccurrence":
        found = cooccurrence_vectors(store, word.shape[1], ordinary, seed=recipe.seed)
        vectors = torch.from_numpy(found)
        known = vectors.abs().sum(1) > 0
        word[known] = vectors[known]
    head = (learner.generator or learner.model).heads["mlm"]
    assert isinstance(head, MaskedLMHead)
    head.decoder.bias.data.copy_(unigram_log_probabilities(store.counts, ordinary))
    return None if report is None else str(report)


def unigram_log_probabilities(counts: np.ndarray, ordinary: np.ndarray) -> torch.Tensor:
    """(V) log probability of each token by its frequency in the corpus, one added to each count;
    special tokens, which are never predicted, as if seen once."""
    seen = np.where(ordinary, counts, 0) + 1.0
    return torch.from_numpy(np.log(seen / seen.sum()).astype(np.float32))
