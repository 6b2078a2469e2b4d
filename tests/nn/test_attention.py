"""Every attention backend computes the same thing, in training and in evaluation."""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from ownbert.batches.batch import make_layout
from ownbert.config.encoder import EncoderConfig
from ownbert.nn.attention.attend import BACKENDS, attend
from ownbert.nn.attention.attend import varlen_unsupported as unsupported
from ownbert.nn.context import Context
from ownbert.nn.multihead import Attention

HEADS, SIZE = 2, 8
LENGTHS = {
    "one": [1],
    "equal": [16] * 4,
    "mixed": [7, 1, 33, 12, 1, 50],
    # So far apart that padding all to the longest would cost more than another group.
    "groups": [280, 1, 17, 260, 4],
}


# Those that work on a CPU.
HERE = [
    n for n, b in BACKENDS.items() if b.unsupported(torch.zeros(1, 2, 8), make_layout([1])) is None
]


def rows(lengths: list[int], dtype: torch.dtype = torch.float64, seed: int = 0) -> list[Tensor]:
    """q, k, v and a gradient of the output, (T, H, K) each."""
    generator = torch.Generator().manual_seed(seed)
    shape = (sum(lengths), HEADS, SIZE)
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for _ in "qkvg"]


def run(lengths: list[int], backend: str | None, values: list[Tensor], **settings) -> list[Tensor]:
    """Output and, with gradients enabled, the gradients of q, k and v."""
    *inputs, grad = values
    if not torch.is_grad_enabled():
        return [attend(*inputs, make_layout(lengths), backend=backend, **settings).out]
    inputs = [x.clone().requires_grad_() for x in inputs]
    out = attend(*inputs, make_layout(lengths), backend=backend, **settings).out
    return [out.detach(), *torch.autograd.grad(out, inputs, grad)]


def trains(backend: str | None) -> bool:
    return backend is None or BACKENDS[backend].gradients


IN_TRAINING = [(name, True) for name in [*HERE, None] if trains(name)]
IN_EVALUATION = [(name, False) for name in [*HERE, None]]


def error(values: list[Tensor], truth: list[Tensor]) -> list[float]:
    return [float((a.double() - b).abs().max()) for a, b in zip(values, truth, strict=True)]


def test_reference_is_the_equation_sequence_by_sequence():
    lengths = LENGTHS["mixed"]
    q, k, v, _ = rows(lengths)
    expected = [
        F.scaled_dot_product_attention(*(x.transpose(0, 1) for x in parts)).transpose(0, 1)
        for parts in zip(*(x.split(lengths) for x in (q, k, v)), strict=True)
    ]
    out = attend(q, k, v, make_layout(lengths), backend="reference").out
    torch.testing.assert_close(out, torch.cat(expected))


def test_numbers_of_a_worked_example():
    x = torch.tensor([[1.0, 0, 1, 0], [0, 2, 0, 2], [1, 1, 1, 1]])
    keys = torch.tensor([[0.0, 0, 1], [1, 1, 0], [0, 1, 0], [1, 1, 0]])
    queries = torch.tensor([[1.0, 0, 1], [1, 0, 0], [0, 0, 1], [0, 1, 1]])
    q = (x @ queries * math.sqrt(3))[:, None]  # the example does not scale its scores
    k, v = (x @ keys)[:, None], torch.eye(3)[:, None]  # so the output is the weights
    for backend in HERE:
        weights = attend(q, k, v, make_layout([3]), backend=backend).out[:, 0]
        first = torch.tensor([0.0634, 0.4683, 0.4683])
        torch.testing.assert_close(weights[0], first, atol=5e-5, rtol=0)
        scores = torch.tensor([[2.0, 4, 4], [4, 16, 12], [4, 12, 10]])
        torch.testing.assert_close(weights, scores.softmax(-1))


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize(("backend", "training"), IN_TRAINING + IN_EVALUATION)
def test_backends_agree(
    backend: str | None, dtype: torch.dtype, training: bool, lengths: list[int]
):
    values = rows(lengths, dtype)
    with torch.set_grad_enabled(training):
        truth = run(lengths, "reference", [x.double() for x in values])
        plain = run(lengths, "reference", values)
        ours = run(lengths, backend, values)
    assert len(ours) == (4 if training else 1)
    assert all(x.dtype == dtype for x in ours)
    # No worse than a small multiple of what this number type costs the reference itself.
    floor = 8 * torch.finfo(dtype).eps
    for ours_off, plain_off in zip(error(ours, truth), error(plain, truth), strict=True):
        assert ours_off <= 3 * plain_off + floor


@pytest.mark.parametrize("backend", [*HERE, None])
def test_autocast_keeps_the_type_of_the_values(backend: str | None):
    lengths = LENGTHS["mixed"]
    values = rows(lengths, torch.bfloat16)
    with torch.set_grad_enabled(trains(backend)):
        truth = run(lengths, "reference", [x.double() for x in values])
        with torch.autocast("cpu", torch.bfloat16):
            ours = run(lengths, backend, values)
    assert all(x.dtype == torch.bfloat16 for x in ours)
    assert max(error(ours, truth)) < 0.06


