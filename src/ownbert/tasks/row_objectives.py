"""Objectives of tasks with one answer per row; a row is one sequence or a group of them."""

from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ownbert.data.batch import Batch
from ownbert.data.layout import make_layout
from ownbert.objectives import Loss
from ownbert.tasks.sentence_task import mean_per_row, repeat_per_sequence


@dataclass(frozen=True, kw_only=True)
class RowObjective:
    """An objective with one answer per row; ``distance`` makes it usable in ``RDrop``.

    Args:
        right: whether correct answers are counted.
    """

    weight: float = 1.0
    name: str = "classification"
    head: str = "classification"
    input_view: str = "masked"
    right: bool = True

    def count(self, batch: Batch) -> int:
        return 0 if batch.labels is None else batch.answers

    def __call__(self, logits: Tensor, batch: Batch) -> Loss:
        raise NotImplementedError

    def weigh(self, losses: Tensor, batch: Batch) -> Tensor:
        """(rows) losses with the weights of their rows."""
        return losses if batch.weights is None else losses * batch.weights

    def distance(self, one: Tensor, two: Tensor, batch: Batch) -> Tensor:
        """The distance of two predictions for the same rows, summed over the rows."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class SingleLabelObjective(RowObjective):
    """Cross entropy of one label per row (rows), or against a distribution for each (rows, C).

    A distribution is what another model says of the row (Hinton et al. 2015, section 2, at
    temperature 1); the answer counts as correct if it is its most likely label. Every window of a
    document is trained on its label, and the windows count as one row.

    Args:
            smoothing: label smoothing, a share of which is spread evenly.
        label_weights: (C) weights of the labels; the term of each label has its weight.
    """

    smoothing: float = 0.0
    label_weights: tuple[float, ...] | None = None

    def __call__(self, logits: Tensor, batch: Batch) -> Loss:
        assert batch.labels is not None
        logits, labels = logits.float(), batch.labels
        weights = None
        if self.label_weights is not None:
            weights = torch.tensor(self.label_weights, device=logits.device)
        targets = repeat_per_sequence(labels, logits, batch)
        losses = F.cross_entropy(
            logits, targets, weight=weights, label_smoothing=self.smoothing, reduction="none"
        )
        losses = self.weigh(mean_per_row(losses, batch), batch)  # (rows)
        found = mean_per_row(logits.detach().softmax(-1), batch).argmax(-1)
        truth = labels if labels.ndim == 1 else labels.argmax(-1)
        return Loss(losses.sum(), (found == truth).sum(), len(labels))

    def distance(self, one: Tensor, two: Tensor, batch: Batch) -> Tensor:
        return mean_per_row(symmetric_kl(one, two), batch).sum()


def symmetric_kl(one: Tensor, two: Tensor) -> Tensor:
    """The mean of the two Kullback-Leibler divergences of two softmaxes: (..., C) -> (...)."""
    a, b = one.float().log_softmax(-1), two.float().log_softmax(-1)
    return ((a.exp() - b.exp()) * (a - b)).sum(-1) / 2


@dataclass(frozen=True)
class RDrop:
    """An objective on a batch of each row twice, in the same order, plus a distance.

    The distance is that between the two predictions for a row, which differ by dropout.

    Args:
        inner: an objective with ``distance``.
        strength: weight of the distance relative to the mean of the two losses.

    Source: Liang et al. 2021 (R-Drop), equation 4.
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
        # The count is that of both halves, so the distance, which is per row, is added twice.
        return loss._replace(total=loss.total + 2 * self.strength * apart)


def _half(batch: Batch) -> Batch:
    """The first half of a batch: its layout and targets."""
    lengths = batch.layout.lengths[: batch.sequences // 2]
    labels, tags, groups, weights = batch.labels, batch.tags, batch.groups, batch.weights
    return replace(
        batch,
        layout=make_layout(lengths, batch.token_ids.device),
        labels=None if labels is None else labels[: len(labels) // 2],
        weights=None if weights is None else weights[: len(weights) // 2],
        tags=None if tags is None else tags[: len(tags) // 2],
        groups=None if groups is None else groups[: len(groups) // 2],
    )
