"""A frozen probe: a linear model on the vectors that a network, left as it is, gives texts."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from ownbert.errors import InputError
from ownbert.files import atomic_path, make_folder, read_json, write_json
from ownbert.inference.embedder import Embedder
from ownbert.views.linear import LinearModel

SETTINGS, ARRAYS, ENCODER = "probe.json", "probe.safetensors", "encoder"
_FORMAT = 1
# Words, or characters of a script without blanks, of a piece of a long text; and pieces at most.
_PIECE_WORDS, _LONG_WORD, _MOST_PIECES = 100, 20, 100


@dataclass(frozen=True)
class FrozenProbe:
    """Scores from texts.

    Args:
        embedder: of the network.
        mean, scale: (F), subtracted from the vectors, and what they are divided by.
        model: makes scores of the vectors.
    """

    embedder: Embedder
    mean: np.ndarray
    scale: np.ndarray
    model: LinearModel

    def scores(self, texts: Sequence[tuple[str, ...]]) -> np.ndarray:
        """(N, C): log-probabilities, logits, or numbers of N texts or pairs of texts."""
        return self.model.scores((embed_rows(self.embedder, texts) - self.mean) / self.scale)

    def save(self, folder: Path) -> None:
        """Write it into a folder, beside that of the network, ``ENCODER`` in it."""
        model = self.model
        arrays = {"mean": self.mean, "scale": self.scale}
        arrays |= {"weights": model.weights, "bias": model.bias}
        make_folder(folder)
        with atomic_path(folder / ARRAYS) as path:
            save_file({k: np.ascontiguousarray(v) for k, v in arrays.items()}, path)
        write_json(folder / SETTINGS, {"format": _FORMAT, "link": model.link})

    @classmethod
    def load(cls, folder: Path) -> "FrozenProbe":
        """Read what ``save`` wrote.

        Raises:
            InputError: a file is missing, damaged, or of another version.
        """
        settings = read_json(folder / SETTINGS)
        if settings.get("format") != _FORMAT:
            raise InputError(f"{folder / SETTINGS} is not of this version of ownbert")
        try:
            arrays = load_file(folder / ARRAYS)
            model = LinearModel.from_arrays(arrays, settings["link"])
            mean, scale = arrays["mean"], arrays["scale"]
            if not mean.shape == scale.shape == model.weights.shape[:1]:
                raise ValueError("the mean, the scale and the weights differ in size")
            return cls(Embedder(folder / ENCODER), mean, scale, model)
        except InputError:
            raise
        except (OSError, KeyError, ValueError, SafetensorError) as error:
            raise InputError(f"{folder / ARRAYS} cannot be read: {error}") from None


def embed_rows(embedder: Embedder, texts: Sequence[tuple[str, ...]]) -> np.ndarray:
    """(N, F) vectors of texts; of a pair (a, b) those of both, |a - b| and a * b."""
    parts = [_embed(embedder, [row[i] for row in texts]) for i in range(len(texts[0]))]
    if len(parts) == 1:
        return parts[0]
    a, b = parts
    return np.concatenate([a, b, np.abs(a - b), a * b], axis=1)


def _embed(embedder: Embedder, texts: Sequence[str]) -> np.ndarray:
    """(N, D) vectors of texts; that of a long one is the mean over its pieces, so that all of it
    counts (docs/benchmarks.md: better than the vector of its first tokens)."""
    pieces = [_pieces(text) for text in texts]
    vectors = embedder.encode([piece for own in pieces for piece in own])
    ends = np.cumsum([len(own) for own in pieces])
    sums = np.add.reduceat(vectors, np.concatenate([[0], ends[:-1]]), axis=0)
    return sums / np.diff(ends, prepend=0)[:, None]


def _pieces(text: str) -> list[str]:
    """A text in pieces of a hundred words or so, or of as many characters where these are long."""
    if len(text) <= _PIECE_WORDS:
        return [text]
    words = text.split()
    if len(words) * _LONG_WORD < len(text):  # no blanks to go by
        step = _PIECE_WORDS
        found = [text[i : i + step] for i in range(0, len(text), step)]
    else:
        starts = range(0, len(words), _PIECE_WORDS)
        found = [" ".join(words[i : i + _PIECE_WORDS]) for i in starts]
    return found[:_MOST_PIECES] or [text]
