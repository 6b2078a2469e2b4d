"""SesameBERT's additions to an encoder: a gate of its layers, and blurred attention outputs.

Both treat sequences independently of the rest of the batch. T tokens, B sequences, D hidden,
L layers.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ownbert.batches.layout import Layout
from ownbert.config.encoder import EncoderConfig
from ownbert.exceptions import InputError

# The bottleneck of the excitation has L / 3 units, and all biases start at 0.8, as in the released
# code, so that gates are initially open.
_RATIO, _OPEN = 3, 0.8


class LayerGate(nn.Module):
    """Squeeze and excitation over layers: a gate from 0 to 1 for each layer of each sequence.

    Squeeze: the mean of a layer's hidden states over tokens and channels, one number per layer.
    Excitation: gates = sigmoid(up(relu(down(squeezed)))). ``last`` is the last layer times its
    gate, as in the released code; ``sum`` the gated sum of all layers, as in the paper.

    Source: Su and Cheng 2019 (SesameBERT), section 3; Hu et al. 2018, section 3.
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        layers, self.kind = config.num_hidden_layers, config.layer_gate
        self.down = nn.Linear(layers, max(1, layers // _RATIO))
        self.up = nn.Linear(max(1, layers // _RATIO), layers)

    def initialize(self) -> None:
        """He initialisation of the weights (He et al. 2015), and biases that open the gates."""
        for linear in (self.down, self.up):
            nn.init.kaiming_normal_(linear.weight, nonlinearity="relu")
            nn.init.constant_(linear.bias, _OPEN)

    def forward(self, layers: Sequence[Tensor], layout: Layout) -> Tensor:
        """Combine the hidden states after each layer, L times (T, D) -> (T, D)."""
        _require_no_mask(layout)
        wide = torch.promote_types(layers[0].dtype, torch.float32)
        means = torch.stack([hidden.mean(-1, dtype=wide) for hidden in layers], -1)  # (T, L)
        squeezed = layout.means(means).to(layers[0].dtype)  # (B, L)
        gates = layout.spread(self.up(self.down(squeezed).relu()).sigmoid())  # (T, L)
        if self.kind == "last":
            return layers[-1] * gates[..., -1:]
        total = layers[0] * gates[..., :1]
        for number, hidden in enumerate(layers[1:], 1):
            total = total + hidden * gates[..., number : number + 1]
        return total

    def extra_repr(self) -> str:
        return f"{self.kind}, layers={self.down.in_features}"


def blur(x: Tensor, layout: Layout, sigma: float) -> Tensor:
    """Blur each row with its two neighbours in the sequence by a Gaussian, whose standard deviation
    is ``sigma`` tokens: (T, ...) -> (T, ...). Sequences are extended by their own first and last
    rows.

    Source: Su and Cheng 2019 (SesameBERT), section 3: a kernel of 3 with sigma 0.3.
    """
    _require_no_mask(layout)
    before, after = layout.beside(x, repeat=True)
    side = math.exp(-1 / (2 * sigma * sigma))
    return (x + side * (before + after)) / (1 + 2 * side)


def _require_no_mask(layout: Layout) -> None:
    """Raise ``InputError`` if rows are masked (padding), because they would be mixed with
    others."""
    if layout.mask is not None:
        raise InputError(
            "layer_gate and attention_blur need the tokens of a text to be contiguous from the "
            "first: pad on the right, and give an attention_mask of shape (batch, length)"
        )
