"""Next sentence prediction and sentence order prediction, which share a head."""

from __future__ import annotations

import math
from collections.abc import Set
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ownbert.exceptions import InputError
from ownbert.objectives.objective import Loss, PretrainingObjective, cross_entropy_loss

if TYPE_CHECKING:
    from torch import Tensor

    from ownbert.batches.batch import Batch


@dataclass(frozen=True)
class SentencePair(PretrainingObjective):
    """Cross entropy of whether the second of two texts follows the first (Devlin et al. 2019,
    section 3.1, task 2)."""

    # BERT uses 1, which slows down learning words in runs of minutes (docs/lab/pretraining.md).
    weight: float = 0.1
    name = pairs = "nsp"
    head = "nsp"
    title, short, colour = "next sentence", "NSP", 1
    explained = "next sentence"
    classes = ("next", "not next")
    chance = math.log(2)
    reads_features = True

    def count(self, batch: Batch) -> int:
        return 0 if batch.next_sentence is None else batch.sequences

    def __call__(self, logits: Tensor, batch: Batch) -> Loss:
        assert batch.next_sentence is not None
        loss = cross_entropy_loss(logits, batch.next_sentence)  # (B, 2), (B)
        return loss._replace(zeros=(batch.next_sentence == 0).sum())


@dataclass(frozen=True)
class SentenceOrder(SentencePair):
    """Cross entropy of whether two neighbouring texts were exchanged (Lan et al. 2020, section
    3.1)."""

    name = pairs = "sop"
    title, short, colour = "sentence order", "SOP", 5
    explained = "sentence order, instead of nsp"
    classes = ("in order", "exchanged")

    @classmethod
    def require(cls, names: Set[str]) -> None:
        if "nsp" in names:
            raise InputError("task.objectives has nsp and sop, which share a head; use one of them")
