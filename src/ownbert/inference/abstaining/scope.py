"""Out-of-scope detection by the distance of a text from labelled texts.

N texts, M labelled texts, C labels, D vector size, F features.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np

from ownbert.inference.embedding.embedding_outputs import of_length_one
from ownbert.time_limit import check_time
from ownbert.views.linear_models import Targets, centre_and_scale, fit_linear

# Number of nearest texts averaged per label, and of all labels.
_NEAREST, _NEIGHBOURS = 3, 10
# Share of the covariance that is replaced by the same variance in every direction.
_SHRINKAGE = 0.1
# Minimum variance in all directions together; that of unit vectors is at most 1.
_LEAST_VARIANCE = 1e-3
# Texts compared at a time, and the inverse regularisation strength.
_BLOCK, _STRENGTH = 256, 1.0
# Folds of labels; and of rows: ten, or up to this number divided by the number of texts (or the
# vector size), because leaving out a tenth of few texts changes the distances of the others.
_LABEL_FOLDS, _ROW_FOLDS, _FEW = 5, 10, 20_000
# Minimum number of labels: leaving one out must leave two to choose from.
_FEWEST_LABELS = 3
FEATURES = ("near", "isolation", "centroid", "label_distance", "overall_distance", "constant")
# Default weights if none can be learnt: mean distance to the nearest texts of the nearest label.
_DISTANCE = np.asarray([-1.0, 0.0, 0.0, 0.0, 0.0, 1.0])


@dataclass(frozen=True)
class Scope:
    """Vectors of labelled texts, and weights that turn features of a text into a score.

    Args:
        vectors: float32 (M, D) unit vectors, grouped by label.
        labels: (M) label indices, ascending.
        size: number of labels C.
        density: (M) mean similarity of each text to the nearest of the others.
        weights: (F) weights of the features.
    """

    vectors: np.ndarray
    labels: np.ndarray
    size: int
    density: np.ndarray
    weights: np.ndarray

    @classmethod
    def fit(
        cls, vectors: np.ndarray, labels: np.ndarray, size: int, *, blind: bool
    ) -> tuple["Scope", np.ndarray]:
        """Learn to detect out-of-scope texts from labelled texts only.

        A fifth of the labels and a fifth of the texts of the other labels are left out in turn, and
        both are compared with the remaining texts, as out-of-scope and in-scope examples. A
        logistic regression separates the two.

        Args:
            vectors: (M, D) unit vectors.
            labels: (M) label indices.
            size: number of labels C.
            blind: whether the network was not trained on these labels. If it was, or if there are
                only two labels, leaving labels out does not work, and the score is the mean
                distance to the nearest texts.

        Returns:
            The scope, and the in-scope scores (M) of the texts, each compared with others only.

        Source: Shu, Xu and Liu 2018, "Unseen Class Discovery in Open-world Classification"
        (leaving labels out); Sun et al. 2022 (nearest neighbours); Breunig et al. 2000 (isolation
        relative to the neighbours); Ren et al. 2021 (relative Mahalanobis distance).
        """
        order = np.argsort(labels, kind="stable")
        vectors, labels = vectors[order].astype(np.float32), labels[order]
        scope = cls(vectors, labels, size, _densities(vectors), _DISTANCE)
        if blind and len(np.unique(labels)) >= _FEWEST_LABELS:
            scope = replace(scope, weights=scope._learn_weights())
        if len(labels) < 2:
            return scope, np.full(len(labels), 2.0)  # the largest distance
        count = max(_ROW_FOLDS, _FEW // max(vectors.shape))
        folds = np.random.default_rng(0).permutation(len(labels)) % count
        scores = np.empty(len(labels))
        for fold in range(min(count, len(labels))):
            held_out = folds == fold
            scores[order[held_out]] = scope._part(~held_out).scores(vectors[held_out])
        return scope, scores

    def scores(self, vectors: np.ndarray) -> np.ndarray:
        """Out-of-scope scores (N) of unit vectors (N, D): higher means less likely in scope."""
        return self.features(vectors) @ self.weights

    def features(self, vectors: np.ndarray) -> np.ndarray:
        """Features (N, F) of unit vectors (N, D)."""
        near, isolation = np.empty(len(vectors)), np.empty(len(vectors))
        for start in range(0, len(vectors), _BLOCK):
            check_time()
            block = slice(start, start + _BLOCK)
            alike = vectors[block] @ self.vectors.T
            near[block] = self._near(alike)
            count = min(_NEIGHBOURS, alike.shape[1])
            nearest = np.argpartition(alike, -count, axis=1)[:, -count:]
            gaps = self.density[nearest] - np.take_along_axis(alike, nearest, 1)
            isolation[block] = gaps.mean(1)
        means, overall, inverse, inverse_overall = self._gaussians
        moved, centres = vectors @ inverse, means @ inverse
        squares = (moved**2).sum(1)[:, None] - 2 * moved @ centres.T + (centres**2).sum(1)
        distance = squares.min(1) / vectors.shape[1]
        distance_overall = (((vectors - overall) @ inverse_overall) ** 2).mean(1)
        centroid = (vectors @ of_length_one(means).T).max(1)
        constant = np.ones(len(vectors))
        return np.stack([near, isolation, centroid, distance, distance_overall, constant], 1)

    def _near(self, alike: np.ndarray) -> np.ndarray:
        """The mean similarity (N) to the nearest texts of the nearest label, from similarities (N,
        M)."""
        ends = np.flatnonzero(np.diff(self.labels, prepend=-1, append=self.size))
        nearest = np.full(len(alike), -1.0)
        for a, b in pairwise(ends.tolist()):
            count = min(_NEAREST, b - a)
            best = np.partition(alike[:, a:b], -count, axis=1)[:, -count:]
            np.maximum(nearest, best.mean(1), out=nearest)
        return nearest

    @cached_property
    def _gaussians(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """The means of the labels (C, D) and of all texts (D), and matrices (D, D) after which the
        covariance within labels, and of all texts, is the identity."""
        present, own = np.unique(self.labels, return_inverse=True)
        starts = np.searchsorted(self.labels, present)
        means = np.add.reduceat(self.vectors, starts) / np.bincount(own)[:, None]
        overall = self.vectors.mean(0)
        inner = _whitening(self.vectors - means[own])
        return means, overall, inner, _whitening(self.vectors - overall)

    def _learn_weights(self) -> np.ndarray:
        """Weights (F) of a logistic regression that separates texts of labels that are left out
        from other texts; see ``fit``."""
        random, present = np.random.default_rng(0), np.unique(self.labels)
        folds = np.zeros(self.size, dtype=int)
        folds[random.permutation(present)] = np.arange(len(present)) % _LABEL_FOLDS
        label_folds = folds[self.labels]
        row_folds = random.integers(_LABEL_FOLDS, size=len(self.labels))
        known, unknown = [], []
        for fold in range(min(_LABEL_FOLDS, len(present))):
            outside, held_out = label_folds == fold, row_folds == fold
            if (learnt := ~outside & ~held_out).any():
                part = self._part(learnt)
                known.append(part.features(self.vectors[held_out & ~outside]))
                unknown.append(part.features(self.vectors[outside]))
        truth = np.repeat([0, 1], [sum(map(len, known)), sum(map(len, unknown))])
        if truth.all():  # too few rows to hold some out
            return self.weights
        features = np.concatenate([*known, *unknown])[:, :-1]
        mean, scale = centre_and_scale(features)
        standardised = ((features - mean) / scale).astype(np.float32)
        model = fit_linear(standardised, Targets("classify", truth, 2), _STRENGTH)
        weights = (model.weights[:, 1] - model.weights[:, 0]) / scale
        bias = model.bias[1] - model.bias[0] - weights @ mean
        return np.append(weights, bias)

    def _part(self, rows: np.ndarray) -> "Scope":
        """The scope with some of the labelled texts."""
        parts = self.vectors[rows], self.labels[rows], self.size, self.density[rows]
        return Scope(*parts, self.weights)


def _densities(vectors: np.ndarray) -> np.ndarray:
    """The mean similarity (M) of each vector (M, D) to its nearest neighbours."""
    densities, count = np.zeros(len(vectors)), max(1, min(_NEIGHBOURS, len(vectors) - 1))
    for start in range(0, len(vectors), _BLOCK):
        check_time()
        alike = vectors[start : start + _BLOCK] @ vectors.T
        rows = np.arange(len(alike))
        alike[rows, start + rows] = -1
        densities[start + rows] = np.partition(alike, -count, axis=1)[:, -count:].mean(1)
    return densities


def _whitening(deviations: np.ndarray) -> np.ndarray:
    """A matrix (D, D) that turns deviations from a mean (M, D) into independent ones."""
    rows, size = deviations.shape
    covariance = deviations.T.astype(np.float64) @ deviations / rows
    covariance *= 1 - _SHRINKAGE
    variance = np.trace(covariance) / size
    covariance[np.diag_indices(size)] += max(_SHRINKAGE * variance, _LEAST_VARIANCE / size)
    return np.linalg.inv(np.linalg.cholesky(covariance)).T.astype(np.float32)
