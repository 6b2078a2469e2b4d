"""Pooling layers other than BERT's pooler. T tokens, B sequences, D hidden.

They work on packed rows, so there is no padding to exclude.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_sequence

from ownbert.batches.layout import Layout
from ownbert.config.encoder import EncoderConfig
from ownbert.exceptions import InputError


class FirstPooling(nn.Module):
    """The first token: (T, D) -> (B, D)."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()

    def forward(self, hidden: Tensor, layout: Layout) -> Tensor:
        return layout.first(hidden)


class LastPooling(FirstPooling):
    """The last token, XLNet's <cls>: (T, D) -> (B, D)."""

    def forward(self, hidden: Tensor, layout: Layout) -> Tensor:
        return hidden[layout.cu_seqlens[1:] - 1]


class MeanPooling(FirstPooling):
    """The mean over all tokens, including special tokens: (T, D) -> (B, D)."""

    def forward(self, hidden: Tensor, layout: Layout) -> Tensor:
        return layout.means(hidden).to(hidden.dtype)


class MaxPooling(FirstPooling):
    """The maximum of each channel: (T, D) -> (B, D)."""

    def forward(self, hidden: Tensor, layout: Layout) -> Tensor:
        return layout.largest(hidden)


class AttentionPooling(nn.Module):
    """A mean weighted by a softmax over learnt scores: (T, D) -> (B, D).

    Source: Yang et al. 2016, section 2.2.
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.score = nn.Linear(config.hidden_size, 1, bias=False)

    def forward(self, hidden: Tensor, layout: Layout) -> Tensor:
        scores = self.score(self.dense(hidden).tanh())  # (T, 1)
        scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
        # Subtracted to avoid overflow; a softmax does not change. The largest weight is then 1, and
        # the sum of weights is less only in an exported graph, for a text of padding alone.
        weights = (scores - layout.spread(layout.largest(scores.detach()))).exp()
        return (layout.sums(hidden * weights) / layout.sums(weights).clamp_min(1)).to(hidden.dtype)


class RecurrentPooling(nn.Module):
    """Final states of a bidirectional recurrent layer, D/2 channels each way: (T, D) -> (B, D)."""

    layer: type[nn.LSTM] | type[nn.GRU] = nn.GRU

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        size = config.hidden_size
        if size % 2:
            raise InputError("recurrent pooling halves hidden_size; {size} must be even", size)
        self.recurrent = self.layer(size, size // 2, bidirectional=True)

    def forward(self, hidden: Tensor, layout: Layout) -> Tensor:
        packed = pack_sequence(list(hidden.split(layout.lengths)), enforce_sorted=False)
        state = self.recurrent(packed)[1]
        state = state[0] if isinstance(state, tuple) else state  # (2, B, D/2)
        return state.transpose(0, 1).flatten(1)


class LSTMPooling(RecurrentPooling):
    """``RecurrentPooling`` with an LSTM."""

    layer = nn.LSTM


POOLINGS: dict[str, Callable[[EncoderConfig], nn.Module]] = {
    "first": FirstPooling,
    "last": LastPooling,
    "mean": MeanPooling,
    "max": MaxPooling,
    "attention": AttentionPooling,
    "gru": RecurrentPooling,
    "lstm": LSTMPooling,
}
