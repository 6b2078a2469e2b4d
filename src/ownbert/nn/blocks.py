"""The sublayers of an encoder, and a block of them. T tokens, D hidden, I intermediate."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ownbert.config import EncoderConfig
from ownbert.nn.activations import ACTIVATION
from ownbert.nn.context import Context
from ownbert.nn.kernels.dropout import Dropout
from ownbert.nn.kernels.linear import Linear
from ownbert.nn.multihead import Attention, CrossAttention


class FeedForward(nn.Module):
    """Position-wise feed-forward network: down(act(up(x))).

    Source: Vaswani et al. 2017, equation 2.
    """

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
    """Attention, then feed-forward, each f added to its input x.

    Post-norm: x = norm(x + dropout(f(x))) (Vaswani et al. 2017, section 3.1). Pre-norm, with
    ``norm_first``: x = x + dropout(f(norm(x))) (Xiong et al. 2020). A decoder's block, with
    ``add_cross_attention``, has a third sublayer in between, which attends to an encoder.
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
        """Hidden states (T, D) -> (T, D).

        Raises:
            ValueError: ``context`` has an encoder to attend to, and the block has no cross
                attention.
        """
        if context.cross is not None and not hasattr(self, "cross_attention"):
            raise ValueError("this model attends to no encoder: add_cross_attention is false")
        x = hidden
        if self.norm_first:
            x = x + self.attention_dropout(self.attention(self.attention_norm(x), context, layer))
            if context.cross is not None:
                attended = self.cross_attention(self.cross_attention_norm(x), context, layer)
                x = x + self.cross_attention_dropout(attended)
            chunks = [
                part + self.feed_forward_dropout(self.feed_forward(self.feed_forward_norm(part)))
                for part in self.chunks(x, context)
            ]
        else:
            x = self.attention_norm(x + self.attention_dropout(self.attention(x, context, layer)))
            if context.cross is not None:
                attended = self.cross_attention(x, context, layer)
                x = self.cross_attention_norm(x + self.cross_attention_dropout(attended))
            chunks = [
                self.feed_forward_norm(part + self.feed_forward_dropout(self.feed_forward(part)))
                for part in self.chunks(x, context)
            ]
        return chunks[0] if len(chunks) == 1 else torch.cat(chunks)

    def chunks(self, x: Tensor, context: Context) -> Sequence[Tensor]:
        """(T, D), whole or cut: a chunk is so many tokens of every sequence, as in Transformers."""
        return x.split(self.chunk * len(context.layout.lengths)) if self.chunk else (x,)

    def extra_repr(self) -> str:
        return "norm_first" if self.norm_first else ""
