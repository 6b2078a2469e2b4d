"""The sublayers of an encoder and its blocks. T tokens, D hidden, I intermediate."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ownbert.config.encoder import EncoderConfig
from ownbert.nn.context import Context
from ownbert.nn.layers import ACTIVATION, Dropout, Linear, make_norm
from ownbert.nn.multihead import Attention, CrossAttention


class FeedForward(nn.Module):
    """Position-wise feed-forward network: down(act(up(x))).

    With ``gated_feed_forward``, down(act(a) * b), where ``up`` computes a and b, concatenated.

    Source: Vaswani et al. 2017, equation 2; Shazeer 2020, equation 6.
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        size, inner = config.attention_size, config.intermediate_size
        bias = config.feed_forward_bias
        self.gated = config.gated_feed_forward
        self.up = Linear(size, 2 * inner if self.gated else inner, bias=bias)
        self.down = Linear(inner, size, bias=bias)
        self.act = config.hidden_act
        rate = config.hidden_dropout_prob if config.drop_everywhere else config.activation_dropout
        self.dropout = Dropout(rate) if rate else None

    def forward(self, hidden: Tensor) -> Tensor:
        """(T, D) -> (T, I) -> (T, D)"""
        if self.gated:
            inner, gate = self.up(hidden).chunk(2, -1)  # (T, I) each
            inner = ACTIVATION[self.act](inner) * gate
        else:
            inner = ACTIVATION[self.act](self.up(hidden))
        return self.down(inner if self.dropout is None else self.dropout(inner))

    def extra_repr(self) -> str:
        return f"activation={self.act}" + ", gated" * self.gated


class EncoderBlock(nn.Module):
    """Attention, then feed-forward, each with a residual connection.

    For a sublayer f with input x, post-norm is x = norm(x + dropout(f(x))) (Vaswani et al. 2017,
    section 3.1), and pre-norm (``norm_first``) is x = x + dropout(f(norm(x))) (Xiong et al. 2020).
    A decoder block (``add_cross_attention``) has cross-attention as a third sublayer in between.
    """

    def __init__(self, config: EncoderConfig, block: int = 0) -> None:
        super().__init__()
        size, rate = config.hidden_size, config.hidden_dropout_prob
        self.chunk, self.norm_first = config.chunk_size_feed_forward, config.norm_first
        self.attention = Attention(config, block)
        after = config.attention_probs_dropout_prob if config.attention_rate_on_output else rate
        self.attention_dropout = Dropout(after if config.drop_attention_output else 0.0)
        plain = block == 0 and config.norm_first and not config.first_norm
        self.attention_norm = nn.Identity() if plain else make_norm(config, size)
        if config.add_cross_attention:
            self.cross_attention = CrossAttention(config)
            self.cross_attention_dropout = Dropout(rate)
            self.cross_attention_norm = make_norm(config, size)
        self.feed_forward = FeedForward(config)
        self.feed_forward_dropout = Dropout(rate if config.drop_feed_forward_output else 0.0)
        self.feed_forward_norm = make_norm(config, size)

    def forward(self, hidden: Tensor, context: Context, layer: int = 0) -> Tensor:
        """Hidden states (T, D) -> (T, D)."""
        if context.cross is not None and not hasattr(self, "cross_attention"):
            raise ValueError(
                "this model does not attend to an encoder: add_cross_attention is false"
            )
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
            attended = self.attention(x, context, layer)
            x = self.attention_norm(x + self.attention_dropout(attended))
            if context.cross is not None:
                attended = self.cross_attention(x, context, layer)
                x = self.cross_attention_norm(x + self.cross_attention_dropout(attended))
            chunks = [
                self.feed_forward_norm(part + self.feed_forward_dropout(self.feed_forward(part)))
                for part in self.chunks(x, context)
            ]
        return chunks[0] if len(chunks) == 1 else torch.cat(chunks)

    def chunks(self, x: Tensor, context: Context) -> Sequence[Tensor]:
        """Split (T, D) into chunks of a number of tokens of every sequence, as in Transformers."""
        return x.split(self.chunk * len(context.layout.lengths)) if self.chunk else (x,)

    def extra_repr(self) -> str:
        return "norm_first" if self.norm_first else ""
