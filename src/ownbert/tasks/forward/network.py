"""What computes the logits of rows.

T tokens, B sequences.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from ownbert.batches.example import Example


class RowNetwork(Protocol):
    """What computes the logits of rows: a packed model (``PackedNetwork``), or an exported file."""

    @property
    def crf(self) -> Any:
        """The scores of neighbouring tags (``transitions``, ``start_transitions``,
        ``end_transitions``), None where tags are independent."""
        ...

    def logits(self, examples: Sequence[Example], head: str) -> np.ndarray:
        """The logits of a head for the sequences of these rows, end to end.

        Args:
            examples: of at least one row.
            head: the kind of the head.

        Returns:
            float32 (T, ...) or (B, ...), as the head has it.
        """
        ...
