"""Logits of rows, whatever engine computes them, and raw outputs of rows from them, in NumPy.

T tokens, B sequences, C labels. A row is one sequence, or several with one target
(``Example.parts``).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeVar

import numpy as np

from ownbert.batches.example import Example, batches_by_tokens

T = TypeVar("T")
# Heads with logits for each token, which do not depend on other windows.
_PER_TOKEN = ("tokens", "span")
# Rows and characters that are read, encoded and sorted by length at a time.
ROWS, CHARACTERS = 2048, 4_000_000


class RowNetwork(Protocol):
    """Computes logits of rows: a packed model (``PackedNetwork``), or an exported file."""

    @property
    def crf(self) -> Any:
        """The CRF with ``transitions``, ``start_transitions`` and ``end_transitions``; None if tags
        are independent."""
        ...

    def logits(self, examples: Sequence[Example], head: str) -> np.ndarray:
        """The logits of a head, concatenated over all sequences of the rows (at least one): float32
        (T, ...) or (B, ...), depending on the head."""
        ...


def softmax(logits: np.ndarray) -> np.ndarray:
    """Softmax along the last axis: (..., C) -> (..., C)."""
    if not logits.size:
        return logits
    powers = logits - logits.max(-1, keepdims=True)
    np.exp(powers, out=powers)
    powers /= powers.sum(-1, keepdims=True)
    return powers


def sigmoid(logits: np.ndarray) -> np.ndarray:
    """1 / (1 + exp(-x)) without overflow."""
    return np.exp(-np.logaddexp(0, -logits))


def sequence_counts(examples: Sequence[Example]) -> list[int]:
    return [1 if e.parts is None else len(e.parts) for e in examples]


def mean_per_row(values: np.ndarray, examples: Sequence[Example]) -> np.ndarray:
    """(B, ...) -> (rows, ...): the mean over the sequences of each row; (rows, ...) is
    unchanged."""
    if len(values) == len(examples):
        return values
    counts = np.asarray(sequence_counts(examples))
    sums = np.add.reduceat(values, np.cumsum(counts) - counts, axis=0)
    return sums / counts.astype(values.dtype).reshape(-1, *[1] * (values.ndim - 1))


def forward_rows(network: RowNetwork, task: Any, examples: Sequence[Example]) -> list[np.ndarray]:
    """The ``Task.raw`` outputs of rows, in their order; in float32 they do not depend on the batch
    of a row, up to rounding."""

    def raws(batch: Sequence[Example]) -> Sequence[np.ndarray]:
        return task.raw(_logits(network, batch, task.head), batch, network)

    return in_batches(examples, raws)


def in_batches(
    examples: Sequence[Example], compute: Callable[[Sequence[Example]], Iterable[np.ndarray]]
) -> list[np.ndarray]:
    """The results of a function of batches, one per example, in the order of the examples."""
    sizes = getattr(examples, "sizes", None)  # avoids building lazy examples
    if sizes is None:
        sizes = np.asarray([len(e.token_ids) for e in examples], dtype=np.int64)
    results: list[Any] = [None] * len(examples)
    for chosen in batches_by_tokens(np.argsort(sizes, kind="stable"), sizes.tolist()):
        computed = compute([examples[i] for i in chosen])
        for index, result in zip(chosen, computed, strict=True):
            results[index] = result
    return results


def _logits(network: RowNetwork, batch: Sequence[Example], head: str) -> np.ndarray:
    """The logits of a batch; the windows of a long text are computed in batches of their own."""
    (first, *others) = batch
    several = len(first.lengths) > 1 and first.words is None
    if others or head not in _PER_TOKEN or not several:
        return network.logits(batch, head)
    lengths = np.asarray(first.lengths)
    stops = np.cumsum(lengths)
    results = np.zeros(0)
    for chosen in batches_by_tokens(np.arange(len(lengths)), lengths.tolist()):
        windows = slice(int(stops[chosen[0]] - lengths[chosen[0]]), int(stops[chosen[-1]]))
        part = {
            name: array[windows]
            for name in ("token_ids", "type_ids", "tags")
            if (array := getattr(first, name)) is not None
        }
        parts = tuple(lengths[chosen].tolist())
        logits = network.logits([replace(first, parts=parts, **part)], head)
        if not results.size:
            results = np.empty((len(first.token_ids), *logits.shape[1:]), logits.dtype)
        results[windows] = logits
    return results


def blocks(
    items: Iterable[T], rows: int = ROWS, characters: float = CHARACTERS, size: Any = len
) -> Iterator[list[T]]:
    """Yield items in lists of at most ``rows``, which end when their total ``size`` reaches
    ``characters``, for inputs that need not fit in memory."""
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
