"""What is learnt: logits and targets -> Loss, everything as (sum, count).

M masked tokens, B sequences, V vocabulary, C labels. The loop divides a step's sums by its
counts over all micro-batches, so that a mean of means never happens.
"""

from dataclasses import dataclass
from typing import Protocol

import torch.nn.functional as F
from torch import Tensor

from ownbert.data.batch import Batch


@dataclass(frozen=True)
class Loss:
    """Summed loss (a scalar with gradient), summed right answers, and how many there were."""

    total: Tensor
    correct: Tensor
    count: int


class Objective(Protocol):
    """An objective knows its head, how many targets a batch holds, and its loss."""

    @property
    def head(self) -> str: ...
    @property
    def weight(self) -> float: ...
    def count(self, batch: Batch) -> int: ...
    def __call__(self, logits: Tensor, batch: Batch) -> Loss: ...


def _cross_entropy(logits: Tensor, targets: Tensor) -> Loss:
    logits = logits.float()
    total = F.cross_entropy(logits, targets, reduction="sum")
    scores = logits.detach()
    # Comparing with the maximum takes a tenth of the time of argmax on a CPU.
    right = scores.gather(1, targets[:, None])[:, 0] >= scores.amax(-1)
    return Loss(total, right.sum(), targets.numel())


@dataclass(frozen=True)
class MaskedLM:
    """Cross entropy of the masked tokens (Devlin et al. 2019, section 3.1, task 1)."""

    weight: float = 1.0
    head: str = "mlm"

    def count(self, batch: Batch) -> int:
        return 0 if batch.masked_ids is None else batch.masked_ids.numel()

    def __call__(self, logits: Tensor, batch: Batch) -> Loss:
        assert batch.masked_ids is not None
        return _cross_entropy(logits, batch.masked_ids)  # (M, V), (M)


@dataclass(frozen=True)
class NextSentence:
    """Cross entropy of the next sentence prediction (Devlin et al. 2019, section 3.1, task 2)."""

    weight: float = 1.0
    head: str = "nsp"

    def count(self, batch: Batch) -> int:
        return 0 if batch.next_sentence is None else batch.sequences

    def __call__(self, logits: Tensor, batch: Batch) -> Loss:
        assert batch.next_sentence is not None
        return _cross_entropy(logits, batch.next_sentence)  # (B, 2), (B)


@dataclass(frozen=True)
class Classification:
    """Cross entropy of one label a sequence."""

    weight: float = 1.0
    head: str = "classification"

    def count(self, batch: Batch) -> int:
        return 0 if batch.labels is None else batch.sequences

    def __call__(self, logits: Tensor, batch: Batch) -> Loss:
        assert batch.labels is not None
        return _cross_entropy(logits, batch.labels)  # (B, C), (B)
