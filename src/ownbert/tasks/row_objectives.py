"""Objectives of tasks: one prediction per row (a row is one sequence or a group of them), tags of
words, and sentence embeddings.

C labels or tags. A word is represented by its first token, the only one with a tag; tags are
independent, or a CRF over the tags of a sentence. The texts of a row to embed are a query, a
matching text (the positive), and optionally a text that does not match (a hard negative).
"""

from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from ownbert.batches.batch import Batch
from ownbert.batches.layout import make_layout
from ownbert.objectives.objective import Loss, Objective
from ownbert.tasks.tag_rows import NO_TAG
from ownbert.tasks.text_input import END, START

_PADDING = -1e9  # logit of padded choices: their probability is 0, but its logarithm is finite
_NEAR = 0.1  # in the training log, a cosine within this distance of the label counts as correct


@dataclass(frozen=True, kw_only=True)
class RowObjective(Objective):
    """An objective with one prediction per row; ``distance`` is for use in ``RDrop``."""

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
    """Cross entropy with one label per row (rows), or with a distribution of another model for each
    (rows, C) (Hinton et al. 2015, section 2, at temperature 1), whose most probable label counts as
    the correct one. All windows of a document count as one row."""

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
    """Binary cross entropy, averaged over the labels; a target is 0, 1 or a probability. All
    windows of a document count as one row, which is correct if exactly its labels have a
    probability of at least 0.5. ``label_weights`` (C) are those of positive rows; negative rows
    have weight 1."""

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
    """Squared error (mse) or Huber loss (Huber 1964, quadratic up to 1) of standardised values,
    averaged over the columns, for the mean over the windows of a document. A row counts as correct
    if all its values are within half a standard deviation."""

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
    """An objective on a batch that contains each row twice, in the same order, plus the distance
    between the two predictions for a row, which differ by dropout (Liang et al. 2021, equation 4).
    ``strength`` is its weight relative to the mean of the two losses."""

    def __init__(self, inner: Any, strength: float) -> None:
        self.inner, self.strength = inner, strength
        self.name, self.head, self.weight = inner.name, inner.head, inner.weight
        self.counts_correct = inner.counts_correct

    def count(self, batch: Batch) -> int:
        return self.inner.count(batch)

    def __call__(self, logits: Tensor, batch: Batch) -> Loss:
        loss = self.inner(logits, batch)
        names = ("labels", "weights", "tags", "groups")
        whole = {name: value for name in names if (value := getattr(batch, name)) is not None}
        halves: Any = {name: value[: len(value) // 2] for name, value in whole.items()}
        lengths = batch.layout.lengths[: batch.sequences // 2]
        first = replace(batch, layout=make_layout(lengths, batch.token_ids.device), **halves)
        distance = self.inner.distance(*logits.chunk(2), first)
        # The count includes both halves, so the per-row distance is added twice.
        return loss._replace(total=loss.total + 2 * self.strength * distance)


def repeat_per_sequence(labels: Tensor, scores: Tensor, batch: Batch) -> Tensor:
    """Repeat labels (rows, ...) for all sequences of their rows, (B, ...); unchanged if there is
    already one of the ``scores`` per row."""
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


def word_counts(batch: Batch) -> list[int]:
    """The number of tagged tokens of each sentence in a batch."""
    assert batch.tags is not None
    groups = (1,) * batch.sequences if batch.groups is None else batch.groups
    rows = np.repeat(np.arange(len(groups)), groups)
    tagged = (batch.tags >= 0).cpu().numpy()
    tokens = np.repeat(rows, batch.layout.lengths)
    return np.bincount(tokens[tagged], minlength=len(groups)).tolist()


@dataclass(frozen=True)
class TaggingObjective(RowObjective):
    """Cross entropy of the tag of each tagged token."""

    name: str = "tags"
    head: str = "tokens"
    smoothing: float = 0.0

    def count(self, batch: Batch) -> int:
        return 0 if batch.tags is None else int((batch.tags >= 0).sum())

    def __call__(self, logits: Tensor, batch: Batch) -> Loss:
        assert batch.tags is not None
        logits, tags = logits.float(), batch.tags
        total = F.cross_entropy(
            logits, tags, ignore_index=NO_TAG, label_smoothing=self.smoothing, reduction="sum"
        )
        return Loss(total, _count_correct(logits, tags), self.count(batch))

    def distance(self, one: Tensor, two: Tensor, batch: Batch) -> Tensor:
        assert batch.tags is not None
        tagged = batch.tags >= 0
        return symmetric_kl(one[tagged], two[tagged]).sum()


@dataclass(frozen=True)
class CrfObjective(TaggingObjective):
    """Negative log-likelihood of the tags of a sentence under a linear-chain CRF, whose emission
    scores are the logits (Lafferty, McCallum, Pereira 2001, section 3). It is counted per word, to
    be comparable with cross entropy; correct tags are counted by the logits alone."""

    crf: Any = None

    def __call__(self, logits: Tensor, batch: Batch) -> Loss:
        assert batch.tags is not None
        tagged = batch.tags >= 0
        counts = word_counts(batch)
        emissions, mask = pad_sentences(logits.float()[tagged], counts)
        tags, _ = pad_sentences(batch.tags[tagged], counts)
        total = -self.crf(emissions, tags, mask, reduction="sum")
        return Loss(total, _count_correct(logits, batch.tags), sum(counts))

    def distance(self, one: Tensor, two: Tensor, batch: Batch) -> Tensor:
        assert batch.tags is not None
        tagged, counts = batch.tags >= 0, word_counts(batch)
        a, b = (word_marginals(x.float()[tagged], counts, self.crf) for x in (one, two))
        return symmetric_kl(a, b).sum()


def _count_correct(logits: Tensor, tags: Tensor) -> Tensor:
    # NO_TAG is not a class, so tokens without a tag are not counted.
    return (logits.detach().argmax(-1) == tags).sum()


def pad_sentences(values: Tensor, counts: list[int]) -> tuple[Tensor, Tensor]:
    """Pad words (words, ...) to sentences (sentences, longest, ...) by the number of words of each;
    those without words are skipped. Also returns the mask of words (sentences, longest)."""
    counts = [n for n in counts if n]
    padded = nn.utils.rnn.pad_sequence(list(values.split(counts)), batch_first=True)
    lengths = torch.tensor(counts, device=values.device)
    return padded, torch.arange(padded.shape[1], device=values.device) < lengths[:, None]


def word_marginals(emissions: Tensor, counts: list[int], crf: Any) -> Tensor:
    """(words, C) -> (words, C): the log-probability of each tag of a word given the whole
    sentence."""
    if not len(emissions):
        return emissions
    padded, mask = pad_sentences(emissions, counts)
    return log_marginals(crf, padded, mask)[mask]


@torch.inference_mode()
def marginals(emissions: np.ndarray, counts: list[int], crf: Any) -> np.ndarray:
    """Emission scores (words, C) of all sentences to the probability (words, C) of each tag of a
    word given the whole sentence. The transitions of the CRF may be arrays."""
    names = ("transitions", "start_transitions", "end_transitions")
    crf = SimpleNamespace(**{name: torch.as_tensor(getattr(crf, name)) for name in names})
    return word_marginals(torch.from_numpy(emissions), counts, crf).exp().numpy()


def log_marginals(crf: Any, emissions: Tensor, mask: Tensor) -> Tensor:
    """Marginal log-probabilities by the forward-backward algorithm in log space (Lafferty et al.
    2001, section 3): emissions (sentences, longest, C) and mask (sentences, longest) -> (sentences,
    longest, C). The best tags by these minimise the expected number of wrong words; they need not
    be the single best path."""
    transitions = crf.transitions.float()  # (C, C), from row to column
    forward = [crf.start_transitions + emissions[:, 0]]
    for step in range(1, emissions.shape[1]):
        after = (forward[-1][:, :, None] + transitions).logsumexp(1) + emissions[:, step]
        forward.append(torch.where(mask[:, step, None], after, forward[-1]))
    backward = [crf.end_transitions.expand_as(forward[0])]
    for step in range(emissions.shape[1] - 1, 0, -1):
        next_score = emissions[:, step] + backward[-1]
        before = (transitions + next_score[:, None]).logsumexp(2)
        backward.append(torch.where(mask[:, step, None], before, backward[-1]))
    return (torch.stack(forward, 1) + torch.stack(backward[::-1], 1)).log_softmax(-1)


def vectors_of_rows(logits: Tensor, batch: Batch) -> Tensor:
    """(B, D) -> (rows, texts of a row, D) unit vectors in float32."""
    assert batch.groups is not None
    return F.normalize(logits.float(), dim=-1).unflatten(0, (len(batch.groups), -1))


@dataclass(frozen=True)
class CosineObjective(RowObjective):
    """Squared difference between the cosine similarity of a row's texts and its label in [0, 1]
    (Reimers and Gurevych 2019, section 3, regression objective)."""

    name: str = "cosine"
    counts_correct: bool = False
    head: str = "embedding"

    def __call__(self, logits: Tensor, batch: Batch) -> Loss:
        assert batch.labels is not None
        vectors, scores = vectors_of_rows(logits, batch), batch.labels.float()
        errors = (vectors[:, 0] * vectors[:, 1]).sum(-1) - scores  # (rows)
        return Loss((errors**2).sum(), (errors.detach().abs() < _NEAR).sum(), len(scores))


@dataclass(frozen=True)
class ContrastiveObjective(RowObjective):
    """InfoNCE with in-batch negatives: the mean of two cross entropies, of finding each query's
    positive and each positive's query by their cosines / ``temperature``. Hard negatives are
    additional candidates for all queries.

    Labels (rows, texts of a row) are text ids; equal texts share an id. Rows that share a text are
    not negatives of each other. The loss depends on the batch size.

    Source: van den Oord et al. 2018, equation 4; both directions as in Radford et al. 2021, section
    2.3.
    """

    temperature: float = 0.05
    name: str = "contrastive"
    head: str = "embedding"

    def __call__(self, logits: Tensor, batch: Batch) -> Loss:
        if batch.labels is None:  # rows with scores are for evaluation only
            return Loss(logits.new_zeros(()), logits.new_zeros(()), 0)
        vectors, texts = vectors_of_rows(logits, batch), batch.labels
        query, positive = texts[:, :2].unbind(1)  # (rows) each
        shared = (query[:, None] == query) | (positive[:, None] == positive)
        shared = shared | (query[:, None] == positive) | (positive[:, None] == query)
        shared.fill_diagonal_(False)
        cosines = vectors[:, 0] @ vectors[:, 1].T / self.temperature  # (rows, rows)
        cosines = cosines.masked_fill(shared, -torch.inf)
        candidates = cosines
        if texts.shape[1] > 2:
            negative = texts[:, 2:].flatten()  # (rows x negatives)
            false = (negative == positive[:, None]) | (negative == query[:, None])
            further = vectors[:, 0] @ vectors[:, 2:].flatten(0, 1).T / self.temperature
            candidates = torch.cat((cosines, further.masked_fill(false, -torch.inf)), 1)
        rows = torch.arange(len(texts), device=texts.device)
        losses = [F.cross_entropy(x, rows, reduction="sum") for x in (candidates, cosines.T)]
        correct = (candidates.detach().argmax(-1) == rows).sum()
        return Loss((losses[0] + losses[1]) / 2, correct, len(texts))


@dataclass(frozen=True)
class SpanObjective(RowObjective):
    """The mean cross entropy of the answer's first and last token, which the tags mark, over all
    tokens of a window (Devlin et al. 2019, section 4.2)."""

    name: str = "answer"
    head: str = "span"

    def count(self, batch: Batch) -> int:
        return 0 if batch.tags is None else batch.sequences

    def __call__(self, logits: Tensor, batch: Batch) -> Loss:
        assert batch.tags is not None
        scores = log_softmax(logits, batch)  # (T, 2)
        truth = torch.stack([batch.tags & START, batch.tags & END], -1) > 0
        total = -(scores * truth).sum() / 2
        layout = batch.layout
        highest = layout.spread(layout.largest(scores.detach()))
        hits = ((scores >= highest) & truth).sum(1)  # (T)
        right = layout.sums(hits) == 2
        return Loss(total, right.sum(), batch.sequences)

    def distance(self, one: Tensor, two: Tensor, batch: Batch) -> Tensor:
        a, b = log_softmax(one, batch), log_softmax(two, batch)
        # The mean of two directions, and of start and end.
        return ((a.exp() - b.exp()) * (a - b)).sum() / 4


def log_softmax(logits: Tensor, batch: Batch) -> Tensor:
    """Log-softmax over the tokens of each sequence, in float32: (T, C) -> (T, C)."""
    logits, layout = logits.float(), batch.layout
    # Subtracting the maximum avoids overflow and does not change the softmax.
    shifted = logits - layout.spread(layout.largest(logits.detach()))
    return shifted - layout.spread(layout.sums(shifted.exp()).log())
