"""Features of texts for linear models. N texts, F features, V words, D vector size."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, pairwise
from sys import intern
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import torch

from ownbert.corpus.cooccurrence import cooccurrence_vectors
from ownbert.corpus.sparse import Matrix
from ownbert.threads import adapt_threads
from ownbert.time_limit import check_time
from ownbert.views.ngram_counts import WordNgrams, character_ngrams
from ownbert.views.tokens import in_lower_case, splitter, tokens_of

# Maximum n-grams per order, words and dimensions: limits memory and the size of saved files.
_MOST_NGRAMS = 200_000
_MOST_WORDS = 30_000
_LSA_SIZE, _VECTOR_SIZE = 256, 512
CHARACTER_ORDERS = (2, 3, 4, 5)
_BUCKETS = 1 << 18
# Minimum number of texts with a word or n-gram.
FEWEST_TEXTS = 2


@dataclass(frozen=True)
class Texts:
    """Texts, or pairs of texts, and their tokens.

    Args:
        rows: N rows of one or two texts.
        kind: kind of text, one of ``ownbert.views.tokens.KINDS``, for the tokenisation.
    """

    rows: Sequence[tuple[str, ...]]
    kind: str

    @cached_property
    def tokens(self) -> list[list[str]]:
        split = splitter(self.kind)
        # Share one object among all occurrences of a token: a character takes as much memory as a
        # word.
        return [list(map(intern, tokens_of(row, split))) for row in self.rows]

    @cached_property
    def words(self) -> list[list[str]]:
        """Tokens as units of meaning: bigrams in a script without spaces, where a single character
        has little meaning."""
        if self.kind != "chinese":
            return self.tokens
        return [[intern(a + b) for a, b in pairwise(text)] or text for text in self.tokens]

    @cached_property
    def joined(self) -> list[str]:
        if self.kind != "marked":
            return [" ".join(row) for row in self.rows]
        return [in_lower_case(" ".join(row), self.kind) for row in self.rows]

    def __len__(self) -> int:
        return len(self.rows)


class View(ABC):
    """Features of texts, learnt without labels.

    Attributes:
        name: name in files; ``title`` is that in the leaderboard.
        parts: names of the attributes that are saved.
        ngrams: words or n-grams, which are the columns of counts.
        idf: (F) their inverse document frequencies.
        components: (F, D) of a projection of these features.
        elsewhere: number of unlabelled texts with each feature (F), from ``fit`` of views without
            rare features.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    parts: ClassVar[tuple[str, ...]] = ("ngrams", "idf")
    ngrams: WordNgrams
    idf: np.ndarray
    components: np.ndarray
    elsewhere: np.ndarray | None = None

    def __init__(self, *parts: Any) -> None:
        vars(self).update(zip(self.parts, parts, strict=True))

    @classmethod
    @abstractmethod
    def fit(cls, labelled: Texts, unlabelled: Texts) -> "View":
        """Learn the features that occur in the labelled texts; frequencies or vectors are computed
        from both sets of texts."""

    @abstractmethod
    def features(self, texts: Texts) -> Matrix | np.ndarray:
        """Features (N, F), sparse or dense."""

    def arrays(self) -> dict[str, np.ndarray]:
        """Arrays for ``from_arrays``, to be stored as safetensors."""
        arrays: dict[str, Any] = {name: getattr(self, name) for name in self.parts}
        ngrams = arrays.pop("ngrams", None)
        return arrays if ngrams is None else {**ngrams.arrays(), **arrays}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> "View":
        """Restore a view from ``arrays``."""
        ngrams = WordNgrams.from_arrays(arrays) if "ngrams" in cls.parts else None
        view = cls(*(ngrams if name == "ngrams" else arrays[name] for name in cls.parts))
        if ngrams is not None and view.idf.shape != (ngrams.size,):
            raise ValueError(f"the n-grams are {ngrams.size:,} and idf is {view.idf.shape}")
        return view


class NgramView(View):
    """TF-IDF of words and bigrams: (1 + log count) idf, scaled to unit length."""

    name, title = "tfidf", "TF-IDF of 1 to 2 words"
    order: ClassVar[int] = 2

    @classmethod
    def fit(cls, labelled: Texts, unlabelled: Texts) -> "NgramView":
        # Columns without labelled texts would keep weight 0.
        ngrams = WordNgrams.fit(labelled.tokens, order=cls.order, most=_MOST_NGRAMS)
        number = len(labelled) + len(unlabelled)
        elsewhere = texts_with(ngrams.counts(unlabelled.tokens))
        everywhere = elsewhere + texts_with(ngrams.counts(labelled.tokens))
        keep = np.flatnonzero(everywhere >= min(FEWEST_TEXTS, number))
        view = cls(ngrams.keep(keep), _idf(everywhere[keep], number))
        view.elsewhere = elsewhere[keep]
        return view

    def features(self, texts: Texts) -> Matrix:
        return _weighted(self.ngrams.counts(texts.tokens), self.idf)


class TrigramView(NgramView):
    """``NgramView`` with trigrams."""

    name, title = "trigrams", "TF-IDF of 1 to 3 words"
    order = 3


class PresenceView(NgramView):
    """Presence of n-grams of up to three words, for naive Bayes weights."""

    name, title = "nb", "naive Bayes weights of 1 to 3 words"
    order = 3

    def features(self, texts: Texts) -> Matrix:
        counts = self.ngrams.counts(texts.tokens)
        counts.data = np.ones_like(counts.data)
        return unit_rows(counts)


