"""Every backend, in training and evaluation, in both number types, with every mask and bias."""

import math
from dataclasses import replace
from functools import lru_cache

import pytest
import torch
from torch import Tensor, nn

from ownbert.batches.layout import Layout, make_layout
from ownbert.config.encoder import EncoderConfig
from ownbert.nn.attention.attend import BACKENDS, AttentionResult, attend
from ownbert.nn.positions import RelativeBuckets, make_bias

HEADS, SIZE = 2, 4
BIASES = ("none", "relative_key", "relative_key_query", "alibi", "relative_buckets")
BY_CHANCE = torch.Generator().manual_seed(5)
PAIRS = torch.rand(3, 6, 6, generator=BY_CHANCE) < 0.6
PAIRS[0, 2] = PAIRS[2] = False  # a query that sees nothing, and a sequence that sees nothing
COLUMNS = torch.tensor([[[1, 1, 0, 1, 1, 0]], [[0, 0, 1, 1, 1, 1]], [[0, 0, 0, 0, 0, 0]]]) > 0
EVEN, RAGGED = make_layout([6, 6, 6]), make_layout([3, 7, 1, 5])
MASKS = {
    "none": EVEN,
    "ragged": RAGGED,
    # So far apart that they are attended to in two calls.
    "apart": make_layout([4, 250, 3, 252]),
    "causal": replace(RAGGED, causal=True),
    "causal, even": replace(EVEN, causal=True),
    "window": replace(RAGGED, window=2),
    "window, apart": replace(make_layout([4, 250, 3, 252]), window=3),
    "window, causal": replace(RAGGED, window=1, causal=True),
    "window, keys hidden": replace(EVEN, mask=COLUMNS, window=1),
    "window, cache": replace(make_layout([2, 1, 1]), keys=make_layout([5, 4, 8]), window=2),
    "keys hidden": replace(EVEN, mask=COLUMNS),
    "keys hidden, causal": replace(EVEN, mask=COLUMNS, causal=True),
    "pairs hidden": replace(EVEN, mask=PAIRS),
    "cross": replace(RAGGED, keys=make_layout([6, 4, 3, 9])),
    "cross, keys hidden": replace(
        make_layout([2, 2, 2]), keys=make_layout([6, 6, 6]), mask=COLUMNS
    ),
    "cache": replace(make_layout([2, 1, 1]), keys=make_layout([5, 4, 8]), causal=True),
    "cache, keys hidden": replace(make_layout([1] * 3), keys=EVEN, causal=True, mask=COLUMNS),
}


def make_inputs(layout: Layout, dtype: torch.dtype) -> list[Tensor]:
    """q, k, v and a gradient of the output, of numbers that ``dtype`` can hold."""
    queries, keys = sum(layout.lengths), sum((layout.keys or layout).lengths)
    by_chance = torch.Generator().manual_seed(queries)
    return [
        torch.randn(rows, HEADS, SIZE, generator=by_chance).to(dtype)
        for rows in (queries, keys, keys, queries)
    ]


def bias_of(kind: str, dtype: torch.dtype) -> nn.Module | None:
    """A position kind with a table that ends before the longest distances."""
    config = EncoderConfig(
        vocab_size=9,
        hidden_size=HEADS * SIZE,
        num_attention_heads=HEADS,
        max_position_embeddings=4,
        position_embedding_type="absolute" if kind == "none" else kind,
        relative_buckets=8,
        relative_max_distance=6,
    )
    torch.default_generator.manual_seed(1)  # torch.manual_seed looks for a stack trace first
    bias = make_bias(config, range(HEADS))
    if isinstance(bias, RelativeBuckets):  # whose table is the encoder's
        bias.table.to(dtype)
    return None if bias is None else bias.to(dtype)


def learnt_of(bias: nn.Module | None) -> list[Tensor]:
    owner = bias.table if isinstance(bias, RelativeBuckets) else bias
    return [] if owner is None else list(owner.parameters())


def run(
    backend: str | None, mask: str, kind: str, dtype: torch.dtype, *, train: bool, wide: bool, keep
) -> list[Tensor]:
    """Output, the weights if kept, and in training the gradients of all that went in.

    wide: the same numbers, computed in float64.
    """
    *inputs, grad = make_inputs(MASKS[mask], dtype)
    bias = bias_of(kind, dtype)
    if wide:
        *inputs, grad = (x.double() for x in (*inputs, grad))
        bias = None if bias is None else bias.double()
        if isinstance(bias, RelativeBuckets):
            bias.table.double()
    inputs = [x.requires_grad_(train) for x in inputs]
    layout = replace(MASKS[mask])  # nothing remembered of an earlier call
    with torch.set_grad_enabled(train):
        out, weights = attend(*inputs, layout, bias=bias, weights=keep, backend=backend)
    found = [out, *(weights or [])]
    if not train:
        return found
    total = (out * grad).sum()
    for w in weights or []:
        total = total + (w * torch.linspace(-1, 1, w.numel()).view(w.shape)).sum()
    learnt = [*inputs, *learnt_of(bias)]
    return [x.detach() for x in found] + list(torch.autograd.grad(total, learnt))


