"""What tasks learn. B sequences, R rows (groups of them, or one each), C labels."""

from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ownbert.data.batch import Batch
from ownbert.data.layout import make_layout
from ownbert.objectives import Loss
from ownbert.tasks.sentence_task import mean_of_groups, of_sequences


@dataclass(frozen=True, kw_only=True)
class RowObjective:
    """One answer per row. ``distance`` tells how far two answers to the same rows are apart; right:
    whether there are right answers to be counted."""

    weight: float = 1.0
    name: str = "classification"
    head: str = "classification"
    input_view: str = "masked"
    right: bool = True

    def count(self, batch: Batch) -> int:
        return 0 if batch.labels is None else batch.answers

    def __call__(self, logits: Tensor, batch: Batch) -> Loss:
        raise NotImplementedError

    def distance(self, one: Tensor, two: Tensor, batch: Batch) -> Tensor:
        """Summed over the rows."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class OneLabel(RowObjective):
    """Cross entropy of one label a row, each label with its weight. Windows of a document learn
    its label each, and together count as one."""

    smoothing: float = 0.0
    label_weights: tuple[float, ...] | None = None

    def __call__(self, logits: Tensor, batch: Batch) -> Loss:
        assert batch.labels is not None
        logits, labels = logits.float(), batch.labels
        weights = None
        if self.label_weights is not None:
            weights = torch.tensor(self.label_weights, device=logits.device)
        targets = of_sequences(labels, logits, batch)
        losses = F.cross_entropy(
            logits, targets, weight=weights, label_smoothing=self.smoothing, reduction="none"
        )
        losses = mean_of_groups(losses, batch)  # (R)
        found = mean_of_groups(logits.detach().softmax(-1), batch).argmax(-1)
        return Loss(losses.sum(), (found == labels).sum(), len(labels))

    def distance(self, one: Tensor, two: Tensor, batch: Batch) -> Tensor:
        return mean_of_groups(divergence(one, two), batch).sum()


def divergence(one: Tensor, two: Tensor) -> Tensor:
    """Mean of the two Kullback-Leibler divergences of softmaxes: (N, C), (N, C) -> (N)."""
    a, b = one.float().log_softmax(-1), two.float().log_softmax(-1)
    return ((a.exp() - b.exp()) * (a - b)).sum(-1) / 2


@dataclass(frozen=True)
class RDrop:
    """An objective on a batch that holds each row twice, in the same order, with the distance
    between the two answers to a row added (R-Drop, Liang et al. 2021, equation 4).

    strength: of the distance beside the mean of the two losses. inner: must have ``distance``.
    """

    inner: Any
    strength: float

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def head(self) -> str:
        return self.inner.head

    @property
    def weight(self) -> float:
        return self.inner.weight

    @property
    def input_view(self) -> str:
        return self.inner.input_view

    @property
    def right(self) -> bool:
        return self.inner.right

    def count(self, batch: Batch) -> int:
        return self.inner.count(batch)

    def __call__(self, logits: Tensor, batch: Batch) -> Loss:
        loss = self.inner(logits, batch)
        apart = self.inner.distance(*logits.chunk(2), _half(batch))
        # The count is of both halves, so a distance that counts once a row stands twice.
        return loss._replace(total=loss.total + 2 * self.strength * apart)


def _half(batch: Batch) -> Batch:
    """The first half of a batch as far as answers are concerned."""
    lengths = batch.layout.lengths[: batch.sequences // 2]
    labels, tags, groups = batch.labels, batch.tags, batch.groups
    return replace(
        batch,
        layout=make_layout(lengths, batch.token_ids.device),
        labels=None if labels is None else labels[: len(labels) // 2],
        tags=None if tags is None else tags[: len(tags) // 2],
        groups=None if groups is None else groups[: len(groups) // 2],
    )