class CharacterView(View):
    """TF-IDF of 2 to 5 characters, hashed."""

    name, title = "characters", "TF-IDF of 2 to 5 characters"
    parts = ("idf",)

    @classmethod
    def fit(cls, labelled: Texts, unlabelled: Texts) -> "CharacterView":
        counts = character_ngrams(labelled.joined, CHARACTER_ORDERS, _BUCKETS)
        return cls(_idf(texts_with(counts), len(labelled)))

    def features(self, texts: Texts) -> Matrix:
        return _weighted(character_ngrams(texts.joined, CHARACTER_ORDERS, len(self.idf)), self.idf)


class LsaView(View):
    """Latent semantic analysis: TF-IDF of words, projected on the first singular vectors.

    Source: Deerwester et al. 1990.
    """

    name, title = "lsa", "LSA"
    parts = ("ngrams", "idf", "components")

    @classmethod
    def fit(cls, labelled: Texts, unlabelled: Texts) -> "LsaView":
        _, words, counts, idf = _words_of(labelled, unlabelled)
        return cls(words, idf, _right_singular_vectors(_weighted(counts, idf), _LSA_SIZE))

    def features(self, texts: Texts) -> np.ndarray:
        return _unit(self.weighted(texts) @ self.components)

    def weighted(self, texts: Texts) -> Matrix:
        """TF-IDF of the words (N, V), before the projection."""
        return _weighted(self.ngrams.counts(texts.words), self.idf)


class WordVectorView(LsaView):
    """The mean of word vectors, weighted by idf. The vectors factorise the words' positive
    pointwise mutual information (Levy and Goldberg 2014)."""

    name, title = "word-vectors", "means of PPMI-SVD word vectors"

    @classmethod
    def fit(cls, labelled: Texts, unlabelled: Texts) -> "WordVectorView":
        tokens, ngrams, _, idf = _words_of(labelled, unlabelled)
        number = {w: int(np.searchsorted(ngrams.keys[0], i)) for w, i in ngrams.words.items()}
        ids = [[number[token] for token in text if token in number] for text in tokens]
        flat = np.fromiter(chain.from_iterable(ids), dtype=np.int64)
        ends = np.cumsum([len(text) for text in ids])
        corpus: Any = SimpleNamespace(tokens=flat, document_ends=ends)
        # Rare character bigrams are random, and factorising so many takes long.
        least = 2 if labelled.kind == "chinese" else 1
        ordinary = np.ones(ngrams.size, dtype=bool)
        return cls(ngrams, idf, cooccurrence_vectors(corpus, _VECTOR_SIZE, ordinary, least=least))


VIEWS: Mapping[str, type[View]] = {
    view.name: view
    for view in (NgramView, TrigramView, PresenceView, CharacterView, LsaView, WordVectorView)
}


def _words_of(
    labelled: Texts, unlabelled: Texts
) -> tuple[list[list[str]], WordNgrams, Matrix, np.ndarray]:
    """The words of all texts; the vocabulary without words of a single text; its counts in each
    text (N, F); and its idf."""
    tokens = list(chain(labelled.words, unlabelled.words))
    words = WordNgrams.fit(tokens, order=1, most=_MOST_WORDS)
    counts = words.counts(tokens)
    frequencies = texts_with(counts)
    keep = np.flatnonzero(frequencies >= min(FEWEST_TEXTS, len(tokens)))
    return tokens, words.keep(keep), counts[:, keep], _idf(frequencies[keep], len(tokens))


def texts_with(counts: Matrix) -> np.ndarray:
    """(F) number of texts with each column."""
    return np.bincount(counts.indices, minlength=counts.shape[1])


def _idf(number: np.ndarray, texts: int) -> np.ndarray:
    """(F) inverse document frequencies, log((1 + N) / (1 + texts with it)) + 1."""
    return (np.log((1 + texts) / (1 + number)) + 1).astype(np.float32)


def _weighted(counts: Matrix, idf: np.ndarray) -> Matrix:
    """(1 + log count) idf, rows scaled to unit length."""
    counts = counts.copy()
    counts.data = (1 + np.log(counts.data)) * idf[counts.indices]
    return unit_rows(counts)


def unit_rows(matrix: Matrix) -> Matrix:
    """Scale rows to unit length; empty rows are unchanged."""
    squares = np.asarray(matrix.multiply(matrix).sum(1)).ravel()
    lengths = np.sqrt(np.maximum(squares, 1e-24)).astype(np.float32)
    matrix.data = matrix.data / np.repeat(lengths, np.diff(matrix.indptr))
    return matrix


def _unit(vectors: np.ndarray) -> np.ndarray:
    lengths = np.sqrt((vectors**2).sum(1, keepdims=True))
    return (vectors / np.maximum(lengths, 1e-12)).astype(np.float32)


def _right_singular_vectors(matrix: Matrix, rank: int) -> np.ndarray:
    """(F, rank) right singular vectors from a randomised SVD with two power iterations (Halko,
    Martinsson, Tropp 2011); fewer columns for a small matrix."""
    rank = max(1, min(rank, min(matrix.shape) - 1))
    columns = min(rank + 8, min(matrix.shape))
    rng = np.random.default_rng(0)
    q = matrix @ rng.standard_normal((matrix.shape[1], columns)).astype(np.float32)
    for _ in range(2):
        check_time()
        adapt_threads()
        q = _orthogonal(matrix.T @ _orthogonal(q))
        check_time()
        q = _orthogonal(matrix @ q)
    check_time()
    small = torch.from_numpy(np.ascontiguousarray((matrix.T @ q).T))
    right = torch.linalg.svd(small, full_matrices=False)[2]
    return np.ascontiguousarray(right[:rank].T.numpy())


def _orthogonal(matrix: np.ndarray) -> np.ndarray:
    return torch.linalg.qr(torch.from_numpy(np.ascontiguousarray(matrix)))[0].numpy()
