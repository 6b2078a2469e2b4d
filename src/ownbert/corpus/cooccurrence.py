"""Initial embeddings from factorised co-occurrences of a corpus. V vocabulary, D hidden.

Source: Levy and Goldberg 2014, "Neural Word Embedding as Implicit Matrix Factorization"; Levy,
Goldberg and Dagan 2015 (context distribution smoothing, U sqrt(S)).
"""

import warnings
from typing import Protocol

import numpy as np
import torch

from ownbert.corpus.sparse import Matrix, sparse
from ownbert.threads import adapt_threads
from ownbert.time_limit import check_time

WINDOW = 8  # tokens
_SMOOTHING = 0.75  # exponent of the context counts
_BLOCK = 500_000  # tokens counted at a time
# For larger corpora, evenly spaced blocks with this many tokens in total are counted.
_MOST_TOKENS = 20_000_000
# With more matrix entries than this, pairs with a count of one are dropped (12 bytes per entry).
_MOST_ENTRIES = 60_000_000
# Power iterations of the factorisation, and standard deviation of the vectors.
_ITERATIONS, _DEVIATION = 2, 0.05


class TokenCorpus(Protocol):
    """A corpus as token ids: a token store, or arrays in memory."""

    @property
    def tokens(self) -> np.ndarray:
        """(T) ids of all documents, concatenated."""
        ...

    @property
    def document_ends(self) -> np.ndarray:
        """(documents) end of each document in ``tokens``."""
        ...


def cooccurrence_vectors(
    corpus: TokenCorpus, size: int, ordinary: np.ndarray, *, least: int = 1, seed: int = 0
) -> np.ndarray:
    """Compute word vectors (V, D) float32 from the co-occurrences of a corpus; zero for special
    tokens (``ordinary`` (V) false), for missing ones, and in dimensions beyond the rank. Pairs with
    fewer than ``least`` co-occurrences are dropped.

    Raises:
        OutOfTime: the time limit has passed, if there is one.
    """
    counts = _count(corpus, len(ordinary))
    if least > 1:
        _drop_rare(counts, least)
    keep = np.flatnonzero(ordinary & (np.asarray(counts.sum(1)).ravel() > 0))
    vectors = np.zeros((len(ordinary), size), dtype=np.float32)
    if len(keep) < 3:
        return vectors
    # Only one matrix at a time: the full counts are larger than a small model in training.
    counts = counts[keep][:, keep]
    counts = positive_pmi(counts)
    rank = min(size, len(keep))
    factors = _factorise(counts, rank, seed)
    scale = factors.std()
    if scale > 0:
        vectors[keep, :rank] = factors * (_DEVIATION / scale)
    return vectors


def _count(corpus: TokenCorpus, vocab_size: int) -> Matrix:
    """Count pairs of tokens within ``WINDOW`` of each other in a document: (V, V)."""
    total = sparse.csr_array((vocab_size, vocab_size), dtype=np.float32)
    starts = np.arange(0, len(corpus.tokens), _BLOCK)
    if len(corpus.tokens) > _MOST_TOKENS:
        starts = starts[np.linspace(0, len(starts) - 1, _MOST_TOKENS // _BLOCK).astype(int)]
    for start in starts:
        check_time()
        ids = corpus.tokens[start : start + _BLOCK].astype(np.int32)
        places = np.arange(start, start + len(ids))
        document = np.searchsorted(corpus.document_ends, places, side="right")
        left, right = [], []
        for gap in range(1, min(WINDOW, len(ids) - 1) + 1):
            same = document[:-gap] == document[gap:]
            left.append(ids[:-gap][same])
            right.append(ids[gap:][same])
        if not left:
            continue
        rows, columns = np.concatenate(left), np.concatenate(right)
        ones = np.ones(len(rows), dtype=np.float32)
        block = sparse.coo_array((ones, (rows, columns)), shape=(vocab_size, vocab_size))
        total = sparse.csr_array(total + block.tocsr())
        if total.nnz > _MOST_ENTRIES:
            _drop_rare(total, 2)
    return sparse.csr_array(total + total.T)


def _drop_rare(counts: Matrix, least: int) -> None:
    counts.data[counts.data < least] = 0
    counts.eliminate_zeros()


def positive_pmi(counts: Matrix) -> Matrix:
    """Positive pointwise mutual information with context distribution smoothing: symmetric counts
    (V, V) -> (V, V) float32, max(0, log(P(context | word) / P(context)^0.75)), the powers
    renormalised."""
    sums = np.asarray(counts.sum(1)).ravel()
    context = sums**_SMOOTHING
    context /= context.sum()
    entries = counts.tocoo()
    pmi = np.log(entries.data / (sums[entries.row] * context[entries.col]))
    positive = pmi > 0
    return sparse.csr_array(
        (pmi[positive].astype(np.float32), (entries.row[positive], entries.col[positive])),
        shape=counts.shape,
    )


def _factorise(matrix: Matrix, rank: int, seed: int) -> np.ndarray:
    """U sqrt(S) from a randomised singular value decomposition, (V, rank).

    Source: Halko, Martinsson and Tropp 2011, algorithms 4.4 and 5.1.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta")
        # PyTorch 2.11 warns although the check is requested.
        warnings.filterwarnings("ignore", "Sparse invariant checks")
        tensor = torch.sparse_csr_tensor(
            torch.from_numpy(matrix.indptr),
            torch.from_numpy(matrix.indices),
            torch.from_numpy(matrix.data),
            size=matrix.shape,
            check_invariants=True,
        )
    generator = torch.Generator().manual_seed(seed)
    columns = min(rank + 8, len(matrix.indptr) - 1)
    # Like torch.svd_lowrank, which cannot be interrupted between its products.
    projected = tensor @ torch.randn(tensor.shape[1], columns, generator=generator)
    for _ in range(_ITERATIONS):
        check_time()
        adapt_threads()
        projected = tensor.mH @ torch.linalg.qr(projected).Q
        check_time()
        projected = tensor @ torch.linalg.qr(projected).Q
    check_time()
    basis = torch.linalg.qr(projected).Q
    u, s, _ = torch.linalg.svd((tensor.mH @ basis).mH, full_matrices=False)
    return (basis @ u * s.sqrt())[:, :rank].numpy()
