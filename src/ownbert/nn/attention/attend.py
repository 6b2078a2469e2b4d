"""Scaled dot-product attention over packed sequences (Vaswani et al. 2017, equation 1).

T tokens, B sequences (of a group, if grouped), S longest sequence, H heads, K head size; T' and S'
are of the keys, if these come from another batch. Places are tokens and padding.
"""

from collections.abc import Callable
from dataclasses import dataclass
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
from ownbert.nn.attention import windowed
from ownbert.nn.attention.manual import manual_attention
from ownbert.nn.attention.varlen import attend_varlen, unsupported
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


class AttentionResult(NamedTuple):
    """The result of ``attend``.

    Args:
        out: (T, H, K).
        weights: if requested, (H, S, S') for each sequence, without padding.
    """

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
    """An implementation of attention and its capabilities.

    Args:
        run: computes attention.
        dropout: whether it supports dropout of attention weights.
        weights: whether it returns attention weights.
        gradients: whether it is differentiable.
        masks: whether it supports layouts that mask keys, or with keys from another batch.
        biases: whether it supports biases of the scores.
        extra_rows: whether inputs may have more rows than the layout; their output is zero.
        unsupported: returns the reason why it cannot handle queries and layout, or None.
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
        q: (T, H, K) queries.
        k: (T', H, K) keys.
        v: (T', H, K) values, possibly of another width.
        layout: layout of queries and keys; rows beyond it are ignored, and their output is zero.
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
    if q.device.type != "cpu" and alone and unsupported(q, layout) is None:
        return "varlen"  # it supports windows, too
    windows = layout.near_alone and not (options.weights or options.bias)
    if windows and layout.max_seqlen > 4 * max(layout.window or 0, windowed.BLOCK):
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
    if options.dropout and not backend.dropout:
        raise ValueError(
            f"attention backend {name!r} does not support dropout; requested: {options.dropout}"
        )
    if options.weights and not backend.weights:
        raise ValueError(
            f"attention backend {name!r} does not return weights; use matmul or reference"
        )
    if training and not backend.gradients:
        raise ValueError(
            f"attention backend {name!r} does not support gradients; use matmul or sdpa"
        )
    if options.bias and not backend.biases:
        raise ValueError(f"attention backend {name!r} cannot add to scores; use matmul or sdpa")
    if layout.hides and not backend.masks:
        raise ValueError(f"attention backend {name!r} does not support masks; use matmul or sdpa")


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


def _varlen(
    q: Tensor, k: Tensor, v: Tensor, layout: Layout, options: AttentionOptions
) -> AttentionResult:
    return AttentionResult(attend_varlen(q, k, v, layout), None)


def _windowed(
    q: Tensor, k: Tensor, v: Tensor, layout: Layout, options: AttentionOptions
) -> AttentionResult:
    window = layout.window or 0

    def run_group(
        q: Tensor, k: Tensor, v: Tensor, group: PaddedGroup, options: AttentionOptions
    ) -> tuple[Tensor, None]:
        return windowed.attend_windowed(q, k, v, group.mask, window, options.dropout), None

    return _grouped(run_group)(q, k, v, layout.without_window, options)


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


BACKENDS = {
    "reference": Backend(_reference),
    "matmul": Backend(_grouped(_matmul)),
    "sdpa": Backend(_grouped(_sdpa), weights=False),
    "manual": Backend(_manual, weights=False, biases=False, extra_rows=True),
    "varlen": Backend(_varlen, dropout=False, weights=False, biases=False, unsupported=unsupported),
    "windowed": Backend(_windowed, weights=False, biases=False, unsupported=windowed.unsupported),
    "equal_lengths": Backend(
        _equal_lengths, dropout=False, weights=False, gradients=False, masks=False
    ),
}
