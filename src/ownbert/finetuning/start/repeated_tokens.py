"""Repeated tokens in a BERT that contains a linear model (``token_scores``).

A word that occurs ten times in a text says hardly more than one that occurs once, so linear models
of texts damp counts. One head of the first block attends to all equal tokens and to the first
token, to each with the same weight: the share of the first token is 1 / (1 + n) for a token that
occurs n times. The heads of the last block, which compute the mean, attend less to tokens with a
small share, each with a weight of about 1 / n.

T tokens of all texts, N texts.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from ownbert.batches.example import Example
from ownbert.finetuning.start.token_codes import CODE, SIZE, CodeChannels, cancel_mean
from ownbert.nn.model import Model

# The attention score of an equal token in the first block. That of others is 0 on average, and the
# mean of their exponentials is that of a normal distribution with the variance of two codes.
_ATTENDED = 10.0
_OTHERS = float(np.exp(_ATTENDED**2 / (2 * CODE) - _ATTENDED))
# A share of 1 / 2 has the attention score 0 in the last block; another has the difference times
# this: the weights of tokens that occur 1, 2, 3, 5 and 10 times are 1, .5, .36, .25 and .19.
_STEEP, _ONCE = 4.1, 0.5
# The attention score in the last block of the first token, which contributes no scores.
_LEFT_OUT = -20.0


class TokenShares(NamedTuple):
    """The tokens of texts.

    Args:
        ids: (T), -1 for special tokens.
        row: (T), the text of each token.
        share: (T), weight of each token in the mean of its text; the weights of a text sum to 1.
    """

    ids: np.ndarray
    row: np.ndarray
    share: np.ndarray


def token_shares(
    examples: Sequence[Example], special: Sequence[int], *, damped: bool
) -> TokenShares:
    """The tokens of N texts and their shares: equal, or smaller for tokens that are repeated in a
    sequence. All sequences of a text have the same weight."""
    ids = np.concatenate([example.token_ids for example in examples]).astype(np.int64)
    lengths = np.asarray([length for example in examples for length in example.lengths])
    sequence = np.repeat(np.arange(len(lengths)), lengths)
    parts = np.asarray([len(example.lengths) for example in examples])
    row = np.repeat(np.arange(len(examples)), parts)[sequence]
    weight = np.ones(len(ids))
    if damped:
        weight = _weights(ids, sequence, lengths[sequence])
        weight[np.cumsum(lengths) - lengths] = 0.0
    sums = np.bincount(sequence, weight, minlength=len(lengths))
    share = weight / np.maximum(sums, 1e-9)[sequence] / parts[row]
    return TokenShares(np.where(np.isin(ids, special), -1, ids), row, share.astype(np.float32))


def repeated_share(examples: Sequence[Example]) -> float:
    """The share of tokens that have occurred before in the same sequence."""
    sequences = [ids for example in examples for ids in example.split(example.token_ids)]
    distinct = sum(len(np.unique(ids)) for ids in sequences)
    return 1 - distinct / max(1, sum(map(len, sequences)))


def _weights(ids: np.ndarray, sequence: np.ndarray, length: np.ndarray) -> np.ndarray:
    """(T) weights of tokens in the last block, up to a common factor."""
    keys = sequence * (int(ids.max(initial=0)) + 1) + ids
    _, place, times = np.unique(keys, return_inverse=True, return_counts=True)
    equal = times[place]
    share = 1 / (1 + equal + _OTHERS * (length - 1 - equal))
    return np.exp(_STEEP * (share - _ONCE))


def add_damping(wide: Model, channels: CodeChannels, head: int, mean_from: int) -> None:
    """Set the weights that damp repeated tokens.

    Args:
        wide: a model with the codes.
        channels: its channels of codes.
        head: a head of the first block that is not used.
        mean_from: index of the first head of the last block that computes the mean; so do all
            later ones.
    """
    size, zero = wide.config.head_size, channels.zero
    own, mark, share = (channels[name] for name in ("own", "mark", "share"))
    constant = channels["constant"]
    blocks: Any = wide.encoder.blocks
    attention, rows = blocks[0].attention, slice(head * size, (head + 1) * size)
    queries, keys, read = (part[rows] for part in attention.qkv.weight.chunk(3))
    # Codes are orthogonal to a vector of ones, which the first token has in their place.
    root = (_ATTENDED * size**0.5 / CODE) ** 0.5 / SIZE
    queries[:CODE, own] = keys[:CODE, own] = root * torch.eye(CODE)
    queries[:CODE, constant] = root * SIZE * channels.readout("constant")
    keys[:CODE, mark] = root * SIZE * channels.readout("mark")
    read.zero_()
    read[: len(mark), mark] = torch.eye(len(mark))
    for weights in (queries, keys, read):
        cancel_mean(weights, zero)
    output = attention.output.weight[:, rows]
    output.zero_()
    output[share, : len(mark)] = torch.eye(len(mark))

    # All of these heads have the same scores: a constant query, and keys by the share.
    queries, keys, _ = blocks[-1].attention.qkv.weight.chunk(3)
    for own_head in range(mean_from, wide.config.num_attention_heads):
        query, key = (part[own_head * size : own_head * size + 1] for part in (queries, keys))
        query[:, constant] = size**0.5 * channels.readout("constant")
        key[:, share] = _STEEP * channels.readout("share")
        key[:, constant] = -_STEEP * _ONCE * channels.readout("constant")
        key[:, mark] = _LEFT_OUT * channels.readout("mark")
        for weights in (query, key):
            cancel_mean(weights, zero)
