"""Compiled loops: the same values and gradients as without them, whatever the threads and types."""

import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ownbert.batches.batch import Example, pack
from ownbert.batches.layout import Layout, make_layout
from ownbert.config.encoder import EncoderConfig
from ownbert.nn import layers as linear
from ownbert.nn.attention.attend import attend
from ownbert.nn.encoder import Encoder
from ownbert.nn.fast import compiled
from ownbert.nn.layers import Dropout, add_and_norm

if compiled.loops() is None:
    pytest.skip("needs numba, and that it compiles", allow_module_level=True)

from numba import njit

from ownbert.nn.fast import loops, openmp

MakeLoop = Callable[[Callable[..., None]], loops.Loop]

BF16 = torch.bfloat16
LENGTHS = [9, 40, 3, 40, 17, 38, 1]
TOKENS = sum(LENGTHS)


@pytest.fixture(params=["alone", "in PyTorch's threads", "in others"])
def threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Every loop runs in one thread or is shared between two."""
    before, count = torch.get_num_threads(), 1 if request.param == "alone" else 2
    torch.set_num_threads(count)
    monkeypatch.setattr(compiled, "_SHARED", 1)
    if request.param == "in others":
        monkeypatch.setattr(compiled, "_has_team", lambda: False)
    elif count == 2 and not compiled._has_team():
        pytest.skip("PyTorch has no OpenMP here that loops can run in")
    yield count
    torch.set_num_threads(before)


def without(compute: Callable[[], list[Tensor]]) -> list[Tensor]:
    """The same without loops."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled, "loops", lambda: None)
        return compute()


def differentiate(out: Tensor, inputs: list[Tensor]) -> list[Tensor]:
    grad = torch.linspace(-1, 1, out.numel()).view_as(out).to(out.dtype)
    return [out.detach(), *torch.autograd.grad(out, inputs, grad)]


def assert_close(found: list[Tensor], expected: list[Tensor], dtype: torch.dtype) -> None:
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype
        scale = other.abs().max().item()
        within = 1e-5 if dtype == torch.float32 else 0.02
        torch.testing.assert_close(one, other, rtol=0, atol=within * max(scale, 1.0))


@pytest.mark.parametrize("dtype", [torch.float32, BF16])
@pytest.mark.parametrize("rate", [0.0, 0.3])
@pytest.mark.parametrize("bias", [True, False])
def test_add_and_norm(threads: int, dtype: torch.dtype, rate: float, bias: bool):
    torch.manual_seed(0)
    norm, dropout = nn.LayerNorm(48, bias=bias), Dropout(rate)
    nn.init.normal_(norm.weight)
    x, y = 3 * torch.randn(77, 48) + 1, torch.randn(77, 48).to(dtype)
    inputs = [x.requires_grad_(), y.requires_grad_(), *norm.parameters()]

    def compute() -> list[Tensor]:
        torch.manual_seed(3)
        return differentiate(add_and_norm(x, y, dropout, norm), inputs)

    found = compute()
    assert "_AddAndNorm" in type(add_and_norm(x, y, dropout, norm).grad_fn).__name__
    assert_close(found, without(compute), dtype)
    assert all(map(torch.equal, found, compute()))


@pytest.mark.parametrize("dtype", [torch.float32, BF16])
def test_it_does_not_depend_on_where_in_memory_anything_lies(dtype: torch.dtype):
    """Rows as short as a few registers, among others that come and go."""
    shape, norm = (7, 16), nn.LayerNorm(16)
    torch.manual_seed(0)
    numbers, held = [torch.randn(shape, dtype=dtype) for _ in "xy"], []
    expected = add_and_norm(*numbers, Dropout(0.0), norm)
    for size in random.Random(0).choices(range(8, 400), k=4000):
        held = [*held[-50:], torch.empty(size), *(x.clone() for x in numbers)]
        found = add_and_norm(*held[-2:], Dropout(0.0), norm)
        assert torch.equal(found, expected)


@pytest.mark.parametrize("shape", [(1, 1), (16, 16), (15, 40), (64, 48), (33, 70), (200, 3)])
def test_transpose(threads: int, shape: tuple[int, int]):
    x = torch.randn(shape).to(BF16)
    found = linear._transposed(x, compiled.loops())
    assert found.is_contiguous()
    assert torch.equal(found, x.t())


@pytest.mark.parametrize("sizes", [(20, 30, 50), (90, 17, 60), (90, 60, 17)])
def test_gradients_of_weights_where_there_are_matrix_units(
    threads: int, sizes: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
):
    if not linear.onednn_has_linear(BF16):
        pytest.skip("needs bfloat16 in oneDNN")
    monkeypatch.setattr(linear, "has_matrix_units", lambda: True)
    count, size, out = sizes
    layer = linear.Linear(size, out).to(BF16)
    x = torch.randn(count, size).to(BF16).requires_grad_()

    def compute() -> list[Tensor]:
        return differentiate(layer(x), [x, *layer.parameters()])

    assert_close(compute(), without(compute), BF16)


