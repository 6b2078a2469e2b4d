"""Vectors, texts and words of an index on disk: rows of numbers that take long to compute (a
stopped run can be resumed), vectors that are searched in blocks, ids and texts that are
memory-mapped, and counts of words.

N texts, D vector size, Q queries, F words.
"""

import json
import math
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ownbert.corpus.sparse import Matrix, sparse
from ownbert.exceptions import InputError
from ownbert.files.resumable_file import ResumableFile, saying_what_is_kept
from ownbert.files.writing import explained
from ownbert.inference.embedder import Embedder, Progress, after, in_blocks
from ownbert.inference.embedding_outputs import of_length_one
from ownbert.inference.vector_files import Record
from ownbert.language.messages import Message
from ownbert.views.tokens import splitter, text_kind

FORMS = ("float16", "int8")
# Rows compared at a time.
_ROWS = 1 << 14
_CELLS = _CENTRES, _CELL_ROWS, _CELL_ENDS = "centres.npy", "cell_rows.npy", "cell_ends.npy"
_VECTORS, _SCALES, _MEAN = "vectors.npy", "scales.npy", "mean.npy"
VECTOR_FILES = _VECTORS, _SCALES, _MEAN, *_CELLS
# Cells: vectors sampled for each, rounds of k-means, and the number searched for a query.
_SAMPLED, _ROUNDS, _SEARCHED = 64, 10, 32
ROWS = "rows.arrow"
_NAMES = ["id", "text"]
# Maximum number of entries (distinct words per text) read at a time.
ENTRIES = 1 << 21


class NumberRows(ResumableFile):
    """Rows of numbers in a hidden file, see ``number_rows``."""

    def __init__(
        self, path: Path, width: int, kind: str, made_for: Mapping[str, Any] | None, *, resume: bool
    ) -> None:
        self._row, self._resumable = np.dtype((kind, (width,))), made_for is not None
        super().__init__(path, made_for, resume=resume)

    def _complete_size(self) -> int:
        self.done = self.part.stat().st_size // self._row.itemsize
        return self.done * self._row.itemsize

    def write(self, lines: Sequence[Any]) -> None:
        """Append rows. A single block takes little time, so it is not kept."""
        with explained(self.path):
            self.file.write(np.asarray(lines, self._row.base).tobytes())
            self.file.flush()
        self.done += len(lines)
        self.keeps = self._resumable and self.done > len(lines)

    def computed(
        self, blocks: Iterable[Sequence[Any]], compute: Callable[[Sequence[Any]], Any]
    ) -> np.ndarray:
        """All rows (N, width), memory-mapped, from blocks of inputs, all of which are read; those
        of a stopped run are not computed again."""
        self.add(blocks, compute)
        if not self.done:
            return np.empty((0, *self._row.shape), self._row.base)
        return np.memmap(self.part, self._row.base, "r", shape=(self.done, *self._row.shape))

    def _kept(self) -> str:
        kept = Message("; {count:,} rows are kept in {file}", self.done, self.part)
        return kept if super()._kept() else ""


def vectors_of(
    rows: NumberRows, embedder: Embedder, blocks: Iterable[list[Record]], progress: Progress | None
) -> np.ndarray:
    """The vectors (N, D) of texts, computed as ``rows``."""

    def encode(block: Sequence[Record]) -> np.ndarray:
        texts = [text for _, text in block]
        return embedder.encode_document(texts, progress=after(rows.done, progress))

    return rows.computed(blocks, encode)


@contextmanager
def number_rows(
    output: str | Path | None,
    work: Path,
    name: str,
    width: int,
    kind: str,
    made_for: Mapping[str, Any] | None,
    *,
    resume: bool,
) -> Iterator[NumberRows]:
    """Rows in a file beside an output, which a stopped run leaves there to be resumed.

    Args:
        output: file or folder that is made from the rows; None: the rows cannot be resumed.
        work: temporary folder, used without ``output``.
        name: what the rows are.
        made_for: see ``ResumableFile``.

    Raises:
        InputError: the rows cannot be resumed, or not for these inputs.
    """
    if resume and output is None:
        raise InputError("{--resume} continues an output file; name it with {-o FILE}")
    beside = work / "rows" if output is None else Path(output).absolute()
    path = beside.with_name(f"{name}-{beside.name[:180]}")
    rows = NumberRows(path, width, kind, None if output is None else made_for, resume=resume)
    with closing(rows), saying_what_is_kept(rows._kept):
        yield rows
        rows.keeps = False


def write_vectors(given: np.ndarray, folder: Path, form: str) -> None:
    """Write float32 vectors (N, D), possibly memory-mapped, after subtracting their mean and
    scaling them to unit length; ``form``: float16, or int8 scaled by the largest absolute value of
    each vector.

    A network that was not tuned on pairs gives vectors with nearly the same direction; texts are
    distinguished by the difference from the mean (Mu and Viswanath 2018, section 2).
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

    ``cells``: centres of cells, float32 (cells, D); rows by cell (N); and the end of each cell in
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
        """Cosines and rows of the nearest vectors for queries float32 (Q, D), nearest first, both
        (Q, count) or fewer."""
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
        """Group the vectors into cells by k-means, so that a search reads only a few of them; there
        are as many cells as vectors per cell.

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


