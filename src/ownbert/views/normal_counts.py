"""Token statistics of normal texts, for anomaly detection: counts, bigrams and lengths.

N texts, R normal texts, W known tokens.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np

from ownbert.corpus.sparse import Matrix, sparse
from ownbert.views.ngram_counts import WordNgrams

# Maximum number of bigrams and of distinct normal rows: those that occur in the most texts.
_MOST_PAIRS, _MOST_ROWS = 500_000, 20_000
# Texts compared with all normal rows at a time.
_BLOCK = 256
# Boundary token before the first token and after the last one.
_EDGE = "\n"


class NormalCounts:
    """Compares texts with normal ones by token counts, bigrams and length.

    Args:
        ngrams: tokens and bigrams of normal texts.
        texts_with: (W) share of normal texts that contain each token.
        rows: (R, W) distinct token counts of normal texts.
        length: median number of tokens.
    """

    def __init__(
        self, ngrams: WordNgrams, texts_with: np.ndarray, rows: Matrix, length: float
    ) -> None:
        self._ngrams, self._texts_with, self._rows, self._length = ngrams, texts_with, rows, length
        self._tokens = list(ngrams.words)
        # Rare tokens have larger weights, unseen ones the largest.
        self._weights = 1 - np.log(np.append(texts_with, 1 / (texts_with.size + 1)).clip(1e-6, 1))
        row, number = _occurrences(rows)
        self._keys = np.unique(number)
        self._normal = self._matrix(row, number, rows.shape[0])
        self._totals = rows @ self._weights[:-1]

    @classmethod
    def fit(cls, texts: Sequence[Sequence[str]]) -> "NormalCounts":
        """Collect the statistics of tokenised texts."""
        framed = [(_EDGE, *text, _EDGE) for text in texts]
        ngrams = WordNgrams.fit(framed, order=2, most=_MOST_PAIRS)
        counts = _counts(ngrams, framed)
        texts_with = np.bincount(counts.indices, minlength=counts.shape[1]) / len(texts)
        keys = np.array([hash(_row(counts, i)) for i in range(len(texts))])
        _, first, times = np.unique(keys, return_index=True, return_counts=True)
        kept = first[np.lexsort((first, -times))[:_MOST_ROWS]]
        length = float(np.median([len(text) for text in texts]))
        return cls(ngrams, texts_with, counts[np.sort(kept)], length)

    def is_seen(self, token: str) -> bool:
        """Whether a normal text contains the token."""
        return token in self._ngrams.words

    def unseen_pairs(self, text: Sequence[str]) -> list[tuple[str, str]]:
        """The bigrams of a text that occur in no normal text; <start> and <end> mark its
        boundaries."""
        framed = (_EDGE, *text, _EDGE)
        seen = {first for first, length, _ in self._ngrams.occurrences(framed) if length == 2}
        named = ("<start>", *text, "<end>")
        return [pair for i, pair in enumerate(pairwise(named)) if i not in seen]

    def measured(self, texts: Sequence[Sequence[str]]) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Measure how unusual tokenised texts are.

        Returns:
            Four arrays (N): ``counts``, the distance between weighted token counts and those of the
            nearest normal text, from 0 to 1 (Bray and Curtis 1957); ``unseen``, the number of
            tokens that no normal text contains; ``order``, the share of unseen bigrams; ``length``,
            the absolute difference of the log length from that of the median. Also the index of the
            nearest normal text (N).
        """
        framed = [(_EDGE, *text, _EDGE) for text in texts]
        counts = _counts(self._ngrams, framed)
        lengths = np.array([len(text) for text in texts], dtype=np.float64)
        unseen = lengths + 2 - counts.sum(1)
        pairs = self._ngrams.counts(framed).sum(1) - counts.sum(1)
        distances, nearest = self._nearest(counts, unseen)
        return {
            "counts": distances,
            "unseen": unseen,
            "order": 1 - pairs / (lengths + 1),
            "length": np.abs(np.log1p(lengths) - np.log1p(self._length)),
        }, nearest

    def differences(self, text: Sequence[str], nearest: int) -> list[tuple[str, int, int]]:
        """Tokens whose counts differ from a normal text's, with both counts; largest weight
        first."""
        text_counts = _counts(self._ngrams, [(_EDGE, *text, _EDGE)]).toarray()[0]
        normal = self._rows[[nearest]].toarray()[0]
        weight = np.abs(text_counts - normal) * self._weights[:-1]
        order = np.argsort(-weight, kind="stable")
        return [
            (self._tokens[i], int(text_counts[i]), int(normal[i])) for i in order if weight[i] > 0
        ]

    def _nearest(self, counts: Matrix, unseen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        total = counts @ self._weights[:-1] + unseen * self._weights[-1]
        row, number = _occurrences(counts)
        matrix = self._matrix(row, number, counts.shape[0])
        matrix = (matrix * self._weights[self._keys % counts.shape[1]]).tocsr()
        distances, nearest = np.empty(len(total)), np.empty(len(total), dtype=np.int64)
        for start in range(0, len(total), _BLOCK):
            block = slice(start, start + _BLOCK)
            shared = (matrix[block] @ self._normal.T).toarray()
            block_distances = 1 - 2 * shared / (total[block, None] + self._totals)
            nearest[block] = block_distances.argmin(1)
            distances[block] = block_distances.min(1).clip(0)
        return distances, nearest

    def _matrix(self, row: np.ndarray, number: np.ndarray, rows: int) -> Matrix:
        """Ones for occurrences that a normal row has too: the product of two rows is the sum of the
        minima of their counts."""
        column = np.minimum(np.searchsorted(self._keys, number), len(self._keys) - 1)
        same = self._keys[column] == number
        ones = np.ones(int(same.sum()))
        return sparse.csr_array((ones, (row[same], column[same])), shape=(rows, len(self._keys)))

    def arrays(self) -> dict[str, np.ndarray]:
        """Arrays for ``from_arrays``."""
        return {
            **self._ngrams.arrays(),
            "texts_with": self._texts_with,
            "rows.starts": self._rows.indptr.astype(np.int64),
            "rows.tokens": self._rows.indices.astype(np.int32),
            "rows.counts": self._rows.data.astype(np.int32),
            "length": np.array([self._length]),
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> "NormalCounts":
        """Restore an instance from ``arrays``."""
        ngrams = WordNgrams.from_arrays(arrays)
        starts, size = arrays["rows.starts"], len(ngrams.words)
        parts = arrays["rows.counts"].astype(np.float64), arrays["rows.tokens"], starts
        rows = sparse.csr_array(parts, shape=(len(starts) - 1, size))
        rows.check_format()
        if arrays["texts_with"].shape != (size,):
            raise ValueError("there must be one number for each token")
        return cls(ngrams, arrays["texts_with"], rows, float(arrays["length"][0]))


def _counts(ngrams: WordNgrams, framed: Sequence[Sequence[str]]) -> Matrix:
    """Counts of each known token in texts, (N, W)."""
    unigrams = WordNgrams(ngrams.words, [np.arange(len(ngrams.words), dtype=np.int64)])
    counts = unigrams.counts(framed)
    counts.sort_indices()
    return counts


def _row(counts: Matrix, row: int) -> bytes:
    entries = slice(counts.indptr[row], counts.indptr[row + 1])
    return counts.indices[entries].tobytes() + counts.data[entries].tobytes()


def _occurrences(counts: Matrix) -> tuple[np.ndarray, np.ndarray]:
    """The row of each occurrence of a token, and a number for the token and how often it occurred
    before. The sum of the minima of two rows' counts is how many of these numbers they share."""
    times = counts.data.astype(np.int64)
    rows = np.repeat(np.repeat(np.arange(counts.shape[0]), np.diff(counts.indptr)), times)
    starts = np.repeat(np.cumsum(times) - times, times)
    which = np.arange(times.sum()) - starts
    return rows, np.repeat(counts.indices.astype(np.int64), times) + which * counts.shape[1]
