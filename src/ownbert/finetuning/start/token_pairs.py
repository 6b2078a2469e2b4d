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
from ownbert.views.ngram_counts import Matrix, find_keys, ngram_numbers, sparse, texts_with_each

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


def tokens_and_rows(
    examples: Sequence[Example], special: Sequence[int]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The token ids of all texts, -1 for special tokens; the index of the text of each; and the
    number of tokens of each text (N)."""
    sizes = np.asarray([len(example.token_ids) for example in examples])
    ids = np.concatenate([example.token_ids for example in examples]).astype(np.int64)
    return np.where(np.isin(ids, special), -1, ids), np.repeat(np.arange(len(sizes)), sizes), sizes


def pair_counts(
    examples: Sequence[Example], vocab_size: int, special: Sequence[int], pairs: np.ndarray
) -> Matrix:
    """(N, P): the count of each pair in each text, divided by the number of tokens of the text.

    ``pairs`` (P): sorted numbers, first id * V + second id. Special tokens are in no pair.
    """
    ids, row, sizes = tokens_and_rows(examples, special)
    return _shares(*ngram_numbers(ids, row, 2, vocab_size), sizes, pairs)


def _shares(numbers: np.ndarray, row: np.ndarray, sizes: np.ndarray, pairs: np.ndarray) -> Matrix:
    known, place = find_keys(pairs, numbers)
    share = 1 / sizes[row[known]].astype(np.float32)
    return sparse.csr_matrix((share, (row[known], place)), shape=(len(sizes), len(pairs)))


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
        Sorted numbers of pairs, as in ``pair_counts``.
    """
    ids, row, sizes = tokens_and_rows(examples, special)
    numbers, row = ngram_numbers(ids, row, 2, vocab_size)
    distinct, texts_with = texts_with_each(numbers, row, len(examples))
    common = np.argsort(-texts_with, kind="stable")[:_CANDIDATES]
    often = np.sort(distinct[common[texts_with[common] >= _FEWEST_TEXTS]])
    if not len(often):
        return often
    counts = _shares(numbers, row, sizes, often)
    squares = np.asarray(counts.power(2).sum(0)).ravel()
    explained = np.square(counts.T @ missing).sum(1) / (squares + np.median(squares))
    return np.sort(often[np.argsort(-explained, kind="stable")[:most]])


def add_pairs(
    wide: Model, deviation: Tensor, first: int, scores: slice, pairs: np.ndarray, values: Tensor
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

    _attend_to_previous(block.attention, config.head_size, place, own, before, zero)
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


def _attend_to_previous(
    attention: Any, size: int, place: Tensor, own: Tensor, before: Tensor, zero: int
) -> None:
    """Make the last head, of this size, copy the code of the previous token.

    Args:
        attention: self-attention of the first block.
        place, own, before: channels of the position, of the code, and of the copy.
        zero: the empty channel.
    """
    queries, keys, read = (part[-size:] for part in attention.qkv.weight.chunk(3))
    waves = zip(_frequencies().cos().tolist(), _frequencies().sin().tolist(), strict=True)
    back = torch.block_diag(*(torch.tensor([[c, s], [-s, c]]) for c, s in waves))
    sharp = (_ATTENDED * size**0.5 / _FREQUENCIES) ** 0.5 / _SIZE
    count = 2 * _FREQUENCIES
    queries[:count, place] = sharp * back
    keys[:count, place] = sharp * torch.eye(count)
    read.zero_()
    read[:_CODE, own] = torch.eye(_CODE)
    for weight in (queries, keys, read):
        weight[:, zero] = -weight.sum(1)  # cancels the mean that LayerNorm subtracts
    output = attention.output.weight[:, -size:]
    output.zero_()
    output[before, :_CODE] = torch.eye(_CODE)


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
