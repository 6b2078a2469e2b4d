"""How far a text is from labelled ones: whether it may have none of their labels.

N texts, M labelled texts, C labels, D numbers of a vector, F features.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ownbert.time_limit import check_time
from ownbert.views.linear_models import Targets, centre_and_scale, fit_linear

# Nearest texts of a label that are averaged, and what similarities are divided by in a softmax.
_NEAREST, _TEMPERATURE = 3, 0.05
# Texts that are compared at a time, and the inverse of the penalty of the weights.
_TOGETHER, _STRENGTH = 256, 0.1
# Labels with which leaving one out leaves two to choose between.
_FEWEST_LABELS = 3
FEATURES = ("nearest", "near", "nearest_margin", "near_margin", "decided", "constant")
# Where weights cannot be learnt: the mean distance to the nearest texts of the nearest label.
_DISTANCE = np.asarray([0.0, -1.0, 0.0, 0.0, 0.0, 1.0])


@dataclass(frozen=True)
class Scope:
    """Vectors of labelled texts, and how a text's similarities to them become a score.

    Args:
        vectors: float32 (M, D) of length one, label after label.
        labels: (M) indices, ascending.
        size: C.
        weights: (F) of the features.
    """

    vectors: np.ndarray
    labels: np.ndarray
    size: int
    weights: np.ndarray

    @classmethod
    def fit(
        cls, vectors: np.ndarray, labels: np.ndarray, size: int, *, blind: bool
    ) -> tuple["Scope", np.ndarray]:
        """Learn what tells texts of no label, from labelled ones alone.

        Each text is compared with the others, as a text with a known label. Then the label of each
        is left out in turn, and its texts are compared with those of the other labels, as texts
        with none. A logistic regression tells the two apart.

        Args:
            vectors: (M, D) of length one.
            labels: (M) indices.
            size: C.
            blind: whether the network that made the vectors has not learnt these labels. A label
                that it knows cannot be left out, so the score is the mean distance to the nearest
                texts then, as with two labels.

        Returns:
            The scope, and the scores (M) of the texts as texts with a known label, in their order.

        Source: Shu, Xu and Liu 2018, "Unseen Class Discovery in Open-world Classification", leave
            labels out; the features are those of nearest neighbours (Sun et al. 2022).
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
        """(N) the higher, the less likely a text has one of the labels.

        vectors: (N, D) of length one.
        """
        return _features(*self._by_label(vectors)) @ self.weights

    def _by_label(self, vectors: np.ndarray, *, own: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """The similarity to the nearest text of each label (N, C), and the mean of the nearest few.

        own: the vectors are those of the scope, each of which is compared with the others alone.
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
                count = min(_NEAREST, max(1, b - a - 1))  # one fewer where a text is its own
                best = np.partition(alike[:, a:b], -count, axis=1)[:, -count:]
                nearest[block, label], near[block, label] = best.max(1), best.mean(1)
        return nearest, near


def _features(nearest: np.ndarray, near: np.ndarray) -> np.ndarray:
    """(N, F) of similarities (N, C) to labels: the highest, by how much the next label is lower,
    the log-probability of the nearest label by a softmax of them, and 1."""
    if nearest.shape[1] < 2:
        nearest, near = (
            np.pad(each, ((0, 0), (0, 1)), constant_values=-1) for each in (nearest, near)
        )
    first, second = (np.partition(each, -2, axis=1)[:, -2:] for each in (nearest, near))
    scaled = near / _TEMPERATURE
    decided = scaled.max(1) - np.logaddexp.reduce(scaled, axis=1)
    margins = (first[:, 1] - first[:, 0], second[:, 1] - second[:, 0])
    return np.stack([first[:, 1], second[:, 1], *margins, decided, np.ones(len(first))], 1)
