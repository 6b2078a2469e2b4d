"""Logits of rows, whatever engine computes them, and raw outputs of rows from them, in NumPy.

T tokens, B sequences, C labels. A row is one sequence, or several with one target
(``Example.parts``).
"""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from ownbert.batches.example import Example


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
    """The number of sequences of each row."""
    return [1 if e.parts is None else len(e.parts) for e in examples]


def mean_per_row(values: np.ndarray, examples: Sequence[Example]) -> np.ndarray:
    """(B, ...) -> (rows, ...): the mean over the sequences of each row; (rows, ...) is
    unchanged."""
    if len(values) == len(examples):
        return values
    counts = np.asarray(sequence_counts(examples))
    sums = np.add.reduceat(values, np.cumsum(counts) - counts, axis=0)
    return sums / counts.astype(values.dtype).reshape(-1, *[1] * (values.ndim - 1))
