"""Scaled dot-product attention over packed sequences (Vaswani et al. 2017, equation 1).

T tokens, B sequences (of a group, if grouped), S longest sequence, H heads, K head size; T' and S'
are of the keys, if these come from another batch. Places are tokens and padding.
"""

import importlib.util
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ownbert.batches.layout import (
    Layout,
    PaddedGroup,
    PaddedIndex,
    distances,
    lowest,
    visible_by_rank,
)
from ownbert.checks import known
from ownbert.nn.attention.manual import manual_attention
from ownbert.nn.layers import dropout as drop
from ownbert.nn.layers import has_matrix_units

# Above this length PyTorch's kernel, which never stores all scores, is as fast on a CPU.
_LONG = 1024

# Computes a bias (B or 1, H, S, S') of the scores from queries (B, H, S, K), keys (B, H, S', K) and
# distances (B or 1, S, S').
Bias = Callable[[Tensor, Tensor, Tensor], Tensor]

# Of ``_equal_lengths``: rows of queries per chunk, so that their scores fit in a core's cache.
_CHUNK = 512
# PyTorch's softmax is not vectorised for rows shorter than a vector register.
_SHORT = 16
# At least the number of elements in any vector register.
_REGISTER = 64
# In bfloat16 PyTorch's kernel is faster for few tokens, because it is a single call, and for long
# sequences on processors with matrix units, which it uses. In float32 results must not depend on
# the number of sequences.
_FEW_TOKENS, _LONG_IN_UNITS = 64, 128
# Flash attention: the minimum compute capability, and the widest head.
_CAPABILITY, _LARGEST_HEAD = (8, 0), 256
# Minimum queries per block of a window: fewer calls, but more keys that are invisible to some.
_BLOCK = 64


class AttentionResult(NamedTuple):
    """(T, H, K), and if requested the weights (H, S, S') of each sequence, without padding."""

    out: Tensor
    weights: list[Tensor] | None


@dataclass(frozen=True)
class AttentionOptions:
    """Options of ``attend``."""

    dropout: float = 0.0
    bias: Bias | None = None
    weights: bool = False


@dataclass(frozen=True)
class Backend:
    """An implementation of attention, and what it supports.

    Args:
        masks: layouts that mask keys, or with keys from another batch.
        biases: terms that are added to the scores.
        extra_rows: inputs with more rows than the layout, whose output is zero.
        unsupported: the reason why it cannot handle queries and a layout, or None.
    """

    run: Callable[[Tensor, Tensor, Tensor, Layout, AttentionOptions], AttentionResult]
    dropout: bool = True
    weights: bool = True
    gradients: bool = True
    masks: bool = True
    biases: bool = True
    extra_rows: bool = False
    unsupported: Callable[[Tensor, Layout], str | None] = lambda q, layout: None


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    layout: Layout,
    *,
    dropout: float = 0.0,
    bias: Bias | None = None,
    weights: bool = False,
    backend: str | None = None,
) -> AttentionResult:
    """Attention of each query to the keys that are visible to it.

    Args:
        q, k, v: (T, H, K) queries, (T', H, K) keys and values, possibly of another width; rows
            beyond the layout are ignored, and their output is zero.
        dropout: dropout rate of the attention weights, which must be 0 in evaluation.
        bias: computes a term that is added to the scores.
        weights: whether to return the attention weights.
        backend: one of ``BACKENDS``; by default the fastest suitable one. All are equivalent.

    Returns:
        (T, H, K), and the weights if requested. A query without visible keys gets the mean of all
        values of its sequence.

    Source: Vaswani et al. 2017, equation 1.
    """
    options = AttentionOptions(dropout, bias, weights)
    training = torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad)
    if backend is not None:
        _require_capabilities(backend, q, layout, options, training)
    implementation = BACKENDS[backend or _fastest(q, layout, options, training)]
    tokens = sum(layout.lengths)
    if implementation.extra_rows or len(q) == tokens:
        return implementation.run(q, k, v, layout, options)
    sources = sum((layout.keys or layout).lengths)
    out, kept = implementation.run(q[:tokens], k[:sources], v[:sources], layout, options)
    return AttentionResult(F.pad(out, (0, 0, 0, 0, 0, len(q) - tokens)), kept)


