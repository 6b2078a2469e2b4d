"""Attention with a hand-written backward pass, for training on a CPU.

It uses the same matrix products as autograd on groups of sequences with similar lengths, but avoids
copies: scores of all groups share one tensor, as do their gradients, and dropout draws for all
groups at once.

A training step of a small model is 1.1 times as fast as with ``matmul`` with one thread, and 1.1 to
1.5 times with two (docs/lab/compiled-loops.md).

T tokens, B sequences of a group, S longest of them, H heads, K head size; T' and S' are of the
keys, if these come from another batch. Places are tokens and padding.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ownbert.batches.layout import Layout, PaddedGroup, PaddedIndex
from ownbert.nn.layers import keep_some


@dataclass(frozen=True)
class _HeadOrder:
    """A permutation from token-major to head-major order (by group, sequence, head) and back.

    In head-major order the queries of a head of a sequence are contiguous. ``tokens`` and ``heads``
    (places H) are those at each place, ``back`` (T H) is the place of each head of each token, and
    ``padding`` are the places without a token.
    """

    tokens: Tensor
    heads: Tensor
    back: Tensor
    padding: Tensor | None
    _rows: dict[int, Tensor]

    def rows(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(T, H, K) as stored in memory -> rows of K elements, and the row for each place."""
        tokens, heads, size = x.shape
        if x.stride()[1:] != (size, 1) or x.stride(0) % size:
            x = x.contiguous()
        width = x.stride(0) // size  # rows of K elements per token
        if width not in self._rows:
            self._rows[width] = self.tokens * width + self.heads
        return x.as_strided(((tokens - 1) * width + heads, size), (size, 1)), self._rows[width]


def _gather(order: _HeadOrder, x: Tensor, factor: float) -> Tensor:
    """(T, H, K) -> (places H, K), scaled."""
    source, rows = order.rows(x)
    return _select(source, rows, factor, len(rows))


def _scatter(order: _HeadOrder, x: Tensor, factor: float, shape: torch.Size) -> Tensor:
    """The reverse of ``_gather``, (T, H, K); rows beyond the layout become zero."""
    return _select(x, order.back, factor, shape[0] * shape[1]).view(shape)


def _select(x: Tensor, rows: Tensor, factor: float, count: int) -> Tensor:
    """Scaled rows of (N, K), padded by zeros to ``count``."""
    out = x.new_empty(count, x.shape[1])
    out[len(rows) :] = 0
    torch.index_select(x, 0, rows, out=out[: len(rows)])
    return out if factor == 1.0 else out.mul_(factor)


def _order(side: PaddedIndex, spans: Sequence[tuple[slice, int]], heads: int) -> _HeadOrder:
    """Create an order from the places of each group and its number of sequences (``spans``)."""
    first, step = [], []  # row of the first head and step between heads
    for places, count in spans:
        size = (places.stop - places.start) // count
        at = places.start + np.arange(count)[:, None] * size
        first.append((at * heads + np.arange(size)).ravel())
        step.append(np.full(count * size, size))
    start, between = (np.concatenate(parts)[:, None] for parts in (first, step))
    order = start + between * np.arange(heads)  # (places, H)
    tokens, numbers = np.empty((2, order.size), dtype=np.int64)
    tokens[order] = side.rows.numpy(force=True)[:, None]
    numbers[order] = np.arange(heads)
    back = order[side.places.numpy(force=True)].ravel()
    padding = None if side.padding is None else order[side.padding.numpy(force=True)].ravel()

    def to_device(x: np.ndarray) -> Tensor:
        return torch.from_numpy(x).to(side.rows.device)

    kept = None if padding is None else to_device(padding)
    return _HeadOrder(to_device(tokens), to_device(numbers), to_device(back), kept, {})


