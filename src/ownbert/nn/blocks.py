"""The sublayers of an encoder. T tokens, D hidden, I intermediate."""

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor, nn

from ownbert.config import EncoderConfig
from ownbert.data.batch import Layout
from ownbert.nn.attention import Attention
from ownbert.nn.dropout import Dropout


def _gelu_tanh(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


# "gelu" is the exact one, by erf, as in Transformers; Google's first code meant "gelu_new" by it.
ACTIVATION: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_new": _gelu_tanh,
    "relu": F.relu,
    "silu": F.silu,
    "tanh": F.tanh,
}


class FeedForward(nn.Module):
    """Position-wise feed-forward network (Vaswani et al. 2017, equation 2)."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.up = nn.Linear(config.hidden_size, config.intermediate_size)
        self.down = nn.Linear(config.intermediate_size, config.hidden_size)
        self.activation = ACTIVATION[config.hidden_act]

    def forward(self, hidden: Tensor) -> Tensor:
        return self.down(self.activation(self.up(hidden)))  # (T, D) -> (T, I) -> (T, D)


class EncoderBlock(nn.Module):
    """Attention, then feed-forward; each added to its input and normalised after (post-norm)."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.attention = Attention(config)
        self.attention_dropout = Dropout(config.hidden_dropout_prob)
        self.attention_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.feed_forward = FeedForward(config)
        self.feed_forward_dropout = Dropout(config.hidden_dropout_prob)
        self.feed_forward_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, hidden: Tensor, layout: Layout) -> Tensor:
        """(T, D) -> (T, D)"""
        attended = self.attention_dropout(self.attention(hidden, layout))
        hidden = self.attention_norm(hidden + attended)
        fed = self.feed_forward_dropout(self.feed_forward(hidden))
        return self.feed_forward_norm(hidden + fed)