def _fastest(q: Tensor, layout: Layout, options: AttentionOptions, training: bool) -> str:
    alone = not (options.dropout or options.weights or options.bias)
    if q.device.type != "cpu" and alone and varlen_unsupported(q, layout) is None:
        return "varlen"  # it supports windows, too
    windows = layout.near_alone and not (options.weights or options.bias)
    if windows and layout.max_seqlen > 4 * max(layout.window or 0, _BLOCK):
        return "windowed"  # most scores would be masked
    if q.device.type != "cpu":
        return "matmul" if options.weights else "sdpa"
    if options.weights or (options.bias and (options.dropout or training)):
        return "matmul"
    long = layout.max_seqlen > _LONG
    # On a CPU the backward pass of scaled_dot_product_attention is several times slower than plain
    # matrix products at pretraining lengths, and dropout disables its fast kernel.
    if options.dropout or (training and not long):
        return "manual"
    return "sdpa" if training or layout.hides or long else "equal_lengths"


def _require_capabilities(
    name: str, q: Tensor, layout: Layout, options: AttentionOptions, training: bool
) -> None:
    """Raise ``ValueError`` if a backend does not exist or lacks a required capability."""
    known(*BACKENDS)("attention backend", name)
    backend = BACKENDS[name]
    if reason := backend.unsupported(q, layout):
        raise ValueError(f"attention backend {name!r} {reason}")
    for what, needed, supported in (
        (f"dropout; requested: {options.dropout}", options.dropout, backend.dropout),
        ("attention weights; use matmul or reference", options.weights, backend.weights),
        ("gradients; use matmul or sdpa", training, backend.gradients),
        ("terms of the scores; use matmul or sdpa", options.bias, backend.biases),
        ("masks; use matmul or sdpa", layout.hides, backend.masks),
    ):
        if needed and not supported:
            raise ValueError(f"attention backend {name!r} does not support {what}")


def _reference(
    q: Tensor, k: Tensor, v: Tensor, layout: Layout, options: AttentionOptions
) -> AttentionResult:
    """One sequence at a time, written like the equation."""
    keys = layout.keys or layout
    out, weights = [], []
    parts = zip(q.split(layout.lengths), k.split(keys.lengths), v.split(keys.lengths), strict=True)
    for b, (qs, ks, vs) in enumerate(parts):
        queries, sources = len(qs), len(ks)
        scores = torch.einsum("ihk,jhk->hij", qs, ks) * q.shape[-1] ** -0.5  # (H, S, S')
        if options.bias is not None:
            far = distances(queries, sources, torch.tensor([sources - queries], device=q.device))
            by_head = qs.transpose(0, 1)[None], ks.transpose(0, 1)[None]  # (1, H, S, K) each
            scores = scores + options.bias(*by_head, far)[0]
        visible = torch.ones(queries, sources, dtype=torch.bool, device=q.device)
        if layout.causal:
            visible = visible.tril(sources - queries)
        if layout.window is not None:
            nearest, last = sources - queries - layout.window, sources - queries + layout.window
            visible = visible.triu(nearest).tril(last)
        if layout.mask is not None:
            visible = visible & layout.mask[b]
        if layout.ranks is not None:
            rank = layout.ranks.split(layout.lengths)[b]
            visible = visible & visible_by_rank(rank, layout.sees_itself)
        scores = scores.masked_fill(~visible, lowest(scores.dtype))
        w = drop(scores.softmax(-1), options.dropout).to(v.dtype)
        weights.append(w)
        out.append(torch.einsum("hij,jhk->ihk", w, vs))
    return AttentionResult(torch.cat(out), weights if options.weights else None)


def _matmul(
    q: Tensor, k: Tensor, v: Tensor, group: PaddedGroup, options: AttentionOptions
) -> tuple[Tensor, Tensor | None]:
    """(B, H, S, K), (B, H, S', K) twice -> (B, H, S, K) and the weights (B, H, S, S')"""
    scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-1, -2)  # (B, H, S, S')
    if options.bias is not None:
        scores = scores + _bias(q, k, group, options.bias)
    if group.mask is not None:
        # In place: the scores are not needed again, and an addition needs no input for its
        # gradient.
        scores += group.hidden(scores.dtype)
    # Autocast computes the softmax in float32; the product has the dtype of the values.
    weights = drop(scores.softmax(-1), options.dropout).to(v.dtype)
    return weights @ v, weights