@dataclass(frozen=True)
class _GroupSlices:
    """A group's slices of queries (places H, K), keys and scores."""

    group: PaddedGroup
    rows: int  # B H
    queries: slice
    keys: slice
    scores: slice

    def queries_of(self, x: Tensor) -> Tensor:
        """(places H, K) -> (B H, S, K)"""
        return x[self.queries].view(self.rows, -1, x.shape[1])

    def keys_of(self, x: Tensor) -> Tensor:
        """(places' H, K) -> (B H, S', K)"""
        return x[self.keys].view(self.rows, -1, x.shape[1])

    def scores_of(self, x: Tensor) -> Tensor:
        """Concatenated scores of all groups -> (B H, S, S')"""
        queries = (self.queries.stop - self.queries.start) // self.rows
        return x[self.scores].view(self.rows, queries, -1)

    def zero_blind(self, x: Tensor) -> None:
        """Zero (places H, K) where a query sees no key, so that its scores are equal, like its
        mask."""
        assert self.group.seen is not None
        rows = self.queries_of(x).unflatten(0, (self.group.count, -1))  # (B, H, S, K)
        rows.masked_fill_(~self.group.seen, 0)


@dataclass(frozen=True)
class _Plan:
    """Orders of queries and keys, the slices of each group, and the total number of scores."""

    queries: _HeadOrder
    keys: _HeadOrder
    parts: tuple[_GroupSlices, ...]
    scores: int

    def softmax(self, scores: Tensor, keep: Tensor | None) -> Tensor:
        """Compute attention weights in place of scores, and return those kept by dropout."""
        for part in self.parts:
            _softmax(part.scores_of(scores), part.group)
        return _apply_dropout(scores, keep)

    def softmax_backward(self, weights: Tensor, keep: Tensor | None, grad: Tensor) -> None:
        """Replace the gradient of the kept weights by the gradient of the scores, in place."""
        if keep is not None:
            grad *= keep.to(grad.dtype)
        for part in self.parts:
            above, weight_part = part.scores_of(grad), part.scores_of(weights)
            torch.ops.aten._softmax_backward_data(
                above, weight_part, -1, above.dtype, grad_input=above
            )


def _apply_dropout(weights: Tensor, keep: Tensor | None) -> Tensor:
    """The weights kept by dropout."""
    return weights if keep is None else keep.to(weights.dtype).mul_(weights)


def _plan(layout: Layout, heads: int) -> _Plan:
    """Plans are cached per layout and number of heads."""
    if heads in layout.plans:
        return layout.plans[heads]
    grouping, parts, end = layout.grouping, [], 0
    for group in grouping.groups:
        rows = group.count * heads
        sides = (group.queries, group.keys)
        at, keys_at = (slice(s.start * heads, s.stop * heads) for s in sides)
        start, end = end, end + (at.stop - at.start) * (keys_at.stop - keys_at.start) // rows
        parts.append(_GroupSlices(group, rows, at, keys_at, slice(start, end)))
    queries = _order(grouping.queries, [(g.queries, g.count) for g in grouping.groups], heads)
    keys = queries
    if grouping.keys is not grouping.queries:
        keys = _order(grouping.keys, [(g.keys, g.count) for g in grouping.groups], heads)
    plan = _Plan(queries, keys, tuple(parts), end)
    layout.plans[heads] = plan
    return plan


def manual_attention(q: Tensor, k: Tensor, v: Tensor, layout: Layout, dropout: float) -> Tensor:
    """See ``ownbert.nn.attention.attend.attend``."""
    plan = _plan(layout, q.shape[1])
    keep, scale = keep_some(plan.scores, dropout, q.device) if dropout else (None, 1.0)
    apply: Any = _ToPlaces.apply
    blind = [part for part in plan.parts if part.group.seen is not None]
    # Scaling v is cheaper than scaling the weights.
    places = (
        apply(q, plan.queries, q.shape[2] ** -0.5, blind, False),
        apply(k, plan.keys, 1.0, (), False),
        apply(v, plan.keys, scale, (), False),
    )
    out: Any = _Attention.apply(*places, plan, keep)
    return _ToTokens.apply(out, plan.queries, 1.0, (), q.shape)  # pyright: ignore


class _ToPlaces(torch.autograd.Function):
    """(T, H, K) in head-major order (places H, K), scaled; ``blind`` are parts in which queries
    that see no key become zero, and ``zeros`` makes padding zero rather than a copy of some row."""

    @staticmethod
    def forward(ctx, x, order, factor, blind, zeros):
        ctx.order, ctx.factor, ctx.blind, ctx.shape = order, factor, blind, x.shape
        places = _gather(order, x, factor)
        if zeros and order.padding is not None:
            places.index_fill_(0, order.padding, 0)
        for part in blind:
            part.zero_blind(places)
        return places

    @staticmethod
    def backward(ctx, grad):  # pyright: ignore[reportIncompatibleMethodOverride]
        given = ctx.order, ctx.factor, ctx.blind, ctx.shape
        return _ToTokens.apply(grad, *given), None, None, None, None


