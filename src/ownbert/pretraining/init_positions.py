"""Initial weights with which attention starts at neighbouring tokens.

P positions of the table, D hidden, H heads, K head size.

With random weights every token attends to all others alike, and a small network needs a thousand
steps until its first head has found the words beside a masked one. Positions that start as
sinusoids make "the next token" a rotation, which is the same everywhere in the text, and with it
the first layer's heads start there: above all at masked tokens, whose own vector says little else.
All of these weights learn on as others do.

Source: the sinusoids of Vaswani et al. 2017, section 3.5, whose linear relation between positions
is used here; that attention which starts with a structure trains better: Trockman and Kolter 2023.
"""

import math
from typing import cast

import torch
from torch import Tensor

from ownbert.nn.encoder import Encoder
from ownbert.nn.multihead import Attention

# Share of the channels that sinusoids are added to, as strong as the words.
_SHARE = 0.25
# Score of the place that a head begins at, before the softmax; of places far away it is 0.
_SCORE = 5.0


@torch.no_grad()
def start_at_neighbours(encoder: Encoder) -> None:
    """Set the position table (P, D) and the queries and keys of the first layer.

    One head attends to the token before, one to that behind, the next ones to two places before and
    behind, and so on; in a decoder all to tokens before. Later layers begin as averages of the
    whole text, which classifiers need: with two layers at neighbours these lost.

    Args:
        encoder: is left as it is if it has no table of positions; if its words are narrower than
            its layers, only the table is set.
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
    """Angles per token, from half a turn, which tells neighbours apart, down to half a turn over
    all positions: (count) float64."""
    steps = torch.arange(count, dtype=torch.float64) / max(1, count - 1)
    return math.pi * float(max(2, positions)) ** -steps


def _point(qkv: Tensor, head: int, size: int, frequencies: Tensor, away: int) -> None:
    """Add to a head's query a rotation by ``away`` tokens and to its key the identity.

    Both are of the same pairs of channels, spread over all frequencies; the score of two positions
    is then a sum of cos(frequency * (distance - away)), the largest where the distance is ``away``.

    Args:
        qkv: (3D, D), changed.
        size: K.
    """
    hidden = qkv.shape[1]
    pairs = min(size // 2, len(frequencies))
    # The square of a sine's amplitude after the LayerNorm, which sees words in all channels and
    # sinusoids in some, each as strong as the words.
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
