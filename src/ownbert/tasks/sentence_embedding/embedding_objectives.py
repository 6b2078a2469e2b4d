"""Objectives on sentence embeddings.

The texts of a row are a query, a matching text (the positive), and optionally a text that does not
match (a hard negative).
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ownbert.batches.batch import Batch
from ownbert.objectives.objective import Loss
from ownbert.tasks.row_objectives import RowObjective

# In the training log, a cosine within this distance of the label counts as correct.
_NEAR = 0.1


def vectors_of_rows(logits: Tensor, batch: Batch) -> Tensor:
    """(B, D) -> (rows, texts of a row, D) unit vectors in float32."""
    assert batch.groups is not None
    return F.normalize(logits.float(), dim=-1).unflatten(0, (len(batch.groups), -1))


@dataclass(frozen=True)
class CosineObjective(RowObjective):
    """Squared difference between the cosine similarity of a row's texts and its label in [0, 1].

    Source: Reimers and Gurevych 2019, section 3, regression objective.
    """

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
    """InfoNCE with in-batch negatives.

    The loss is the mean of two cross entropies, of finding each query's positive and each
    positive's query by their cosines / ``temperature``. Hard negatives are additional candidates
    for all queries.

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
