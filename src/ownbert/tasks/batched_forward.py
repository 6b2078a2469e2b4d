"""Scores of many rows by a model: sorted by length, packed, given back in their order."""

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
# Rows, and characters, that are read, encoded and sorted by length at a time.
ROWS, CHARACTERS = 2048, 4_000_000


@dataclass(frozen=True)
class Answers:
    """raws: what ``Task.raw`` gives of each row. loss: its mean, where rows had targets."""

    raws: list[np.ndarray]
    loss: float | None


@torch.inference_mode()
def answers(
    model: Model,
    task: Task,
    examples: Sequence[Example],
    *,
    precision: str,
    objective: Objective | None = None,
) -> Answers:
    """Scores of rows, in their order; with ``objective`` the mean loss too.

    In float32 a row gets the same scores in any company, to rounding.
    """
    model.eval()
    sizes = getattr(examples, "sizes", None)  # of those that are made when they are asked for
    if sizes is None:
        sizes = np.asarray([len(e.token_ids) for e in examples], dtype=np.int64)
    raws: list[Any] = [None] * len(examples)
    total, count = 0.0, 0
    for chosen in by_tokens(np.argsort(sizes, kind="stable"), sizes.tolist()):
        batch = pack([examples[i] for i in chosen]).to(model.device)
        with autocast(model.device, precision):
            logits = model(batch, [task.head]).logits[task.head]
        for index, raw in zip(chosen, task.raw(logits, batch, model), strict=True):
            raws[index] = raw
        if objective is not None:
            loss = objective(logits, batch)
            total, count = total + float(loss.total), count + loss.count
    return Answers(raws, total / count if count else None)


def by_tokens(
    order: np.ndarray, lengths: Sequence[int], most: int = BATCH_TOKENS
) -> Iterator[np.ndarray]:
    """Indices of texts in ``order`` by batch, of so many tokens; a longer text is one by itself."""
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
    """Items by the block of so many or so long, for input that need not fit in memory."""
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
