"""Position kinds other than a learnt table.

T tokens, B sequences, S longest sequence (S' of the keys), H heads, K head size, D hidden.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ownbert.batches.layout import Layout
from ownbert.config.encoder import SEGMENTS, EncoderConfig
from ownbert.nn.layers import Dropout, Linear
from ownbert.nn.variants.disentangled import DisentangledBias


def sinusoids(positions: Tensor, size: int, *, halves: bool = False) -> Tensor:
    """Sinusoidal position embeddings: (...) -> (..., D), alternating, or in ``halves`` first all
    sines, then all cosines.

    Source: Vaswani et al. 2017, section 3.5.
    """
    pairs = (size + 1) // 2
    steps = torch.arange(pairs, dtype=torch.float32, device=positions.device)
    angles = positions[..., None] * torch.exp(steps * (-2 * math.log(10_000) / size))  # (..., D/2)
    if halves:
        return torch.cat((angles.sin(), angles.cos()), -1)[..., :size]
    return torch.stack((angles.sin(), angles.cos()), -1).flatten(-2)[..., :size]


def rotate(x: Tensor, positions: Tensor, base: float = 10_000.0) -> Tensor:
    """Rotary position embedding: rotate pairs of channels by angles proportional to the position.

    The product of a rotated query and a rotated key depends only on their distance. Channel i is
    paired with channel i + K/2. A larger base means slower rotation.

    x (..., H, K), positions (...) -> (..., H, K)

    Source: Su et al. 2021, equation 34.
    """
    half = x.shape[-1] // 2
    steps = torch.arange(half, dtype=torch.float32, device=x.device)
    # Computed as in Transformers: other rounding would change angles after thousands of tokens.
    angles = positions[..., None, None] * (1 / base ** (2 * steps / x.shape[-1]))  # (..., 1, K/2)
    sin, cos = angles.sin().to(x.dtype), angles.cos().to(x.dtype)
    first, second = x[..., :half], x[..., half:]
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


class RelativeKeys(nn.Module):
    """Scores from a learnt vector for each distance, clipped at the table's maximum.

    ``relative_key``: the product with the query; ``relative_key_query``: with the query and with
    the key.

    Source: Shaw et al. 2018, equation 5; Huang et al. 2020, equation 13.
    """

    def __init__(self, config: EncoderConfig, heads: Sequence[int]) -> None:
        super().__init__()
        self.longest = config.max_position_embeddings - 1
        self.both = config.positions.multiplies_keys
        self.scale = config.head_size**-0.5 if config.scale_relative_positions else 1.0
        self.distance = nn.Embedding(2 * self.longest + 1, config.head_size)

    def forward(self, q: Tensor, k: Tensor, distances: Tensor) -> Tensor:
        """(B, H, S, K), (B, H, S', K), (B or 1, S, S') -> (B, H, S, S')"""
        reach = min(self.longest, max(q.shape[2], k.shape[2]) - 1)
        return self.within(reach, q, k, distances)

    def within(self, reach: int, q: Tensor, k: Tensor, distances: Tensor) -> Tensor:
        """Like ``forward``, for distances of at most ``reach``, or with the whole table."""
        # Each distance is multiplied once, then looked up for every pair of positions.
        span = slice(self.longest - reach, self.longest + reach + 1)
        table = self.distance.weight[span].to(q.dtype)
        index = (distances.clamp(-reach, reach) + reach)[:, None]  # (B or 1, 1, S, S')
        index = index.expand(*q.shape[:2], -1, -1)
        scores = (q @ table.T).gather(-1, index)
        if self.both:
            of_keys = (k @ table.T).gather(-1, index.transpose(-1, -2))  # (B, H, S', S)
            scores = scores + of_keys.transpose(-1, -2)
        return scores * self.scale

    def extra_repr(self) -> str:
        return f"kind={'relative_key_query' if self.both else 'relative_key'}"


class Alibi(nn.Module):
    """A score penalty proportional to the distance, with a fixed slope for each head.

    Head h of H has the slope 2^(-8 (h + 1) / H); a pruned layer keeps the slopes of its heads.

    Source: Press et al. 2022, section 3.
    """

    def __init__(self, config: EncoderConfig, heads: Sequence[int]) -> None:
        super().__init__()
        self._slopes = [2 ** (-8 * (head + 1) / config.num_attention_heads) for head in heads]
        self.slopes: Tensor
        self.fill_buffers()

    def fill_buffers(self) -> None:
        """Compute values that are not saved in files."""
        self.register_buffer("slopes", torch.tensor(self._slopes), persistent=False)

    def forward(self, q: Tensor, k: Tensor, distances: Tensor) -> Tensor:
        """(B or 1, S, S') -> (B or 1, H, S, S'), whatever the queries and keys."""
        return -self.slopes[:, None, None] * distances.abs()[:, None]


class DistanceKeys(NamedTuple):
    """Keys (H, P, K) of P distances from ``farthest`` downwards (query position minus key
    position)."""

    farthest: int
    keys: Tensor


class RelativeSinusoids(nn.Module):
    """Scores from sinusoids of each distance, and from whether two tokens share a segment.

    The score of a query q and a key k at distance d is ((q + content) k + (q + position) W r(d)
    + (q + segment) s) / sqrt(K). s is ``segments[0]`` if both tokens share a segment, else
    ``segments[1]``. ``extended`` merges the first and the last term into one product, which every
    backend computes like that of ordinary queries and keys; ``forward`` computes the other term.

    Attributes:
        distances_per_pair: number of vectors of distances that a query is multiplied by, per key.
        distance: W, which projects the D sinusoids r(d) to a key for each head.

    Source: Dai et al. 2019, section 3.3; Yang et al. 2019, section 2.5.
    """

    distances_per_pair = 2

    def __init__(self, config: EncoderConfig, heads: Sequence[int]) -> None:
        super().__init__()
        self.heads, self.size = len(heads), config.head_size
        self.inputs, self.longest = config.hidden_size, config.longest_distance
        self.distance = Linear(self.inputs, self.heads * self.size, bias=False)
        self.content = nn.Parameter(torch.zeros(self.heads, self.size))
        self.position = nn.Parameter(torch.zeros(self.heads, self.size))
        self.segment = nn.Parameter(torch.zeros(self.heads, self.size))
        self.segments = nn.Parameter(torch.zeros(2, self.heads, self.size))
        self.dropout = Dropout(config.hidden_dropout_prob)

    def extended(
        self, q: Tensor, k: Tensor, of_queries: Tensor | None, of_keys: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Queries (T, H, K) and keys (T', H, K) whose scaled product is the first and the last term
        of the score; with segments, 0 to ``SEGMENTS`` - 1 of each, (T, H, K + SEGMENTS) and (T', H,
        K + SEGMENTS).

        A query gets a channel for each segment, which contains the term for keys of its own
        segment, and a key has a 1 in the channel of its segment. The term for other segments is
        equal for all keys, so it does not change the softmax.
        """
        if of_queries is None or of_keys is None:
            return q + self.content, k
        same = ((q + self.segment) * (self.segments[0] - self.segments[1])).sum(-1, keepdim=True)
        query_segments, key_segments = (
            F.one_hot(x, SEGMENTS).to(q.dtype)[:, None] for x in (of_queries, of_keys)
        )
        q = torch.cat((q + self.content, same * query_segments), -1)
        k = torch.cat((k, key_segments.expand(-1, k.shape[1], -1)), -1)
        return q * self._scale(q), k

    def _scale(self, q: Tensor) -> float:
        """Correction for scores that are divided by the root of the extended width."""
        return (q.shape[-1] / self.size) ** 0.5

    def keys(self, farthest: int, latest: int) -> DistanceKeys:
        """The keys of the distances ``farthest``, ``farthest`` - 1, ..., -``latest``."""
        device, size = self.content.device, self.inputs
        distances = torch.arange(farthest, -latest - 1, -1.0, device=device)  # (P)
        if self.longest is not None:
            distances = distances.clamp(-self.longest, self.longest)
        steps = torch.arange(0, size, 2.0, device=device)
        # Computed as in Transformers: other rounding would change angles after hundreds of tokens.
        angles = distances[:, None] * (1 / 10_000 ** (steps / size))  # (P, D/2)
        waves = torch.cat((angles.sin(), angles.cos()), 1)[:, :size].to(self.content.dtype)
        keys = self.distance(self.dropout(waves)).view(-1, self.heads, self.size)
        return DistanceKeys(farthest, keys.transpose(0, 1))

    def over(self, layout: Layout) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
        """``forward`` for the sequences of a layout, with precomputed keys of all distances."""
        queries, keys = layout.longest_padded
        return partial(self, known=self.keys(keys - 1, queries - 1))

    def forward(
        self, q: Tensor, k: Tensor, distances: Tensor, known: DistanceKeys | None = None
    ) -> Tensor:
        """Scores of the distances: (B, H, S, K), (B, H, S', K), (B or 1, S, S') -> (B, H, S, S').

        ``q`` and ``k`` are returned by ``extended``; ``known`` are precomputed keys of at least
        these distances.
        """
        queries, keys = q.shape[2], k.shape[2]
        known = self.keys(keys - 1, queries - 1) if known is None else known
        first, count = known.farthest - (keys - 1), queries + keys - 1
        table = known.keys[:, first : first + count].to(q.dtype)  # (H, P, K)
        shift = (self.position - self.content) * self._scale(q)  # ``extended`` adds content
        q, scale = q[..., : self.size] + shift[:, None].to(q.dtype), q.shape[-1] ** -0.5
        scores = (q * scale) @ table.transpose(1, 2)  # (B, H, S, P)
        if distances.shape[0] > 1:
            index = (keys - 1 - distances).clamp(0, count - 1)[:, None]
            return scores.gather(-1, index.expand(-1, self.heads, -1, -1))
        if queries == 1:
            return scores
        # Row i starts at the distance of query i to the first key, which is at S - 1 - i.
        rows = scores.flatten(-2)[..., queries - 1 : queries - 1 + queries * (count - 1)]
        return rows.unflatten(-1, (queries, count - 1))[..., :keys]

    def keep(self, indices: Sequence[int], distance: Linear) -> None:
        """Keep only the heads at these indices; ``distance`` is the remaining matrix."""
        for name in ("content", "position", "segment"):
            setattr(self, name, nn.Parameter(getattr(self, name).data[list(indices)]))
        self.segments = nn.Parameter(self.segments.data[:, list(indices)])
        self.distance, self.heads = distance, len(indices)

    def extra_repr(self) -> str:
        longest = "" if self.longest is None else f", longest={self.longest}"
        return f"sinusoids of distances, {SEGMENTS} segments{longest}"


class RelativeBuckets(nn.Module):
    """A learnt bias for each bucket of distances and each head; all blocks share the table.

    Half of the buckets are for keys after the query; in a decoder, where these are invisible, all
    are for keys before it. Small distances have separate buckets, larger ones share buckets of
    logarithmically increasing size, and all from ``relative_max_distance`` on share the last one.

    Attributes:
        heads: indices of the heads.
        table: (buckets, H), owned by the ``Encoder``.

    Source: Raffel et al. 2020, section 2.1.
    """

    def __init__(self, config: EncoderConfig, heads: Sequence[int]) -> None:
        super().__init__()
        self.heads = tuple(heads)
        self.both, self.buckets = not config.is_decoder, config.relative_buckets
        self.largest = config.relative_max_distance
        # In a tuple it is not a submodule, so that sharding by block assigns it to one block.
        self._table = (nn.Embedding(config.relative_buckets, config.num_attention_heads),)

    @property
    def table(self) -> nn.Embedding:
        return self._table[0]

    def share(self, table: nn.Embedding) -> None:
        """Use another block's table."""
        self._table = (table,)

    def forward(self, q: Tensor, k: Tensor, distances: Tensor) -> Tensor:
        """(B or 1, S, S') -> (B or 1, H, S, S'), whatever the queries and keys."""
        reach = max(q.shape[2], k.shape[2]) - 1
        far = torch.arange(-reach, reach + 1, device=distances.device)
        biases = self.table.weight[self.bucket(far)].T  # (H, distances)
        if len(self.heads) < len(biases):
            biases = biases[list(self.heads)]
        index = distances.clamp(-reach, reach) + reach
        return biases.to(q.dtype)[:, index].transpose(0, 1)

    def bucket(self, distances: Tensor) -> Tensor:
        """The bucket of each distance, position of the query minus position of the key."""
        count, first = self.buckets, torch.zeros_like(distances)
        if self.both:
            count //= 2
            first = (distances < 0) * count
            distances = distances.abs()
        distances = distances.clamp(min=0)
        exact = count // 2
        # Computed in the order of Transformers, so that rounding gives the same buckets.
        share = torch.log(distances.float() / exact) / math.log(self.largest / exact)
        shared = (exact + (share * (count - exact)).long()).clamp(max=count - 1)
        return first + torch.where(distances < exact, distances, shared)

    def extra_repr(self) -> str:
        return f"buckets={self.buckets}, largest={self.largest}"


def make_bias(config: EncoderConfig, heads: Sequence[int]) -> nn.Module | None:
    """The bias module for the scores of ``heads``; None for position kinds without one."""
    if config.disentangled is not None and config.disentangled.terms:
        return DisentangledBias(config)
    kind = config.positions.bias
    return None if kind is None else globals()[kind](config, heads)
