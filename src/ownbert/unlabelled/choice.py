"""Which texts are worth a label: uncertain ones that differ from each other. N texts, C labels."""

import warnings
from typing import Any

import numpy as np

from ownbert.errors import InputError
from ownbert.inference.embedding.embedding_outputs import of_length_one

# Texts are chosen from so many times as many of the most uncertain ones. With fewer training rows
# per label than FEW a model is uncertain of what is odd, and macro-F1 fell far below that of chance
# (docs/labelling.md): texts are chosen from as many as SAMPLE drawn ones then.
POOL_FACTOR, FEW, SAMPLE = 10, 10, 5000
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
    """Rows of texts that differ: the nearest to the centre of each of ``count`` clusters.

    Args:
        scores: (N) uncertainties, the weights of the texts in the clustering.
        vectors: (N, D).
        count: number of rows, fewer if there are not as many texts.
        seed: of the clustering.

    Returns:
        Indices, the most uncertain first.

    Raises:
        InputError: scikit-learn is not installed.

    Source: Zhdanov 2019, "Diverse mini-batch Active Learning", section 3.
    """
    order = np.argsort(-scores, kind="stable")
    if len(order) <= count or not count:
        return order[:count]
    try:
        from sklearn.cluster import KMeans
    except ImportError:
        raise InputError(
            "texts are clustered by scikit-learn: pip install 'ownbert[eval]'"
        ) from None
    vectors = of_length_one(vectors[order] - vectors.mean(0))
    once: Any = 1  # scikit-learn's own annotation has strings alone
    means = KMeans(count, n_init=once, max_iter=20, random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # texts with the same vector: fewer clusters
        clusters = means.fit_predict(vectors, sample_weight=scores[order] + 1e-6)
    distances = ((vectors - means.cluster_centers_[clusters]) ** 2).sum(1)
    nearest = np.argsort(distances, kind="stable")
    first = nearest[np.unique(clusters[nearest], return_index=True)[1]]
    rest = np.setdiff1d(np.arange(len(order)), first)[: count - len(first)]
    return order[np.sort(np.concatenate([first, rest]))]


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
