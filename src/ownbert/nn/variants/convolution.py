"""The convolution beside the first block of DeBERTa-v2 (README of microsoft/DeBERTa, nGiE).

T tokens, B sequences, D hidden.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ownbert.batches.layout import Layout
from ownbert.config.encoder import EncoderConfig
from ownbert.nn.layers import ACTIVATION, Dropout


class Convolution(nn.Module):
    """A convolution over neighbouring embeddings, added to the output of the first block.

    x = norm(block(e) + act(dropout(conv(e)))), with zero padding around each text.
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        of, size = config.disentangled, config.hidden_size
        assert of is not None
        self.conv = nn.Conv1d(size, size, of.conv_kernel_size, groups=of.conv_groups)
        self.act = of.conv_act
        self.norm = nn.LayerNorm(size, eps=config.layer_norm_eps)
        self.dropout = Dropout(config.hidden_dropout_prob)

    def forward(self, embedded: Tensor, hidden: Tensor, layout: Layout) -> Tensor:
        """Embeddings and the output of the first block, (T, D) each -> (T, D)."""
        real = layout.is_token
        mixed = self.neighbours(embedded, layout)
        if real is None:
            return self.joined(mixed, hidden)
        return self.joined(mixed * real, hidden) * real  # Padding stays zero.

    def neighbours(self, embedded: Tensor, layout: Layout) -> Tensor:
        """The convolution within each sequence: (T, D) -> (T, D)."""
        # One call on all sequences, separated by zeros, so that they do not influence each other.
        (width,) = self.conv.kernel_size
        gap = width // 2
        starts = torch.arange(len(embedded), device=embedded.device) + layout.sequences * gap
        count = len(embedded) + (len(layout.lengths) + 1) * gap
        row = embedded.new_zeros(count, embedded.shape[1]).index_copy(0, starts + gap, embedded)
        mixed = F.conv1d(row.T[None], self.conv.weight, self.conv.bias, groups=self.conv.groups)
        return mixed[0].T[starts]

    def joined(self, mixed: Tensor, hidden: Tensor) -> Tensor:
        """(..., D) both -> (..., D)"""
        return self.norm(hidden + ACTIVATION[self.act](self.dropout(mixed)))

    def extra_repr(self) -> str:
        return f"activation={self.act}"
