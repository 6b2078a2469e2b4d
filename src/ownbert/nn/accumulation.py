"""Work shared by the batches of one update (gradient accumulation).

Within ``one_update`` autocast converts each weight once, and gradients of rows selected from a word
table are accumulated in place. Autograd would create a gradient of the whole table for each batch
and then add it.

V vocabulary, E embedding size, C candidates.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ownbert.batches.sampled_softmax import Candidates


@dataclass(frozen=True)
class _Update:
    """Whether gradients may be accumulated in place, and the converted weights, by the id of the
    source tensor, which is kept alive."""

    adds: bool
    kept: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)


# Per thread, because two training threads must not share weights.
_update: ContextVar[_Update | None] = ContextVar("update", default=None)


@contextmanager
def one_update(*, adds: bool = True) -> Iterator[None]:
    """Context of several backward passes, during which no weight may change.

    Args:
        adds: whether gradients may be added to ``.grad`` without autograd; must be false with
            ``torch.autograd.grad`` and with hooks on gradients.
    """
    token = _update.set(_Update(adds))
    try:
        yield
    finally:
        _update.reset(token)


def converted(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """A weight (I, D) converted to another dtype."""
    update = _update.get()
    if update is None or dtype == weight.dtype or not weight.is_leaf:
        return weight.to(dtype)
    return _Converted.apply(weight, dtype, update.kept)  # pyright: ignore[reportReturnType]


def candidate_rows(table: Tensor, candidates: Candidates) -> Tensor:
    """Select the rows of the candidates from a word table: (V, E) -> (C, E). They are selected once
    for all users, since each selection has a gradient as large as the table."""
    rows, ids = candidates.rows, candidates.ids
    if id(table) not in rows:
        update = _update.get()
        adds = update is not None and update.adds and table.is_leaf
        rows[id(table)] = _Rows.apply(table, ids) if adds else table.index_select(0, ids)  # pyright: ignore
    return rows[id(table)]


class _Converted(torch.autograd.Function):
    @staticmethod
    def forward(ctx, weight, dtype, kept):
        ctx.dtype = weight.dtype
        if id(weight) not in kept:
            kept[id(weight)] = weight, weight.to(dtype)
        return kept[id(weight)][1].detach()

    @staticmethod
    def backward(ctx, grad):  # pyright: ignore[reportIncompatibleMethodOverride]
        return grad.to(ctx.dtype), None, None


class _Rows(torch.autograd.Function):
    @staticmethod
    def forward(ctx, table, ids):
        ctx.table, ctx.ids = table, ids
        return table.index_select(0, ids)

    @staticmethod
    def backward(ctx, grad):  # pyright: ignore[reportIncompatibleMethodOverride]
        table, ids = ctx.table, ctx.ids
        if table.grad is None:
            return torch.zeros_like(table).index_add_(0, ids, grad), None
        table.grad.index_add_(0, ids, grad)
        return None, None
