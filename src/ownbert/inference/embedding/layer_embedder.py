"""Vectors of texts from every layer of a network. B sequences, L layers, D hidden."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from ownbert.checkpoint import Description
from ownbert.inference.embedding.embedder import Embedder
from ownbert.nn.pooling import POOLINGS
from ownbert.run.packed_encoder import PackedEncoder


class LayerEncoder(PackedEncoder):
    """A ``PackedEncoder`` whose vectors are those of all layers, end to end."""

    @torch.inference_mode()
    def vectors(
        self, ids: Sequence[np.ndarray], pooling: str, precision: str | None = None
    ) -> np.ndarray:
        """float32 (B, (L + 1) D), from the embeddings to the last layer."""
        encoder, batch = self._encoder(precision or self.precision), self._batch(ids)
        pool = POOLINGS[pooling](self.model.config)
        _, states = encoder(batch, keep_hidden=True)
        norm = encoder.norm or torch.nn.Identity()  # as the last layer has it
        pooled = [pool(norm(hidden).float(), batch.layout) for hidden in states]
        return torch.cat(pooled, -1).cpu().numpy()


class LayerEmbedder(Embedder):
    """An ``Embedder`` whose vectors are those of all layers, end to end: (N, (L + 1) D).

    Args:
        folder: of the model.

    Raises:
        InputError: the folder cannot be used.
    """

    def __init__(self, folder: Any) -> None:
        super().__init__(folder, engine="torch")
        self.layers = 1 + sum(ends for _, ends in self.model.encoder.schedule())

    def _packed(self, description: Description) -> LayerEncoder:
        given = (description, self._device, self.precision, self.tokenizer.input_format)
        return LayerEncoder(*given)

    @property
    def size(self) -> int:
        """The size of all vectors of a text together."""
        return self.layers * self.config.hidden_size

    def encode_ids(self, ids: Sequence[np.ndarray], **options: Any) -> np.ndarray:
        """As of ``Embedder``, with vectors as long as they are."""
        return super().encode_ids(ids, **{**options, "normalize": False})

    def by_layer(self, vectors: np.ndarray) -> list[np.ndarray]:
        """Vectors (N, k (L + 1) D), k of each text or pair, as one (N, k D) for each layer."""
        parts = vectors.reshape(len(vectors), -1, self.layers, self.config.hidden_size)
        return [parts[:, :, layer].reshape(len(vectors), -1) for layer in range(self.layers)]