def test_parameters_can_still_be_cut_over_processes():
    x, norm = torch.randn(5, 8, requires_grad=True), nn.LayerNorm(8)
    out = add_and_norm(x, torch.randn(5, 8), Dropout(0.0), norm)
    assert "_AddAndNorm" in type(out.grad_fn).__name__
    assert all(p.untyped_storage().resizable() for p in norm.parameters())


def test_add_and_norm_of_what_has_no_loop():
    x, y = torch.randn(5, 8, requires_grad=True), torch.randn(5, 8)
    for norm in (nn.RMSNorm(8), nn.LayerNorm(8, elementwise_affine=False)):
        assert torch.equal(add_and_norm(x, y, Dropout(0.0), norm), norm(x + y))
    norm, wide = nn.LayerNorm(8).double(), (x.double(), y.double())
    assert torch.equal(add_and_norm(*wide, Dropout(0.0), norm), norm(sum(wide)))
    kept = add_and_norm(x, y, Dropout(0.5).eval(), nn.LayerNorm(8))
    torch.testing.assert_close(kept, nn.LayerNorm(8)(x + y))


def layouts() -> dict[str, Layout]:
    plain, causal = make_layout(LENGTHS), replace(make_layout(LENGTHS), causal=True)
    ranks = torch.randperm(TOKENS, generator=torch.Generator().manual_seed(1))
    more = make_layout([n + 2 for n in LENGTHS])
    return {
        "plain": plain,
        "causal": causal,
        "near": replace(plain, window=4),
        "by rank": replace(plain, ranks=ranks),
        "of other keys": replace(plain, keys=more),
        "causal, of other keys": replace(causal, keys=more),
    }


@pytest.mark.parametrize("kind", layouts())
@pytest.mark.parametrize("dtype", [torch.float32, BF16])
@pytest.mark.parametrize("rate", [0.0, 0.3])
def test_attention(threads: int, kind: str, dtype: torch.dtype, rate: float):
    torch.manual_seed(0)
    layout = layouts()[kind]
    sources = sum((layout.keys or layout).lengths)
    sizes = TOKENS, sources, sources
    inputs = [torch.randn(n, 2, 8).to(dtype).requires_grad_() for n in sizes]

    def compute() -> list[Tensor]:
        torch.manual_seed(3)
        own = replace(layout)  # with a plan of its own
        out = attend(*inputs, own, dropout=rate, backend="manual").out
        return differentiate(out, inputs)

    assert_close(compute(), without(compute), dtype)


@pytest.mark.parametrize("backend", ["manual", "matmul", "sdpa"])
@pytest.mark.parametrize("loops", [True, False])
def test_rows_behind_those_of_the_layout(backend: str, loops: bool):
    torch.manual_seed(0)
    layout = make_layout(LENGTHS)
    filled = [torch.randn(TOKENS + 6, 2, 8).requires_grad_() for _ in range(3)]

    def compute() -> list[Tensor]:
        return differentiate(attend(*filled, layout, backend=backend).out, filled)

    found = compute() if loops else without(compute)
    for rows in (found[0], *found[1:]):
        assert not rows[TOKENS:].any()
    inputs = [x.detach()[:TOKENS].requires_grad_() for x in filled]
    out = attend(*inputs, layout, backend="reference").out
    grad = torch.linspace(-1, 1, filled[0].numel()).view_as(filled[0])[:TOKENS]
    expected = [out.detach(), *torch.autograd.grad(out, inputs, grad)]
    assert_close([x[:TOKENS] for x in found], expected, torch.float32)


@pytest.mark.parametrize("wrong", [float("nan"), -float("nan"), float("inf")])
def test_what_is_not_a_number_is_not_hidden(wrong: float):
    layout = make_layout([4, 6])
    ones = torch.ones(10, 1, 8)
    q = ones.index_put((torch.tensor([2]),), torch.tensor(wrong)).requires_grad_()
    out = attend(q, ones, ones, layout, backend="manual").out
    assert out[2].isnan().all()
    assert out[[0, 1, 3]].isfinite().all()
    x, norm = torch.ones(3, 8), nn.LayerNorm(8)
    y = torch.zeros(3, 8, dtype=BF16)
    y[1, 5] = wrong
    out = add_and_norm(x, y.requires_grad_(), Dropout(0.0), norm)
    assert out[1].isnan().all()
    assert out[[0, 2]].isfinite().all()


def test_the_exponential():
    scores = torch.linspace(-90, 0, 4_001)
    weights = attend_to_one(scores)
    exact = np.exp(scores.double().numpy())
    exact /= exact.sum()
    seen = scores > -80
    error = weights.double().numpy() / exact - 1
    assert np.abs(error[seen.numpy()]).max() < 1e-6


