"""Near-duplicate detection by shingles of texts, or by their vectors.

N rows, ordered by priority: of two similar rows the earlier one is kept.
"""

from collections.abc import Sequence
from itertools import chain

import numpy as np

from ownbert.corpus.duplicate_filter import digest
from ownbert.inference.embedding_outputs import of_length_one
from ownbert.tasks.related_rows import normalised
from ownbert.views.ngram_counts import character_ngrams

# Hashes per signature: similarities have a standard error of about 0.04.
HASHES = 128
# Columns of ``keys_and_signatures``.
KEYED = HASHES + 2
# Characters per shingle, and number of hash values of shingles.
_SHINGLE, _HASH_VALUES = 5, 1 << 30
# Share of pairs at the threshold that agree in at least one band.
_RECALL = 0.99
_ROWS = 1024
# Maximum elements of a similarity matrix.
_MATRIX_SIZE = 1 << 24


def signatures(texts: Sequence[str]) -> np.ndarray:
    """MinHash signatures of normalised texts: uint32 (N, HASHES). The share of equal entries
    estimates the Jaccard similarity of the shingle sets.

    A shingle has five consecutive characters. Texts without shingles have 0 everywhere.

    Source: Broder 1997, "On the resemblance and containment of documents".
    """
    rng = np.random.default_rng(0)
    factors = rng.integers(1 << 62, size=HASHES, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    shifts = rng.integers(1 << 62, size=HASHES, dtype=np.uint64)
    result = np.zeros((len(texts), HASHES), np.uint32)
    for start in range(0, len(texts), _ROWS):
        shingles = character_ngrams(
            texts[start : start + _ROWS], (_SHINGLE,), _HASH_VALUES, across=True
        )
        with_shingles = np.flatnonzero(np.diff(shingles.indptr))
        numbers, starts = shingles.indices.astype(np.uint64), shingles.indptr[with_shingles]
        for column in range(HASHES if len(with_shingles) else 0):
            hashed = (numbers * factors[column] + shifts[column]) >> np.uint64(32)
            least = np.minimum.reduceat(hashed.astype(np.uint32), starts)
            result[start + with_shingles, column] = least
    return result


def by_shingles(
    exact: np.ndarray,
    signatures: np.ndarray,
    order: np.ndarray,
    threshold: float,
    *,
    fixed: int = 0,
) -> tuple[np.ndarray, np.ndarray]:
    """Find the row that each row duplicates; a row with an equal text comes before similar ones.

    Args:
        exact: (N) equal numbers for equal texts.
        signatures: (N, HASHES), possibly memory-mapped.
        order: (N) rows by priority.
        threshold: minimum similarity of duplicates.
        fixed: number of rows, the first by priority, that are always kept.

    Returns:
        (N) the row kept for each row, itself if it is kept, and (N) the similarity of both.
    """
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    pairs = [_pairs_with_same_key(exact, order)]
    width = _band(threshold)
    for start in range(0, HASHES - width + 1, width):
        keys = np.zeros(len(order), np.uint64)
        for column in range(start, start + width):
            keys = (keys ^ signatures[:, column]) * np.uint64(0x9E3779B97F4A7C15)
            keys ^= keys >> np.uint64(29)
        band = _pairs_with_same_key(keys, order)
        band = band[signatures[band[:, 0], start] > 0]  # skip texts without shingles
        pairs.append(band[_estimated_similarity(signatures, band[:, 0], band[:, 1]) >= threshold])
    candidates = np.unique(np.concatenate(pairs), axis=0)
    candidates = candidates[rank[candidates[:, 0]] >= fixed]
    candidates = candidates[np.argsort(rank[candidates[:, 0]], kind="stable")]
    kept, similarity = np.arange(len(order)), np.ones(len(order))
    # Converted in blocks, because Python's numbers take several times as much memory.
    starts = range(0, len(candidates), _ROWS)
    blocks = (candidates[start : start + _ROWS].tolist() for start in starts)
    for row, other in chain.from_iterable(blocks):
        root = int(kept[other])
        if exact[row] == exact[root]:
            kept[row], similarity[row] = root, 1
            continue
        if kept[row] != row and exact[row] == exact[kept[row]]:
            continue
        # If ``other`` is itself a duplicate, ``root`` is another row, which may be less similar.
        value = float(_estimated_similarity(signatures, np.array([row]), np.array([root]))[0])
        if value >= threshold and (kept[row] == row or value > similarity[row]):
            kept[row], similarity[row] = root, value
    return kept, similarity


def _band(threshold: float) -> int:
    """Number of hashes per band, chosen to find nearly all pairs at the threshold.

    Source: Leskovec, Rajaraman and Ullman 2020, "Mining of Massive Datasets", section 3.4.
    """
    widths = range(32, 0, -1)
    chance = (1 - (1 - threshold**width) ** (HASHES // width) for width in widths)
    return next(
        (w for w, probability in zip(widths, chance, strict=True) if probability >= _RECALL), 1
    )


def _pairs_with_same_key(keys: np.ndarray, order: np.ndarray) -> np.ndarray:
    """(pairs, 2): each row with the first row by priority that has the same key."""
    _, first, inverse = np.unique(keys[order], return_index=True, return_inverse=True)
    pairs = np.stack([order, order[first[inverse]]], 1)
    return pairs[pairs[:, 0] != pairs[:, 1]]


def _estimated_similarity(signatures: np.ndarray, one: np.ndarray, two: np.ndarray) -> np.ndarray:
    """The estimated Jaccard similarity of pairs of rows."""
    similarity = np.empty(len(one), np.float32)
    for start in range(0, len(one), _ROWS):
        chunk = slice(start, start + _ROWS)
        similarity[chunk] = (signatures[one[chunk]] == signatures[two[chunk]]).mean(1)
    return similarity


def by_vectors(
    exact: np.ndarray, vectors: np.ndarray, order: np.ndarray, threshold: float, *, fixed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Like ``by_shingles``, by the cosine similarity of vectors (N, D): each row is compared with
    all rows kept before it, so time is quadratic in N."""
    kept, similarity = np.arange(len(order)), np.ones(len(order))
    always = np.zeros(len(order), bool)
    always[order[:fixed]] = True
    first = {}
    unique = []
    for row in order.tolist():
        kept[row] = first.setdefault(exact[row], row)
        if kept[row] == row:
            unique.append(row)
    kept_rows: list[int] = []
    for start in range(0, len(unique), _ROWS):
        rows = np.asarray(unique[start : start + _ROWS])
        unit = of_length_one(vectors[rows])
        best, nearest = np.full(len(rows), -1.0), np.zeros(len(rows), np.int64)
        step = _MATRIX_SIZE // _ROWS
        for begin in range(0, len(kept_rows), step):
            others = np.asarray(kept_rows[begin : begin + step])
            cosines = unit @ of_length_one(vectors[others]).T
            place = cosines.argmax(1)
            value = cosines[np.arange(len(rows)), place]
            better = value > best
            best[better], nearest[better] = value[better], others[place[better]]
        within = unit @ unit.T
        kept_here: list[int] = []  # kept rows, as indices in this block
        for place, row in enumerate(rows.tolist()):
            if kept_here and (value := within[place, kept_here]).max() > best[place]:
                best[place], nearest[place] = value.max(), rows[kept_here[int(value.argmax())]]
            if best[place] >= threshold and not always[row]:
                kept[row], similarity[row] = nearest[place], best[place]
            else:
                kept_here.append(place)
        kept_rows += rows[kept_here].tolist()
    # Rows with the same text as a row that is itself a duplicate.
    return kept[kept], np.where(kept[kept] == kept, similarity, similarity[kept])


def keys_and_signatures(texts: Sequence[str]) -> np.ndarray:
    """Exact keys and signatures of texts, for ``split_keys``: uint32 (N, KEYED)."""
    texts = [normalised(text) for text in texts]
    keys = b"".join(digest([text])[0][:8] for text in texts)
    return np.hstack([np.frombuffer(keys, "<u4").reshape(-1, 2), signatures(texts)])


def split_keys(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Exact keys (N) and signatures (N, HASHES) of ``keys_and_signatures``."""
    return np.ascontiguousarray(rows[:, :2]).view("<u8").ravel(), rows[:, 2:]
