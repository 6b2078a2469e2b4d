"""The models that ``fit`` compares. N held-out rows, C labels or numbers."""

import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ownbert.fitting.labelled_rows import LabelledRows
from ownbert.inference.embedder import Embedder
from ownbert.inference.frozen_probe import FrozenProbe, embed_rows
from ownbert.tasks.metrics import Scores
from ownbert.tasks.rows import Row
from ownbert.views.blending import (
    blend,
    cross_fitted,
    fit_blend,
    fit_weights,
    from_scores,
    loss,
)
from ownbert.views.features import VIEWS, Texts
from ownbert.views.linear import STRENGTHS, LinearModel, Targets, fit_linear
from ownbert.views.linear_view import LinearView

# Weights of naive Bayes are for few labels; with many they took minutes and were no better.
_MOST_NB_LABELS = 4
# The temperature that offsets are divided by, at least.
_LEAST_WEIGHT = 1e-3
# Characters of all labelled texts, above which their n-grams would take too long.
_MOST_CHARACTERS = 20_000_000


@dataclass
class ComparedModel:
    """A model, and its scores of the held-out rows.

    Args:
        name: of its files.
        title: for the user.
        kind: network, linear or frozen.
        folders: relative to the output folder.
        seconds: that it took.
        scores: (N, C) of the held-out rows; None if its teachers were trained on them.
        share: its part of the blend, if it has no scores.
    """

    name: str
    title: str
    kind: str
    folders: tuple[str, ...]
    seconds: float
    scores: np.ndarray | None = None
    share: float = 0.0

    def about(self) -> dict[str, Any]:
        """Everything but the scores, for JSON."""
        return {k: v for k, v in asdict(self).items() if k != "scores"}


def view_names(rows: LabelledRows, kind: str) -> list[str]:
    """The views that suit these rows. kind: of the text."""
    names = list(VIEWS)
    characters = sum(len(text) for row in rows.rows for text in row.texts)
    if kind == "ids" or characters > _MOST_CHARACTERS:
        names.remove("characters")
    if rows.targets.task == "regress" or rows.targets.size > _MOST_NB_LABELS:
        names.remove("nb")
    return names


def fit_view(
    name: str,
    rows: LabelledRows,
    labelled: Texts,
    learnt: Texts,
    unlabelled: Texts,
    folder: Path,
    *,
    seconds: float = math.inf,
    required: bool = False,
) -> np.ndarray:
    """Fit a linear model on a view, save it in ``folder``, and return its held-out scores.

    Args:
        labelled: the texts of all rows.
        learnt: those of the rows that the final model learns from.
        unlabelled: other texts, without labels.
        seconds: that fitting the model on the features may take.
        required: it is fitted even if it takes longer.

    Raises:
        TooSlow: it would take longer.
    """
    view = VIEWS[name].fit(learnt, unlabelled)
    features = view.features(labelled)
    model, scores = fit_on_folds(
        features, rows, naive_bayes=name == "nb", seconds=seconds, required=required
    )
    LinearView(view, model, labelled.kind).save(folder)
    return scores


def fit_probe(encoder: Path, rows: LabelledRows, folder: Path) -> np.ndarray:
    """Fit a linear model on the vectors of a network, save it in ``folder`` (in which ``encoder``
    is), and return its held-out scores."""
    fitted, scores = probe_scores(encoder, rows)
    fitted.save(folder)
    return scores


def probe_scores(
    encoder: Path, rows: LabelledRows, *, seconds: float = math.inf
) -> tuple[FrozenProbe, np.ndarray]:
    """A linear model on the vectors of a network, and its held-out scores. seconds: that fitting it
    may take, more or less."""
    embedder = Embedder(encoder)
    features, mean, scale = standardised(embed_rows(embedder, rows.texts()), rows)
    model, scores = fit_on_folds(features, rows, seconds=seconds, required=True)
    return FrozenProbe(embedder, mean, scale, model), scores


