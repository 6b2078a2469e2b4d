"""Selects texts to label: uncertain and diverse ones. N texts, C labels."""

import warnings
from typing import Any

import numpy as np

from ownbert.exceptions import needing
from ownbert.inference.embedding.embedding_outputs import of_length_one

# Texts are selected from POOL_FACTOR times as many of the most uncertain ones. With fewer training
# rows per label than FEW, uncertain texts are mostly outliers, and macro-F1 fell far below that of
# random selection (docs/labelling.md); texts are then selected from SAMPLE random ones.
POOL_FACTOR, FEW, SAMPLE = 10, 10, 5000
# A label is rare if it has less than this share of the mean number of training rows; maximum share
# of texts selected for rare labels.
_RARE, _MOST_RARE = 0.5, 0.5


def uncertainty(probabilities: np.ndarray) -> np.ndarray:
    """(N) 1 minus the margin between the two most probable labels.

    Args:
        probabilities: (N, C), C at least 2.

    Source: Scheffer, Decomain and Wrobel 2001, "Active Hidden Markov Models for Information
    Extraction", section 3.
    """
    second, first = np.partition(probabilities, -2, axis=1)[:, -2:].T
    return 1 - (first - second)


def uncertainty_of_sets(probabilities: np.ndarray) -> np.ndarray:
    """(N) mean binary entropy of the labels, in bits; 1 if all probabilities are 0.5.

    Args:
        probabilities: (N, C) probability of each label.
    """
    p = np.clip(probabilities.astype(np.float64), 1e-12, 1 - 1e-12)
    return -(p * np.log2(p) + (1 - p) * np.log2(1 - p)).mean(1)


def choose(scores: np.ndarray, vectors: np.ndarray, count: int, seed: int = 0) -> np.ndarray:
    """Select diverse texts: the nearest to the centre of each of ``count`` clusters.

    Args:
        scores: (N) uncertainties, used as weights in the clustering.
        vectors: (N, D); without features (D = 0), the most uncertain texts are selected.
        count: number of texts, fewer if there are not enough.
        seed: seed of the clustering.

    Returns:
        Indices, most uncertain first.

    Raises:
        InputError: scikit-learn is not installed.

    Source: Zhdanov 2019, "Diverse mini-batch Active Learning", section 3.
    """
    order = np.argsort(-scores, kind="stable")
    if len(order) <= count or not count or not vectors.shape[1]:
        return order[:count]
    with needing("clustering texts needs scikit-learn: pip install 'ownbert[eval]'"):
        from sklearn.cluster import KMeans
    vectors = of_length_one(vectors[order] - vectors.mean(0))
    once: Any = 1  # scikit-learn's annotation only allows strings
    means = KMeans(count, n_init=once, max_iter=20, random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about fewer clusters than distinct vectors
        clusters = means.fit_predict(vectors, sample_weight=scores[order] + 1e-6)
    distances = ((vectors - means.cluster_centers_[clusters]) ** 2).sum(1)
    nearest = np.argsort(distances, kind="stable")
    first = nearest[np.unique(clusters[nearest], return_index=True)[1]]
    rest = np.setdiff1d(np.arange(len(order)), first)[: count - len(first)]
    return order[np.sort(np.concatenate([first, rest]))]


def rare_labels(counts: np.ndarray) -> np.ndarray:
    """Indices of labels with few training rows, rarest first.

    Args:
        counts: (C) training rows of each label.
    """
    order = np.argsort(counts, kind="stable")
    return order[counts[order] < _RARE * counts.mean()]


def count_for_rare(counts: np.ndarray, count: int) -> int:
    """How many of ``count`` texts are selected for rare labels: as many as these labels lack."""
    lacking = np.ceil(_RARE * counts.mean() - counts[rare_labels(counts)]).sum()
    return int(min(lacking, _MOST_RARE * count))