def _sdpa(
    q: Tensor, k: Tensor, v: Tensor, group: PaddedGroup, options: AttentionOptions
) -> tuple[Tensor, Tensor | None]:
    """(B, H, S, K), (B, H, S', K) twice -> (B, H, S, K)"""
    mask = None if group.mask is None else group.hidden(q.dtype)
    if options.bias is not None:
        bias = _bias(q, k, group, options.bias).to(q.dtype)
        if group.mask is not None:
            bias = bias.masked_fill(~group.mask, lowest(q.dtype))
        mask = bias.expand(q.shape[0], q.shape[1], *bias.shape[2:])
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=options.dropout), None


def _bias(q: Tensor, k: Tensor, group: PaddedGroup, bias: Bias) -> Tensor:
    """(B or 1, H, S, S'), zero for queries without visible keys."""
    scores = bias(q, k, group.distances)
    return scores if group.seen is None else scores.masked_fill(~group.seen, 0)


def _grouped(run_group: Callable[..., tuple[Tensor, Tensor | None]]):
    """Run a padded kernel on groups of sequences with similar lengths."""

    def run(
        q: Tensor, k: Tensor, v: Tensor, layout: Layout, options: AttentionOptions
    ) -> AttentionResult:
        grouping = layout.grouping
        q = _place(q, grouping.queries)  # (places, H, K)
        k, v = _place(k, grouping.keys), _place(v, grouping.keys)
        out, weights = [], {}
        for group in grouping.groups:
            qg = q[group.queries].unflatten(0, (group.count, -1)).transpose(1, 2)
            kg, vg = (x[group.keys].unflatten(0, (group.count, -1)).transpose(1, 2) for x in (k, v))
            if group.seen is not None:
                qg = qg.masked_fill(~group.seen, 0)  # Equal scores give the mean of all values.
            result, kept = run_group(qg, kg, vg, group, options)  # (B, H, S, K)
            out.append(result.transpose(1, 2).reshape(-1, *v.shape[1:]))
            if options.weights and kept is not None:
                weights.update(zip(group.members, kept.unbind(0), strict=True))
        joined = out[0] if len(out) == 1 else torch.cat(out)
        side = grouping.queries
        if not side.same:
            joined = _Gather.apply(joined, side.rows, side.places, side.padding)
        if not options.weights:
            return AttentionResult(joined, None)
        sizes = zip(layout.lengths, (layout.keys or layout).lengths, strict=True)
        unpadded = [weights[b][:, :places, :sources] for b, (places, sources) in enumerate(sizes)]
        return AttentionResult(joined, unpadded)

    return run


def _manual(
    q: Tensor, k: Tensor, v: Tensor, layout: Layout, options: AttentionOptions
) -> AttentionResult:
    out = manual_attention(q.to(v.dtype), k.to(v.dtype), v, layout, options.dropout)
    return AttentionResult(out, None)


def varlen_unsupported(q: Tensor, layout: Layout) -> str | None:
    """The reason why PyTorch's variable-length kernel cannot handle queries (T, H, K) and layout;
    None if it can."""
    if q.device.type != "cuda":
        return f"requires a GPU, not {q.device.type}"
    if q.dtype not in (torch.float16, torch.bfloat16):
        return f"supports float16 and bfloat16, not {q.dtype}"
    if q.shape[-1] % 8 or q.shape[-1] > _LARGEST_HEAD:
        return f"supports heads of 8, 16, ... {_LARGEST_HEAD} channels, not {q.shape[-1]}"
    cached = layout.keys is not None and (layout.causal or layout.window is not None)
    if layout.mask is not None or layout.ranks is not None or cached:
        return "supports neither masks nor a cache"
    return _missing(q.device)


@lru_cache
def _missing(device: torch.device) -> str | None:
    """Missing features of this GPU or PyTorch; cached, because every layer asks."""
    if torch.version.hip or torch.cuda.get_device_capability(device) < _CAPABILITY:
        return "needs an NVIDIA GPU of the Ampere generation or later"
    if importlib.util.find_spec("torch.nn.attention.varlen") is not None:
        from torch.nn.attention.varlen import varlen_attn

        if "window_size" in inspect.signature(varlen_attn).parameters:
            return None
    return f"is not in PyTorch {torch.__version__}"


