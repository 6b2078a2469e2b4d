"""Objectives of tasks with one prediction per row; a row is one sequence or a group of them."""

from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ownbert.batches.batch import Batch
from ownbert.batches.layout import make_layout
from ownbert.objectives.objective import Loss, Objective

# Logit of padded choices: their probability is 0, but its logarithm is finite.
_PADDING = -1e9


@dataclass(frozen=True, kw_only=True)
class RowObjective(Objective):
    """An objective with one prediction per row; ``distance`` is for use in ``RDrop``.

    Args:
        counts_correct: whether correct predictions are counted.
    """

    weight: float = 1.0
    name: str = "classification"
    head: str = "classification"
    counts_correct: bool = True

    def count(self, batch: Batch) -> int:
        return 0 if batch.labels is None else batch.answers

    def weigh(self, losses: Tensor, batch: Batch) -> Tensor:
        """(rows) losses times the weights of their rows."""
        return losses if batch.weights is None else losses * batch.weights

    def distance(self, one: Tensor, two: Tensor, batch: Batch) -> Tensor:
        """The distance between two predictions for the same rows, summed over the rows."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class SingleLabelObjective(RowObjective):
    """Cross entropy with one label per row (rows), or with a distribution for each (rows, C).

    A distribution comes from another model (Hinton et al. 2015, section 2, at temperature 1); its
    most probable label counts as the correct one. All windows of a document are trained on its
    label and count as one row.

    Args:
        smoothing: label smoothing.
        label_weights: (C) weights of the labels in the loss.
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
        predicted = mean_per_row(logits.detach(), batch).argmax(-1)
        truth = labels if labels.ndim == 1 else labels.argmax(-1)
        return Loss(losses.sum(), (predicted == truth).sum(), len(labels))

    def distance(self, one: Tensor, two: Tensor, batch: Batch) -> Tensor:
        return mean_per_row(symmetric_kl(one, two), batch).sum()


@dataclass(frozen=True)
class MultiLabelObjective(RowObjective):
    """Binary cross entropy, averaged over the labels; a target is 0, 1 or a probability.

    All windows of a document are trained on its labels and count as one row. A row counts as
    correct if exactly its labels have a probability of at least 0.5.

    Args:
        label_weights: (C) weights of positive rows; negative rows have weight 1.
    """

    label_weights: tuple[float, ...] | None = None

    def __call__(self, logits: Tensor, batch: Batch) -> Loss:
        assert batch.labels is not None
        logits, labels = logits.float(), batch.labels.float()  # (B, C), (rows, C)
        targets, weights = repeat_per_sequence(labels, logits, batch), None
        if self.label_weights is not None:
            weights = torch.tensor(self.label_weights, device=logits.device)
        losses = F.binary_cross_entropy_with_logits(
            logits, targets, pos_weight=weights, reduction="none"
        ).mean(-1)
        predicted = mean_per_row(logits.detach(), batch) >= 0
        correct = (predicted == (labels >= 0.5)).all(-1)
        return Loss(mean_per_row(losses, batch).sum(), correct.sum(), len(labels))

    def distance(self, one: Tensor, two: Tensor, batch: Batch) -> Tensor:
        """The mean of the two Kullback-Leibler divergences, averaged over the labels."""
        a, b = one.float(), two.float()
        divergence = (a.sigmoid() - b.sigmoid()) * (a - b) / 2
        return mean_per_row(divergence.mean(-1), batch).sum()


@dataclass(frozen=True)
class RegressionObjective(RowObjective):
    """Squared error or Huber loss of standardised values, averaged over the columns.

    The prediction for a document is the mean over its windows. A row counts as correct if all its
    values are within half a standard deviation.

    Args:
        loss: mse, or huber (Huber 1964, quadratic up to 1).
    """

    loss: str = "mse"
    name: str = "regression"
    counts_correct: bool = False

    def __call__(self, logits: Tensor, batch: Batch) -> Loss:
        assert batch.labels is not None
        predicted, labels = mean_per_row(logits.float(), batch), batch.labels.float()  # (rows, C)
        error = F.huber_loss if self.loss == "huber" else F.mse_loss
        losses = self.weigh(error(predicted, labels, reduction="none").mean(-1), batch)
        correct = ((predicted.detach() - labels).abs() < 0.5).all(-1)
        return Loss(losses.sum(), correct.sum(), len(labels))

    def distance(self, one: Tensor, two: Tensor, batch: Batch) -> Tensor:
        """The Kullback-Leibler divergence of unit normal distributions around the two
        predictions."""
        a, b = (mean_per_row(x.float(), batch) for x in (one, two))
        return ((a - b) ** 2).mean(-1).sum() / 2