def standardised(
    vectors: np.ndarray, rows: LabelledRows
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Vectors (N, F) of all rows, less a mean and over a scale (F) of those that are learnt from;
    and both."""
    learnt = vectors[rows.learnt]
    mean = learnt.mean(0)
    # So that vectors have a length of about 1, as those of the views.
    scale = np.maximum(learnt.std(0), 1e-6) * np.sqrt(vectors.shape[1])
    features = ((vectors - mean) / scale).astype(np.float32)
    return features, mean, scale.astype(np.float32)


def fit_on_folds(
    features: Any,
    rows: LabelledRows,
    *,
    naive_bayes: bool = False,
    seconds: float = math.inf,
    required: bool = False,
) -> tuple[LinearModel, np.ndarray]:
    """A linear model of features (all rows, F), and its scores (N, C) of the held-out rows.

    The strength of the penalty is that with the least loss on these, at its best temperature, of
    those that the seconds suffice for.

    Raises:
        TooSlow: the seconds suffice for none.
    """
    held, began = rows.targets[rows.held_out], time.monotonic()
    each = seconds / (len(rows.folds) + 1)
    if required and not isinstance(features, np.ndarray):  # dense ones are not given up
        each = math.inf
    settings = {"naive_bayes": naive_bayes, "seconds": each}
    best: tuple[float, float, np.ndarray] | None = None
    for number, strength in enumerate(STRENGTHS):
        # For this strength and the final model.
        if number and (time.monotonic() - began) * (number + 2) / number > seconds:
            break
        scores = np.concatenate(
            [
                fit_linear(features[learn], rows.targets[learn], strength, **settings).scores(
                    features[own]
                )
                for learn, own in rows.folds
            ]
        )
        found = _best_loss(scores, held)
        if best is None or found < best[0]:
            best = (found, strength, scores)
    assert best is not None
    learnt = rows.learnt
    settings["seconds"] = math.inf
    return fit_linear(features[learnt], rows.targets[learnt], best[1], **settings), best[2]


def _counts(rows: LabelledRows) -> np.ndarray | None:
    """(C) how often each label is among the rows that are learnt from; None for other tasks, and
    where all are alike."""
    if rows.targets.task != "classify":
        return None
    counts = np.bincount(rows.targets.values[rows.learnt], minlength=rows.targets.size)
    return None if counts.max() == counts.min() else counts


def _best_loss(scores: np.ndarray, targets: Targets) -> float:
    """The loss with the temperature that makes it least."""
    return loss(targets, scores * fit_weights([scores], targets)[0])


class Comparison:
    """Candidates compared on the held-out rows, and their blend.

    Args:
        rows: the labelled rows.
        candidates: at least one of them with scores.

    Attributes:
        weights: of the candidates with scores, in their blend.
        offsets: (C) that are added to the scores of the blend.
        blended: (N, C) scores of the blend of the candidates with scores; each row with weights and
            offsets that were chosen on others, so that a metric of them is an honest estimate.
    """

    def __init__(self, rows: LabelledRows, candidates: Sequence[ComparedModel]) -> None:
        self.rows, self.candidates = rows, candidates
        self.metric = rows.task.metrics[0]
        self.measured = [c for c in candidates if c.scores is not None]
        scores = [c.scores for c in candidates if c.scores is not None]
        self.targets = rows.targets[rows.held_out]
        self.counts = _counts(rows)
        self._adjusted: dict[str, np.ndarray] = {}
        self.weights, self.offsets = fit_blend(scores, self.targets, self.counts)
        self.blended = cross_fitted(scores, self.targets, self.counts)

    @property
    def members(self) -> list[tuple[ComparedModel, float]]:
        """The candidates that are in the blend, and their weights.

        One without scores was taught the probabilities of the others' blend, so its scores are as
        far apart as those of that blend, and the two are averaged by its share.
        """
        unmeasured = [c for c in self.candidates if c.scores is None]
        rest = 1.0 - sum(c.share for c in unmeasured)
        weights = [rest * float(w) for w in self.weights] + [c.share for c in unmeasured]
        return [m for m in zip([*self.measured, *unmeasured], weights, strict=True) if m[1] > 0]

    def share_of(self, scores: np.ndarray) -> float:
        """The part of the blend that a model should have, if what it was taught came from the
        others. scores: (n, C) of the first fold's held-out rows, whose labels it has not seen."""
        own = [c.scores[: len(scores)] for c in self.candidates if c.scores is not None]
        both = [blend(own, self.weights), scores]
        weights, _ = fit_blend(both, self.targets[: len(scores)], self.counts)
        return float(weights[1] / weights.sum())

    def adjusted(self, model: ComparedModel) -> np.ndarray:
        """The scores (N, C) of a measured candidate, with offsets as the blend has: each row with
        those that were chosen on others."""
        assert model.scores is not None
        if self.counts is None:
            return model.scores
        if model.name not in self._adjusted:
            found = cross_fitted([model.scores], self.targets, self.counts)
            self._adjusted[model.name] = found
        return self._adjusted[model.name]

    def offsets_of(self, model: ComparedModel) -> np.ndarray:
        """(C) that are added to the scores of a candidate used alone: its own, or those of the
        blend if it has not been measured."""
        if model.scores is None or self.counts is None:
            return self.offsets
        weights, offsets = fit_blend([model.scores], self.targets, self.counts)
        return offsets / max(float(weights[0]), _LEAST_WEIGHT)

    def metrics(self, scores: np.ndarray, chosen: np.ndarray | None = None) -> Scores:
        """The metrics of scores (N, C). chosen: indices of held-out rows, by default all."""
        return self._score(scores, self.rows.held_out, chosen)

    def value(self, scores: np.ndarray, chosen: np.ndarray | None = None) -> float:
        """The first metric of scores (N, C)."""
        return self.metrics(scores, chosen).values[self.metric]

    def value_of(self, rows: Sequence[Row], scores: np.ndarray) -> float:
        """The first metric of the scores (rows, C) of other rows."""
        return self._decided(scores, rows).values[self.metric]

    def value_of_fold(self, scores: np.ndarray) -> float:
        """The first metric of scores of the first fold's held-out rows."""
        return self._score(scores, self.rows.folds[0][1], None).values[self.metric]

    def _score(self, scores: np.ndarray, held: np.ndarray, chosen: np.ndarray | None) -> Scores:
        if chosen is not None:
            scores, held = scores[chosen], held[chosen]
        return self._decided(scores, [self.rows.rows[i] for i in held])

    def _decided(self, scores: np.ndarray, own: Sequence[Row]) -> Scores:
        task = self.rows.task
        raws = from_scores(task.name, scores)
        return task.score(
            own, [task.decide(r, row, None) for r, row in zip(raws, own, strict=True)]
        )
