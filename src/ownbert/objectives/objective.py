"""The interface of objectives: logits and targets -> ``Loss``, a sum and a count.

The training loop divides the sums of a step by its counts over all micro-batches and processes, so
that no mean of means is computed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor, nn

    from ownbert.batches.batch import Batch
    from ownbert.nn.model import Model, Outputs


class Loss(NamedTuple):
    """The loss of an objective on a batch.

    Args:
        total: summed loss, a scalar with gradient.
        correct: number of correct answers.
        count: number of answers.
        zeros: with two classes, the number of targets of the first one, from which the accuracy of
            always choosing the more frequent class follows.
    """

    total: Tensor
    correct: Tensor
    count: int  # pyright: ignore[reportIncompatibleMethodOverride]
    zeros: Tensor | None = None


class Objective:
    """An objective: called on logits and the batch in its input view, it returns their ``Loss``.

    Attributes:
        name: name in the log.
        head: name of the head whose logits it reads.
        weight: weight of its loss in the sum over all objectives.
        input_view: form in which the model reads a batch. Objectives with the same view share a
            forward pass.
        counts_correct: whether correct answers are counted.
        decodes: whether its targets go through the decoder of the MLM head.
    """

    name: str
    head: str
    weight: float = 1.0
    input_view: str = "masked"
    counts_correct: bool = True
    decodes: bool = False

    def count(self, batch: Batch) -> int:
        """The number of targets in a batch."""
        raise NotImplementedError

    def __call__(self, logits: Tensor, batch: Batch) -> Loss:
        raise NotImplementedError

    def to_view(self, batch: Batch, logits: Mapping[str, Tensor]) -> Batch:
        """The batch in the input view of this objective.

        Args:
            batch: the batch from the loader, with masked tokens.
            logits: logits of the heads in the previous view.
        """
        return batch

    def logits_of(self, model: Model, outputs: Outputs, batch: Batch) -> Tensor:
        """The logits of a forward pass that this objective reads."""
        return outputs.logits[self.head]

    def parts(self, model: Model) -> list[nn.Module]:
        """The modules of a model that this objective trains."""
        return model.parts([self.head] if self.head in model.heads else [])


def cross_entropy_loss(logits: Tensor, targets: Tensor, smoothing: float = 0.0) -> Loss:
    """The cross entropy of targets (N) under logits (N, C)."""
    from ownbert.nn.fast.cross_entropy import cross_entropy

    return Loss(*cross_entropy(logits, targets, smoothing=smoothing), targets.numel())


def columns_of(batch: Batch, ids: Tensor) -> Tensor:
    """The column of the logits of each token id."""
    return ids if batch.candidates is None else batch.candidates.index_of(ids)


def unmasked(batch: Batch) -> Tensor:
    """Token ids (T), with masked tokens restored."""
    if batch.masked_positions is None:
        return batch.token_ids
    assert batch.masked_ids is not None
    return batch.token_ids.index_copy(0, batch.masked_positions, batch.masked_ids)
