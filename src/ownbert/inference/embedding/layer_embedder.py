"""Text vectors from every layer of a network. B sequences, L layers, D hidden."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from ownbert.checkpoint import Description
from ownbert.inference.embedding.embedder import Embedder
from ownbert.nn.pooling import POOLINGS
from ownbert.run.packed_encoder import PackedEncoder


class LayerEncoder(PackedEncoder):
    """A ``PackedEncoder`` that concatenates the vectors of all layers."""

    @torch.inference_mode()
    def vectors(
        self, ids: Sequence[np.ndarray], pooling: str, precision: str | None = None
    ) -> np.ndarray:
        """float32 (B, (L + 1) D), from the embeddings to the last layer."""
        encoder, batch = self._encoder(precision or self.precision), self._batch(ids)
        pool = POOLINGS[pooling](self.model.config)
        _, states = encoder(batch, keep_hidden=True)
        norm = encoder.norm or torch.nn.Identity()  # applied to the last layer
        pooled = [pool(norm(hidden).float(), batch.layout) for hidden in states]
        return torch.cat(pooled, -1).cpu().numpy()


class LayerEmbedder(Embedder):
    """An ``Embedder`` that concatenates the vectors of all layers: (N, (L + 1) D).

    Raises:
        InputError: the folder cannot be used.
    """

    def __init__(self, folder: Any) -> None:
        super().__init__(folder, engine="torch")
        self.truncate_dim = None
        self.layers = 1 + sum(ends for _, ends in self.model.encoder.schedule())

    def _packed(self, description: Description) -> LayerEncoder:
        return LayerEncoder(description, self._device, self.precision, self.tokenizer.input_format)

    @property
    def size(self) -> int:
        """The size of the concatenated vectors."""
        return self.layers * self.config.hidden_size

    def encode_ids(self, ids: Sequence[np.ndarray], **options: Any) -> np.ndarray:
        """See ``Embedder``; vectors are not normalized."""
        return super().encode_ids(ids, **{**options, "normalize": False})

    def by_layer(self, vectors: np.ndarray) -> list[np.ndarray]:
        """Split vectors (N, k (L + 1) D), k per text or pair, into one (N, k D) per layer."""
        parts = vectors.reshape(len(vectors), -1, self.layers, self.config.hidden_size)
        return [parts[:, :, layer].reshape(len(vectors), -1) for layer in range(self.layers)]
