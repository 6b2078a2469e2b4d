"""A torch model as ``RowNetwork``: rows are packed without padding.

M masks, V vocabulary size, k candidates.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from ownbert.batches.batch import pack
from ownbert.batches.example import Example
from ownbert.nn.model import Model
from ownbert.objectives.language_modelling import PermutationLM
from ownbert.objectives.objective import Objective
from ownbert.train.device import autocast


class PackedNetwork:
    """A model, put into evaluation mode, that computes logits of rows, or the tokens at masks; with
    an objective, its loss is accumulated over all calls."""

    def __init__(
        self, model: Model, precision: str = "float32", objective: Objective | None = None
    ) -> None:
        self.model, self.precision, self.objective = model.eval(), precision, objective
        self._total, self._count = 0.0, 0

    @property
    def crf(self) -> Any:
        heads = dict(self.model.heads.items())
        return getattr(heads.get("tokens"), "crf", None)

    @property
    def loss(self) -> float | None:
        """The mean loss of all rows so far; None without targets or an objective."""
        return self._total / self._count if self._count else None

    @torch.inference_mode()
    def logits(self, examples: Sequence[Example], head: str) -> np.ndarray:
        model = self.model
        batch = pack(examples).to(model.device)
        with autocast(model.device, self.precision):
            logits = model(batch, [head]).logits[head]
        if self.objective is not None:
            loss = self.objective(logits, batch)
            self._total, self._count = self._total + float(loss.total), self._count + loss.count
        return logits.float().cpu().numpy()

    @torch.inference_mode()
    def likeliest(
        self, examples: Sequence[Example], known: np.ndarray, top: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """The most probable of the ``known`` tokens at the masked positions of all examples:
        probabilities over the whole vocabulary, float32 (M, k), largest first, and ids (M, k)."""
        shares = self._masked_logits(examples).softmax(-1)
        ids = torch.from_numpy(known).to(shares.device)
        best = shares[:, ids].topk(min(top, len(ids)))
        return best.values.cpu().numpy(), ids[best.indices].cpu().numpy()

    @torch.inference_mode()
    def surprisals(self, examples: Sequence[Example]) -> np.ndarray:
        """Surprisals -ln p of the token (``masked_ids``) at each masked position: float32 (M)."""
        log_probs = self._masked_logits(examples).log_softmax(-1)
        ids = torch.from_numpy(np.concatenate([np.asarray(e.masked_ids) for e in examples]))
        return -log_probs.gather(1, ids.to(log_probs.device)[:, None])[:, 0].cpu().numpy()

    def _masked_logits(self, examples: Sequence[Example]) -> torch.Tensor:
        """Logits of the masked positions: float32 (M, V)."""
        batch = pack(examples).to(self.model.device)
        if self.model.config.mask_vector:
            # Masks come first in the permutation: a query stream predicts each of them from the
            # words, and no mask is visible.
            batch = PermutationLM().to_view(batch, {})
        return self.model(batch, ["mlm"]).logits["mlm"].float()
