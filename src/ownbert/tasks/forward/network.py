"""The interface for computing logits of rows.

T tokens, B sequences.
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
        """The logits of a head, concatenated over all sequences of the rows.

        Args:
            examples: at least one row.
            head: kind of the head.

        Returns:
            float32 (T, ...) or (B, ...), depending on the head.
        """
        ...
