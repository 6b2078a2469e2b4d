"""Which texts are worth a label: uncertain ones that differ from each other. N texts, C labels."""

import numpy as np

# Texts are chosen from so many times as many of the most uncertain ones.
POOL_FACTOR = 10
# A label is rare with less than this share of the mean number of training rows; texts that may have
# one are at most this share of a choice.
_RARE, _MOST_RARE = 0.5, 0.5


def uncertainty(probabilities: np.ndarray) -> np.ndarray:
    """(N) 1 less the margin between the two most probable labels: 1 where they are level.

    Args:
        probabilities: (N, C), C at least 2.

    Source: Scheffer, Decomain and Wrobel 2001, "Active Hidden Markov Models for Information
        Extraction", section 3.
    """
    second, first = np.partition(probabilities, -2, axis=1)[:, -2:].T
    return 1 - (first - second)


def choose(scores: np.ndarray, vectors: np.ndarray, count: int, seed: int = 0) -> np.ndarray:
    """Rows of uncertain texts, the most uncertain of each of ``count`` clusters of the most
    uncertain ones.

    Args:
        scores: (N) uncertainties, which are also the weights of the texts in the clustering.
        vectors: (N, D).
        count: number of rows, fewer if there are not as many texts.
        seed: of the clustering.

    Returns:
        Indices, the most uncertain first.

    Source: Zhdanov 2019, "Diverse mini-batch Active Learning", section 3.
    """
    order = np.argsort(-scores, kind="stable")
    pool = order[: POOL_FACTOR * count]
    if len(pool) > count:
        from sklearn.cluster import KMeans

        vectors = vectors[pool] - vectors[pool].mean(0)
        vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        means = KMeans(count, n_init=1, max_iter=30, random_state=seed)
        clusters = means.fit_predict(vectors, sample_weight=scores[pool] + 1e-6)
        _, first = np.unique(clusters, return_index=True)
        # Texts that are the same have fewer clusters than were asked for.
        rest = np.setdiff1d(np.arange(len(pool)), first)
        pool = pool[np.sort(np.concatenate([first, rest[: count - len(first)]]))]
    return pool


def rare_labels(counts: np.ndarray) -> np.ndarray:
    """Indices of labels that have few training rows, the rarest first.

    counts: (C) training rows of each label.
    """
    order = np.argsort(counts, kind="stable")
    return order[counts[order] < _RARE * counts.mean()]


def share_of_rare(counts: np.ndarray, count: int) -> int:
    """How many of ``count`` texts are chosen among those that may have a rare label: as many as
    these labels lack."""
    lacking = np.ceil(_RARE * counts.mean() - counts[rare_labels(counts)]).sum()
    return int(min(lacking, _MOST_RARE * count))
