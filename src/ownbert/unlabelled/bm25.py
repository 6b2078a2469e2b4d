"""BM25: ranks texts by the words that they share with a query. N texts, F words, Q queries."""

import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from ownbert.unlabelled.vectors import opened_array
from ownbert.unlabelled.word_counts import ENTRIES, WordCounts
from ownbert.views.tokens import splitter

K1, B = 1.2, 0.75
WORD_FILES = ("words.npy", "starts.npy", "texts.npy", "weights.npy")
# Maximum number of temporary files, each of which is sorted in memory.
_PARTS = 200
_ENTRY = np.dtype([("word", "<i4"), ("text", "<i4"), ("weight", "<f4")])


def write_word_index(counted: WordCounts, folder: Path) -> None:
    """Write the files of a ``WordIndex``; only a part of the weights is in memory at a time.

    Source: Robertson and Zaragoza 2009, "The Probabilistic Relevance Framework: BM25 and Beyond",
    section 3.4; the idf adds 1 inside the logarithm, so that weights are not negative.
    """
    words, starts, texts, weights = (folder / name for name in WORD_FILES)
    np.save(words, np.frombuffer("\0".join(counted.words).encode(), dtype=np.uint8))
    ends = np.concatenate([[0], np.cumsum(counted.texts_with())])
    np.save(starts, ends)
    with ExitStack() as stack:
        work = stack.enter_context(tempfile.TemporaryDirectory(dir=folder))
        files = [stack.enter_context(path.open("wb")) for path in (texts, weights)]
        for file, kind in zip(files, ("<i4", "<f4"), strict=True):
            shape = {"descr": kind, "fortran_order": False, "shape": (int(ends[-1]),)}
            np.lib.format.write_array_header_1_0(file, shape)
        for path in _by_words(counted, ends, Path(work)):
            entries = np.fromfile(path, _ENTRY)
            entries = entries[np.argsort(entries["word"], kind="stable")]
            for file, name in zip(files, ("text", "weight"), strict=True):
                file.write(entries[name].tobytes())


def _by_words(counted: WordCounts, ends: np.ndarray, work: Path) -> list[Path]:
    """Write entries to files, each with all entries of a range of words; in the order of words."""
    with_word, lengths = np.diff(ends), counted.lengths
    part = ends[:-1] // max(ENTRIES, int(ends[-1]) // _PARTS + 1)  # of each word
    idf = np.log1p((len(lengths) - with_word + 0.5) / (with_word + 0.5)).astype(np.float32)
    norm = (K1 * (1 - B + B * lengths / max(1e-9, lengths.mean()))).astype(np.float32)
    paths = {number: work / f"{number}" for number in np.unique(part).tolist()}
    with ExitStack() as stack:
        files = {k: stack.enter_context(path.open("wb")) for k, path in paths.items()}
        for first, block in counted.blocks():
            entries = np.empty(block.nnz, _ENTRY)
            text = np.repeat(np.arange(first, first + block.shape[0]), np.diff(block.indptr))
            entries["word"], entries["text"] = block.indices, text
            gain = (K1 + 1) * idf[block.indices]
            entries["weight"] = gain * block.data / (block.data + norm[text])
            own = part[block.indices]
            order = np.argsort(own, kind="stable")
            distinct, start = np.unique(own[order], return_index=True)
            for number, rows in zip(distinct.tolist(), np.split(order, start)[1:], strict=True):
                files[number].write(entries[rows].tobytes())
    return list(paths.values())


class WordIndex:
    """BM25 weights by word, memory-mapped.

    Args:
        folder: folder with the files of ``write_word_index``.
        kind: kind of the texts.
        texts: N.

    Raises:
        ValueError: the files do not belong together.
    """

    def __init__(self, folder: Path, kind: str, texts: int) -> None:
        arrays: list[Any] = [opened_array(folder / name) for name in WORD_FILES]
        joined = arrays[0].tobytes().decode()
        self.kind, self.size = kind, texts
        self.words = {word: i for i, word in enumerate(joined.split("\0"))} if joined else {}
        _, self.starts, self.texts, self.weights = arrays
        if len(self.starts) != len(self.words) + 1 or not (
            self.starts[-1] == len(self.texts) == len(self.weights)
        ):
            raise ValueError("sizes differ")

    def scores(self, queries: Sequence[str]) -> np.ndarray:
        """float32 (Q, N), 0 for texts without any word of the query."""
        scores = np.zeros((len(queries), self.size), np.float32)
        split = splitter(self.kind)
        for row, query in zip(scores, queries, strict=True):
            for own, count in self._entries(Counter(split(query))):
                row[self.texts[own]] += count * self.weights[own]
        return scores

    def _entries(self, counts: "Counter[str]") -> Iterator[tuple[slice, int]]:
        """The range of each known word in the files, and its count in the query."""
        for word, count in counts.items():
            if (number := self.words.get(word)) is not None:
                yield slice(int(self.starts[number]), int(self.starts[number + 1])), count
