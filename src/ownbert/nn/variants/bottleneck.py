"""MobileBERT's block: narrow attention and feed-forward between two bottlenecks.

Sun et al. 2020, figure 1 (c). T tokens, D hidden, N narrow width.
"""

from torch import Tensor, nn

from ownbert.config.encoder import EncoderConfig
from ownbert.config.variants import Mobile
from ownbert.nn.blocks import FeedForward
from ownbert.nn.context import Context
from ownbert.nn.layers import Dropout, Linear, make_norm
from ownbert.nn.multihead import MultiHeadAttention


class Narrow(nn.Module):
    """A linear layer and a norm: (T, D) -> (T, N)."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.dense = Linear(config.hidden_size, config.attention_size)
        self.norm = make_norm(config, config.attention_size)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.norm(self.dense(hidden))


class NarrowAttention(MultiHeadAttention):
    """Self-attention whose values have another input than its queries and keys."""

    query_key: Linear
    value: Linear

    def __init__(self, config: EncoderConfig, block: int = 0) -> None:
        mobile = config.mobile
        assert mobile is not None
        width = len(config.kept_heads(block)) * config.head_size
        narrow, wide = config.attention_size, config.hidden_size
        shared = mobile.use_bottleneck_attention or mobile.key_query_shared_bottleneck
        query_key = Linear(narrow if shared else wide, 2 * width)
        value = Linear(narrow if mobile.use_bottleneck_attention else wide, width)
        super().__init__(config, block, query_key=query_key, value=value)

    def forward(
        self, query_key_input: Tensor, value_input: Tensor, context: Context, layer: int = 0
    ) -> Tensor:
        """(T, N) or (T, D), twice -> (T, N)"""
        sizes = self.heads, self.head_size
        q, k = self.query_key(query_key_input).unflatten(-1, (2, *sizes)).unbind(-3)
        v = self.value(value_input).unflatten(-1, sizes)
        return self.attend_to_self(q, k, v, context, layer)


class FeedForwardLayer(nn.Module):
    """A feed-forward network with a residual connection: (T, N) -> (T, N)."""

    def __init__(
        self, config: EncoderConfig, *, eps: float | None = None, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.network = FeedForward(config)
        self.dropout = Dropout(dropout)
        self.norm = make_norm(config, config.attention_size, eps=eps)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.norm(self.dropout(self.network(hidden)) + hidden)


class BottleneckBlock(nn.Module):
    """Bottleneck, attention, several feed-forward networks, widening.

    Attributes:
        unused: modules that checkpoints contain and no forward pass computes.

    Source: Sun et al. 2020, figure 1 (c).
    """

    def __init__(self, config: EncoderConfig, block: int = 0) -> None:
        super().__init__()
        mobile = config.mobile
        assert mobile is not None
        self.mobile: Mobile = mobile
        if mobile.use_bottleneck:
            self.narrow = Narrow(config)
            if mobile.key_query_shared_bottleneck:
                self.narrow_attention = Narrow(config)
            self.widen = Linear(config.attention_size, config.hidden_size)
            self.widen_norm = make_norm(config, config.hidden_size)
        both = mobile.use_bottleneck_attention and hasattr(self, "narrow_attention")
        self.unused = (self.narrow_attention,) if both else ()
        self.attention = NarrowAttention(config, block)
        self.attention_norm = make_norm(config, config.attention_size)
        self.dropout = Dropout(config.hidden_dropout_prob)
        layers = [FeedForwardLayer(config) for _ in range(mobile.num_feedforward_networks - 1)]
        # The last LayerNorm has PyTorch's default epsilon in Transformers 4.57.6.
        rate = 0.0 if mobile.use_bottleneck else config.hidden_dropout_prob
        last = FeedForwardLayer(config, eps=1e-5, dropout=rate)
        self.feed_forwards = nn.ModuleList([*layers, last])

    def forward(self, hidden: Tensor, context: Context, layer: int = 0) -> Tensor:
        """(T, D) -> (T, D)"""
        query_key_input, value_input, residual = self.inputs(hidden)
        attended = self.attention(query_key_input, value_input, context, layer)
        if not self.mobile.use_bottleneck:
            attended = self.dropout(attended)
        narrow = self.attention_norm(attended + residual)  # (T, N)
        for feed_forward in self.feed_forwards:
            narrow = feed_forward(narrow)
        if not self.mobile.use_bottleneck:
            return narrow
        return self.widen_norm(self.dropout(self.widen(narrow)) + hidden)

    def inputs(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The inputs of queries and keys, of values, and of the residual connection.

        (T, D) -> (T, N) each, or (T, D) without a bottleneck.
        """
        if not self.mobile.use_bottleneck:
            return hidden, hidden, hidden
        narrow = self.narrow(hidden)
        if self.mobile.use_bottleneck_attention:
            return narrow, narrow, narrow
        if self.mobile.key_query_shared_bottleneck:
            return self.narrow_attention(hidden), hidden, narrow
        return hidden, hidden, narrow
