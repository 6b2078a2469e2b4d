"""Out-of-scope detection by the distance of a text from labelled texts.

N texts, M labelled texts, C labels, D vector size, F features.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ownbert.time_limit import check_time
from ownbert.views.linear_models import Targets, centre_and_scale, fit_linear

# Number of nearest texts averaged per label, and the softmax temperature of similarities.
_NEAREST, _TEMPERATURE = 3, 0.05
# Texts compared at a time, and the inverse regularisation strength.
_TOGETHER, _STRENGTH = 256, 0.1
# Minimum number of labels: leaving one out must leave two to choose from.
_FEWEST_LABELS = 3
FEATURES = ("nearest", "near", "nearest_margin", "near_margin", "decided", "constant")
# Default weights if none can be learnt: mean distance to the nearest texts of the nearest label.
_DISTANCE = np.asarray([0.0, -1.0, 0.0, 0.0, 0.0, 1.0])


@dataclass(frozen=True)
class Scope:
    """Vectors of labelled texts, and weights that turn similarities into a score.

    Args:
        vectors: float32 (M, D) unit vectors, grouped by label.
        labels: (M) label indices, ascending.
        size: number of labels C.
        weights: (F) weights of the features.
    """

    vectors: np.ndarray
    labels: np.ndarray
    size: int
    weights: np.ndarray

    @classmethod
    def fit(
        cls, vectors: np.ndarray, labels: np.ndarray, size: int, *, blind: bool
    ) -> tuple["Scope", np.ndarray]:
        """Learn to detect out-of-scope texts from labelled texts only.

        Each text is compared with the others as an in-scope example. Then each label is left out in
        turn, and its texts are compared with those of the other labels as out-of-scope examples. A
        logistic regression separates the two.

        Args:
            vectors: (M, D) unit vectors.
            labels: (M) label indices.
            size: number of labels C.
            blind: whether the network was not trained on these labels. If it was, or if there are
                only two labels, leaving labels out does not work, and the score is the mean
                distance to the nearest texts.

        Returns:
            The scope, and the in-scope scores (M) of the texts.

        Source: Shu, Xu and Liu 2018, "Unseen Class Discovery in Open-world Classification"
        (leaving labels out); Sun et al. 2022 (nearest-neighbour features).
        """
        order = np.argsort(labels, kind="stable")
        scope = cls(vectors[order].astype(np.float32), labels[order], size, _DISTANCE)
        nearest, near = scope._by_label(scope.vectors, own=True)
        known = _features(nearest, near)
        present = np.unique(labels)
        if blind and len(present) >= _FEWEST_LABELS:
            parts = []
            for label in present:
                check_time()
                rows, rest = scope.labels == label, np.arange(size) != label
                parts.append(_features(nearest[rows][:, rest], near[rows][:, rest]))
            features = np.concatenate([known, *parts])
            mean, scale = centre_and_scale(features[:, :-1])
            truth = np.repeat([0, 1], [len(known), len(features) - len(known)])
            model = fit_linear(
                ((features[:, :-1] - mean) / scale).astype(np.float32),
                Targets("classify", truth, 2),
                _STRENGTH,
            )
            weights = (model.weights[:, 1] - model.weights[:, 0]) / scale
            bias = model.bias[1] - model.bias[0] - weights @ mean
            scope = cls(scope.vectors, scope.labels, size, np.append(weights, bias))
        scores = np.empty(len(known))
        scores[order] = known @ scope.weights
        return scope, scores

    def scores(self, vectors: np.ndarray) -> np.ndarray:
        """Out-of-scope scores (N) of unit vectors (N, D): higher means less likely in scope."""
        return _features(*self._by_label(vectors)) @ self.weights

    def _by_label(self, vectors: np.ndarray, *, own: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """The similarity to each label's nearest text (N, C), and the mean over its nearest texts.

        Args:
            own: the vectors are those of the scope; each is compared with the others only.
        """
        ends = np.searchsorted(self.labels, np.arange(self.size + 1))
        nearest = np.full((len(vectors), self.size), -1.0)
        near = nearest.copy()
        for start in range(0, len(vectors), _TOGETHER):
            check_time()
            block = slice(start, start + _TOGETHER)
            alike = vectors[block] @ self.vectors.T
            if own:
                rows = np.arange(len(alike))
                alike[rows, start + rows] = -1
            for label, (a, b) in enumerate(pairwise(ends.tolist())):
                if a == b:
                    continue
                count = min(_NEAREST, max(1, b - a - 1))  # exclude the text itself
                best = np.partition(alike[:, a:b], -count, axis=1)[:, -count:]
                nearest[block, label], near[block, label] = best.max(1), best.mean(1)
        return nearest, near


def _features(nearest: np.ndarray, near: np.ndarray) -> np.ndarray:
    """Features (N, F) from similarities to labels (N, C).

    They are the highest similarity, its margin over the second, the log-probability of the nearest
    label under a softmax, the mean similarity to its nearest texts, and 1.
    """
    if nearest.shape[1] < 2:
        nearest, near = (
            np.pad(each, ((0, 0), (0, 1)), constant_values=-1) for each in (nearest, near)
        )
    first, second = (np.partition(each, -2, axis=1)[:, -2:] for each in (nearest, near))
    scaled = near / _TEMPERATURE
    decided = scaled.max(1) - np.logaddexp.reduce(scaled, axis=1)
    margins = (first[:, 1] - first[:, 0], second[:, 1] - second[:, 0])
    return np.stack([first[:, 1], second[:, 1], *margins, decided, np.ones(len(first))], 1)
