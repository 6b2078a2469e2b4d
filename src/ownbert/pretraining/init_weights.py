"""The structure and the initial weights of a model for pretraining."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import numpy as np
import torch

from ownbert.batches.word_features import Features
from ownbert.config.encoder import EncoderConfig
from ownbert.config.head_spec import HEADS, HeadSpec
from ownbert.corpus.cooccurrence import cooccurrence_vectors
from ownbert.corpus.store import Store
from ownbert.nn.model import Model
from ownbert.nn.output_heads import MaskedLMHead
from ownbert.objectives import objectives_of
from ownbert.objectives.learner import Learner
from ownbert.objectives.objective import Objective
from ownbert.pretraining.init_positions import start_at_neighbours
from ownbert.pretraining.pretrain_recipe import PretrainRecipe
from ownbert.pretraining.vocabulary_alignment import copy_checkpoint, init_config
from ownbert.text.tokenizer import Tokenizer
from ownbert.time_limit import OutOfTime
from ownbert.train.device import return_memory


def new_config(
    recipe: PretrainRecipe, tokenizer: Tokenizer, saved: Path | None = None
) -> EncoderConfig:
    """The structure described by a recipe, or that of the model to start from (``init_from``).

    With "clm" as the only objective it is a decoder; others may change it (``structure``).

    Args:
        saved: folder of a resumed run, to read the structure from instead of ``init_from``.

    Raises:
        InputError: see ``init_config``.
    """
    if recipe.model.init_from:
        return init_config(saved or recipe.model.init_from, tokenizer, recipe)
    config = EncoderConfig.of_size(
        recipe.model.size,
        vocab_size=tokenizer.vocab_size,
        max_position_embeddings=recipe.longest,
        type_vocab_size=3 if tokenizer.style.cls_last else 2,
        hidden_dropout_prob=recipe.model.dropout,
        attention_probs_dropout_prob=recipe.model.dropout,
        pad_token_id=tokenizer.pad_id,
        is_decoder=recipe.objectives == {"clm"},
    )
    for one in objectives_of(recipe.objectives):
        config = one.structure(config, recipe.model.dropout)
    return config


def new_learner(
    recipe: PretrainRecipe,
    config: EncoderConfig,
    objectives: Sequence[Objective],
    features: Features = MappingProxyType({}),
) -> Learner:
    """Create a model with random weights for ``objectives``, those of all phases.

    It is the network of an objective that has its own, else an encoder with the heads that any
    phase needs.
    """
    torch.manual_seed(recipe.seed)
    chosen = objectives_of(recipe.objectives)
    for one in chosen:
        if (networks := one.make_network(config, recipe.model)) is not None:
            return Learner(networks[0], objectives, generator=networks[1])
    heads = {one.head: HeadSpec(one.head) for one in chosen if one.head in HEADS}
    if features:
        tables = tuple(len(tags) + 1 for tags in features.values())
        heads["mlm"] = replace(
            heads["mlm"], features=tables, feature_size=recipe.model.feature_size
        )
    pooler = any(one.pools for one in chosen) or None
    return Learner(Model(config, list(heads.values()), pooler=pooler), objectives)


def initialise(
    learner: Learner,
    recipe: PretrainRecipe,
    store: Store,
    tokenizer: Tokenizer,
    *,
    ordinary: np.ndarray,
    unigram: torch.Tensor,
) -> str | None:
    """Set the initial weights; return a report of what was copied or skipped for lack of time.

    Word embeddings come from the model of ``init_from``, or from co-occurrences in the corpus
    unless the recipe has "random"; the first layer starts at neighbouring tokens unless
    ``init_positions`` is "random". The bias of the MLM decoder starts at the unigram
    log-probabilities, so that the first steps need not learn which words are frequent.
    """
    report: object = None
    word = learner.model.encoder.embeddings.word.weight.data
    if recipe.model.init_from:
        report = copy_checkpoint(
            learner.model,
            recipe.model.init_from,
            tokenizer,
            store,
            counts_file=recipe.model.init_counts,
            seed=recipe.seed,
        )
    elif recipe.model.init_embeddings == "cooccurrence":
        try:
            embeddings = cooccurrence_vectors(store, word.shape[1], ordinary, seed=recipe.seed)
        except OutOfTime:
            report = "no time to count word co-occurrences: embeddings are initialised randomly"
        else:
            vectors = torch.from_numpy(embeddings)
            known = vectors.abs().sum(1) > 0
            word[known] = vectors[known]
        return_memory()
    if recipe.model.init_positions == "neighbours" and not recipe.model.init_from:
        for model in (learner.model, learner.generator):
            if model is not None:
                start_at_neighbours(model.encoder)
    for head in (learner.generator or learner.model).heads.values():
        if isinstance(head, MaskedLMHead):
            head.decoder.bias.data.copy_(unigram)
    return None if report is None else str(report)


def unigram_log_probabilities(counts: np.ndarray, ordinary: np.ndarray) -> torch.Tensor:
    """Log-probability (V) of each token by its count in the corpus, with add-one smoothing.

    Args:
        counts: (V) token counts; a shorter array is padded with zeros.
        ordinary: (V) false for special tokens, which are never predicted and get a count of one.
    """
    known = np.pad(counts, (0, len(ordinary) - len(counts)))
    smoothed = np.where(ordinary, known, 0) + 1.0
    return torch.from_numpy(np.log(smoothed / smoothed.sum()).astype(np.float32))