@contextmanager
def row_writer(path: Path) -> Iterator[Callable[[Sequence[Record]], None]]:
    """Write ids, as JSON, and texts to a file."""
    import pyarrow as pa

    schema = pa.schema(list(zip(_NAMES, (pa.string(), pa.large_string()), strict=True)))
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, schema) as rows:

        def write(records: Sequence[Record]) -> None:
            ids = pa.array([json.dumps(id) for id, _ in records], pa.string())
            texts = pa.array([text for _, text in records], pa.large_string())
            rows.write_batch(pa.record_batch([ids, texts], schema=schema))

        yield write


class KeptRows:
    """Texts that are read once, with their ids and counts of their words, kept in a folder."""

    def __init__(self, folder: Path) -> None:
        self.path, self.words = folder / ROWS, WordCounts(folder / "counts")

    def blocks(self, records: Iterable[Record]) -> Iterator[list[Record]]:
        """Yield blocks of records, and keep them afterwards."""
        with row_writer(self.path) as write:
            for block in in_blocks(records, size=lambda each: len(each[1])):
                yield block
                self.words.add([text for _, text in block])
                write(block)


class RowFile:
    """Reads a file of ``row_writer``, memory-mapped; ``bytes``: total size of the rows.

    Raises:
        ValueError, OSError: the file is damaged or of another kind.
    """

    def __init__(self, path: Path) -> None:
        import pyarrow as pa

        self._rows = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
        self.bytes = self._rows.nbytes
        if self._rows.schema.names != _NAMES:
            raise ValueError(str(path))

    def __len__(self) -> int:
        return len(self._rows)

    def id(self, row: int) -> Any:
        """The id of a row from 0."""
        return json.loads(self._rows["id"][row].as_py())

    def text(self, row: int) -> str:
        """The text of a row from 0."""
        return self._rows["text"][row].as_py()

    def texts(self) -> Iterator[str]:
        """Iterate over all texts."""
        for batch in self._rows.to_batches():
            yield from (text.as_py() for text in batch["text"])


class WordCounts:
    """Counts words of texts, block by block, in a temporary file, to be removed by the caller. Only
    the distinct words and two numbers per text are kept in memory.

    Attributes:
        kind: kind of the texts, ids or marked, detected in the first block. Later texts may be in
            another language, so characters of scripts without spaces are words everywhere.
        words: index of each word.
    """

    def __init__(self, path: Path) -> None:
        self.kind = ""
        self.words: dict[str, int] = {}
        self.path = path
        self._lengths, self._different = array("i"), array("i")

    def add(self, texts: Sequence[str]) -> None:
        """Count the words of a block of texts."""
        self.kind = self.kind or ("ids" if text_kind(texts) == "ids" else "marked")
        split, known = splitter(self.kind), self.words
        # Saved words are separated by zero bytes.
        tokens = [split(text.replace("\0", " ")) for text in texts]
        numbers = (known.setdefault(word, len(known)) for own in tokens for word in own)
        ids = np.fromiter(numbers, np.int32)
        ends = np.cumsum([0, *map(len, tokens)])
        shape = (len(tokens), len(known))
        counts = sparse.csr_array((np.ones(len(ids), np.int32), ids, ends), shape=shape)
        counts.sum_duplicates()
        with self.path.open("ab") as file:
            file.write(np.stack([counts.indices, counts.data], 1).astype("<i4").tobytes())
        self._lengths.extend(map(len, tokens))
        self._different.extend(np.diff(counts.indptr).tolist())

    @property
    def lengths(self) -> np.ndarray:
        """(N) number of words per text."""
        return np.asarray(self._lengths)

    def blocks(self) -> Iterator[tuple[int, Matrix]]:
        """The index of the first text and the counts, int32 (texts, F), of each block."""
        ends = np.concatenate([[0], np.cumsum(self._different, dtype=np.int64)])
        first = 0
        with self.path.open("rb") as file:
            while first < len(ends) - 1:
                last = int(np.searchsorted(ends, ends[first] + ENTRIES, "right")) - 1
                last = max(last, first + 1)
                own = ends[first : last + 1] - ends[first]
                word, count = np.fromfile(file, "<i4", 2 * own[-1]).reshape(-1, 2).T.copy()
                shape = (last - first, len(self.words))
                yield first, sparse.csr_array((count, word, own), shape=shape)
                first = last

    def texts_with(self) -> np.ndarray:
        """(F) number of texts that contain each word."""
        counts = np.zeros(len(self.words), np.int64)
        for _, block in self.blocks():
            counts += np.bincount(block.indices, minlength=len(counts))
        return counts
