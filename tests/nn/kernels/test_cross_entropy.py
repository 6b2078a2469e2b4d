"""Cross entropy by rows is PyTorch's, with the right answers beside it."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from ownbert.nn import cross_entropy as module
from ownbert.nn.cross_entropy import cross_entropy
from support.floats import assert_close

ROWS, VOCAB = 37, 101


@pytest.fixture(autouse=True, params=[1, 5 * VOCAB, 1 << 30], ids=["rows", "fives", "whole"])
def _chunk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """By single rows, by five at a time, and by PyTorch."""
    monkeypatch.setattr(module, "_CHUNK", request.param)


def make(dtype: torch.dtype, scale: float = 3.0) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    logits = (torch.randn(ROWS, VOCAB) * scale).to(dtype)
    return logits.requires_grad_(), torch.randint(0, VOCAB, (ROWS,))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("scale", [3.0, 300.0])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_loss_and_gradient(dtype: torch.dtype, scale: float, smoothing: float):
    logits, targets = make(dtype, scale)
    total, _ = cross_entropy(logits, targets, smoothing=smoothing)
    (found,) = torch.autograd.grad(total / ROWS, logits)
    wide = logits.detach().double().requires_grad_()
    truth = F.cross_entropy(wide, targets, reduction="sum", label_smoothing=smoothing)
    (expected,) = torch.autograd.grad(truth / ROWS, wide)
    assert_close(total, truth)
    assert found.dtype == dtype
    eps = max(torch.finfo(dtype).eps, torch.finfo(torch.float32).eps)
    torch.testing.assert_close(found.double(), expected, rtol=4 * eps, atol=2 * eps / ROWS)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_right_answers(dtype: torch.dtype):
    logits, targets = make(dtype)
    targets[::3] = logits.detach()[::3].argmax(-1)
    expected = int((logits.argmax(-1) == targets).sum())
    total, right = cross_entropy(logits, targets)
    assert ROWS / 3 <= int(right) == expected
    assert not right.requires_grad
    with torch.no_grad():
        again, count = cross_entropy(logits, targets)
    assert int(count) == expected
    assert_close(again, total)


def test_a_target_without_any_chance_costs_what_it_should():
    logits = torch.zeros(2, VOCAB)
    logits[:, 3] = 1000.0
    total, right = cross_entropy(logits.requires_grad_(), torch.tensor([5, 3]))
    assert float(total.detach()) == pytest.approx(1000.0)
    assert int(right) == 1


def test_logits_stay_as_they_are():
    logits, targets = make(torch.float32)
    before = logits.detach().clone()
    cross_entropy(logits, targets)[0].backward()
    assert torch.equal(logits.detach(), before)