@dataclass(frozen=True)
class MultipleChoiceObjective(RowObjective):
    """Cross entropy of the correct choice among the choices of its row."""

    name: str = "choice"
    head: str = "choice"

    def __call__(self, logits: Tensor, batch: Batch) -> Loss:
        assert batch.labels is not None
        scores, labels = pad_choices(logits, batch), batch.labels  # (rows, choices), (rows)
        correct = (scores.detach().argmax(-1) == labels).sum()
        return Loss(F.cross_entropy(scores, labels, reduction="sum"), correct, len(labels))

    def distance(self, one: Tensor, two: Tensor, batch: Batch) -> Tensor:
        return symmetric_kl(pad_choices(one, batch), pad_choices(two, batch)).sum()


def pad_choices(logits: Tensor, batch: Batch) -> Tensor:
    """(B, 1) -> (rows, maximum choices) in float32, padded with large negative logits."""
    assert batch.groups is not None
    scores = logits.float()[:, 0].split(batch.groups)
    return pad_sequence(list(scores), batch_first=True, padding_value=_PADDING)


def symmetric_kl(one: Tensor, two: Tensor) -> Tensor:
    """The mean of the two Kullback-Leibler divergences between two softmaxes: (..., C) -> (...)."""
    a, b = one.float().log_softmax(-1), two.float().log_softmax(-1)
    return ((a.exp() - b.exp()) * (a - b)).sum(-1) / 2


class RDrop(Objective):
    """An objective on a batch that contains each row twice, in the same order, plus a distance.

    The distance is between the two predictions for a row, which differ by dropout.

    Args:
        inner: objective with ``distance``.
        strength: weight of the distance relative to the mean of the two losses.

    Source: Liang et al. 2021 (R-Drop), equation 4.
    """

    def __init__(self, inner: Any, strength: float) -> None:
        self.inner, self.strength = inner, strength
        self.name, self.head, self.weight = inner.name, inner.head, inner.weight
        self.counts_correct = inner.counts_correct

    def count(self, batch: Batch) -> int:
        return self.inner.count(batch)

    def __call__(self, logits: Tensor, batch: Batch) -> Loss:
        loss = self.inner(logits, batch)
        distance = self.inner.distance(*logits.chunk(2), _first_half(batch))
        # The count includes both halves, so the per-row distance is added twice.
        return loss._replace(total=loss.total + 2 * self.strength * distance)


def _first_half(batch: Batch) -> Batch:
    """The first half of a batch: layout and targets."""
    lengths = batch.layout.lengths[: batch.sequences // 2]
    names = ("labels", "weights", "tags", "groups")
    whole = {name: value for name in names if (value := getattr(batch, name)) is not None}
    halves: Any = {name: value[: len(value) // 2] for name, value in whole.items()}
    return replace(batch, layout=make_layout(lengths, batch.token_ids.device), **halves)


def repeat_per_sequence(labels: Tensor, scores: Tensor, batch: Batch) -> Tensor:
    """Repeat labels for all sequences of their rows.

    Args:
        labels: (rows, ...).
        scores: (B, ...).
        batch: batch of B sequences.

    Returns:
        (B, ...), or ``labels`` unchanged if there is already one score per row.
    """
    if batch.groups is None or len(scores) == len(batch.groups):
        return labels
    return labels.repeat_interleave(torch.tensor(batch.groups, device=labels.device), 0)


def mean_per_row(values: Tensor, batch: Batch) -> Tensor:
    """(B, ...) -> (rows, ...): the mean over the sequences of each row; (rows, ...) is
    unchanged."""
    if batch.groups is None or len(values) == len(batch.groups):
        return values
    counts = torch.tensor(batch.groups, device=values.device)
    rows = torch.arange(len(counts), device=values.device).repeat_interleave(counts)
    sums = values.new_zeros(len(counts), *values.shape[1:]).index_add(0, rows, values)
    return sums / counts.view(-1, *[1] * (values.ndim - 1))
