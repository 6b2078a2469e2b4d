"""Tokens that occur repeatedly, and pairs of neighbouring tokens, in a BERT that contains a linear
model (``token_scores``).

Each token has a random code of plus and minus one. Heads that compare codes attend to equal tokens,
and units of a feed-forward network that compare them detect pairs. LayerNorm divides all channels
of a token by the same number, so thresholds are channels too, not biases.

Repeated tokens: a word that occurs ten times in a text says hardly more than one that occurs once,
so linear models of texts damp counts. One head of the first block attends to all equal tokens and
to the first token, to each with the same weight: the share of the first token is 1 / (1 + n) for a
token that occurs n times. The heads of the last block, which compute the mean, attend less to
tokens with a small share, each with a weight of about 1 / n.

Pairs: a linear model of bigrams must detect where one token follows another. New channels hold
sines and cosines of every position. One head of the first block uses them to attend to the previous
token, and copies its code. For every pair, one unit of the first feed-forward network compares both
codes with those of the pair and, where both match, adds the scores of the pair.

T tokens of all texts, N texts, V tokens of the vocabulary, P pairs, C labels.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ownbert.batches.example import Example
from ownbert.corpus.sparse import Matrix, sparse
from ownbert.nn.model import Model
from ownbert.views.ngram_counts import find_keys, texts_with_each

CODE, SEED = 32, 3024  # channels of a code, and the seed of the codes
# Sines and cosines of positions, two channels for each frequency.
FREQUENCIES = 16
# Copies of one value: dropout could remove a single channel.
_COPIES = {"constant": 6, "mark": 4, "share": 4}
# Size of the values, relative to those of the other channels. Ballast is larger: the larger the
# values that all tokens share, the less LayerNorm's divisor varies between tokens. Even larger ones
# would make 8-bit integers round the other channels too much. No weight reads the ballast, because
# 8-bit integers cannot hold weights of very different sizes either.
SIZE, _LARGE = 0.3, 3.0
# Minimum number of ballast channels for repeated tokens.
_BALLAST = 4
# The attention score of an equal token in the first block. That of others is 0 on average, and the
# mean of their exponentials is that of a normal distribution with the variance of two codes.
_REPEATED_ATTENDED = 10.0
_OTHERS = float(np.exp(_REPEATED_ATTENDED**2 / (2 * CODE) - _REPEATED_ATTENDED))
# A share of 1 / 2 has the attention score 0 in the last block; another has the difference times
# this: the weights of tokens that occur 1, 2, 3, 5 and 10 times are 1, .5, .36, .25 and .19.
_REPEATED_STEEP, _ONCE = 4.1, 0.5
# The attention score in the last block of the first token, which contributes no scores.
_LEFT_OUT = -20.0
# The attention score of the previous token.
_ATTENDED = 40.0
# Two matching codes give 2. A unit subtracts the threshold and multiplies the rest.
_THRESHOLD, _STEEP = 1.6, 12.0
# Minimum number of texts with a pair.
_FEWEST_TEXTS = 3
# The number of the most frequent pairs from which the informative ones are chosen.
_CANDIDATES = 50_000


@dataclass(frozen=True)
class CodeChannels:
    """The indices of the channels, from ``first`` on, with those for repeated tokens if ``damped``
    and for pairs if ``paired``, and ``unused`` others, which may be ballast too. The channel after
    the last one stays empty."""

    first: int
    damped: bool
    paired: bool
    unused: int = 0

    @property
    def widths(self) -> dict[str, int]:
        """Number of channels for each purpose.

        ``own``: the code of the token; the first token has none. ``constant`` and ``ballast``: the
        same for every token. ``mark``: only in the first token. ``share``: see
        ``repeated_tokens``. ``before`` and ``place``: the code of the previous token, and the
        position, see ``token_pairs``.
        """
        damped, paired = self.damped, self.paired
        names = ("constant",) * (damped or paired) + ("mark", "share") * damped
        widths = {"own": CODE} if names else {}
        widths |= {name: _COPIES[name] for name in names}
        widths |= {"before": CODE, "place": 2 * FREQUENCIES} if paired else {}
        return widths | {"ballast": _BALLAST * damped + self.unused // 2 * 2}

    def __getitem__(self, name: str) -> Tensor:
        widths = self.widths
        names = [*widths]
        begin = self.first + sum(widths[own] for own in names[: names.index(name)])
        return begin + torch.arange(widths[name])

    @property
    def zero(self) -> int:
        """The empty channel. It shows the mean that LayerNorm subtracts from every channel."""
        return self.first + sum(self.widths.values())

    @property
    def energy(self) -> float:
        """The sum of squares over the channels of most tokens, relative to that of one other
        channel. Sines and cosines add up to 1."""
        counted = {**self.widths, "mark": 0}
        if self.paired:
            counted["place"] = FREQUENCIES
        ballast = counted.pop("ballast")
        return SIZE**2 * sum(counted.values()) + _LARGE**2 * ballast

    def one(self, name: str) -> Tensor:
        """The values that stand for 1 in channels with the same value. Their sum is 0, so that the
        mean over all channels stays the same."""
        size = _LARGE if name == "ballast" else SIZE
        return size * torch.tensor([1.0, -1.0]).repeat(self.widths[name] // 2)

    def readout(self, name: str) -> Tensor:
        """The weights that read a number from these channels."""
        return self.one(name) / self.one(name).square().sum()

    def add_codes(self, wide: Model, deviation: Tensor, first_token: int) -> None:
        """Set the embeddings of the codes, constants and marks. ``deviation`` (V, 1): standard
        deviation of the embedding of each token; ``first_token``: id of the token that begins every
        text."""
        embeddings: Any = wide.encoder.embeddings
        word = embeddings.word.weight
        word[:, self["ballast"]] = self.one("ballast") * deviation
        if self.damped or self.paired:
            word[:, self["own"]] = SIZE * codes(wide.config.vocab_size) * deviation
            word[:, self["constant"]] = self.one("constant") * deviation
        if self.damped:
            word[first_token, self["own"]] = 0.0
            word[first_token, self["mark"]] = self.one("mark") * deviation[first_token]


def can_hold_codes(model: Model) -> bool:
    """Whether a model for which ``can_hold_scores`` is true can compare tokens."""
    config = model.config
    return config.head_size >= max(CODE, 2 * FREQUENCIES) and config.num_hidden_layers > 1


def codes(vocab_size: int) -> Tensor:
    """(V, 32): half of each code is 1 and half is -1, so that its mean is 0."""
    order = np.random.default_rng(SEED).random((vocab_size, CODE)).argsort(1)
    return torch.from_numpy(np.where(order < CODE // 2, 1.0, -1.0).astype(np.float32))


def cancel_mean(weights: Tensor, zero: int) -> None:
    """Make each row of a matrix (rows, channels) subtract the mean that LayerNorm subtracts."""
    weights[:, zero] -= weights.sum(1)


class TokenShares(NamedTuple):
    """The tokens of texts: ``ids`` (T), -1 for special tokens; ``row`` (T), the text of each token;
    ``share`` (T), its weight in the mean of its text; the weights of a text sum to 1."""

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
    return np.exp(_REPEATED_STEEP * (share - _ONCE))


def add_damping(wide: Model, channels: CodeChannels, head: int, mean_from: int) -> None:
    """Set the weights that damp repeated tokens in a model with the codes in ``channels``.
    ``head``: a head of the first block that is not used; ``mean_from``: the first head of the last
    block that computes the mean; so do all later ones."""
    size, zero = wide.config.head_size, channels.zero
    own, mark, share = (channels[name] for name in ("own", "mark", "share"))
    constant = channels["constant"]
    blocks: Any = wide.encoder.blocks
    attention, rows = blocks[0].attention, slice(head * size, (head + 1) * size)
    queries, keys, read = (part[rows] for part in attention.qkv.weight.chunk(3))
    # Codes are orthogonal to a vector of ones, which the first token has in their place.
    root = (_REPEATED_ATTENDED * size**0.5 / CODE) ** 0.5 / SIZE
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
        key[:, share] = _REPEATED_STEEP * channels.readout("share")
        key[:, constant] = -_REPEATED_STEEP * _ONCE * channels.readout("constant")
        key[:, mark] = _LEFT_OUT * channels.readout("mark")
        for weights in (query, key):
            cancel_mean(weights, zero)


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
    """The pairs, at most ``most``, that explain most of the ``residual`` (N, C) of a linear model
    of single tokens, as sorted numbers (``pair_counts``). Only texts with ``learnt`` (N) are
    counted."""
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
    """Set the weights that add scores of ``pairs`` (P) in a model with the codes, in which the last
    head of the first block and the last P units of each feed-forward network are unused.

    ``values`` (P, R): the scores of each pair in the R channels ``scores``; ``deviation`` (V, 1):
    standard deviation of the embedding of each token.
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
