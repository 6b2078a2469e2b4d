"""Words of texts, counted into a file. N texts, F words."""

from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from ownbert.corpus.sparse import Matrix, sparse
from ownbert.views.tokens import splitter, text_kind

# Maximum number of entries (distinct words per text) read at a time.
ENTRIES = 1 << 21


class WordCounts:
    """Counts words of texts, block by block, in a file. Only the distinct words and two numbers per
    text are kept in memory.

    Args:
        path: temporary file, to be removed by the caller.

    Attributes:
        kind: kind of the texts, ids or marked, detected in the first block. Later texts may be in
            another language, so characters of scripts without spaces are words everywhere.
        words: index of each word.
    """

    def __init__(self, path: Path) -> None:
        self.kind = ""
        self.words: dict[str, int] = {}
        self._path = path
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
        with self._path.open("ab") as file:
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
        with self._path.open("rb") as file:
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
