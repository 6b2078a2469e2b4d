"""Initial weights that make attention start at neighbouring tokens.

P positions of the table, D hidden, H heads, K head size.

With random weights every token attends to all others equally, and a small network needs a thousand
steps until its first head has found the words beside a masked one. Positions initialised as
sinusoids make "the next token" a rotation that is the same everywhere in the text, so the first
layer's heads can start there, above all at masked tokens, whose own vector carries little
information. All of these weights are trained as usual.

Source: Vaswani et al. 2017, section 3.5, for the linear relation between sinusoidal positions;
Trockman and Kolter 2023 for the benefit of structured initial attention.
"""

import math
from typing import cast

import torch
from torch import Tensor

from ownbert.nn.encoder import Encoder
from ownbert.nn.multihead import Attention

# Share of the channels with sinusoids, whose amplitude matches that of the words.
_SHARE = 0.25
# Initial attention score, before the softmax, of the position that a head attends to; 0 far away.
_SCORE = 5.0


@torch.no_grad()
def start_at_neighbours(encoder: Encoder) -> None:
    """Initialise the position table (P, D) and the queries and keys of the first layer.

    One head attends to the previous token, one to the next, the following ones to two positions
    before and after, and so on; in a decoder all to previous tokens. Later layers start as averages
    of the whole text, which classifiers need: with two layers of neighbours they were worse.

    Args:
        encoder: encoder to modify; unchanged if it has no position table. If its words are narrower
            than its layers, only the table is set.
    """
    config, embeddings = encoder.config, encoder.embeddings
    if config.position_embedding_type != "absolute":
        return
    table = embeddings.position.weight
    frequencies = _frequencies(max(1, int(_SHARE * table.shape[1] / 2)), len(table))
    angles = torch.arange(len(table), dtype=torch.float64)[:, None] * frequencies
    waves = torch.stack((angles.sin(), angles.cos()), -1).flatten(1)
    # A sine has a standard deviation of sqrt(1/2).
    waves *= math.sqrt(2) * float(embeddings.word.weight.std())
    table[:, : waves.shape[1]] = waves.to(table)
    if hasattr(embeddings, "projection"):
        return
    qkv = cast(Attention, encoder.blocks[0].attention).qkv.weight
    for head in range(config.num_attention_heads):
        away = -1 - head if config.is_decoder else _offset(head)
        _point(qkv, head, config.head_size, frequencies, away)


def _offset(head: int) -> int:
    """-1, 1, -2, 2, ..."""
    return (1 if head % 2 else -1) * (1 + head // 2)


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
    square = 2 / (1 + _SHARE)
    strength = math.sqrt(_SCORE * math.sqrt(size) / (pairs * square))
    for pair in range(pairs):
        chosen = pair * len(frequencies) // pairs
        angle = float(frequencies[chosen]) * away
        cos, sin = strength * math.cos(angle), strength * math.sin(angle)
        first = head * size + 2 * pair
        columns = slice(2 * chosen, 2 * chosen + 2)
        qkv[first : first + 2, columns] += qkv.new_tensor([[cos, sin], [-sin, cos]])
        keys = qkv[hidden + first : hidden + first + 2, columns]
        keys += strength * torch.eye(2, dtype=qkv.dtype, device=qkv.device)
