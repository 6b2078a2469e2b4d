"""Pairs of neighbouring tokens in a BERT that contains a linear model (``token_scores``).

A linear model of bigrams must detect where one token follows another. New channels hold sines and
cosines of every position. One head of the first block uses them to attend to the previous token,
and copies its code (``token_codes``). For every pair, one unit of the first feed-forward network
compares both codes with those of the pair and, where both match, adds the scores of the pair.

T tokens of all texts, V tokens of the vocabulary, P pairs, C labels.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ownbert.corpus.sparse import Matrix, sparse
from ownbert.finetuning.start.repeated_tokens import TokenShares
from ownbert.finetuning.start.token_codes import (
    CODE,
    FREQUENCIES,
    SEED,
    SIZE,
    CodeChannels,
    can_hold_codes,
    cancel_mean,
    codes,
)
from ownbert.nn.model import Model
from ownbert.views.ngram_counts import find_keys, texts_with_each

# The attention score of the previous token.
_ATTENDED = 40.0
# Two matching codes give 2. A unit subtracts the threshold and multiplies the rest.
_THRESHOLD, _STEEP = 1.6, 12.0
# Minimum number of texts with a pair.
_FEWEST_TEXTS = 3
# The number of the most frequent pairs from which the informative ones are chosen.
_CANDIDATES = 50_000


def can_hold_pairs(model: Model) -> bool:
    """Whether a model for which ``can_hold_scores`` is true can also hold scores of pairs."""
    config = model.config
    gelu = not config.gated_feed_forward and config.hidden_act.startswith("gelu")
    return gelu and can_hold_codes(model)


def pair_counts(tokens: TokenShares, texts: int, vocab_size: int, pairs: np.ndarray) -> Matrix:
    """(N, P): the shares of the later tokens of each pair in each of N texts.

    ``pairs`` (P): sorted numbers, first id * V + second id. Special tokens are in no pair.
    """
    numbers, later = _pairs_of(tokens, vocab_size)
    known, place = find_keys(pairs, numbers)
    own = later[known]
    return sparse.csr_matrix((tokens.share[own], (tokens.row[own], place)), (texts, len(pairs)))


def _pairs_of(tokens: TokenShares, vocab_size: int) -> tuple[np.ndarray, np.ndarray]:
    """The numbers of all pairs in the texts, and the index of the later token of each."""
    ids, row = tokens.ids, tokens.row
    later = 1 + np.flatnonzero((ids[:-1] >= 0) & (ids[1:] >= 0) & (row[:-1] == row[1:]))
    return ids[later - 1] * vocab_size + ids[later], later


def informative_pairs(
    tokens: TokenShares, residual: np.ndarray, learnt: np.ndarray, vocab_size: int, most: int
) -> np.ndarray:
    """The pairs that explain most of the residual of a linear model of single tokens.

    Args:
        tokens: tokens of N texts.
        residual: (N, C) residual of the linear model.
        learnt: (N) true for texts that are counted.
        vocab_size: V.
        most: maximum number of pairs.

    Returns:
        Sorted numbers of pairs, as in ``pair_counts``.
    """
    tokens = TokenShares(*(values[learnt[tokens.row]] for values in tokens))
    numbers, later = _pairs_of(tokens, vocab_size)
    distinct, texts_with = texts_with_each(numbers, tokens.row[later], len(residual))
    common = np.argsort(-texts_with, kind="stable")[:_CANDIDATES]
    often = np.sort(distinct[common[texts_with[common] >= _FEWEST_TEXTS]])
    if not len(often):
        return often
    counts = pair_counts(tokens, len(residual), vocab_size, often)
    squares = np.asarray(counts.power(2).sum(0)).ravel()
    explained = np.square(counts.T @ residual).sum(1) / (squares + np.median(squares))
    return np.sort(often[np.argsort(-explained, kind="stable")[:most]])


def add_pairs(
    wide: Model,
    deviation: Tensor,
    channels: CodeChannels,
    scores: slice,
    pairs: np.ndarray,
    values: Tensor,
) -> None:
    """Set the weights that add scores of pairs.

    Args:
        wide: a model with the codes, in which the last head of the first block and the last P units
            of each feed-forward network are unused.
        deviation: (V, 1), the standard deviation of the embedding of each token.
        channels: its channels of codes.
        scores: the R channels of the scores of tokens.
        pairs: (P) numbers of the pairs.
        values: (P, R), the scores of each pair in those channels.
    """
    config = wide.config
    own, before, place = (channels[name] for name in ("own", "before", "place"))
    constant = channels["constant"]
    embeddings: Any = wide.encoder.embeddings
    block: Any = wide.encoder.blocks[0]
    angle = torch.arange(config.max_position_embeddings)[:, None] * _frequencies()
    waves = torch.stack([angle.cos(), angle.sin()], -1).flatten(1)
    embeddings.position.weight[:, place] = SIZE * waves * deviation.mean()

    _attend_to_previous(block.attention, config.head_size, channels)
    of_token = codes(config.vocab_size)
    earlier, later = (torch.from_numpy(x) for x in np.divmod(pairs, config.vocab_size))
    feed = block.feed_forward
    units = feed.up.weight[config.intermediate_size - len(pairs) :]
    units[:, own] = _STEEP / SIZE / CODE * of_token[later]
    units[:, before] = _STEEP / SIZE / CODE * of_token[earlier]
    units[:, constant] = -_STEEP * _THRESHOLD * channels.readout("constant")
    cancel_mean(units, channels.zero)
    feed.down.weight[scores, config.intermediate_size - len(pairs) :] = values.T / (
        _STEEP * (2 - _THRESHOLD)
    )


def _attend_to_previous(attention: Any, size: int, channels: CodeChannels) -> None:
    """Make the last head of self-attention, of this size, copy the code of the previous token."""
    own, before, place = (channels[name] for name in ("own", "before", "place"))
    queries, keys, read = (part[-size:] for part in attention.qkv.weight.chunk(3))
    waves = zip(_frequencies().cos().tolist(), _frequencies().sin().tolist(), strict=True)
    back = torch.block_diag(*(torch.tensor([[c, s], [-s, c]]) for c, s in waves))
    sharp = (_ATTENDED * size**0.5 / FREQUENCIES) ** 0.5 / SIZE
    count = 2 * FREQUENCIES
    queries[:count, place] = sharp * back
    keys[:count, place] = sharp * torch.eye(count)
    read.zero_()
    read[:CODE, own] = torch.eye(CODE)
    for weight in (queries, keys, read):
        cancel_mean(weight, channels.zero)
    output = attention.output.weight[:, -size:]
    output.zero_()
    output[before, :CODE] = torch.eye(CODE)


def _frequencies() -> Tensor:
    """(16), in radians per position. With this seed the similarity of two different positions, up
    to 512 apart, is at most .38 (1 if equal)."""
    frequencies = np.random.default_rng(SEED).uniform(0.02, np.pi, FREQUENCIES)
    return torch.from_numpy(frequencies.astype(np.float32))
