"""A file of vectors that is searched in blocks. N texts, D vector size, Q queries."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ownbert.inference.embedding.embedding_outputs import of_length_one

FORMS = ("float16", "int8")
# Rows compared at a time.
_ROWS = 1 << 14
VECTOR_FILES = _VECTORS, _SCALES, _MEAN = "vectors.npy", "scales.npy", "mean.npy"


def write_vectors(given: np.ndarray, folder: Path, form: str) -> None:
    """Write vectors after subtracting their mean and scaling them to unit length.

    A network that was not tuned on pairs gives vectors with nearly the same direction; texts are
    distinguished by the difference from the mean (Mu and Viswanath 2018, section 2).

    Args:
        given: float32 (N, D), possibly memory-mapped.
        folder: folder of the index.
        form: float16; or int8, scaled by the largest absolute value of each vector.
    """
    mean = np.mean(given, axis=0, dtype=np.float64).astype(np.float32)
    np.save(folder / _MEAN, mean)
    kind: Any = np.dtype(form)
    out = np.lib.format.open_memmap(folder / _VECTORS, "w+", kind, given.shape)
    scales = np.ones(len(given), np.float32)
    for start in range(0, len(given), _ROWS):
        chunk = slice(start, start + _ROWS)
        vectors = of_length_one(given[chunk] - mean)
        if form == "int8":
            scales[chunk] = np.maximum(np.abs(vectors).max(1), 1e-12) / 127
            vectors = np.rint(vectors / scales[chunk, None])
        out[chunk] = vectors.astype(kind)
    out.flush()
    if form == "int8":
        np.save(folder / _SCALES, scales)


def opened_array(path: Path) -> Any:
    """An array of a .npy file, memory-mapped copy-on-write, because PyTorch and SciPy require
    writable arrays."""
    # A file of 128 bytes contains an empty array, which cannot be mapped.
    return np.load(path, mmap_mode="c" if path.stat().st_size > 128 else None)


class VectorFile:
    """The vectors in the folder of an index, memory-mapped."""

    def __init__(self, folder: Path) -> None:
        self.vectors = opened_array(folder / _VECTORS)
        self.scales = np.load(folder / _SCALES) if self.vectors.dtype == np.int8 else None
        self.mean = np.load(folder / _MEAN)

    def nearest(self, queries: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Cosines and rows of the nearest vectors, nearest first, both (Q, count) or fewer.

        Args:
            queries: float32 (Q, D) vectors of the model.
            count: maximum number of rows per query.
        """
        import torch

        wanted = torch.from_numpy(of_length_one(queries - self.mean))
        best = torch.empty(len(wanted), 0), torch.empty(len(wanted), 0, dtype=torch.int64)
        for start, block in self._blocks():
            cosines = wanted @ block.T  # (Q, rows)
            found, places = cosines.topk(min(count, len(block)), sorted=False)
            values = torch.cat([best[0], found], 1)
            rows = torch.cat([best[1], places + start], 1)
            kept, order = values.topk(min(count, values.shape[1]))
            best = kept, rows.gather(1, order)
        return best[0].numpy(), best[1].numpy()

    def _blocks(self) -> Iterator[tuple[int, Any]]:
        """Yield (first row, float32 (rows, D)) of each block."""
        import torch

        for start in range(0, len(self.vectors), _ROWS):
            block = torch.from_numpy(self.vectors[start : start + _ROWS]).float()
            if self.scales is not None:
                block *= torch.from_numpy(self.scales[start : start + _ROWS])[:, None]
            yield start, block
