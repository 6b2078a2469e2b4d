"""The linear layers of training compute what PyTorch's do."""

import copy

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ownbert.batches.batch import Example, pack
from ownbert.config.encoder import EncoderConfig
from ownbert.nn import layers as kernel
from ownbert.nn.encoder_stack import Encoder
from ownbert.nn.layers import Linear, onednn_has_linear

ONEDNN_IS_FASTER, MKL_IS_NARROW = kernel.onednn_is_faster, kernel.mkl_is_narrow
TYPES = [torch.float32, torch.bfloat16]


@pytest.fixture(autouse=True, params=["", "and the gradient of the matrix"])
def wherever_it_can(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """oneDNN multiplies even where MKL is faster."""
    monkeypatch.setattr(kernel, "onednn_is_faster", onednn_has_linear)
    monkeypatch.setattr(kernel, "mkl_is_narrow", lambda: bool(request.param))


def results(layer: nn.Linear, x: Tensor, grad: Tensor, *, autocast: bool = False) -> list[Tensor]:
    """Output and the gradients of input, matrix and bias."""
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        out = layer(x)
    learnt = [x, layer.weight, layer.bias]
    return [out.detach(), *torch.autograd.grad(out, learnt, grad.to(out.dtype))]


def make(dtype: torch.dtype, rows: int = 37) -> tuple[Linear, nn.Linear, Tensor, Tensor]:
    torch.manual_seed(0)
    ours = Linear(24, 50)
    plain = nn.Linear(24, 50)
    plain.load_state_dict(ours.state_dict())
    x, grad = torch.randn(rows, 24), torch.randn(rows, 50)
    return ours.to(dtype), plain.to(dtype), x.to(dtype).requires_grad_(), grad.to(dtype)


@pytest.mark.parametrize("rows", [1, 37])
@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("dtype", TYPES)
def test_output_and_gradients(dtype: torch.dtype, autocast: bool, rows: int):
    ours, plain, x, grad = make(dtype, rows)
    truth = results(copy.deepcopy(plain).double(), x.double(), grad.double())
    found = results(ours, x, grad, autocast=autocast)
    expected = results(plain, x, grad, autocast=autocast)
    for one, other, true in zip(found, expected, truth, strict=True):
        assert one.dtype == other.dtype
        off, allowed = (float((y.double() - true).abs().max()) for y in (one, other))
        assert off <= 2 * allowed + 4 * torch.finfo(one.dtype).eps * float(true.abs().max())


@pytest.mark.parametrize("dtype", TYPES)
def test_the_same_bits_every_time(dtype: torch.dtype):
    ours, _, x, grad = make(dtype)
    assert all(map(torch.equal, results(ours, x, grad), results(ours, x, grad)))


@pytest.mark.parametrize("autocast", [False, True])
def test_no_rows_at_all(autocast: bool):
    """As where a batch has no masked token."""
    ours, plain, x, grad = make(torch.float32, 0)
    found = results(ours, x, grad, autocast=autocast)
    assert all(map(torch.equal, found, results(plain, x, grad, autocast=autocast)))


def fast(out: Tensor) -> bool:
    """Whether a product was made by oneDNN, its first rows being the output."""
    last = out.grad_fn
    assert last is not None
    steps = (last, *(step for step, _ in last.next_functions))
    return any("Product" in type(step).__name__ for step in steps)


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("rows", [1, 31, 33, 100])
def test_rows_of_zeros_change_nothing(monkeypatch: pytest.MonkeyPatch, autocast: bool, rows: int):
    ours, _, x, grad = make(torch.float32, rows)
    filled = results(ours, x, grad, autocast=autocast)
    for bound in ("_LARGE", "_LARGE_IN_UNITS"):
        monkeypatch.setattr(kernel, bound, 0.0)
    exact = results(ours, x, grad, autocast=autocast)
    for one, other in zip(filled, exact, strict=True):
        eps = torch.finfo(torch.bfloat16 if autocast else torch.float32).eps
        assert float((one - other).abs().max()) <= 8 * eps * float(other.abs().max())


def test_an_encoder_filled_with_rows_of_zeros(monkeypatch: pytest.MonkeyPatch):
    if not onednn_has_linear(torch.float32):
        pytest.skip("this PyTorch has no oneDNN")
    monkeypatch.setattr("ownbert.nn.encoder_stack.onednn_is_faster", onednn_has_linear)
    config = EncoderConfig(
        vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=64, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    torch.manual_seed(0)
    encoder, rng = Encoder(config).train(), np.random.default_rng(0)
    ids = [rng.integers(0, 50, n) for n in (9, 40, 3, 40, 17, 38, 1)]
    batch = pack([Example(own, np.zeros_like(own)) for own in ids])
    seen: list[int] = []
    for block in encoder.blocks:
        block.register_forward_hook(lambda module, given, out: seen.append(len(out)))

    def compute() -> list[Tensor]:
        hidden, _ = encoder(batch)
        grad = torch.linspace(-1, 1, hidden.numel()).view_as(hidden)
        return [hidden.detach(), *torch.autograd.grad(hidden, list(encoder.parameters()), grad)]

    filled = compute()
    assert set(seen) == {160}  # 148 tokens
    monkeypatch.setattr(
        "ownbert.nn.encoder_stack.rows_to_multiply", lambda count, size, dtype: count
    )
    for one, other in zip(filled, compute(), strict=True):
        within = 1e-5 * max(float(other.abs().max()), 1.0)
        torch.testing.assert_close(one, other, rtol=0, atol=within)
    seen.clear()
    encoder.eval()(batch)
    assert set(seen) == {148}


def test_numbers_of_rows_are_few():
    dtype = torch.float32
    counts = [kernel.rows_to_multiply(count, 128 * 256, dtype) for count in range(1, 4097)]
    assert all(0 <= n - count <= max(31, count / 8) for count, n in enumerate(counts, 1))
    assert len({n for n in counts if n > 256}) == 8 * 4
    assert kernel.rows_to_multiply(1931, 256 * 1024, dtype) == 1931  # there it would cost more


@pytest.mark.parametrize("has_units", [False, True])
def test_matrix_units_make_rows_of_zeros_cheaper(monkeypatch: pytest.MonkeyPatch, has_units: bool):
    monkeypatch.setattr(kernel, "has_matrix_units", lambda: has_units)
    rows = kernel.rows_to_multiply(1931, 256 * 1024, torch.bfloat16)
    assert rows == (2048 if has_units else 1931)
    assert kernel.rows_to_multiply(1931, 256 * 1024, torch.float32) == 1931


def test_the_fast_way_is_taken_in_training_alone():
    if not onednn_has_linear(torch.float32):
        pytest.skip("this PyTorch has no oneDNN")
    ours, plain, x, _ = make(torch.float32)
    assert fast(ours(x))
    assert not fast(plain(x))
    with torch.no_grad():
        assert torch.equal(ours(x), plain(x))
    assert ours(x[None]).shape == (1, 37, 50)
    assert not fast(ours.requires_grad_(False)(x))


@pytest.mark.parametrize("intels", [False, True])
def test_mkl_multiplies_on_its_makers_processors(monkeypatch: pytest.MonkeyPatch, intels: bool):
    if not onednn_has_linear(torch.float32) or not torch.backends.mkl.is_available():
        pytest.skip("this PyTorch has no oneDNN or no MKL")
    monkeypatch.setattr(kernel, "onednn_is_faster", ONEDNN_IS_FASTER.__wrapped__)
    monkeypatch.setattr(kernel, "_is_intels", lambda: intels)
    ours, plain, x, grad = make(torch.float32)
    assert fast(ours(x)) != intels
    if intels:
        assert all(map(torch.equal, results(ours, x, grad), results(plain, x, grad)))
    for_half = ONEDNN_IS_FASTER.__wrapped__(torch.bfloat16)
    assert for_half == onednn_has_linear(torch.bfloat16)


@pytest.mark.parametrize(
    ("processor", "narrow"),
    [
        ("vendor_id\t: AuthenticAMD\ncpu family\t: 26\nmodel\t\t: 2\n", True),
        ("vendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: 17\n", False),
        ("AMD64 Family 26 Model 68 Stepping 0, AuthenticAMD", True),
        ("vendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 143\n", False),
        ("Intel64 Family 26 Model 1 Stepping 0, GenuineIntel", False),
        ("CPU implementer\t: 0x41\nCPU architecture: 8\n", False),
        ("", False),
    ],
)
def test_where_mkl_leaves_half_of_the_registers(
    monkeypatch: pytest.MonkeyPatch, processor: str, narrow: bool
):
    monkeypatch.setattr(kernel, "_processor", lambda: processor)
    assert MKL_IS_NARROW.__wrapped__() == narrow


def test_what_is_not_for_onednn_is_plain():
    ours, plain, x, grad = make(torch.float64)
    assert all(map(torch.equal, results(ours, x, grad), results(plain, x, grad)))
    with pytest.raises(RuntimeError, match="dtype"):
        ours(x.float())
    with pytest.raises(RuntimeError, match="shapes"):
        ours(x[:, :3])


def test_it_can_be_differentiated_twice():
    ours, plain, x, grad = make(torch.float32)
    found = []
    for layer in (ours, plain):
        out = layer(x).square().mul(grad).sum()
        first, of_weight = torch.autograd.grad(out, [x, layer.weight], create_graph=True)
        squares = first.square().sum() + of_weight.square().sum()
        found.append(torch.autograd.grad(squares, [x, layer.weight, layer.bias]))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def test_finding_out_draws_no_random_numbers():
    torch.manual_seed(0)
    before = torch.get_rng_state()
    for dtype in (*TYPES, torch.float64):
        onednn_has_linear.__wrapped__(dtype)
    assert torch.equal(before, torch.get_rng_state())
    assert not onednn_has_linear(torch.float64)