@pytest.mark.parametrize("replacement", [3.0, math.inf, math.nan])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("backend", HERE)
def test_no_sequence_sees_another(backend: str, dtype: torch.dtype, replacement: float):
    lengths = [20, 30, 1, 20, 280]
    before = rows(lengths, dtype)
    changed = slice(20, 50)
    after = [x.clone() for x in before]
    for x in after[:3]:
        x[changed] = replacement
    others = torch.ones(sum(lengths), dtype=torch.bool)
    others[changed] = False
    with torch.no_grad():
        pairs = [*zip(run(lengths, backend, before), run(lengths, backend, after), strict=True)]
    if trains(backend):
        pairs += zip(run(lengths, backend, before), run(lengths, backend, after), strict=True)
    assert len(pairs) == (5 if trains(backend) else 1)
    for old, new in pairs:
        assert torch.equal(old[others], new[others])
        assert not torch.equal(old[changed], new[changed])


@pytest.mark.parametrize("backend", [name for name in HERE if BACKENDS[name].dropout])
def test_dropout_is_fair(backend: str):
    lengths, p, draws = [1, 9, 14], 0.25, 1000
    values = [x.float() for x in rows(lengths)]
    layout = make_layout(lengths)
    torch.manual_seed(0)
    with torch.no_grad():
        truth = attend(*values[:3], layout, backend=backend).out
        drawn = torch.stack(
            [attend(*values[:3], layout, dropout=p, backend=backend).out for _ in range(draws)]
        )
    # A token alone attends to itself: its only weight is dropped or scaled.
    alone, v = drawn[:, 0], values[2][0]
    kept = alone != 0
    torch.testing.assert_close(alone[kept], (v / (1 - p)).expand_as(alone)[kept])
    share = float(kept[:, :, 0].float().mean())
    assert abs(share - (1 - p)) < 5 * math.sqrt(p * (1 - p) / (2 * draws))
    deviation = drawn.std(0) / math.sqrt(draws)
    assert bool((deviation > 0).all())
    assert bool(((drawn.mean(0) - truth).abs() < 5.5 * deviation).all())


def test_a_backend_refuses_what_it_cannot_do():
    q, k, v, _ = rows([4])
    layout = make_layout([4])
    without = [name for name, backend in BACKENDS.items() if not backend.dropout]
    with pytest.raises(
        ValueError, match=r"'equal_lengths' does not support dropout; requested: 0\.1"
    ):
        attend(q, k, v, layout, dropout=0.1, backend="equal_lengths")
    assert without == ["varlen", "equal_lengths"]
    with pytest.raises(ValueError, match="'equal_lengths' does not support gradients; use matmul"):
        attend(q.clone().requires_grad_(), k, v, layout, backend="equal_lengths")
    with pytest.raises(ValueError, match="'equal_lengths' does not support masks; use matmul"):
        attend(q, k, v, replace(layout, causal=True), backend="equal_lengths")
    with pytest.raises(ValueError, match="'varlen' requires a GPU, not cpu"):
        attend(q, k, v, layout, backend="varlen")
    with pytest.raises(ValueError, match="'fast' is not known; use one of reference, matmul, sdpa"):
        attend(q, k, v, layout, backend="fast")
    attend(q, k, v, layout, dropout=0.1)  # left to choose, it takes one that can


@pytest.mark.parametrize("heads", [1, 4])
def test_the_module(heads: int):
    config = EncoderConfig(
        vocab_size=9, hidden_size=16, num_attention_heads=heads, attention_probs_dropout_prob=0.5
    )
    module = Attention(config)
    assert sum(p.numel() for p in module.parameters()) == 4 * 16**2 + 4 * 16
    assert f"heads={heads}, head_size={16 // heads}" in repr(module)
    hidden, layout = torch.randn(11, 16), make_layout([5, 6])
    context = Context(layout, torch.arange(11))
    module.train()
    assert not torch.equal(module(hidden, context), module(hidden, context))
    module.eval()
    torch.testing.assert_close(module(hidden, context), module(hidden, context))
    expected = torch.cat(
        [
            F.multi_head_attention_forward(
                part[:, None],
                part[:, None],
                part[:, None],
                16,
                heads,
                module.qkv.weight,
                module.qkv.bias,
                None,
                None,
                False,
                0.0,
                module.output.weight,
                module.output.bias,
                need_weights=False,
            )[0][:, 0]
            for part in hidden.split([5, 6])
        ]
    )
    torch.testing.assert_close(module(hidden, context), expected)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("view", [{}, {"causal": True}, {"window": 3}, {"window": 64}], ids=str)
@pytest.mark.parametrize("lengths", [*LENGTHS.values(), [600, 5]], ids=str)
def test_the_kernel_for_packed_sequences(lengths: list[int], view: dict[str, int]):
    values = [x.cuda() for x in rows(lengths, torch.bfloat16)]
    layout = replace(make_layout(lengths, "cuda"), **view)
    if reason := unsupported(values[0], layout):
        pytest.skip(f"the kernel {reason}")
    found = []
    for backend, dtype in (("varlen", torch.bfloat16), ("reference", torch.float64)):
        *inputs, grad = (x.to(dtype) for x in values)
        inputs = [x.requires_grad_() for x in inputs]
        out = attend(*inputs, layout, backend=backend).out
        found.append([out, *torch.autograd.grad(out, inputs, grad)])
    assert max(error([x.detach() for x in found[0]], found[1])) < 0.06
    assert torch.equal(attend(*values[:3], layout).out, found[0][0])  # and it is chosen
