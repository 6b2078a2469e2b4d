"""Pairs of neighbouring tokens in a BERT that contains a linear model (``token_scores``).

A linear model of bigrams must detect where one token follows another. New channels hold a random
code of plus and minus one for every token, and sines and cosines of every position. One head of
the first block uses the positions to attend to the previous token, and copies its code. For every
pair, one unit of the first feed-forward network compares both codes with those of the pair and,
where both match, adds the scores of the pair.

LayerNorm divides all channels of a token by the same number. The threshold of the units is
therefore a channel too, not a bias.

N texts, V tokens of the vocabulary, P pairs, C labels.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ownbert.batches.example import Example
from ownbert.nn.model import Model
from ownbert.views.ngram_counts import Matrix, sparse

# Channels of a code; frequencies of a position, with two channels each. This seed gives frequencies
# for which the similarity of two different positions, up to 512 apart, is at most .38 (1 if equal).
_CODE, _FREQUENCIES, _SEED = 32, 16, 3024
# Channels with the same value for every token; dropout would remove a single one.
_CONSTANT = 8
CHANNELS = 2 * _CODE + 2 * _FREQUENCIES + _CONSTANT
# The size of the values, relative to those of the other channels.
_SIZE = 0.3
# The attention score of the previous token.
_ATTENDED = 40.0
# Two matching codes give 2. A unit subtracts the threshold and multiplies the rest.
_THRESHOLD, _STEEP = 1.6, 12.0
# The smallest number of texts that a pair must occur in.
_FEWEST_TEXTS = 3
# The number of the most frequent pairs from which the informative ones are chosen.
_CANDIDATES = 50_000


def can_hold_pairs(model: Model) -> bool:
    """Whether a model for which ``can_hold_scores`` is true can also hold scores of pairs."""
    config = model.config
    fits = config.head_size >= max(_CODE, 2 * _FREQUENCIES) and config.num_hidden_layers > 1
    return fits and not config.gated_feed_forward and config.hidden_act.startswith("gelu")


def pair_numbers(
    examples: Sequence[Example], vocab_size: int, special: Sequence[int]
) -> np.ndarray:
    """(n, 2): the number of each pair of adjacent tokens, first id * V + second id, and the index
    of its text. Pairs with a special token are omitted."""
    sizes = [len(example.token_ids) for example in examples]
    ids = np.concatenate([example.token_ids for example in examples]).astype(np.int64)
    row = np.repeat(np.arange(len(sizes)), sizes)
    usual = ~np.isin(ids, special)
    whole = usual[:-1] & usual[1:] & (row[:-1] == row[1:])
    return np.stack([ids[:-1] * vocab_size + ids[1:], row[1:]], 1)[whole]


def pair_counts(
    examples: Sequence[Example], vocab_size: int, special: Sequence[int], pairs: np.ndarray
) -> Matrix:
    """(N, P): the count of each pair in each text, divided by the number of tokens of the text.

    ``pairs`` (P) must be sorted.
    """
    numbers, row = pair_numbers(examples, vocab_size, special).T
    place = np.minimum(np.searchsorted(pairs, numbers), max(0, len(pairs) - 1))
    known = pairs[place] == numbers if len(pairs) else np.zeros(len(numbers), bool)
    sizes = np.asarray([len(example.token_ids) for example in examples], dtype=np.float32)
    share = 1 / sizes[row[known]]
    return sparse.csr_matrix((share, (row[known], place[known])), shape=(len(examples), len(pairs)))


def informative_pairs(
    examples: Sequence[Example],
    vocab_size: int,
    special: Sequence[int],
    missing: np.ndarray,
    most: int,
) -> np.ndarray:
    """The pairs that explain most of the residual of a linear model of single tokens.

    Args:
        examples: N texts.
        vocab_size: V.
        special: ids of the special tokens.
        missing: (N, C), the residual.
        most: the largest number of pairs.

    Returns:
        Sorted numbers of pairs, as in ``pair_numbers``.
    """
    numbers, row = pair_numbers(examples, vocab_size, special).T
    distinct, place = np.unique(numbers, return_inverse=True)
    seen = np.unique(place * len(examples) + row)
    texts_with = np.bincount(seen // len(examples), minlength=len(distinct))
    common = np.argsort(-texts_with, kind="stable")[:_CANDIDATES]
    often = np.sort(distinct[common[texts_with[common] >= _FEWEST_TEXTS]])
    if not len(often):
        return often
    counts = pair_counts(examples, vocab_size, special, often)
    squares = np.asarray(counts.power(2).sum(0)).ravel()
    explained = np.square(counts.T @ missing).sum(1) / (squares + np.median(squares))
    return np.sort(often[np.argsort(-explained, kind="stable")[:most]])


def add_pairs(
    wide: Model,
    deviation: Tensor,
    first: int,
    scores: slice,
    pairs: np.ndarray,
    values: Tensor,
) -> None:
    """Set the weights that add scores of pairs.

    Args:
        wide: a model in which the last ``CHANNELS + 1`` channels or more, the last head, and the
            last P units of each feed-forward network are unused.
        deviation: (V, 1), the standard deviation of the embedding of each token.
        first: the first unused channel. The one after the ``CHANNELS`` used here stays empty.
        scores: the R channels of the scores of tokens.
        pairs: (P) numbers of the pairs.
        values: (P, R), the scores of each pair in those channels.
    """
    config, zero = wide.config, first + CHANNELS
    own, before = first + torch.arange(_CODE), first + _CODE + torch.arange(_CODE)
    place = first + 2 * _CODE + torch.arange(2 * _FREQUENCIES)
    constant = first + CHANNELS - _CONSTANT + torch.arange(_CONSTANT)
    embeddings: Any = wide.encoder.embeddings
    block: Any = wide.encoder.blocks[0]
    codes = _codes(config.vocab_size)
    word = embeddings.word.weight
    word[:, own] = _SIZE * codes * deviation
    word[:, constant] = _SIZE * deviation
    angle = torch.arange(config.max_position_embeddings)[:, None] * _frequencies()
    waves = torch.stack([angle.cos(), angle.sin()], -1).flatten(1)
    embeddings.position.weight[:, place] = _SIZE * waves * deviation.mean()

    size = config.head_size
    head = slice(config.hidden_size - size, config.hidden_size)  # the last one
    queries, keys, read = (part[head] for part in block.attention.qkv.weight.chunk(3))
    turn = torch.stack([_frequencies().cos(), _frequencies().sin()])
    back = torch.block_diag(*(torch.tensor([[c, s], [-s, c]]) for c, s in turn.T.tolist()))
    sharp = (_ATTENDED * size**0.5 / _FREQUENCIES) ** 0.5 / _SIZE
    count = 2 * _FREQUENCIES
    queries[:count, place] = sharp * back
    keys[:count, place] = sharp * torch.eye(count)
    read.zero_()
    read[:_CODE, own] = torch.eye(_CODE)
    for weight in (queries, keys, read):
        weight[:, zero] = -weight.sum(1)  # cancels the mean that LayerNorm subtracts
    block.attention.output.weight[:, head] = 0
    block.attention.output.weight[before, head.start : head.start + _CODE] = torch.eye(_CODE)

    earlier, later = (torch.from_numpy(x) for x in np.divmod(pairs, config.vocab_size))
    feed = block.feed_forward
    units = feed.up.weight[config.intermediate_size - len(pairs) :]
    units[:, own] = codes[later] / _CODE
    units[:, before] = codes[earlier] / _CODE
    units[:, constant] = -_THRESHOLD / _CONSTANT
    units *= _STEEP / _SIZE
    units[:, zero] = -units.sum(1)
    feed.down.weight[scores, config.intermediate_size - len(pairs) :] = values.T / (
        _STEEP * (2 - _THRESHOLD)
    )


def channels_energy() -> float:
    """The sum of squares over the channels, relative to that of one other channel."""
    return _SIZE**2 * (2 * _CODE + _FREQUENCIES + _CONSTANT)


def _codes(vocab_size: int) -> Tensor:
    """(V, 32): half of each code is 1 and half is -1, so that its mean is 0."""
    order = np.random.default_rng(_SEED).random((vocab_size, _CODE)).argsort(1)
    return torch.from_numpy(np.where(order < _CODE // 2, 1.0, -1.0).astype(np.float32))


def _frequencies() -> Tensor:
    """(16), in radians per position."""
    found = np.random.default_rng(_SEED).uniform(0.02, np.pi, _FREQUENCIES)
    return torch.from_numpy(found.astype(np.float32))
