"""The structure and the initial weights of a model for pretraining.

V vocabulary, P positions of the table, D hidden, H heads, K head size.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import cast

import numpy as np
import torch
from torch import Tensor

from ownbert.batches.word_features import Features
from ownbert.config.encoder import EncoderConfig
from ownbert.config.head_spec import HEADS, HeadSpec
from ownbert.nn.encoder_stack import Encoder
from ownbert.nn.model import Model
from ownbert.nn.multihead import Attention
from ownbert.objectives import objectives_of
from ownbert.objectives.learner import Learner
from ownbert.objectives.objective import Objective
from ownbert.pretraining.pretrain_recipe import PretrainRecipe
from ownbert.pretraining.vocabulary_alignment import init_config
from ownbert.text.tokenizer import Tokenizer

# Share of the channels with sinusoids, whose amplitude matches that of the words.
_SINUSOIDS = 0.25
# Initial attention score, before the softmax, of the position that a head attends to; 0 far away.
_NEIGHBOUR_SCORE = 5.0


def new_config(
    recipe: PretrainRecipe, tokenizer: Tokenizer, saved: Path | None = None
) -> EncoderConfig:
    """The structure described by a recipe, or that of the model to start from (``init_from``; of a
    resumed run in the folder ``saved``).

    With "clm" as the only objective it is a decoder; others may change it (``structure``).
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
    for objective in objectives_of(recipe.objectives):
        config = objective.structure(config, recipe.model.dropout)
    return config


def new_learner(
    recipe: PretrainRecipe,
    config: EncoderConfig,
    objectives: Sequence[Objective],
    features: Features = MappingProxyType({}),
) -> Learner:
    """Create a model with random weights for ``objectives``, those of all phases: the network of an
    objective that has its own, else an encoder with the heads that any phase needs."""
    torch.manual_seed(recipe.seed)
    chosen = objectives_of(recipe.objectives)
    for objective in chosen:
        if (networks := objective.make_network(config, recipe.model)) is not None:
            return Learner(networks[0], objectives, generator=networks[1])
    heads = {
        objective.head: HeadSpec(objective.head) for objective in chosen if objective.head in HEADS
    }
    if features:
        tables = tuple(len(tags) + 1 for tags in features.values())
        heads["mlm"] = replace(
            heads["mlm"], features=tables, feature_size=recipe.model.feature_size
        )
    pooler = any(objective.pools for objective in chosen) or None
    return Learner(Model(config, list(heads.values()), pooler=pooler), objectives)


def unigram_log_probabilities(counts: np.ndarray, ordinary: np.ndarray) -> torch.Tensor:
    """Log-probability (V) of each token by its count in the corpus, with add-one smoothing. Missing
    ``counts`` are zero; special tokens (``ordinary`` (V) false) are never predicted and get a count
    of one."""
    padded = np.pad(counts, (0, len(ordinary) - len(counts)))
    smoothed = np.where(ordinary, padded, 0) + 1.0
    return torch.from_numpy(np.log(smoothed / smoothed.sum()).astype(np.float32))


@torch.no_grad()
def start_at_neighbours(encoder: Encoder) -> None:
    """Initialise the position table (P, D) and the queries and keys of the first layer, so that
    attention starts at neighbouring tokens. Encoders without a position table do not change; if
    words are narrower than layers, only the table is set.

    With random weights every token attends to all others equally, and a small network needs a
    thousand steps until its first head has found the words beside a masked one. Positions
    initialised as sinusoids make "the next token" a rotation that is the same everywhere in the
    text, so the first layer's heads can start there, above all at masked tokens, whose own vector
    carries little information. All of these weights are trained as usual.

    One head attends to the previous token, one to the next, the following ones to two positions
    before and after, and so on; in a decoder all to previous tokens. Later layers start as averages
    of the whole text, which classifiers need: with two layers of neighbours they were worse.

    Source: Vaswani et al. 2017, section 3.5, for the linear relation between sinusoidal positions;
    Trockman and Kolter 2023 for the benefit of structured initial attention.
    """
    config, embeddings = encoder.config, encoder.embeddings
    if not config.positions.table:
        return
    table = embeddings.position.weight
    frequencies = _frequencies(max(1, int(_SINUSOIDS * table.shape[1] / 2)), len(table))
    angles = torch.arange(len(table), dtype=torch.float64)[:, None] * frequencies
    waves = torch.stack((angles.sin(), angles.cos()), -1).flatten(1)
    # A sine has a standard deviation of sqrt(1/2).
    waves *= math.sqrt(2) * float(embeddings.word.weight.std())
    table[:, : waves.shape[1]] = waves.to(table)
    if hasattr(embeddings, "projection"):
        return
    qkv = cast(Attention, encoder.blocks[0].attention).qkv.weight
    for head in range(config.num_attention_heads):
        away = (1 if head % 2 else -1) * (1 + head // 2)  # -1, 1, -2, 2, ...
        away = -1 - head if config.is_decoder else away
        _point(qkv, head, config.head_size, frequencies, away)


def _frequencies(count: int, positions: int) -> Tensor:
    """Angles per token, (count) float64, from half a turn, which separates neighbours, down to half
    a turn over all positions."""
    steps = torch.arange(count, dtype=torch.float64) / max(1, count - 1)
    return math.pi * float(max(2, positions)) ** -steps


def _point(qkv: Tensor, head: int, size: int, frequencies: Tensor, away: int) -> None:
    """Add to a head's query a rotation by ``away`` tokens and to its key the identity, in the
    matrix ``qkv`` (3D, D)."""
    hidden = qkv.shape[1]
    pairs = min(size // 2, len(frequencies))
    # The squared amplitude of a sine after LayerNorm over words in all channels and sinusoids in
    # some, of equal strength.
    square = 2 / (1 + _SINUSOIDS)
    strength = math.sqrt(_NEIGHBOUR_SCORE * math.sqrt(size) / (pairs * square))
    for pair in range(pairs):
        chosen = pair * len(frequencies) // pairs
        angle = float(frequencies[chosen]) * away
        cos, sin = strength * math.cos(angle), strength * math.sin(angle)
        first = head * size + 2 * pair
        columns = slice(2 * chosen, 2 * chosen + 2)
        qkv[first : first + 2, columns] += qkv.new_tensor([[cos, sin], [-sin, cos]])
        keys = qkv[hidden + first : hidden + first + 2, columns]
        keys += strength * torch.eye(2, dtype=qkv.dtype, device=qkv.device)
