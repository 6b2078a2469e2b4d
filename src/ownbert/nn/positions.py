"""Position kinds beyond a learnt table: how a model knows where a token stands.

T tokens, B sequences, S longest sequence (S' of the keys), H heads, K head size, D hidden.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ownbert.config import EncoderConfig
from ownbert.nn.disentangled import DisentangledBias


def sinusoids(positions: Tensor, size: int, *, halves: bool = False) -> Tensor:
    """Sinusoidal position embeddings: (T) -> (T, D).

    Args:
        positions: (T).
        size: D.
        halves: first all sines, then all cosines, in place of sine and cosine in turn.

    Source: Vaswani et al. 2017, section 3.5.
    """
    pairs = (size + 1) // 2
    steps = torch.arange(pairs, dtype=torch.float32, device=positions.device)
    angles = positions[:, None] * torch.exp(steps * (-2 * math.log(10_000) / size))  # (T, pairs)
    if halves:
        return torch.cat((angles.sin(), angles.cos()), 1)[:, :size]
    return torch.stack((angles.sin(), angles.cos()), -1).flatten(1)[:, :size]


def rotate(x: Tensor, positions: Tensor, base: float = 10_000.0) -> Tensor:
    """Turn pairs of channels by angles that grow with the position.

    The product of a rotated query and a rotated key depends on their distance alone. Channel i is
    paired with channel i + K/2.

    Args:
        x: (T, H, K).
        positions: (T).
        base: of the angles; the larger, the slower pairs turn.

    Returns:
        (T, H, K).

    Source: Su et al. 2021, equation 34.
    """
    half = x.shape[-1] // 2
    steps = torch.arange(half, dtype=torch.float32, device=x.device)
    # A power, rounded as Transformers rounds it: thousands of tokens on, angles would differ.
    angles = positions[:, None] * (1 / base ** (2 * steps / x.shape[-1]))  # (T, K/2)
    sin, cos = angles.sin()[:, None].to(x.dtype), angles.cos()[:, None].to(x.dtype)
    first, second = x[..., :half], x[..., half:]
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


class RelativeKeys(nn.Module):
    """Scores of a learnt vector for each distance, clipped at the longest one of the table.

    ``relative_key``: its product with the query; ``relative_key_query``: with the query and with
    the key.

    Source: Shaw et al. 2018, equation 5; Huang et al. 2020, equation 13.
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.longest = config.max_position_embeddings - 1
        self.both = config.position_embedding_type == "relative_key_query"
        self.scale = config.head_size**-0.5 if config.scale_relative_positions else 1.0
        self.distance = nn.Embedding(2 * self.longest + 1, config.head_size)

    def forward(self, q: Tensor, k: Tensor, distances: Tensor) -> Tensor:
        """(B, H, S, K), (B, H, S', K), (B or 1, S, S') -> (B, H, S, S')"""
        # Each distance is multiplied once; looking it up for every pair of places comes after.
        reach = min(self.longest, max(q.shape[2], k.shape[2]) - 1)
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
    """Scores that fall with the distance, each head at its own rate.

    Head h of H has the slope 2^(-8 (h + 1) / H); a pruned layer keeps the slopes of its heads.

    Source: Press et al. 2022, section 3.
    """

    def __init__(self, config: EncoderConfig, heads: Sequence[int]) -> None:
        super().__init__()
        slopes = [2 ** (-8 * (head + 1) / config.num_attention_heads) for head in heads]
        self.slopes: Tensor
        self.register_buffer("slopes", torch.tensor(slopes), persistent=False)

    def forward(self, q: Tensor, k: Tensor, distances: Tensor) -> Tensor:
        """(B or 1, S, S') -> (B or 1, H, S, S'), whatever the queries and keys."""
        return -self.slopes[:, None, None] * distances.abs()[:, None]


def make_bias(config: EncoderConfig, heads: Sequence[int]) -> nn.Module | None:
    """What a block adds to the scores of ``heads``; None for position kinds that add nothing."""
    if config.disentangled is not None and config.disentangled.terms:
        return DisentangledBias(config)
    if config.position_embedding_type in ("relative_key", "relative_key_query"):
        return RelativeKeys(config)
    if config.position_embedding_type == "alibi":
        return Alibi(config, heads)
    return None
