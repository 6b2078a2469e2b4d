"""Attention with its backward pass written out: what training on a CPU takes.

The same matrix products as autograd would make, on nearly equal sequences at a time, without its
copies: scores and their gradients of all groups lie in one piece each, and dropout draws for all of
them at once.

T tokens, B sequences of a group, S longest of them, H heads, K head size; T' and S' of the keys,
where these are of another batch. Places are tokens and padding.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ownbert.data.layout import Layout, PaddedGroup, PaddedIndex
from ownbert.nn.kernels.dropout import keep_some


def attend_manually(q: Tensor, k: Tensor, v: Tensor, layout: Layout, dropout: float) -> Tensor:
    """As ``ownbert.nn.attention.attend``; it can be differentiated once.

    Args:
        q: (T, H, K).
        k, v: (T', H, K).
        layout: of queries and keys.
        dropout: rate for the attention weights.

    Returns:
        (T, H, K).
    """
    return _Attend.apply(q.to(v.dtype), k.to(v.dtype), v, layout, dropout)  # pyright: ignore[reportReturnType]


@dataclass(frozen=True)
class _HeadOrder:
    """From token by token, head beside head, to group by group, sequence by sequence, head by
    head, and back: so the queries of a head of a sequence lie together.

    tokens, heads (places H): which token and which head comes to each place; back (T H): the
    place of each head of each token; padding: the places that no token comes to.
    """

    tokens: Tensor
    heads: Tensor
    back: Tensor
    padding: Tensor | None
    _rows: dict[int, Tensor]

    def take(self, x: Tensor) -> Tensor:
        """(T, H, K), as it lies in memory -> (places H, K)"""
        tokens, heads, size = x.shape
        if x.stride()[1:] != (size, 1) or x.stride(0) % size:
            x = x.contiguous()
        width = x.stride(0) // size  # how many rows of K numbers a token takes
        if width not in self._rows:
            self._rows[width] = self.tokens * width + self.heads
        flat = x.as_strided(((tokens - 1) * width + heads, size), (size, 1))
        return flat.index_select(0, self._rows[width])

    def put(self, x: Tensor, heads: int) -> Tensor:
        """(places H, K) -> (T, H, K)"""
        return x.index_select(0, self.back).unflatten(0, (-1, heads))


def _order(side: PaddedIndex, spans: Sequence[tuple[slice, int]], heads: int) -> _HeadOrder:
    """spans: the places of each group, and of how many sequences."""
    first, step = [], []  # of the first head, and from head to head, by place
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

    def here(x: np.ndarray) -> Tensor:
        return torch.from_numpy(x).to(side.rows.device)

    kept = None if padding is None else here(padding)
    return _HeadOrder(here(tokens), here(numbers), here(back), kept, {})


@dataclass(frozen=True)
class _Part:
    """Where a group lies in queries (places H, K), in keys and in scores, and its rows."""

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
        """Scores of all groups -> (B H, S, S')"""
        queries = (self.queries.stop - self.queries.start) // self.rows
        return x[self.scores].view(self.rows, queries, -1)

    def zero_blind(self, x: Tensor) -> None:
        """Zero (places H, K) where a query sees no key: its scores are equal then, as its mask."""
        if self.group.seen is not None:
            rows = self.queries_of(x).unflatten(0, (self.group.count, -1))  # (B, H, S, K)
            rows.masked_fill_(~self.group.seen, 0)


@dataclass(frozen=True)
class _Plan:
    """The order of queries and of keys, where each group lies, and how many scores there are."""

    queries: _HeadOrder
    keys: _HeadOrder
    parts: tuple[_Part, ...]
    scores: int


def _plan(layout: Layout, heads: int) -> _Plan:
    """Made once a batch and number of heads."""
    if heads in layout.plans:
        return layout.plans[heads]
    grouping, parts, end = layout.grouping, [], 0
    for group in grouping.groups:
        rows = group.count * heads
        sides = (group.queries, group.keys)
        at, keys_at = (slice(s.start * heads, s.stop * heads) for s in sides)
        start, end = end, end + (at.stop - at.start) * (keys_at.stop - keys_at.start) // rows
        parts.append(_Part(group, rows, at, keys_at, slice(start, end)))
    queries = _order(grouping.queries, [(g.queries, g.count) for g in grouping.groups], heads)
    keys = queries
    if grouping.keys is not grouping.queries:
        keys = _order(grouping.keys, [(g.keys, g.count) for g in grouping.groups], heads)
    layout.plans[heads] = plan = _Plan(queries, keys, tuple(parts), end)
    return plan


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, layout, dropout):
        heads, size = q.shape[1:]
        plan = _plan(layout, heads)
        q, k, v = plan.queries.take(q), plan.keys.take(k), plan.keys.take(v)  # (places H, K)
        q *= size**-0.5
        weights = q.new_empty(plan.scores)
        for part in plan.parts:
            part.zero_blind(q)
            scores = part.scores_of(weights)
            torch.bmm(part.queries_of(q), part.keys_of(k).transpose(1, 2), out=scores)
            _softmax(scores, part.group)
        keep, ctx.scale = keep_some(plan.scores, dropout, q.device) if dropout else (None, 1.0)
        dropped = weights if keep is None else keep.to(weights.dtype).mul_(weights)
        v *= ctx.scale  # in place of the weights, which are more
        out = torch.empty_like(q)
        for part in plan.parts:
            torch.bmm(part.scores_of(dropped), part.keys_of(v), out=part.queries_of(out))
        ctx.save_for_backward(q, k, v, weights, keep)
        ctx.plan = plan
        return plan.queries.put(out, heads)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):  # pyright: ignore[reportIncompatibleMethodOverride]
        q, k, v, weights, keep = ctx.saved_tensors
        plan, (heads, size) = ctx.plan, grad.shape[1:]
        grad = plan.queries.take(grad)
        if plan.queries.padding is not None:
            grad.index_fill_(0, plan.queries.padding, 0)
        dropped = weights if keep is None else keep.to(weights.dtype).mul_(weights)
        scores, dv = torch.empty_like(weights), torch.empty_like(v)
        for part in plan.parts:
            torch.bmm(
                part.scores_of(dropped).transpose(1, 2), part.queries_of(grad), out=part.keys_of(dv)
            )
            above = part.keys_of(v).transpose(1, 2)
            torch.bmm(part.queries_of(grad), above, out=part.scores_of(scores))
        if keep is not None:
            scores *= keep.to(scores.dtype)
            dv *= ctx.scale
        dq, dk = torch.empty_like(q), torch.empty_like(k)
        for part in plan.parts:
            above, own = part.scores_of(scores), part.scores_of(weights)
            above = torch.ops.aten._softmax_backward_data(above, own, -1, above.dtype)
            torch.bmm(above, part.keys_of(k), out=part.queries_of(dq))
            part.zero_blind(dq)
            torch.bmm(above.transpose(1, 2), part.queries_of(q), out=part.keys_of(dk))
        dq *= size**-0.5
        back, back_keys = plan.queries.put, plan.keys.put
        return back(dq, heads), back_keys(dk, heads), back_keys(dv, heads), None, None


def _softmax(scores: Tensor, group: PaddedGroup) -> None:
    """In place, (B H, S, S'), over the keys that a query sees."""
    if group.mask is not None:
        by_sequence = scores.view(group.count, -1, *scores.shape[1:])  # (B, H, S, S')
        by_sequence += group.hidden(scores.dtype)
    if scores.dtype in (torch.float32, torch.float64):
        torch.softmax(scores, -1, out=scores)
    else:  # in float32, which is twice as fast too
        scores.copy_(scores.softmax(-1, dtype=torch.float32))
