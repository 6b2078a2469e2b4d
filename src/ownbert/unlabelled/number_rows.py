"""Rows of numbers that take long to compute, such as vectors: a stopped run can be resumed."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ownbert.exceptions import InputError
from ownbert.files.resumable_file import ResumableFile, saying_what_is_kept
from ownbert.files.writing import explained
from ownbert.inference.embedder import Embedder, Progress, after
from ownbert.inference.vector_files import Record


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
        """All rows (N, width), memory-mapped; those of a stopped run are not computed again.

        Args:
            blocks: blocks of inputs, all of which are read.
            compute: function from a block to its rows.
        """
        self.add(blocks, compute)
        if not self.done:
            return np.empty((0, *self._row.shape), self._row.base)
        return np.memmap(self.part, self._row.base, "r", shape=(self.done, *self._row.shape))

    def _kept(self) -> str:
        return f"; {self.done:,} rows are kept in {self.part}" if super()._kept() else ""


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
        width: numbers per row.
        kind: data type of the numbers.
        made_for: see ``ResumableFile``.
        resume: whether to keep the rows of a stopped run.

    Raises:
        InputError: the rows cannot be resumed, or not for these inputs.
    """
    if resume and output is None:
        raise InputError("{--resume} continues an output file; name it with {-o}")
    beside = work / "rows" if output is None else Path(output).absolute()
    path = beside.with_name(f"{name}-{beside.name[:180]}")
    rows = NumberRows(path, width, kind, None if output is None else made_for, resume=resume)
    with closing(rows), saying_what_is_kept(rows._kept):
        yield rows
        rows.keeps = False
