"""A file of vectors that is searched in blocks. N texts, D vector size, Q queries."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ownbert.inference.embedding_outputs import of_length_one

FORMS = ("float16", "int8")
# Rows compared at a time.
_ROWS = 1 << 14
_CELLS = _CENTRES, _CELL_ROWS, _CELL_ENDS = "centres.npy", "cell_rows.npy", "cell_ends.npy"
_VECTORS, _SCALES, _MEAN = "vectors.npy", "scales.npy", "mean.npy"
VECTOR_FILES = _VECTORS, _SCALES, _MEAN, *_CELLS
# Cells: vectors sampled for each, rounds of k-means, and the number searched for a query.
_SAMPLED, _ROUNDS, _SEARCHED = 64, 10, 32


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
    """The vectors in the folder of an index, memory-mapped.

    Attributes:
        cells: centres of cells, float32 (cells, D); rows by cell (N); and the end of each cell in
            these rows. None: every vector is searched.
    """

    def __init__(self, folder: Path) -> None:
        self.vectors = opened_array(folder / _VECTORS)
        self.cells = None
        if (folder / _CENTRES).exists():
            self.cells = tuple(opened_array(folder / name) for name in _CELLS)
            centres, rows, ends = self.cells
            if not (len(rows) == len(self.vectors) == ends[-1] and len(ends) == len(centres)):
                raise ValueError("sizes differ")
        self.scales = np.load(folder / _SCALES) if self.vectors.dtype == np.int8 else None
        self.mean = np.load(folder / _MEAN)

    def nearest(self, queries: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Cosines and rows of the nearest vectors, nearest first, both (Q, count) or fewer.

        Args:
            queries: float32 (Q, D) vectors of the model.
            count: maximum number of rows per query.
        """
        import torch

        vectors = torch.from_numpy(of_length_one(queries - self.mean))
        if self.cells is not None:
            found = [self._nearest_in_cells(query, count, *self.cells) for query in vectors]
            return np.stack([each for each, _ in found]), np.stack([each for _, each in found])
        best = torch.empty(len(vectors), 0), torch.empty(len(vectors), 0, dtype=torch.int64)
        for start, block in self._blocks():
            cosines = vectors @ block.T  # (Q, rows)
            found, places = cosines.topk(min(count, len(block)), sorted=False)
            values = torch.cat([best[0], found], 1)
            rows = torch.cat([best[1], places + start], 1)
            kept, order = values.topk(min(count, values.shape[1]))
            best = kept, rows.gather(1, order)
        return best[0].numpy(), best[1].numpy()

    def _nearest_in_cells(
        self, query: Any, count: int, centres: np.ndarray, rows: np.ndarray, ends: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Like ``nearest`` for one query, in the cells with the nearest centres: in more of them if
        they have too few rows."""
        cells = np.argsort(-(centres @ query.numpy()))
        sizes = np.diff(ends, prepend=0)
        enough = np.searchsorted(np.cumsum(sizes[cells]), min(count, len(rows))) + 1
        cells = cells[: max(_SEARCHED, enough)]
        near = np.sort(np.concatenate([rows[ends[i] - sizes[i] : ends[i]] for i in cells]))
        cosines = self._floats(near) @ query
        values, places = cosines.topk(min(count, len(near)))
        return values.numpy(), near[places.numpy()]

    def write_cells(self, folder: Path) -> None:
        """Group the vectors into cells by k-means, so that a search reads only a few of them.

        There are as many cells as vectors per cell.

        Args:
            folder: folder of the index.

        Source: Jegou, Douze and Schmid 2011, "Product Quantization for Nearest Neighbor Search",
        section 4 (inverted lists).
        """
        import torch

        number = math.isqrt(len(self.vectors))
        random = np.random.default_rng(0)
        sample = random.permutation(len(self.vectors))[: _SAMPLED * number]
        vectors = self._floats(np.sort(sample))
        centres = vectors[random.permutation(len(vectors))[:number]]
        for _ in range(_ROUNDS):
            own = torch.cat([(each @ centres.T).argmax(1) for each in vectors.split(_ROWS)])
            sums = centres.new_zeros(centres.shape).index_add_(0, own, vectors)
            lengths = sums.norm(dim=1, keepdim=True)
            centres = (sums / lengths).where(lengths > 0, centres)  # empty cells stay
        cells = np.concatenate([(each @ centres.T).argmax(1) for _, each in self._blocks()])
        np.save(folder / _CENTRES, centres.numpy())
        np.save(folder / _CELL_ROWS, np.argsort(cells, kind="stable"))
        np.save(folder / _CELL_ENDS, np.cumsum(np.bincount(cells, minlength=number)))

    def _blocks(self) -> Iterator[tuple[int, Any]]:
        """Yield (first row, float32 (rows, D)) of each block."""
        for start in range(0, len(self.vectors), _ROWS):
            yield start, self._floats(slice(start, start + _ROWS))

    def _floats(self, rows: slice | np.ndarray) -> Any:
        """Vectors of rows as a float32 tensor."""
        import torch

        block = torch.from_numpy(self.vectors[rows]).float()
        if self.scales is not None:
            block *= torch.from_numpy(self.scales[rows])[:, None]
        return block
