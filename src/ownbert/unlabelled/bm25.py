"""BM25: ranks texts by the words that they share with a query. N texts, F words, Q queries."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ownbert.unlabelled.vectors import opened_array
from ownbert.views.ngram_counts import Matrix, WordNgrams, sparse
from ownbert.views.tokens import splitter, text_kind

K1, B = 1.2, 0.75
WORD_FILES = ("words.npy", "starts.npy", "texts.npy", "weights.npy")


class WordCounts:
    """Counts words of texts, block by block.

    Attributes:
        kind: kind of the texts, one of ``ownbert.views.tokens.KINDS``, detected in the first block.
        words: index of each word.
    """

    def __init__(self) -> None:
        self.kind = ""
        self.words: dict[str, int] = {}
        self._blocks: list[Matrix] = []

    def add(self, texts: Sequence[str]) -> None:
        """Count the words of a block of texts."""
        self.kind = self.kind or text_kind(texts)
        split = splitter(self.kind)
        # Saved words are separated by zero bytes.
        tokens = [split(text.replace("\0", " ")) for text in texts]
        for word in (word for text_tokens in tokens for word in text_tokens):
            self.words.setdefault(word, len(self.words))
        ngrams = WordNgrams(self.words, [np.arange(len(self.words))])
        self._blocks.append(ngrams.counts(tokens))

    def matrix(self) -> Matrix:
        """The counts of all texts, float32 (N, F)."""
        for block in self._blocks:  # later blocks have more columns
            block.resize((block.shape[0], len(self.words)))
        return sparse.vstack(self._blocks, format="csr")


class WordIndex:
    """BM25 weights by word, memory-mapped.

    Args:
        kind: kind of the texts.
        words: index of each word.
        weights: (F, N) score of each text for a word of the query.

    Source: Robertson and Zaragoza 2009, "The Probabilistic Relevance Framework: BM25 and Beyond",
    section 3.4; the idf adds 1 inside the logarithm, so that weights are not negative.
    """

    def __init__(self, kind: str, words: dict[str, int], weights: Matrix) -> None:
        self.kind, self.words, self.weights = kind, words, weights

    @classmethod
    def of(cls, counted: WordCounts) -> "WordIndex":
        """Compute the weights of counted texts."""
        counts = counted.matrix()
        texts, lengths = counts.shape[0], np.asarray(counts.sum(1)).ravel()
        with_word = np.bincount(counts.indices, minlength=counts.shape[1])
        idf = np.log1p((texts - with_word + 0.5) / (with_word + 0.5)).astype(np.float32)
        norm = K1 * (1 - B + B * lengths / max(1e-9, lengths.mean()))
        per_entry = np.repeat(norm.astype(np.float32), np.diff(counts.indptr))
        counts.data *= (K1 + 1) * idf[counts.indices] / (counts.data + per_entry)
        return cls(counted.kind, counted.words, counts.T.tocsr())

    def save(self, folder: Path) -> None:
        """Write the files for ``open``."""
        text = np.frombuffer("\0".join(self.words).encode(), dtype=np.uint8)
        weights = self.weights
        for name, array in zip(
            WORD_FILES, (text, weights.indptr, weights.indices, weights.data), strict=True
        ):
            np.save(folder / name, array)

    @classmethod
    def open(cls, folder: Path, kind: str, texts: int) -> "WordIndex":
        """The weights in a folder for N ``texts``, memory-mapped."""
        found = [opened_array(folder / name) for name in WORD_FILES]
        joined = found[0].tobytes().decode()
        words = {word: i for i, word in enumerate(joined.split("\0"))} if joined else {}
        shape = (len(words), texts)
        return cls(kind, words, sparse.csr_array((found[3], found[2], found[1]), shape=shape))

    def scores(self, queries: Sequence[str]) -> np.ndarray:
        """float32 (Q, N), 0 for texts without any word of the query."""
        split = splitter(self.kind)
        ngrams = WordNgrams(self.words, [np.arange(len(self.words))])
        return (ngrams.counts([split(query) for query in queries]) @ self.weights).toarray()
