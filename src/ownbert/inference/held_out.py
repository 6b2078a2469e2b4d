"""Calibration data of a folder (held_out.npz), computed on held-out rows, and the detection of
out-of-scope texts by their distance from labelled texts.

N held-out rows or texts, M labelled texts, C labels, D vector size, F features.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from ownbert.checks import between
from ownbert.exceptions import InputError
from ownbert.files.npz_files import open_npz
from ownbert.files.writing import atomic_path
from ownbert.inference.embedding_outputs import of_length_one
from ownbert.language.messages import Message
from ownbert.tasks.classification import weighted
from ownbert.tasks.thresholds import Aim, settled
from ownbert.time_limit import check_time
from ownbert.views.linear_models import Targets, centre_and_scale, fit_linear

_FORMAT = 1
_ADVICE = Message("calibrate again: {--calibrate} FILE")
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
        """Learn to detect out-of-scope texts from labelled texts only: unit vectors (M, D),
        labels (M).

        A fifth of the labels and a fifth of the texts of the other labels are left out in turn, and
        both are compared with the remaining texts, as out-of-scope and in-scope examples. A
        logistic regression separates the two. If the network was trained on these labels (not
        ``blind``), or if there are only two, leaving labels out does not work, and the score is the
        mean distance to the nearest texts.

        Returns:
            The scope, and the in-scope scores (M) of the texts, each compared with others only.

        Source: Shu, Xu and Liu 2018, "Unseen Class Discovery in Open-world Classification" (leaving
        labels out); Sun et al. 2022 (nearest neighbours); Breunig et al. 2000 (isolation relative
        to the neighbours); Ren et al. 2021 (relative Mahalanobis distance).
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


@dataclass(frozen=True)
class HeldOut:
    """Calibration data from rows that the models were not trained on.

    Args:
        labels: (C) labels of the task.
        source: description of the rows for the user.
        models: checksums of the models' files.
        missing: (N) 1 minus the probability of each row's label (of the least probable one, if a
            row has several), ascending; for numbers (N, C) absolute errors, ascending by column.
        scores: (M) out-of-scope scores of texts with known labels, ascending.
        scope: computes scores from vectors; None: scores are 1 minus the highest probability.
        encoder, encoder_weights: folder of the network for the vectors, relative to the model
            folder if inside it, and checksums of its weights; None without ``scope``.
        decision: (C) the decision that weights these probabilities, so that a label that is
            predicted below .5 is not unknown for that; None: they are not weighted.
        probabilities: (N, C) of each row; None for numbers, for more than two labels of which each
            row has one, and in folders of earlier versions.
        truth: (N, C) whether a row has a label, if there are ``probabilities``.
    """

    labels: tuple[str, ...]
    source: str
    models: Sequence[Any]
    missing: np.ndarray
    scores: np.ndarray
    scope: Scope | None = None
    encoder: str | None = None
    encoder_weights: Mapping[str, Any] | None = None
    decision: tuple[float, ...] | None = None
    probabilities: np.ndarray | None = None
    truth: np.ndarray | None = None

    def doubt(self, probabilities: np.ndarray) -> np.ndarray:
        """Out-of-scope scores (N) without a scope, from probabilities (N, C)."""
        return 1 - weighted(probabilities, self.decision).max(1)

    def deciding(self, decision: tuple[float, ...] | None) -> "HeldOut":
        """The calibration for another decision of the task, if it can be computed."""
        if self.probabilities is None or self.scope is not None or decision == self.decision:
            return self
        found = replace(self, decision=decision)
        return replace(found, scores=np.sort(found.doubt(self.probabilities)))

    @property
    def identity(self) -> list[float]:
        """Values that identify this calibration."""
        missing, scores = self.missing, self.scores
        return [len(missing), len(scores), float(missing.sum()), float(scores.sum())]

    def threshold(self, rate: float) -> float:
        """The out-of-scope threshold that rejects at most a share ``rate`` of in-scope texts."""
        between(0, 1)("--unknown", rate)
        if (quantile := _quantile(self.scores, 1 - rate)) is None:
            raise InputError(
                "{count:,} held-out rows are too few to refuse {rate:g} of the texts; "
                "{min_count:,} or more are needed: {--calibrate} FILE",
                len(self.scores),
                rate,
                _min_count(1 - rate),
            )
        return float(quantile)

    def thresholds(self, aims: Mapping[str, Aim]) -> dict[str, float]:
        """The thresholds of labels that reach these aims; ``InputError`` if none does."""
        if self.probabilities is None or self.truth is None:
            raise InputError(
                "the folder was written by an earlier version, without the probabilities of "
                "held-out rows; calibrate again: {--calibrate} FILE"
            )
        found, missed = settled(aims, self.labels, self.truth, self.probabilities)
        if missed:
            raise InputError(missed[0])
        return found

    def least_probability(self, coverage: float) -> float:
        """The minimum probability of labels in a label set, so that a share ``coverage`` of the
        sets contain the right label.

        Source: Sadinle, Lei and Wasserman 2019, "Least Ambiguous Set-Valued Classifiers With
        Bounded Error Levels", with the quantile of split conformal prediction.
        """
        return 1 - float(self.margins(coverage)[0])

    def margins(self, coverage: float) -> np.ndarray:
        """The half widths (C) of intervals around predicted numbers, so that a share
        ``coverage`` of those of each column contain the right number.

        Source: Lei et al. 2018, "Distribution-Free Predictive Inference for Regression", section
        2.2 (split conformal prediction).
        """
        between(0, 1)("--coverage", coverage)
        if (quantile := _quantile(self.missing, coverage)) is None:
            raise InputError(
                "{count:,} held-out rows are too few for a coverage of {coverage:g}; "
                "{min_count:,} or more are needed: {--calibrate} FILE",
                len(self.missing),
                coverage,
                _min_count(coverage),
            )
        return np.atleast_1d(quantile)

    def save(self, path: Path) -> None:
        """Write the data to a file in the model folder."""
        settings = {
            "format": _FORMAT,
            "features": FEATURES,
            "labels": self.labels,
            "source": self.source,
            "models": self.models,
            "encoder": self.encoder,
            "encoder_weights": self.encoder_weights,
            "decision": self.decision,
        }
        encoded_settings = np.frombuffer(json.dumps(settings).encode(), dtype=np.uint8)
        arrays = {"settings": encoded_settings, "missing": self.missing, "scores": self.scores}
        if self.scope is not None:
            arrays["vectors"] = self.scope.vectors.astype(np.float16)
            arrays |= {"vector_labels": self.scope.labels, "weights": self.scope.weights}
            arrays["density"] = self.scope.density.astype(np.float32)
        if self.probabilities is not None and self.truth is not None:
            arrays |= {"probabilities": self.probabilities.astype(np.float32), "truth": self.truth}
        with atomic_path(path) as written, written.open("wb") as file:
            np.savez_compressed(file, **arrays)

    @classmethod
    def load(cls, path: Path, labels: Sequence[str], models: Sequence[Any]) -> "HeldOut | None":
        """Read the data from a file; None if the file does not exist.

        Raises:
            InputError: the file is damaged or belongs to other models or labels than these.
        """
        if not path.exists():
            return None
        with open_npz(path, _ADVICE) as stored:
            arrays = {name: np.asarray(stored[name]) for name in stored}
            settings: Mapping[str, Any] = json.loads(arrays["settings"].tobytes())
            if settings["format"] != _FORMAT or settings["features"] != list(FEATURES):
                raise InputError(
                    "{path} was written by another version of ownbert; calibrate again: "
                    "{--calibrate} FILE",
                    path,
                )
            # Compared as JSON values.
            same = [list(labels), json.loads(json.dumps(models))]
            if [settings["labels"], settings["models"]] != same:
                raise InputError(
                    "{path} belongs to other models than those used here; calibrate again: "
                    "{--calibrate} FILE",
                    path,
                )
            missing, scores, size = arrays["missing"], arrays["scores"], len(labels)
            if not len(missing) or not len(scores):
                raise ValueError("rows")
            # Files of earlier versions have no decision, whatever the task decides.
            if (decision := settings.get("decision")) is not None:
                decision = tuple(_finite(np.asarray(decision, np.float64), (size,)).tolist())
            return cls(
                tuple(labels),
                str(settings["source"]),
                models,
                np.sort(_finite(missing, (None,) * min(missing.ndim, 2)), axis=0).astype(float),
                np.sort(_finite(scores, (None,))).astype(float),
                _scope(arrays, size),
                settings["encoder"],
                settings["encoder_weights"],
                decision,
                *_known_rows(arrays, size),
            )


