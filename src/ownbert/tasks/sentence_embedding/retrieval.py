"""Vectors of texts that belong together: what is learnt of them, and how well texts are found.

R rows, P texts of a row (a first one, a second one, and maybe one that does not belong to them), D
hidden, N rows of a file, U different second texts among them.
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

RANKED = ("mrr", "recall_at_1", "recall_at_5", "recall_at_10")
# Numbers of a matrix of cosines at a time.
_CHUNK = 1 << 24
# A cosine that is this near to the score counts as right, in the log of training.
_NEAR = 0.1


def vectors_of_rows(logits: Tensor, batch: Batch) -> Tensor:
    """(R P, D) -> (R, P, D) of length one, in float32."""
    assert batch.groups is not None
    return F.normalize(logits.float(), dim=-1).unflatten(0, (len(batch.groups), -1))


@dataclass(frozen=True)
class CosineObjective(RowObjective):
    """Squared difference of a row's cosine and its label, a number from 0 to 1 (Reimers and
    Gurevych 2019, section 3, regression objective)."""

    name: str = "cosine"
    right: bool = False
    head: str = "embedding"

    def __call__(self, logits: Tensor, batch: Batch) -> Loss:
        assert batch.labels is not None
        vectors, scores = vectors_of_rows(logits, batch), batch.labels.float()
        apart = (vectors[:, 0] * vectors[:, 1]).sum(-1) - scores  # (R)
        return Loss((apart**2).sum(), (apart.detach().abs() < _NEAR).sum(), len(scores))


@dataclass(frozen=True)
class ContrastiveObjective(RowObjective):
    """Find the second text of a row by its first among those of the batch, and the first by the
    second; the mean of both cross entropies of cosines / ``temperature`` (InfoNCE: van den Oord et
    al. 2018, equation 4; both ways as Radford et al. 2021, section 2.3). Third texts are more wrong
    answers to the first.

    Labels (R, P) number the texts: those that are the same have one number. What another row has is
    no wrong answer to a row with one of its texts. The loss depends on the size of the batch.
    """

    temperature: float = 0.05
    name: str = "contrastive"
    head: str = "embedding"

    def __call__(self, logits: Tensor, batch: Batch) -> Loss:
        assert batch.labels is not None
        vectors, texts = vectors_of_rows(logits, batch), batch.labels
        one, two = texts[:, :2].unbind(1)  # (R) each
        same = (one[:, None] == one) | (two[:, None] == two)
        same = same | (one[:, None] == two) | (two[:, None] == one)
        same.fill_diagonal_(False)
        cosines = vectors[:, 0] @ vectors[:, 1].T / self.temperature  # (R, R)
        cosines = cosines.masked_fill(same, -torch.inf)
        forth = cosines
        if texts.shape[1] == 3:
            three = texts[:, 2]
            right = (three == two[:, None]) | (three == one[:, None])
            wrong = vectors[:, 0] @ vectors[:, 2].T / self.temperature
            forth = torch.cat((cosines, wrong.masked_fill(right, -torch.inf)), 1)  # (R, 2 R)
        rows = torch.arange(len(texts), device=texts.device)
        losses = [F.cross_entropy(x, rows, reduction="sum") for x in (forth, cosines.T)]
        found = (forth.detach().argmax(-1) == rows).sum()
        return Loss((losses[0] + losses[1]) / 2, found, len(texts))


def ranks(texts: Sequence[tuple[str, str]], vectors: np.ndarray) -> np.ndarray:
    """(N), from 1 on: where the second text of each row stands among the second texts of all rows,
    by their cosine with its first text.

    texts: first and second ones; vectors (N, 2, D) of length one. Each text stands once. Not in the
    way are the first text itself and what belongs to the same first text in another row. Texts of
    equal cosine stand before the right one: who finds all alike has found nothing.
    """
    places: dict[str, int] = {}
    rows = [places.setdefault(second, len(places)) for _, second in texts]  # numbers of U
    own = np.asarray(rows)
    _, first_rows = np.unique(own, return_index=True)
    there = vectors[first_rows, 1]  # (U, D)
    belonging: dict[str, set[int]] = {}
    for (first, _), place in zip(texts, rows, strict=True):
        alike = belonging.setdefault(first, {places[first]} if first in places else set())
        alike.add(place)
    found = np.empty(len(texts), dtype=np.int64)
    step = max(1, _CHUNK // len(there))
    for start in range(0, len(texts), step):
        cosines = vectors[start : start + step, 0] @ there.T  # (step, U)
        right = cosines[np.arange(len(cosines)), own[start : start + step]]
        before = cosines >= right[:, None]
        for row, (first, _) in enumerate(texts[start : start + step]):
            before[row, list(belonging[first])] = False
        found[start : start + step] = 1 + before.sum(1)
    return found


def ranked(found: np.ndarray) -> dict[str, float]:
    """Measures of ranks (N): the mean of 1 / rank, and the share of those up to 1, 5 and 10."""
    recalls = {f"recall_at_{k}": float((found <= k).mean()) for k in (1, 5, 10)}
    return {"mrr": float((1 / found).mean()), **recalls}