class _ToTokens(torch.autograd.Function):
    """The reverse of ``_ToPlaces`` for gradients and outputs, to (T, H, K)."""

    @staticmethod
    def forward(ctx, x, order, factor, blind, shape):
        ctx.order, ctx.factor, ctx.blind = order, factor, blind
        x = x.clone() if blind else x
        for part in blind:
            part.zero_blind(x)
        return _scatter(order, x, factor, shape)

    @staticmethod
    def backward(ctx, grad):  # pyright: ignore[reportIncompatibleMethodOverride]
        given = ctx.order, ctx.factor, ctx.blind, True
        return _ToPlaces.apply(grad, *given), None, None, None, None


class _Attention(torch.autograd.Function):
    """Attention of scaled queries, keys and values (places H, K)."""

    @staticmethod
    def forward(ctx, q, k, v, plan, keep):
        ctx.plan = plan
        weights, out = q.new_empty(plan.scores), torch.empty_like(q)
        for part in plan.parts:
            keys = part.keys_of(k).transpose(1, 2)
            torch.bmm(part.queries_of(q), keys, out=part.scores_of(weights))
        left = plan.softmax(weights, keep)
        for part in plan.parts:
            torch.bmm(part.scores_of(left), part.keys_of(v), out=part.queries_of(out))
        ctx.save_for_backward(q, k, v, weights, keep)
        return out

    @staticmethod
    def backward(ctx, grad):  # pyright: ignore[reportIncompatibleMethodOverride]
        q, k, v, weights, keep = ctx.saved_tensors
        plan = ctx.plan
        if torch.is_grad_enabled():  # for a second derivative
            return *_differentiable_gradients(plan, (q, k, v), keep, grad), None, None
        left = _apply_dropout(weights, keep)
        scores = torch.empty_like(weights)
        dq, dk, dv = (torch.empty_like(x) for x in (q, k, v))
        for part in plan.parts:
            above, weight_part = part.queries_of(grad), part.scores_of(left)
            torch.bmm(weight_part.transpose(1, 2), above, out=part.keys_of(dv))
            torch.bmm(above, part.keys_of(v).transpose(1, 2), out=part.scores_of(scores))
        plan.softmax_backward(weights, keep, scores)
        for part in plan.parts:
            above = part.scores_of(scores)
            torch.bmm(above, part.keys_of(k), out=part.queries_of(dq))
            torch.bmm(above.transpose(1, 2), part.queries_of(q), out=part.keys_of(dk))
        return dq, dk, dv, None, None


def _differentiable_gradients(
    plan: _Plan, inputs: tuple[Tensor, ...], keep: Tensor | None, grad: Tensor
) -> list[Tensor | None]:
    """The gradients of ``_Attention``, computed by PyTorch from the inputs."""
    (q, k, v), out = inputs, []
    for part in plan.parts:
        scores = part.queries_of(q) @ part.keys_of(k).transpose(1, 2)
        if part.group.mask is not None:
            by_sequence = scores.unflatten(0, (part.group.count, -1))  # (B, H, S, S')
            scores = (by_sequence + part.group.hidden(scores.dtype)).flatten(0, 1)
        weights = scores.softmax(-1)
        if keep is not None:
            weights = weights * part.scores_of(keep)
        out.append((weights @ part.keys_of(v)).flatten(0, 1))
    needed = [x for x in inputs if x.requires_grad]
    found = iter(torch.autograd.grad(torch.cat(out), needed, grad, create_graph=True))
    return [next(found) if x.requires_grad else None for x in inputs]


def _softmax(scores: Tensor, group: PaddedGroup) -> None:
    """Softmax in place, (B H, S, S'), over visible keys."""
    if group.mask is not None:
        by_sequence = scores.view(group.count, -1, *scores.shape[1:])  # (B, H, S, S')
        by_sequence += group.hidden(scores.dtype)
    if scores.dtype in (torch.float32, torch.float64):
        torch.softmax(scores, -1, out=scores)
    else:  # float32 is also twice as fast
        scores.copy_(scores.softmax(-1, dtype=torch.float32))