def _quantile(values: np.ndarray, share: float) -> np.ndarray | None:
    """The conformal quantile of ascending values: a new value does not exceed it with probability
    ``share``; None if there are too few values."""
    rank = math.ceil((len(values) + 1) * share - 1e-9)
    return None if rank > len(values) else values[max(rank, 1) - 1]


def _min_count(share: float) -> int:
    return math.ceil(share / (1 - share) - 1e-9)


def _finite(values: np.ndarray, shape: tuple[int | None, ...]) -> np.ndarray:
    """Values of a file; ``ValueError`` if they are not finite or, where it is known, not of this
    shape."""
    fits = values.ndim == len(shape) and all(
        size in (None, actual) for actual, size in zip(values.shape, shape, strict=True)
    )
    if not fits or not np.isfinite(values).all():
        raise ValueError("values")
    return values


def _known_rows(
    arrays: Mapping[str, np.ndarray], size: int
) -> tuple[np.ndarray | None, np.ndarray | None]:
    """``probabilities`` and ``truth``."""
    if "probabilities" not in arrays:
        return None, None
    probabilities = _finite(arrays["probabilities"].astype(np.float64), (None, size))
    if not ((probabilities >= 0) & (probabilities <= 1)).all():
        raise ValueError("probabilities")
    return probabilities, _finite(arrays["truth"].astype(bool), probabilities.shape)


def _scope(arrays: Mapping[str, np.ndarray], size: int) -> Scope | None:
    if "vectors" not in arrays:
        return None
    vectors = _finite(arrays["vectors"].astype(np.float32), (None, None))
    labels = _finite(arrays["vector_labels"].astype(int), vectors.shape[:1])
    if not len(labels) or labels[0] < 0 or labels[-1] >= size or (np.diff(labels) < 0).any():
        raise ValueError("labels")
    density = _finite(arrays["density"].astype(np.float64), vectors.shape[:1])
    weights = _finite(arrays["weights"].astype(np.float64), (len(FEATURES),))
    return Scope(vectors, labels, size, density, weights)


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