@lru_cache
def expected(mask: str, kind: str, dtype: torch.dtype, train: bool, keep: bool):
    """The truth, and by how much the reference misses it in its number type."""
    truth, plain = (
        run("reference", mask, kind, dtype, train=train, wide=wide, keep=keep)
        for wide in (True, False)
    )
    return truth, [largest(a.double() - b) for a, b in zip(plain, truth, strict=True)]


def can(backend: str | None, train: bool, mask: str, kind: str) -> bool:
    able = BACKENDS.get(backend or "matmul")
    assert able is not None
    if able.unsupported(torch.zeros(1, HEADS, SIZE), MASKS[mask]):
        return False
    if not able.biases and kind != "none":
        return False
    return (able.gradients or not train) and (able.masks or not MASKS[mask].hides)


Case = tuple[str | None, bool]


def cases(mask: str, kind: str) -> list[Case]:
    """Backends, and whether in training; None: the backend that is chosen without a name."""
    return [
        (backend, train)
        for backend in [*BACKENDS, None]
        for train in (True, False)
        if can(backend, train, mask, kind)
    ]


BOTH = [(mask, kind) for mask in MASKS for kind in BIASES]


@pytest.mark.parametrize(("mask", "kind"), BOTH)
@pytest.mark.parametrize(
    "dtype", [torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.slow)]
)
def test_all_compute_the_same(mask: str, kind: str, dtype: torch.dtype):
    wrong = [
        (backend, "training" if train else "evaluation")
        for backend, train in cases(mask, kind)
        if not computes_the_same(backend, train, dtype, mask, kind)
    ]
    assert not wrong


def computes_the_same(
    backend: str | None, train: bool, dtype: torch.dtype, mask: str, kind: str
) -> bool:
    keep = backend is not None and BACKENDS[backend].weights
    ours = run(backend, mask, kind, dtype, train=train, wide=False, keep=keep)
    truth, off = expected(mask, kind, dtype, train, keep)
    return len(ours) == len(truth) and all(
        found.dtype == dtype
        and found.shape == true.shape
        # No worse than a small multiple of what this number type costs the reference itself.
        and largest(found.double() - true)
        <= 3 * plain + 4 * torch.finfo(dtype).eps * max(1.0, largest(true))
        for found, true, plain in zip(ours, truth, off, strict=True)
    )


def largest(numbers: Tensor) -> float:
    return float(numbers.abs().max())


@pytest.mark.parametrize("kind", BIASES)
@pytest.mark.parametrize("mask", MASKS)
def test_the_reference_is_the_equation_pair_by_pair(mask: str, kind: str):
    layout = MASKS[mask]
    if mask.endswith("apart"):
        layout = replace(make_layout([2, 5]), window=layout.window)
    keys = layout.keys or layout
    q, k, v, _ = (x.double() for x in make_inputs(layout, torch.float32))
    bias = bias_of(kind, torch.float64)
    found = attend(q, k, v, layout, bias=bias, weights=True, backend="reference")
    assert found.weights is not None
    for b, (queries, sources) in enumerate(zip(layout.lengths, keys.lengths, strict=True)):
        first, start = sum(layout.lengths[:b]), sum(keys.lengths[:b])
        for i in range(queries):
            far = [sources - queries + i - j for j in range(sources)]
            seen = [not layout.causal or d >= 0 for d in far]
            if layout.window is not None:
                seen = [s and abs(d) <= layout.window for s, d in zip(seen, far, strict=True)]
            if layout.mask is not None:
                line = layout.mask[b, i if layout.mask.shape[1] > 1 else 0]
                seen = [s and bool(m) for s, m in zip(seen, line, strict=True)]
            for h in range(HEADS):
                scores = [
                    _score(q[first + i, h], k[start + j, h], far[j], h, kind, bias)
                    for j in range(sources)
                ]
                shown = [s for s, ok in zip(scores, seen, strict=True) if ok]
                weights = torch.full((sources,), 1 / sources, dtype=torch.float64)
                if shown:
                    weights = torch.zeros(sources, dtype=torch.float64)
                    weights[torch.tensor(seen)] = torch.stack(shown).softmax(0)
                torch.testing.assert_close(found.weights[b][h, i], weights)
                values = v[start : start + sources, h]
                torch.testing.assert_close(found.out[first + i, h], weights @ values)


def _score(q: Tensor, k: Tensor, far: int, head: int, kind: str, bias: nn.Module | None) -> Tensor:
    """One query, one key; the table of distances ends at 3."""
    score = q @ k / SIZE**0.5
    if kind.startswith("relative_key"):
        assert bias is not None
        row = bias.distance.weight[max(-3, min(3, far)) + 3]  # pyright: ignore[reportAttributeAccessIssue]
        score = score + q @ row / SIZE**0.5
        if kind == "relative_key_query":
            score = score + k @ row / SIZE**0.5
    if kind == "alibi":
        score = score - abs(far) * 2.0 ** (-8 * (head + 1) / HEADS)
    if isinstance(bias, RelativeBuckets):
        score = score + bias.table.weight[_bucket(far), head]
    return score


