"""A torch model as ``RowNetwork``: rows are packed without padding."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from ownbert.batches.batch import pack
from ownbert.batches.example import Example
from ownbert.nn.model import Model
from ownbert.objectives.objective import Objective
from ownbert.train.device import autocast


class PackedNetwork:
    """A model that computes logits of rows.

    Args:
        model: model, which is put into evaluation mode.
        precision: float32 or bfloat16.
        objective: objective whose loss is accumulated over all calls.
    """

    def __init__(
        self, model: Model, precision: str = "float32", objective: Objective | None = None
    ) -> None:
        self.model, self.precision, self.objective = model.eval(), precision, objective
        self._total, self._count = 0.0, 0

    @property
    def crf(self) -> Any:
        """See ``RowNetwork``."""
        heads = dict(self.model.heads.items())
        return getattr(heads.get("tokens"), "crf", None)

    @property
    def loss(self) -> float | None:
        """The mean loss of all rows so far; None without targets or an objective."""
        return self._total / self._count if self._count else None

    @torch.inference_mode()
    def logits(self, examples: Sequence[Example], head: str) -> np.ndarray:
        """See ``RowNetwork``."""
        model = self.model
        batch = pack(examples).to(model.device)
        with autocast(model.device, self.precision):
            logits = model(batch, [head]).logits[head]
        if self.objective is not None:
            loss = self.objective(logits, batch)
            self._total, self._count = self._total + float(loss.total), self._count + loss.count
        return logits.float().cpu().numpy()