def attend_to_one(scores: Tensor) -> Tensor:
    """The weights of one query, by its gradients of the values."""
    count = len(scores)
    layout = replace(make_layout([1]), keys=make_layout([count]))
    v = torch.zeros(count, 1, 1, requires_grad=True)
    out = attend(torch.ones(1, 1, 1), scores.view(-1, 1, 1), v, layout, backend="manual").out
    (weights,) = torch.autograd.grad(out.sum(), v)
    return weights.flatten()


@pytest.mark.parametrize("loops", [True, False])
def test_an_encoder_filled_with_rows_of_zeros(monkeypatch: pytest.MonkeyPatch, loops: bool):
    if not linear.onednn_has_linear(torch.float32):
        pytest.skip("this PyTorch has no oneDNN")
    monkeypatch.setattr("ownbert.nn.encoder.onednn_is_faster", linear.onednn_has_linear)
    config = EncoderConfig(
        vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=64, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    torch.manual_seed(0)
    encoder = Encoder(config).train()
    rng = np.random.default_rng(0)
    batch = pack([Example(ids := rng.integers(0, 50, n), np.zeros_like(ids)) for n in LENGTHS])
    seen = []
    for block in encoder.blocks:
        block.register_forward_hook(lambda module, given, out: seen.append(len(out)))

    def compute() -> list[Tensor]:
        hidden, _ = encoder(batch)
        return differentiate(hidden, list(encoder.parameters()))

    filled = compute() if loops else without(compute)
    assert set(seen) == {160}  # 148 tokens
    monkeypatch.setattr("ownbert.nn.encoder.rows_to_multiply", lambda count, size, dtype: count)
    assert_close(filled, without(compute), torch.float32)
    seen.clear()
    encoder.eval()(batch)
    assert set(seen) == {148}


@pytest.fixture
def loop_of(monkeypatch: pytest.MonkeyPatch) -> MakeLoop:
    """Makes loops of functions, without keeping them."""
    if not openmp.found():
        pytest.skip("PyTorch has no OpenMP here that loops can run in")
    monkeypatch.setattr(openmp, "LOOPS", dict(openmp.LOOPS))
    monkeypatch.setattr(loops, "_kept", njit(nogil=True))
    return loops._compiled


def test_pytorch_has_an_openmp_on_linux():
    if not sys.platform.startswith("linux"):
        pytest.skip("other systems may have none that loops can run in")
    assert openmp.found()


def count(part: int, parts: int, seen: np.ndarray, none: None) -> None:
    seen[part] += parts


def test_every_part_runs_once_however_many_there_are(loop_of: MakeLoop):
    loop = loop_of(count)
    for parts in (1, 2, 3, 7):
        seen = np.zeros(parts, np.int64)
        loop.parts(parts, seen, None)
        assert seen.tolist() == [parts] * parts


def take(part: int, parts: int, size: int) -> None:
    np.empty(size if part else 1, np.float32)[0] = 1


def test_a_part_that_finds_no_memory(loop_of: MakeLoop):
    loop = loop_of(take)
    loop.parts(2, 1)
    with pytest.raises(MemoryError, match="compiled loop"):
        loop.parts(2, 1 << 50)


def test_loops_of_several_threads_at_once(threads: int):
    torch.manual_seed(0)
    norm, xs = nn.LayerNorm(256), torch.randn(8, 300, 256).requires_grad_()

    def compute(x: Tensor) -> list[Tensor]:
        return differentiate(add_and_norm(x, x, Dropout(0.0), norm), [x])

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(compute, xs.unbind() * 5))
    for one, other in zip(found, map(compute, xs.unbind() * 5), strict=True):
        assert all(map(torch.equal, one, other))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs a fork")
def test_threads_of_a_fork_before_there_were_any():
    script = """
import os, sys, torch
from ownbert.nn.fast import compiled
from ownbert.nn.layers import Dropout
from ownbert.nn.layers import add_and_norm
torch.set_num_threads(1)
x, norm = torch.randn(2048, 256, requires_grad=True), torch.nn.LayerNorm(256)
expected = add_and_norm(x, x.detach(), Dropout(0.0), norm)
if os.fork() == 0:
    torch.set_num_threads(2)
    # Whole loops and parts of them may be vectorised differently.
    assert torch.allclose(add_and_norm(x, x.detach(), Dropout(0.0), norm), expected, atol=1e-5)
    assert compiled._has_team.cache_info().currsize == 1 and not compiled._forked
    os._exit(0)
sys.exit(os.wait()[1] >> 8)
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)


def test_threads_in_a_fork(monkeypatch: pytest.MonkeyPatch):
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    monkeypatch.setattr(compiled, "_SHARED", 1)
    x, norm = torch.randn(64, 16, requires_grad=True), nn.LayerNorm(16)
    expected = add_and_norm(x, x.detach(), Dropout(0.0), norm)
    child = os.fork()
    if child == 0:
        found = add_and_norm(x, x.detach(), Dropout(0.0), norm)
        os._exit(0 if torch.equal(found, expected) else 1)
    torch.set_num_threads(before)
    assert os.waitpid(child, 0)[1] == 0
