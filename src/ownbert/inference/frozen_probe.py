"""Linear probe: a linear model on the text vectors of a frozen network."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ownbert.checkpoint import Description
from ownbert.inference.embedder import Embedder
from ownbert.run.file_names import ENCODER as ENCODER
from ownbert.time_limit import check_time
from ownbert.views import PROBE
from ownbert.views.linear_models import LinearModel, reading_linear, save_linear

# Words per piece of a long text, length from which words imply a script without spaces, and the
# maximum number of pieces.
_PIECE_WORDS, _LONG_WORD, _MOST_PIECES = 100, 20, 100
# Pieces between checks of the time limit.
_BLOCK = 2048


@dataclass(frozen=True)
class FrozenProbe:
    """Computes logits of texts: by a linear model on the vectors of a network, after subtraction
    of ``mean`` (F) and division by ``scale`` (F)."""

    embedder: Embedder
    mean: np.ndarray
    scale: np.ndarray
    model: LinearModel

    def scores(self, texts: Sequence[tuple[str, ...]]) -> np.ndarray:
        """(N, C) log-probabilities, logits, or regression values of N texts or pairs of texts."""
        return self.model.scores((embed_rows(self.embedder, texts) - self.mean) / self.scale)

    def save(self, folder: Path, *, beside: bool = False) -> None:
        """Write the probe into a folder, whose network is in ``ENCODER``; ``beside``: in that of
        the folder ``probe`` two levels above."""
        settings = {"beside": True} if beside else {}
        save_linear(folder, PROBE, self.model, {"mean": self.mean, "scale": self.scale}, settings)

    @classmethod
    def load(cls, folder: Path, **options: Any) -> "FrozenProbe":
        """Read a probe written by ``save``."""
        with reading_linear(folder, PROBE) as (model, arrays, settings):
            mean, scale = arrays["mean"], arrays["scale"]
            if not mean.shape == scale.shape == model.weights.shape[:1]:
                raise ValueError("the mean, the scale and the weights differ in size")
            place = folder.resolve().parents[1] / PROBE if settings.get("beside") else folder
            return cls(Embedder(place / ENCODER, **options), mean, scale, model)


def embed_rows(embedder: Embedder, texts: Sequence[tuple[str, ...]]) -> np.ndarray:
    """Vectors (N, F) of texts; for a pair (a, b) the concatenation of a, b, |a - b| and a * b."""
    parts = [_embed(embedder, [row[i] for row in texts]) for i in range(len(texts[0]))]
    if len(parts) == 1:
        return parts[0]
    a, b = parts
    return np.concatenate([a, b, np.abs(a - b), a * b], axis=1)


def _embed(embedder: Embedder, texts: Sequence[str]) -> np.ndarray:
    """Vectors (N, D) of texts; for a long text the mean over its pieces, which is better than the
    vector of its first tokens (docs/lab/long-documents.md)."""
    pieces = [_pieces(text) for text in texts]
    all_pieces = [piece for row_pieces in pieces for piece in row_pieces]
    parts = []
    for start in range(0, len(all_pieces), _BLOCK):
        check_time()
        parts.append(embedder.encode(all_pieces[start : start + _BLOCK]))
    vectors = np.concatenate(parts)
    ends = np.cumsum([len(row_pieces) for row_pieces in pieces])
    sums = np.add.reduceat(vectors, np.concatenate([[0], ends[:-1]]), axis=0)
    return sums / np.diff(ends, prepend=0)[:, None]


def _pieces(text: str) -> list[str]:
    """Split a text into pieces of about a hundred words, or of similar length without spaces."""
    if len(text) <= _PIECE_WORDS:
        return [text]
    words = text.split()
    if len(words) * _LONG_WORD < len(text):  # script without spaces
        step = _PIECE_WORDS
        pieces = [text[i : i + step] for i in range(0, len(text), step)]
    else:
        starts = range(0, len(words), _PIECE_WORDS)
        pieces = [" ".join(words[i : i + _PIECE_WORDS]) for i in starts]
    return pieces[:_MOST_PIECES] or [text]


class LayerEmbedder(Embedder):
    """An ``Embedder`` that concatenates the vectors of all layers: (N, (L + 1) D)."""

    def __init__(self, folder: Any) -> None:
        super().__init__(folder, engine="torch")
        self.truncate_dim = None
        self.layers = 1 + sum(ends for _, ends in self.model.encoder.schedule())

    def _packed(self, description: Description) -> Any:
        encoder = super()._packed(description)
        encoder.layers = True
        return encoder

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
