"""Poolings against plain code, one sequence after the other, gradients included."""

import pytest
import torch
from torch import Tensor, nn

from ownbert.batches.layout import Layout, make_layout
from ownbert.config.encoder import EncoderConfig
from ownbert.config.head_spec import HeadSpec
from ownbert.exceptions import InputError
from ownbert.nn.model import Model
from ownbert.nn.output_heads import POOLINGS

CONFIG = EncoderConfig(vocab_size=9, hidden_size=6, num_attention_heads=1, num_hidden_layers=1)
LENGTHS = [4, 1, 7, 4]


def layout() -> Layout:
    return make_layout(LENGTHS)


def one_by_one(name: str, module: nn.Module, hidden: Tensor) -> Tensor:
    """(T, D) -> (B, D)"""
    found = []
    for part in hidden.split(LENGTHS):
        if name == "first":
            found.append(part[0])
        elif name == "mean":
            found.append(part.mean(0))
        elif name == "max":
            found.append(part.max(0).values)
        elif name == "last":
            found.append(part[-1])
        elif name == "attention":
            weights = module.score(module.dense(part).tanh())[:, 0].softmax(0)
            found.append(weights @ part)
        else:
            states, _ = module.recurrent(part[:, None])
            half = states.shape[-1] // 2
            found.append(torch.cat((states[-1, 0, :half], states[0, 0, half:])))
    return torch.stack(found)


@pytest.mark.parametrize("name", POOLINGS)
def test_against_plain_code(name: str):
    torch.manual_seed(0)
    module = POOLINGS[name](CONFIG).double()
    hidden = torch.randn(sum(LENGTHS), 6, dtype=torch.float64, requires_grad=True)
    grad = torch.randn(4, 6, dtype=torch.float64)
    learnt = [hidden, *module.parameters()]
    ours, plain = module(hidden, layout()), one_by_one(name, module, hidden)
    torch.testing.assert_close(ours, plain)
    for found, true in zip(
        torch.autograd.grad(ours, learnt, grad),
        torch.autograd.grad(plain, learnt, grad),
        strict=True,
    ):
        torch.testing.assert_close(found, true)


@pytest.mark.parametrize("name", POOLINGS)
def test_in_bfloat16(name: str):
    torch.manual_seed(0)
    module = POOLINGS[name](CONFIG).bfloat16()
    hidden = torch.randn(sum(LENGTHS), 6).bfloat16()
    found = module(hidden, layout())
    assert found.dtype == torch.bfloat16
    true = one_by_one(name, module.double(), hidden.double())
    assert float((found.detach().double() - true).abs().max()) < 0.02


def test_a_mean_of_many_does_not_drift():
    long = make_layout([4000])
    hidden = torch.full((4000, 6), 1.0, dtype=torch.bfloat16)
    assert bool((POOLINGS["mean"](CONFIG)(hidden, long) == 1).all())


def test_scores_far_apart_do_not_overflow():
    module = POOLINGS["attention"](CONFIG)
    with torch.no_grad():
        module.score.weight.fill_(500.0)
        module.dense.weight.copy_(torch.eye(6))
    hidden = torch.ones(sum(LENGTHS), 6) * torch.linspace(-3, 3, sum(LENGTHS))[:, None]
    hidden.requires_grad_()
    found = module(hidden, layout())
    found.sum().backward()
    assert bool(found.isfinite().all())
    assert bool(hidden.grad.isfinite().all())
    torch.testing.assert_close(found, one_by_one("attention", module, hidden))


def test_what_cannot_be_pooled_is_refused():
    odd = EncoderConfig(vocab_size=9, hidden_size=5, num_attention_heads=1)
    with pytest.raises(InputError, match="halves hidden_size; 5 must be even"):
        POOLINGS["lstm"](odd)
    with pytest.raises(ValueError, match="pooling 'median' is not known; use one of pooler, first"):
        Model(CONFIG, [HeadSpec("classification", pooling="median")], labels=("a", "b"))
    assert Model(CONFIG, [HeadSpec("classification", pooling="mean")], labels=("a",)).pooler is None
