"""What is special about the attention whose backward pass is written out."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from ownbert.batches.layout import make_layout
from ownbert.nn.attention.attend import attend

LENGTHS = [9, 40, 3, 40, 17, 38, 1]
TOKENS = sum(LENGTHS)


def gradients(q: Tensor, k: Tensor, v: Tensor, *, dropout: float = 0.0, **settings) -> list[Tensor]:
    """Output and gradients, always with the same dropout and the same gradient of the output."""
    layout = settings.pop("layout", None) or make_layout(LENGTHS)
    inputs = [x.detach().requires_grad_() for x in (q, k, v)]
    torch.manual_seed(3)
    out = attend(*inputs, layout, dropout=dropout, **settings).out
    grad = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)
    return [out.detach(), *torch.autograd.grad(out, inputs, grad)]


def ways_to_lie(heads: int, size: int) -> dict[str, list[Tensor]]:
    """The same q, k and v, differently in memory."""
    torch.manual_seed(0)
    fused = torch.randn(TOKENS, 3, heads, size)
    loose = [x.contiguous() for x in fused.unbind(1)]
    return {
        "of one matrix": [*fused.unbind(1)],
        "each for itself": loose,
        "heads first": [x.transpose(0, 1).contiguous().transpose(0, 1) for x in loose],
        "every other channel": [torch.stack((x, x), -1).flatten(-2)[..., ::2] for x in loose],
        "in wider rows": [wider(x) for x in loose],
    }


def wider(x: Tensor) -> Tensor:
    """The same numbers in rows that are no multiple of a head."""
    return torch.cat((x.flatten(1), x.new_ones(TOKENS, 3)), 1)[:, :-3].view(x.shape)


@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("size", [1, 8])
def test_however_the_rows_lie_in_memory(heads: int, size: int):
    ways = ways_to_lie(heads, size)
    expected = gradients(*ways["each for itself"], backend="reference")
    first = gradients(*ways["each for itself"], backend="manual")
    for name, given in ways.items():
        found = gradients(*given, backend="manual")
        for one, other, bits in zip(found, expected, first, strict=True):
            torch.testing.assert_close(one, other, msg=name)
            assert torch.equal(one, bits), name


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("backend", ["manual", "matmul", "sdpa"])
def test_groups_of_few_sizes_change_nothing(backend: str, causal: bool):
    given = [x.double() for x in ways_to_lie(2, 8)["of one matrix"]]
    layout = replace(make_layout(LENGTHS), causal=causal)
    expected = gradients(*given, backend="reference", layout=layout)
    with torch.autocast("cpu", torch.bfloat16):  # where they are padded further
        assert layout.grouping.queries.padding is not None
    found = gradients(*given, backend=backend, layout=layout)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_same_bits_every_time(dtype: torch.dtype):
    given = [x.to(dtype) for x in ways_to_lie(2, 8)["of one matrix"]]
    layout = make_layout(LENGTHS)
    first = gradients(*given, dropout=0.2, backend="manual", layout=layout)
    for again in (layout, make_layout(LENGTHS)):  # what a layout keeps changes nothing
        found = gradients(*given, dropout=0.2, backend="manual", layout=again)
        assert all(map(torch.equal, first, found))
    without = gradients(*given, backend="manual", layout=layout)
    assert not torch.equal(first[0], without[0])


def test_layers_with_different_numbers_of_heads_share_a_layout():
    layout = make_layout(LENGTHS)
    for heads in (2, 3, 2):
        given = ways_to_lie(heads, 8)["of one matrix"]
        found = gradients(*given, backend="manual", layout=layout)
        expected = gradients(*given, backend="reference")
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other)


def test_dropout_leaves_out_its_share_in_every_sequence():
    q = torch.zeros(TOKENS, 50, 1)  # all weights equal
    v = torch.ones(TOKENS, 50, 1)
    out = gradients(q, q, v, dropout=0.25, backend="manual")[0][:, :, 0]
    assert float(out.mean()) == pytest.approx(1, abs=0.01)
    for n, part in zip(LENGTHS, out.split(LENGTHS), strict=True):
        assert float(part.mean()) == pytest.approx(1, abs=5 * (0.25 / 0.75 / (50 * n * n)) ** 0.5)
        kept = part * n * 0.75  # how many keys a query kept
        torch.testing.assert_close(kept, kept.round(), atol=1e-4, rtol=0)


@pytest.mark.parametrize("backend", ["manual", "matmul", "sdpa"])
def test_rows_behind_those_of_the_layout(backend: str):
    torch.manual_seed(0)
    filled = [torch.randn(TOKENS + 6, 2, 8) for _ in range(3)]
    found = gradients(*filled, backend=backend)
    assert not any(rows[TOKENS:].any() for rows in found)
    out = attend(*(inputs := [x[:TOKENS].requires_grad_() for x in filled]),
                 make_layout(LENGTHS), backend="reference").out  # fmt: skip
    grad = torch.linspace(-1, 1, filled[0].numel()).view_as(filled[0])[:TOKENS]
    expected = [out.detach(), *torch.autograd.grad(out, inputs, grad)]
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one[:TOKENS], other, rtol=0, atol=1e-5)


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_what_is_not_a_number_is_not_hidden(wrong: float):
    ones = torch.ones(10, 1, 8)
    q = ones.index_put((torch.tensor([2]),), torch.tensor(wrong)).requires_grad_()
    out = attend(q, ones, ones, make_layout([4, 6]), backend="manual").out
    assert out[2].isnan().all()
    assert out[[0, 1, 3]].isfinite().all()


def test_it_is_what_training_on_a_cpu_takes():
    given = ways_to_lie(2, 8)["of one matrix"]
    for dropout in (0.0, 0.1):
        chosen, asked = (
            gradients(*given, dropout=dropout, backend=backend) for backend in (None, "manual")
        )
        assert all(map(torch.equal, chosen, asked))