def _varlen(
    q: Tensor, k: Tensor, v: Tensor, layout: Layout, options: AttentionOptions
) -> AttentionResult:
    from torch.nn.attention.varlen import varlen_attn

    keys = layout.keys or layout
    far = -1 if layout.window is None else layout.window  # -1: all
    lengths = layout.offsets, keys.offsets, layout.max_seqlen, keys.max_seqlen
    # Number of visible tokens before and after a query.
    window = (far, 0 if layout.causal else far)
    out: Tensor = varlen_attn(q, k, v, *lengths, window_size=window)  # pyright: ignore
    return AttentionResult(out, None)


def _windowed(
    q: Tensor, k: Tensor, v: Tensor, layout: Layout, options: AttentionOptions
) -> AttentionResult:
    """Local attention over long sequences in blocks, with memory linear in the length.

    Source: Beltagy, Peters, Cohan 2020 (Longformer), section 3.1, without dilation.
    """
    window = layout.window or 0

    def run_group(
        q: Tensor, k: Tensor, v: Tensor, group: PaddedGroup, options: AttentionOptions
    ) -> tuple[Tensor, None]:
        out, size, length = [], max(window, _BLOCK), q.shape[2]
        for start in range(0, length, size):
            stop = min(start + size, length)
            first, last = max(0, start - window), min(length, stop + window)
            rows = torch.arange(start, stop, device=q.device)[:, None]
            hidden = (rows - torch.arange(first, last, device=q.device)).abs() > window
            if group.mask is not None:
                hidden = hidden | ~group.mask[..., first:last]
            scores = torch.zeros(hidden.shape, dtype=q.dtype, device=q.device)
            scores.masked_fill_(hidden, lowest(q.dtype))
            block = q[:, :, start:stop], k[:, :, first:last], v[:, :, first:last]
            out.append(_attend_with_mask(*block, scores, options.dropout))
        return torch.cat(out, 2), None

    return _grouped(run_group)(q, k, v, layout.without_window, options)


def _attend_with_mask(q: Tensor, k: Tensor, v: Tensor, hidden: Tensor, dropout: float) -> Tensor:
    """Attention with an additive mask: (B, H, S, K), (B, H, S', K) twice -> (B, H, S, K)."""
    if not dropout:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=hidden)
    scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-1, -2) + hidden
    return drop(scores.softmax(-1), dropout).to(v.dtype) @ v


def _place(x: Tensor, side: PaddedIndex) -> Tensor:
    """Scatter rows (T, H, K) to places (places, H, K)."""
    if side.same:
        return x
    return _Scatter.apply(x, side.rows, side.places, side.padding)  # pyright: ignore[reportReturnType]


class _Scatter(torch.autograd.Function):
    """Scatters rows (T) to places; padding gets a copy of some row, which attention masks.

    The gradient at padding is zero, so the backward pass is a gather, while autograd would sum
    over duplicates.
    """

    @staticmethod
    def forward(ctx, x, rows, places, padding):
        ctx.save_for_backward(places)
        return x[rows]

    @staticmethod
    def backward(ctx, grad):  # pyright: ignore[reportIncompatibleMethodOverride]
        (places,) = ctx.saved_tensors
        return grad[places], None, None, None


class _Gather(torch.autograd.Function):
    """Gathers places back to rows (T)."""

    @staticmethod
    def forward(ctx, x, rows, places, padding):
        ctx.save_for_backward(rows, padding)
        return x[places]

    @staticmethod
    def backward(ctx, grad):  # pyright: ignore[reportIncompatibleMethodOverride]
        rows, padding = ctx.saved_tensors
        spread = grad[rows]
        if padding is not None:
            spread[padding] = 0
        return spread, None, None, None


