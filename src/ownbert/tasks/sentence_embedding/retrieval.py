"""Objectives on sentence vectors, and metrics of retrieval by them.

The texts of a row are a query, a text that belongs to it (the positive), and maybe one that does
not (a hard negative).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ownbert.data.batch import Batch
from ownbert.objectives import Loss
from ownbert.tasks.row_objectives import RowObjective

RETRIEVAL_METRICS = ("mrr", "recall_at_1", "recall_at_5", "recall_at_10")
# The most elements of a matrix of cosines.
_CHUNK = 1 << 24
# A cosine this close to the label counts as correct in the training log.
_NEAR = 0.1


def vectors_of_rows(logits: Tensor, batch: Batch) -> Tensor:
    """(B, D) -> (rows, texts of a row, D) of unit length, in float32."""
    assert batch.groups is not None
    return F.normalize(logits.float(), dim=-1).unflatten(0, (len(batch.groups), -1))


@dataclass(frozen=True)
class CosineObjective(RowObjective):
    """Squared difference between the cosine of a row's texts and its label in [0, 1].

    Source: Reimers and Gurevych 2019, section 3, regression objective.
    """

    name: str = "cosine"
    right: bool = False
    head: str = "embedding"

    def __call__(self, logits: Tensor, batch: Batch) -> Loss:
        assert batch.labels is not None
        vectors, scores = vectors_of_rows(logits, batch), batch.labels.float()
        errors = (vectors[:, 0] * vectors[:, 1]).sum(-1) - scores  # (rows)
        return Loss((errors**2).sum(), (errors.detach().abs() < _NEAR).sum(), len(scores))


@dataclass(frozen=True)
class ContrastiveObjective(RowObjective):
    """InfoNCE with in-batch negatives.

    The loss is the mean of the cross entropies of finding each positive by its query and each query
    by its positive, by their cosines / ``temperature``. Hard negatives are further candidates for
    all queries.

    Labels (rows, texts of a row) number the texts; equal texts have one number. Rows that share a
    text are not negatives of each other. The loss depends on the size of the batch.

    Source: van den Oord et al. 2018, equation 4; both directions as in Radford et al. 2021, section
    2.3.
    """

    temperature: float = 0.05
    name: str = "contrastive"
    head: str = "embedding"

    def __call__(self, logits: Tensor, batch: Batch) -> Loss:
        assert batch.labels is not None
        vectors, texts = vectors_of_rows(logits, batch), batch.labels
        query, positive = texts[:, :2].unbind(1)  # (rows) each
        shared = (query[:, None] == query) | (positive[:, None] == positive)
        shared = shared | (query[:, None] == positive) | (positive[:, None] == query)
        shared.fill_diagonal_(False)
        cosines = vectors[:, 0] @ vectors[:, 1].T / self.temperature  # (rows, rows)
        cosines = cosines.masked_fill(shared, -torch.inf)
        candidates = cosines
        if texts.shape[1] == 3:
            negative = texts[:, 2]
            false = (negative == positive[:, None]) | (negative == query[:, None])
            further = vectors[:, 0] @ vectors[:, 2].T / self.temperature
            candidates = torch.cat((cosines, further.masked_fill(false, -torch.inf)), 1)
        rows = torch.arange(len(texts), device=texts.device)
        losses = [F.cross_entropy(x, rows, reduction="sum") for x in (candidates, cosines.T)]
        right = (candidates.detach().argmax(-1) == rows).sum()
        return Loss((losses[0] + losses[1]) / 2, right, len(texts))


def ranks(texts: Sequence[tuple[str, str]], vectors: np.ndarray) -> np.ndarray:
    """The rank of each row's positive among all different positives, by the cosine with the query.

    The query itself and its positives in other rows are not counted. Ties count against the
    positive, or equal vectors for all texts would get the best rank.

    Args:
        texts: query and positive of each row.
        vectors: (rows, 2, D) of unit length.

    Returns:
        (rows), from 1.
    """
    places: dict[str, int] = {}
    rows = [places.setdefault(positive, len(places)) for _, positive in texts]
    own = np.asarray(rows)
    _, first_rows = np.unique(own, return_index=True)
    candidates = vectors[first_rows, 1]  # (different positives, D)
    skipped: dict[str, set[int]] = {}
    for (query, _), place in zip(texts, rows, strict=True):
        skipped.setdefault(query, {places[query]} if query in places else set()).add(place)
    found = np.empty(len(texts), dtype=np.int64)
    step = max(1, _CHUNK // len(candidates))
    for start in range(0, len(texts), step):
        cosines = vectors[start : start + step, 0] @ candidates.T  # (step, candidates)
        right = cosines[np.arange(len(cosines)), own[start : start + step]]
        before = cosines >= right[:, None]
        for row, (query, _) in enumerate(texts[start : start + step]):
            before[row, list(skipped[query])] = False
        found[start : start + step] = 1 + before.sum(1)
    return found


def retrieval_metrics(found: np.ndarray) -> dict[str, float]:
    """Metrics of ranks (rows): mean reciprocal rank, and recall at 1, 5 and 10."""
    recalls = {f"recall_at_{k}": float((found <= k).mean()) for k in (1, 5, 10)}
    return {"mrr": float((1 / found).mean()), **recalls}
