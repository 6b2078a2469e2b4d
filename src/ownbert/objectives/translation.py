"""Translation: a decoder's next tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ownbert.objectives.objective import Loss, Objective, cross_entropy_loss

if TYPE_CHECKING:
    from torch import Tensor

    from ownbert.batches.batch import Batch


@dataclass(frozen=True)
class Translation(Objective):
    """Cross entropy of each next token under a decoder that sees the source and all tokens before.

    With label smoothing (Szegedy et al. 2016, section 7) a share of each target is spread evenly
    over the vocabulary.
    """

    smoothing: float = 0.1
    name = "translation"
    head = "generator"

    def count(self, batch: Batch) -> int:
        return 0 if batch.tags is None else batch.tokens

    def __call__(self, logits: Tensor, batch: Batch) -> Loss:
        assert batch.tags is not None
        return cross_entropy_loss(logits, batch.tags, self.smoothing)  # (T, V), (T)
