"""The encoder of a model folder for text vectors, run by torch on packed batches.

T tokens, B sequences, D hidden.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ownbert.batches.batch import Batch, pack
from ownbert.batches.example import Example
from ownbert.checkpoint import Description, load
from ownbert.nn.encoder import Encoder
from ownbert.nn.packed.prepack import prepack
from ownbert.nn.pooling import POOLINGS
from ownbert.text.input_format import InputFormat
from ownbert.train.device import pick_device


class PackedEncoder:
    """The encoder of a folder without its heads.

    Args:
        folder: model folder, or its description.
        device: auto, cpu or cuda.
        precision: float32 or bfloat16, the default for calls.
        format: input format that determines token types; by default they are all 0.

    Raises:
        InputError: the folder cannot be used.
    """

    def __init__(
        self,
        folder: Path | Description,
        device: str,
        precision: str,
        format: InputFormat | None = None,
    ) -> None:
        self.model = load(folder, heads=(), pooler=False).to(pick_device(device))
        self.precision = precision
        # Token types matter even for a single text if its last token has its own type.
        segments = self.model.config.positions.segments
        self.format = format if segments else None
        self._encoders: dict[str, Encoder] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_encoders": {}}  # created again: they would double a pickle

    def to(self, device: torch.device) -> None:
        """Move the model."""
        self.model.to(device)
        self._encoders.clear()

    @torch.inference_mode()
    def vectors(
        self, ids: Sequence[np.ndarray], pooling: str, precision: str | None = None
    ) -> np.ndarray:
        """Vectors of sequences of ids: float32 (B, D)."""
        hidden, batch = self._hidden(ids, precision)
        vectors = POOLINGS[pooling](self.model.config)(hidden, batch.layout)  # (B, D)
        return vectors.cpu().numpy()

    @torch.inference_mode()
    def token_vectors(self, ids: Sequence[np.ndarray]) -> np.ndarray:
        """The concatenated vectors of all tokens: float32 (T, D)."""
        return self._hidden(ids, None)[0].cpu().numpy()

    def _hidden(self, ids: Sequence[np.ndarray], precision: str | None) -> tuple[Tensor, Batch]:
        """The last hidden states of a batch of sequences: float32 (T, D)."""
        encoder, batch = self._encoder(precision or self.precision), self._batch(ids)
        hidden, _ = encoder(batch)  # (T, D)
        return hidden.float(), batch

    def _batch(self, ids: Sequence[np.ndarray]) -> Batch:
        return pack([Example(i, self._types(i)) for i in ids]).to(self.model.device)

    def _types(self, ids: np.ndarray) -> np.ndarray:
        """The token types of one text."""
        types = np.zeros_like(ids)
        if self.format is not None:
            types[:] = self.format.types(len(ids))
        return types

    def _encoder(self, precision: str) -> Encoder:
        if precision not in self._encoders:
            self._encoders[precision] = prepack(self.model.encoder, precision)
        return self._encoders[precision]
