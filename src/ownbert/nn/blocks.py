"""The sublayers of an encoder, and a block of them. T tokens, D hidden, I intermediate."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from ownbert.config import EncoderConfig
from ownbert.nn.activations import ACTIVATION
from ownbert.nn.context import Context
from ownbert.nn.kernels.dropout import Dropout
from ownbert.nn.kernels.linear import Linear
from ownbert.nn.multihead import Attention, CrossAttention


class FeedForward(nn.Module):
    """Position-wise feed-forward network (Vaswani et al. 2017, equation 2)."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.up = Linear(config.attention_size, config.intermediate_size)
        self.down = Linear(config.intermediate_size, config.attention_size)
        self.act = config.hidden_act
        self.dropout = Dropout(config.activation_dropout) if config.activation_dropout else None

    def forward(self, hidden: Tensor) -> Tensor:
        """(T, D) -> (T, I) -> (T, D)"""
        inner = ACTIVATION[self.act](self.up(hidden))
        return self.down(inner if self.dropout is None else self.dropout(inner))

    def extra_repr(self) -> str:
        return f"activation={self.act}"


class EncoderBlock(nn.Module):
    """Attention, then feed-forward; each added to its input. Normalised is the sum (post-norm,
    Vaswani et al. 2017), or with ``norm_first`` the input of each (pre-norm).

    With ``add_cross_attention`` a third sublayer in between attends to an encoder: a decoder's
    block.
    """

    def __init__(self, config: EncoderConfig, block: int = 0) -> None:
        super().__init__()
        size, rate = config.hidden_size, config.hidden_dropout_prob
        self.chunk, self.norm_first = config.chunk_size_feed_forward, config.norm_first
        self.attention = Attention(config, block)
        self.attention_dropout = Dropout(rate if config.drop_attention_output else 0.0)
        self.attention_norm = nn.LayerNorm(size, eps=config.layer_norm_eps)
        if config.add_cross_attention:
            self.cross_attention = CrossAttention(config)
            self.cross_attention_dropout = Dropout(rate)
            self.cross_attention_norm = nn.LayerNorm(size, eps=config.layer_norm_eps)
        self.feed_forward = FeedForward(config)
        self.feed_forward_dropout = Dropout(rate if config.drop_feed_forward_output else 0.0)
        self.feed_forward_norm = nn.LayerNorm(size, eps=config.layer_norm_eps)

    def forward(self, hidden: Tensor, context: Context, layer: int = 0) -> Tensor:
        """(T, D) -> (T, D)"""
        hidden = self.add(
            hidden,
            self.attention_norm,
            lambda x: self.attention_dropout(self.attention(x, context, layer)),
        )
        if context.cross is not None:
            if not hasattr(self, "cross_attention"):
                raise ValueError("this model attends to no encoder: add_cross_attention is false")
            hidden = self.add(
                hidden,
                self.cross_attention_norm,
                lambda x: self.cross_attention_dropout(self.cross_attention(x, context, layer)),
            )
        if not self.chunk:
            return self.feed(hidden)
        # A chunk is so many tokens of every sequence, as in Transformers.
        rows = self.chunk * len(context.layout.lengths)
        return torch.cat([self.feed(part) for part in hidden.split(rows)])

    def add(self, hidden: Tensor, norm: nn.Module, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """norm(x + f(x)), or with ``norm_first`` x + f(norm(x)): (T, D) -> (T, D)."""
        if self.norm_first:
            return hidden + sublayer(norm(hidden))
        return norm(hidden + sublayer(hidden))

    def feed(self, hidden: Tensor) -> Tensor:
        """The feed-forward sublayer: (T, D) -> (T, D)."""
        return self.add(
            hidden,
            self.feed_forward_norm,
            lambda x: self.feed_forward_dropout(self.feed_forward(x)),
        )

    def prune(self, config: EncoderConfig, block: int) -> None:
        """Lose the heads that ``config`` no longer has."""
        self.attention.prune(config, block)

    def extra_repr(self) -> str:
        return "norm_first" if self.norm_first else ""
