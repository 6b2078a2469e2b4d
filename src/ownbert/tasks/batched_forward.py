"""Forward passes over many rows, in packed batches of similar length."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch

from ownbert.data.batch import Example, pack
from ownbert.nn.model import Model
from ownbert.objectives import Objective
from ownbert.tasks.task import Task
from ownbert.train.device import autocast

T = TypeVar("T")

# Tokens in one forward pass.
BATCH_TOKENS = 8192
# Rows, and characters, that are read, encoded and sorted by length together.
ROWS, CHARACTERS = 2048, 4_000_000


@dataclass(frozen=True)
class RowOutputs:
    """What the model computes for rows.

    Args:
        raws: the ``Task.raw`` scores of each row.
        loss: the mean loss, None without targets.
    """

    raws: list[np.ndarray]
    loss: float | None


@torch.inference_mode()
def forward_rows(
    model: Model,
    task: Task,
    examples: Sequence[Example],
    *,
    precision: str,
    objective: Objective | None = None,
) -> RowOutputs:
    """The scores of rows, in their order, and with ``objective`` the mean loss.

    In float32 the scores of a row are the same regardless of the batch, to rounding.
    """
    model.eval()
    sizes = getattr(examples, "sizes", None)  # without making examples that are made on access
    if sizes is None:
        sizes = np.asarray([len(e.token_ids) for e in examples], dtype=np.int64)
    raws: list[Any] = [None] * len(examples)
    total, count = 0.0, 0
    for chosen in batches_by_tokens(np.argsort(sizes, kind="stable"), sizes.tolist()):
        batch = pack([examples[i] for i in chosen]).to(model.device)
        with autocast(model.device, precision):
            logits = model(batch, [task.head]).logits[task.head]
        for index, raw in zip(chosen, task.raw(logits, batch, model), strict=True):
            raws[index] = raw
        if objective is not None:
            loss = objective(logits, batch)
            total, count = total + float(loss.total), count + loss.count
    return RowOutputs(raws, total / count if count else None)


def batches_by_tokens(
    order: np.ndarray, lengths: Sequence[int], most: int = BATCH_TOKENS
) -> Iterator[np.ndarray]:
    """Batches of indices in ``order``, each of at most ``most`` tokens or a single longer text."""
    start = tokens = 0
    for end, index in enumerate(order):
        if tokens and tokens + lengths[index] > most:
            yield order[start:end]
            start, tokens = end, 0
        tokens += lengths[index]
    if start < len(order):
        yield order[start:]


def blocks(
    items: Iterable[T], rows: int = ROWS, characters: float = CHARACTERS, size: Any = len
) -> Iterator[list[T]]:
    """Items in lists, for input that need not fit in memory.

    Args:
        items: any number.
        rows: the number of items after which a list ends.
        characters: the sum of sizes after which a list ends.
        size: of an item.
    """
    block: list[T] = []
    total = 0
    for item in items:
        block.append(item)
        total += size(item)
        if len(block) == rows or total >= characters:
            yield block
            block, total = [], 0
    if block:
        yield block
