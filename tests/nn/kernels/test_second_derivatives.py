"""Hand-written backward passes are differentiable themselves (``create_graph=True``)."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from ownbert.batches.layout import make_layout
from ownbert.nn.attention.attend import attend


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_attention(causal: bool, dropout: float):
    lengths = [3, 1, 4]
    torch.manual_seed(0)
    inputs = [torch.randn(sum(lengths), 2, 3, dtype=torch.double) for _ in range(3)]

    def compute(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        torch.manual_seed(1)  # the same dropout in each call
        layout = replace(make_layout(lengths), causal=causal)
        return attend(q, k, v, layout, dropout=dropout, backend="manual").out

    inputs = [x.requires_grad_() for x in inputs]
    assert torch.autograd.gradcheck(compute, inputs)
    assert torch.autograd.gradgradcheck(compute, inputs)