def _bucket(far: int) -> int:
    """Of four in each direction, two have a distance of their own; the last begins at 6."""
    away = abs(far)
    bucket = away if away < 2 else min(3, 2 + int(2 * math.log(away / 2) / math.log(6 / 2)))
    return bucket + 4 * (far < 0)


def dropped(backend: str, mask: str, kind: str, inputs: list[Tensor]) -> AttentionResult:
    """With dropout, always the same one."""
    torch.default_generator.manual_seed(2)
    bias = bias_of(kind, torch.float64)
    keep = BACKENDS[backend].weights
    return attend(*inputs, MASKS[mask], dropout=0.3, bias=bias, weights=keep, backend=backend)


@pytest.mark.parametrize(("mask", "kind"), [case for case in BOTH if case[0] != "apart"])
def test_dropout_has_its_own_gradient(mask: str, kind: str):
    """Against the difference that a small step makes under the same dropout."""
    for backend, train in cases(mask, kind):
        if backend and train and BACKENDS[backend].dropout:
            check_dropout(backend, mask, kind)


def check_dropout(backend: str, mask: str, kind: str) -> None:
    *inputs, grad = (x.double() for x in make_inputs(MASKS[mask], torch.float32))
    out, weights = dropped(backend, mask, kind, [x.requires_grad_() for x in inputs])
    if weights is not None:
        assert any(bool((w == 0).any()) for w in weights)
        keys = (MASKS[mask].keys or MASKS[mask]).lengths
        products = [
            torch.einsum("hij,jhk->ihk", w, v)
            for w, v in zip(weights, inputs[2].split(keys), strict=True)
        ]
        torch.testing.assert_close(torch.cat(products), out)
    without = attend(*inputs, MASKS[mask], bias=bias_of(kind, torch.float64), backend=backend).out
    assert not torch.allclose(without, out)
    gradients = torch.autograd.grad(out, inputs, grad)
    steps = [torch.randn(x.shape, dtype=x.dtype) for x in inputs]
    with torch.no_grad():
        ends = [
            (dropped(backend, mask, kind, [x + e * s for x, s in zip(inputs, steps, strict=True)]))
            for e in (1e-6, -1e-6)
        ]
    slope = float(((ends[0].out - ends[1].out) * grad).sum() / 2e-6)
    ours = sum(float((g * s).sum()) for g, s in zip(gradients, steps, strict=True))
    assert slope == pytest.approx(ours, rel=1e-5, abs=1e-7)


@pytest.mark.parametrize(("mask", "kind"), BOTH)
def test_under_autocast(mask: str, kind: str):
    wrong = [
        (backend, "training" if train else "evaluation")
        for backend, train in cases(mask, kind)
        if train or backend == "equal_lengths"
        if not holds_under_autocast(backend, train, mask, kind)
    ]
    assert not wrong


def holds_under_autocast(backend: str | None, train: bool, mask: str, kind: str) -> bool:
    *inputs, grad = make_inputs(MASKS[mask], torch.float32)
    bias = bias_of(kind, torch.float32)
    truth, off = expected(mask, kind, torch.bfloat16, True, False)
    learnt = [*(x.requires_grad_() for x in inputs), *learnt_of(bias)]
    with torch.autocast("cpu", torch.bfloat16), torch.set_grad_enabled(train):
        out = attend(*inputs, MASKS[mask], bias=bias, backend=backend).out
    gradients = torch.autograd.grad(out, learnt, grad.to(out.dtype)) if train else ()
    return all(
        bool(found.isfinite().all())
        # The inputs are not rounded here and there they are, which the factor allows for.
        and largest(found.detach().double() - true) <= 4 * plain + 0.03 * max(1.0, largest(true))
        for found, true, plain in zip((out, *gradients), truth, off, strict=train)
    )


def test_what_cannot_be_laid_out_is_refused():
    with pytest.raises(ValueError, match="2 sequences of queries and 3 of keys"):
        replace(make_layout([1, 2]), keys=EVEN)
    with pytest.raises(ValueError, match="at least as many keys as queries"):
        replace(make_layout([4, 4]), keys=make_layout([4, 3]), causal=True)
    for layout in (EVEN, RAGGED):
        with pytest.raises(ValueError, match=r"mask of shape \(3, 6, 5\) is not for"):
            replace(layout, mask=PAIRS[..., :5])
    with pytest.raises(ValueError, match="does not support attention weights; use matmul or"):
        attend(*make_inputs(EVEN, torch.float32)[:3], EVEN, weights=True, backend="sdpa")
    bias = bias_of("alibi", torch.float32)
    with pytest.raises(ValueError, match="'manual' does not support terms of the scores; use"):
        attend(*make_inputs(EVEN, torch.float32)[:3], EVEN, bias=bias, backend="manual")
