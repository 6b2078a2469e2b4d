"""held_out.npz: calibration data of a folder, computed on held-out rows.

N held-out rows, M texts with known labels, C labels, D vector size.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ownbert.checks import between
from ownbert.exceptions import InputError
from ownbert.files.npz_files import open_npz
from ownbert.files.writing import atomic_path
from ownbert.inference.abstaining.scope import FEATURES, Scope
from ownbert.language.messages import Message
from ownbert.tasks.classification import weighted
from ownbert.tasks.thresholds import Aim, settled

_FORMAT = 1
_ADVICE = Message("calibrate again: {--calibrate} FILE")


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
        decision: (C) the decision that weights these probabilities, so that a label that is
            predicted below .5 is not unknown for that; None: they are not weighted.
        encoder: folder of the network for the vectors, relative to the model folder if inside it;
            None without ``scope``.
        encoder_weights: checksums of the network's weights.
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
        counts = (len(each) for each in (self.missing, self.scores))
        return [*counts, float(self.missing.sum()), float(self.scores.sum())]

    def threshold(self, rate: float) -> float:
        """The out-of-scope threshold that rejects at most a share ``rate`` of in-scope texts.

        Raises:
            InputError: there are too few rows for that rate.
        """
        between(0, 1)("--unknown", rate)
        if (index := _quantile_index(len(self.scores), 1 - rate)) is None:
            raise InputError(
                "{count:,} held-out rows are too few to refuse {rate:g} of the texts; "
                "{min_count:,} or more are needed: {--calibrate} FILE",
                len(self.scores),
                rate,
                _min_count(1 - rate),
            )
        return float(self.scores[index])

    def thresholds(self, aims: Mapping[str, Aim]) -> dict[str, float]:
        """The thresholds of labels that reach these aims.

        Raises:
            InputError: none does, or there are no probabilities of held-out rows.
        """
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

        Raises:
            InputError: there are too few rows for that coverage.

        Source: Sadinle, Lei and Wasserman 2019, "Least Ambiguous Set-Valued Classifiers With
        Bounded Error Levels", with the quantile of split conformal prediction.
        """
        return 1 - float(self._missing_at(coverage))

    def margins(self, coverage: float) -> np.ndarray:
        """The half widths (C) of intervals around predicted numbers, so that a share
        ``coverage`` of those of each column contain the right number.

        Raises:
            InputError: there are too few rows for that coverage.

        Source: Lei et al. 2018, "Distribution-Free Predictive Inference for Regression", section
        2.2 (split conformal prediction).
        """
        return np.atleast_1d(self._missing_at(coverage))

    def _missing_at(self, coverage: float) -> np.ndarray:
        between(0, 1)("--coverage", coverage)
        if (index := _quantile_index(len(self.missing), coverage)) is None:
            raise InputError(
                "{count:,} held-out rows are too few for a coverage of {coverage:g}; "
                "{min_count:,} or more are needed: {--calibrate} FILE",
                len(self.missing),
                coverage,
                _min_count(coverage),
            )
        return self.missing[index]

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

        Args:
            path: file to read.
            labels: labels of the task.
            models: checksums of the models' files.

        Raises:
            InputError: the file is damaged or belongs to other models.
        """
        if not path.exists():
            return None
        with open_npz(path, _ADVICE) as stored:
            arrays = {name: np.asarray(stored[name]) for name in stored}
            settings: Mapping[str, Any] = json.loads(arrays["settings"].tobytes())
            known = settings["format"] == _FORMAT and settings["features"] == list(FEATURES)
            if not known:
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
            return cls(
                tuple(labels),
                str(settings["source"]),
                models,
                _sorted_finite(arrays["missing"], 2),
                _sorted_finite(arrays["scores"]),
                _scope(arrays, len(labels)),
                settings["encoder"],
                settings["encoder_weights"],
                _decision(settings.get("decision"), len(labels)),
                *_known_rows(arrays, len(labels)),
            )


def _quantile_index(count: int, share: float) -> int | None:
    """The index of the conformal quantile among ``count`` ascending values: a new value does not
    exceed it with probability ``share``; None if there are too few values."""
    rank = math.ceil((count + 1) * share - 1e-9)
    return None if rank > count else max(rank, 1) - 1


def _min_count(share: float) -> int:
    return math.ceil(share / (1 - share) - 1e-9)


def _sorted_finite(values: np.ndarray, most: int = 1) -> np.ndarray:
    if not 1 <= values.ndim <= most or not len(values) or not np.isfinite(values).all():
        raise ValueError("values")
    return np.sort(values, axis=0).astype(np.float64)


def _decision(saved: Sequence[float] | None, size: int) -> tuple[float, ...] | None:
    """The saved decision; files of earlier versions have none, whatever the task decides."""
    if saved is None:
        return None
    decision = np.asarray(saved, dtype=np.float64)
    if decision.shape != (size,) or not np.isfinite(decision).all():
        raise ValueError("decision")
    return tuple(decision.tolist())


def _known_rows(
    arrays: Mapping[str, np.ndarray], size: int
) -> tuple[np.ndarray | None, np.ndarray | None]:
    """``probabilities`` and ``truth``."""
    if "probabilities" not in arrays:
        return None, None
    probabilities, truth = arrays["probabilities"].astype(np.float64), arrays["truth"].astype(bool)
    inside = ((probabilities >= 0) & (probabilities <= 1)).all()  # False for NaN
    if probabilities.shape != truth.shape or probabilities.shape[1:] != (size,) or not inside:
        raise ValueError("probabilities")
    return probabilities, truth


def _scope(arrays: Mapping[str, np.ndarray], size: int) -> Scope | None:
    if "vectors" not in arrays:
        return None
    vectors, labels = arrays["vectors"].astype(np.float32), arrays["vector_labels"].astype(int)
    weights, density = arrays["weights"].astype(np.float64), arrays["density"].astype(np.float64)
    ordered = len(labels) and labels[0] >= 0 and labels[-1] < size and (np.diff(labels) >= 0).all()
    fits = (
        vectors.ndim == 2
        and labels.shape == density.shape == vectors.shape[:1]
        and weights.shape == (len(FEATURES),)
    )
    finite = all(np.isfinite(each).all() for each in (vectors, density, weights))
    if not (fits and ordered and finite):
        raise ValueError("vectors")
    return Scope(vectors, labels, size, density, weights)