def _equal_lengths(
    q: Tensor, k: Tensor, v: Tensor, layout: Layout, options: AttentionOptions
) -> AttentionResult:
    """Plain matrix products over sequences of equal length, without padding and mask, for
    evaluation on a CPU: faster than scaled_dot_product_attention except for long sequences."""
    equal, bias = layout.equal_lengths, options.bias
    if equal.order is not None:
        q, k, v = (x[equal.order] for x in (q, k, v))
    out = v.new_empty(v.shape)
    for start, count, length in equal.spans:
        fused = bias is None and _fuses(q, v, count, length)
        step = count if fused else max(1, _CHUNK // length)
        for first in range(0, count, step):
            part = slice(start + first * length, start + min(first + step, count) * length)
            arguments = q[part], k[part], v[part], length
            out[part] = _fused(*arguments) if fused else _chunk(*arguments, bias)
    return AttentionResult(out if equal.order is None else out[equal.places], None)


def _fuses(q: Tensor, v: Tensor, count: int, length: int) -> bool:
    """Whether PyTorch's kernel is faster for this number and length of sequences."""
    if q.dtype != torch.bfloat16 or q.shape != v.shape:
        return False
    return count * length <= _FEW_TOKENS or (length >= _LONG_IN_UNITS and has_matrix_units())


def _fused(q: Tensor, k: Tensor, v: Tensor, length: int) -> Tensor:
    """Same as ``_chunk``, with PyTorch's kernel."""
    q, k, v = (x.unflatten(0, (-1, length)).transpose(1, 2) for x in (q, k, v))  # (B, H, S, K)
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(0, 1)


def _chunk(q: Tensor, k: Tensor, v: Tensor, length: int, bias: Bias | None) -> Tensor:
    """(B S, H, K) each, with equal lengths S -> (B S, H, K), a view with heads first.

    Values may have another width than queries and keys.
    """
    heads, size = q.shape[1:]
    parts = [x.unflatten(0, (-1, length)).transpose(1, 2) for x in (q, k, v)]  # (B, H, S, K)
    # Contiguous and three-dimensional: products of strided tensors take twice as long.
    qc, kc, vc = (x.contiguous().flatten(0, 1) for x in parts)  # (B H, S, K)
    unused = qc.new_zeros(1, 1, 1)
    scores = torch.baddbmm(unused, qc, kc.transpose(1, 2), beta=0, alpha=size**-0.5)
    if bias is not None:
        relative = distances(length, length, torch.zeros(1, dtype=torch.int64, device=q.device))
        biased = scores.view(-1, heads, length, length) + bias(parts[0], parts[1], relative)
        scores = biased.to(scores.dtype).view(-1, length, length)
    if length < _SHORT:
        weights = _softmax_of_short(scores)
    elif scores.dtype != torch.float32 and length < 64:
        # The softmax of short rows is slow in other dtypes than float32.
        weights = scores.softmax(-1, dtype=torch.float32).to(scores.dtype)
    else:
        weights = torch.softmax(scores, -1, out=scores)
    return torch.bmm(weights, vc).unflatten(0, (-1, heads)).transpose(1, 2).flatten(0, 1)


def _softmax_of_short(scores: Tensor) -> Tensor:
    """Softmax of short rows: (N, S, S') -> (N, S, S').

    Rows are transposed to columns, so that a register holds one element of each of many rows. Zero
    columns fill the last register; a remainder would be computed differently and depend on N.
    """
    columns = scores.flatten(0, 1).t()  # (S', N S)
    count = columns.shape[1]
    weights = F.pad(columns, (0, -count % _REGISTER)).softmax(0)
    return weights[:, :count].t().contiguous().view(scores.shape)


def _not_a_window(q: Tensor, layout: Layout) -> str | None:
    return None if layout.near_alone else "requires that only windows hide keys"


BACKENDS = {
    "reference": Backend(_reference),
    "matmul": Backend(_grouped(_matmul)),
    "sdpa": Backend(_grouped(_sdpa), weights=False),
    "manual": Backend(_manual, weights=False, biases=False, extra_rows=True),
    "varlen": Backend(
        _varlen, dropout=False, weights=False, biases=False, unsupported=varlen_unsupported
    ),
    "windowed": Backend(_windowed, weights=False, biases=False, unsupported=_not_a_window),
    "equal_lengths": Backend(
        _equal_lengths, dropout=False, weights=False, gradients=False, masks=False
    ),
}
