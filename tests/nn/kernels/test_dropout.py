"""Dropout: its rate, its scale, its gradient, and where it does nothing."""

import pytest
import torch

from ownbert.nn.layers import Dropout, dropout


@pytest.mark.parametrize("p", [0.05, 0.1, 0.5, 0.9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_share_of_zeros_and_the_mean(p: float, dtype: torch.dtype):
    torch.manual_seed(0)
    found = dropout(torch.ones(333, 1001, dtype=dtype), p).float()
    assert (found == 0).float().mean().item() == pytest.approx(p, abs=1 / 256)
    assert found.mean().item() == pytest.approx(1, abs=0.02)
    assert found.unique().numel() == 2  # zero, or scaled up


def test_every_place_draws_for_itself():
    torch.manual_seed(0)
    kept = torch.stack([dropout(torch.ones(64), 0.5) > 0 for _ in range(4000)]).float()
    assert (kept.mean(0) - 0.5).abs().max() < 0.05
    together = torch.corrcoef(kept.T).fill_diagonal_(0)
    assert together.abs().max() < 0.1


def test_the_gradient_passes_where_the_value_did():
    torch.manual_seed(0)
    x = torch.randn(7, 13, requires_grad=True)
    out = dropout(x, 0.3)
    out.backward(torch.ones_like(out))
    assert x.grad is not None
    assert torch.equal(x.grad * x, out)


def test_the_seed_decides_and_evaluation_changes_nothing():
    layer, x = Dropout(0.5), torch.randn(100)
    found = []
    for _ in range(2):
        torch.manual_seed(3)
        found.append(layer(x))
    assert torch.equal(*found)
    assert not torch.equal(found[0], x)
    assert layer.eval()(x) is x
    assert Dropout(0.0)(x) is x
