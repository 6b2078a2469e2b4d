"""What several batches before one update have in common.

Within ``one_update`` autocast converts each weight once, and the gradient of the rows that are
selected from a table of words is added to that of earlier batches where it lies. Autograd would
make a gradient of the whole table for each batch and then add it.

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
    """adds: whether gradients may be added where they lie; kept: converted weights, by id of what
    they were made from and beside it."""

    adds: bool
    kept: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)


# Of each thread: two that train must not take each other's weights.
_update: ContextVar[_Update | None] = ContextVar("update", default=None)


@contextmanager
def one_update(*, adds: bool = True) -> Iterator[None]:
    """Within this context, of several backward passes, no weight may change.

    Args:
        adds: whether gradients may be added to ``.grad`` without telling autograd; not where it is
            asked for them (``torch.autograd.grad``), or something waits for them (hooks).
    """
    token = _update.set(_Update(adds))
    try:
        yield
    finally:
        _update.reset(token)


def converted(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """(I, D) in another type."""
    update = _update.get()
    if update is None or dtype == weight.dtype or not weight.is_leaf:
        return weight.to(dtype)
    return _Converted.apply(weight, dtype, update.kept)  # pyright: ignore[reportReturnType]


def candidate_rows(table: Tensor, candidates: Candidates) -> Tensor:
    """The rows of a table of words that are the candidates': (V, E) -> (C, E).

    They are selected once, whoever reads them, since each selection has a gradient of the size of
    the table.
    """
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
