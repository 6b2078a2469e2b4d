"""The models that ``fit`` compares. N: held-out rows, C: labels or regression values."""

import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ownbert.errors import InputError
from ownbert.files.writing import atomic_path
from ownbert.fitting.rows.labelled_rows import LabelledRows, targets_of
from ownbert.inference.embedding.embedder import Embedder
from ownbert.inference.frozen_probe import FrozenProbe, embed_rows
from ownbert.tasks.metrics import Scores
from ownbert.tasks.multilabel import MultiLabelTask
from ownbert.tasks.rows import Row
from ownbert.tasks.task import Task
from ownbert.tasks.text_input import EncodedRows
from ownbert.time_limit import check_time, seconds_left
from ownbert.train.watch.metric_names import BALANCED, LOWER
from ownbert.views.blending import blend, cross_fitted, fit_blend, from_scores, loss
from ownbert.views.linear_models import (
    HINGE_STRENGTHS,
    STRENGTHS,
    LinearModel,
    Targets,
    centre_and_scale,
    fit_linear,
)
from ownbert.views.linear_view import LinearView
from ownbert.views.view_features import FEWEST_TEXTS, VIEWS, Texts, texts_with, unit_rows

# Naive Bayes weights help with few labels; with many they took minutes and were no better.
_MOST_NB_LABELS = 4
LOG_LOSS = "log_loss"
# Lower bound of the temperature that offsets are divided by.
_LEAST_WEIGHT = 1e-3
# Squared hinge loss is tried only where one label is this many times as frequent as another: with
# balanced labels, logistic regressions were as good.
_UNEQUAL = 2.0
# N-grams take too long above this number of characters in all labelled texts.
_MOST_CHARACTERS = 20_000_000
# Work file: the frozen network's vectors of all rows.
PROBE_VECTORS = "probe-vectors.npy"
# A factor for the logits, and offsets (C) added to them.
_Calibration = tuple[float, np.ndarray]


@dataclass
class ComparedModel:
    """A model and its logits for the held-out rows.

    Args:
        name: identifier, used in file names.
        title: name shown to the user.
        kind: network, linear or frozen.
        folders: model folders, relative to the output folder.
        seconds: training time.
        first: folders of the models trained on the first fold only.
        scores: (N, C) logits; None if only the first fold was scored.
        partial: (n, C) logits of the first fold's held-out rows if ``scores`` is None.
        share: weight in the blend if ``scores`` is None.
    """

    name: str
    title: str
    kind: str
    folders: tuple[str, ...]
    seconds: float
    first: tuple[str, ...] = ()
    scores: np.ndarray | None = None
    partial: np.ndarray | None = None
    share: float = 0.0

    def about(self) -> dict[str, Any]:
        """All fields except the logits, for JSON."""
        return {k: v for k, v in asdict(self).items() if k not in ("scores", "partial")}


def view_names(rows: LabelledRows, kind: str) -> list[str]:
    """The views that suit the rows, for a kind of text (see ``ownbert.views.tokens.KINDS``)."""
    names = list(VIEWS)
    # Word trigrams gain a point of micro-F1 with several labels per row, and lose up to one point
    # of macro-F1 with a single label (docs/lab/fit.md).
    names.remove("tfidf" if rows.targets.task == "multilabel" else "trigrams")
    characters = sum(len(text) for row in rows.rows for text in row.texts)
    if kind == "ids" or characters > _MOST_CHARACTERS:
        names.remove("characters")
    if rows.targets.task == "regress" or rows.targets.size > _MOST_NB_LABELS:
        names.remove("nb")
    return names


class FittedOnFolds(NamedTuple):
    """Linear models of one kind, trained on all rows and on the folds.

    Args:
        model: final model, trained on all training rows.
        first: model trained on the first fold.
        scores: (N, C) out-of-fold logits of the held-out rows.
    """

    model: LinearModel
    first: LinearModel
    scores: np.ndarray


def fit_view(
    name: str,
    rows: LabelledRows,
    labelled: Texts,
    learnt: Texts,
    unlabelled: Texts,
    folder: Path,
    *,
    first: Path | None = None,
    seconds: float = math.inf,
) -> np.ndarray:
    """Fit a linear model on a view, save it in ``folder``, and return its held-out logits (N, C).

    Args:
        name: name of the view.
        rows: labelled rows with their folds.
        labelled: texts of all rows.
        learnt: texts of the rows that the final model is trained on.
        unlabelled: other texts, without labels.
        first: folder for the model trained on the first fold only, two levels below the parent of
            ``folder``.
        seconds: see ``fit_on_folds``.

    Raises:
        OutOfTime: the time limit has passed.
    """
    began = time.monotonic()
    view = VIEWS[name].fit(learnt, unlabelled)
    check_time()
    found = fit_on_folds(
        view.features(labelled),
        rows,
        naive_bayes=name == "nb",
        elsewhere=view.elsewhere,
        seconds=seconds - (time.monotonic() - began),
    )
    LinearView(view, found.model, labelled.kind).save(folder)
    if first is not None:
        LinearView(view, found.first, labelled.kind).save(first, beside=True)
    return found.scores


def fit_probe(
    encoder: Path,
    rows: LabelledRows,
    folder: Path,
    *,
    first: Path | None = None,
    device: str = "auto",
    keep: Path | None = None,
) -> np.ndarray:
    """Fit a linear model on a network's vectors, save it, and return its held-out logits (N, C).

    Args:
        encoder: folder of the network, inside ``folder``.
        rows: labelled rows with their folds.
        folder: folder to write.
        first: see ``fit_view``.
        device: device of the network.
        keep: file to write the vectors of all rows to.
    """
    embedder, vectors, found, mean, scale = _probe(encoder, rows, math.inf, device)
    FrozenProbe(embedder, mean, scale, found.model).save(folder)
    if keep is not None:
        with atomic_path(keep) as path, path.open("wb") as file:
            np.save(file, vectors.astype(np.float16))
    if first is not None:
        FrozenProbe(embedder, mean, scale, found.first).save(first, beside=True)
    return found.scores


def probe_scores(encoder: Path, rows: LabelledRows, *, seconds: float = math.inf) -> np.ndarray:
    """The held-out logits (N, C) of a linear model on the vectors of a network.

    Args:
        encoder: folder of the network.
        rows: labelled rows with their folds.
        seconds: see ``fit_on_folds``.

    Raises:
        OutOfTime: the time limit has passed.
    """
    return _probe(encoder, rows, seconds)[2].scores


def _probe(
    encoder: Path, rows: LabelledRows, seconds: float, device: str = "auto"
) -> tuple[Embedder, np.ndarray, FittedOnFolds, np.ndarray, np.ndarray]:
    embedder, began = Embedder(encoder, device=device), time.monotonic()
    vectors = embed_rows(embedder, rows.texts())
    features, mean, scale = standardised(vectors, rows)
    check_time()
    found = fit_on_folds(features, rows, seconds=seconds - (time.monotonic() - began))
    return embedder, vectors, found, mean, scale


def standardised(
    vectors: np.ndarray, rows: LabelledRows
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Standardise vectors (N, F) by the training rows; return them with mean and scale (F)."""
    mean, scale = centre_and_scale(vectors[rows.learnt])
    features = ((vectors - mean) / scale).astype(np.float32)
    return features, mean, scale.astype(np.float32)


def fit_on_folds(
    features: Any,
    rows: LabelledRows,
    *,
    naive_bayes: bool = False,
    elsewhere: np.ndarray | None = None,
    seconds: float = math.inf,
) -> FittedOnFolds:
    """Fit linear models on features (all rows, F).

    Loss function and penalty strength are selected by log loss on the held-out rows, at the best
    temperature, among the settings that fit in the time.

    Args:
        features: matrix (all rows, F), dense or sparse.
        rows: labelled rows with their folds.
        naive_bayes: whether to weight the features by naive Bayes log-count ratios.
        elsewhere: (F) number of unlabelled texts with each feature: on a fold, features that are
            rare without its held-out rows are dropped, as those of new texts are. Otherwise the
            models would be overconfident on new texts.
        seconds: time for trying several settings, after which a dense regression stops; the first
            setting is always fitted completely, unless there is a time limit.

    Raises:
        OutOfTime: the time limit has passed.
    """
    held, began = rows.targets[rows.held_out], time.monotonic()
    seconds = min(seconds, seconds_left())
    each = seconds / (len(rows.folds) + 1)
    choices = [{"strength": strength, "naive_bayes": naive_bayes} for strength in STRENGTHS]
    if not naive_bayes and not isinstance(features, np.ndarray) and _hinge_helps(rows):
        strengths = HINGE_STRENGTHS[rows.targets.task]
        choices[1:1] = [{"strength": strength, "hinge": True} for strength in strengths]
    best: tuple[float, dict[str, Any], _Calibration, FittedOnFolds] | None = None
    parts = [_parts(features, fold, elsewhere if rows.refit else None) for fold in rows.folds]
    for number, chosen in enumerate(choices):
        # Time for these settings plus the final model.
        if number and (time.monotonic() - began) * (number + 2) / number > seconds:
            break
        models = [
            fit_linear(known, rows.targets[learn], **chosen, seconds=each)
            for (known, _), (learn, _) in zip(parts, rows.folds, strict=True)
        ]
        scores = _held_out_scores(models, parts)
        found, calibration = _best_loss(scores, held)
        if best is None or found < best[0]:
            if chosen.get("hinge"):  # margins are uncalibrated
                models = [model.scaled(*calibration) for model in models]
                scores = _held_out_scores(models, parts)
            best = found, chosen, calibration, FittedOnFolds(models[0], models[0], scores)
    assert best is not None
    _, chosen, calibration, fitted = best
    if not rows.refit:
        return fitted
    del parts
    model = fit_linear(features[rows.learnt], rows.targets[rows.learnt], **chosen, seconds=each)
    return fitted._replace(model=model.scaled(*calibration) if chosen.get("hinge") else model)


def _hinge_helps(rows: LabelledRows) -> bool:
    """Whether the task is multi-label, or single-label with imbalanced labels."""
    if rows.targets.task == "multilabel":
        return True
    counts = _counts(rows)
    return counts is not None and counts.max() > _UNEQUAL * counts.min()


def _parts(
    features: Any, fold: tuple[np.ndarray, np.ndarray], elsewhere: np.ndarray | None
) -> tuple[Any, Any]:
    """The features of a fold's training rows and of its held-out rows; see ``fit_on_folds``."""
    learn, held = (features[rows] for rows in fold)
    if elsewhere is not None and learn.shape[0] >= FEWEST_TEXTS:
        rare = elsewhere + texts_with(learn) < FEWEST_TEXTS
        for part in (learn, held):
            part.data[rare[part.indices]] = 0
            unit_rows(part)
    return learn, held


def _held_out_scores(models: Sequence[LinearModel], parts: Sequence[tuple[Any, Any]]) -> np.ndarray:
    """Logits (N, C) of the held-out rows, each from the model of its fold."""
    return np.concatenate([m.scores(held) for m, (_, held) in zip(models, parts, strict=True)])


def _counts(rows: LabelledRows) -> np.ndarray | None:
    """Label counts (C) of the training rows; None for other tasks and for balanced labels."""
    if rows.targets.task != "classify":
        return None
    counts = np.bincount(rows.targets.values[rows.learnt], minlength=rows.targets.size)
    return None if counts.max() == counts.min() else counts


def _best_loss(scores: np.ndarray, targets: Targets) -> tuple[float, _Calibration]:
    """The minimum loss over a factor and offsets for the logits, and this calibration."""
    weights, offsets = fit_blend([scores], targets)
    return loss(targets, scores * weights[0] + offsets), (float(weights[0]), offsets)


class Comparison:
    """Candidates compared on the held-out rows, and their blend.

    Args:
        rows: the labelled rows.
        candidates: compared models; at least one has ``scores``.
        metric: selection metric; by default the task's main metric.

    Attributes:
        weights: blend weights of the candidates with ``scores``.
        offsets: (C) offsets added to the blend's logits; zeros if the metric favours frequent
            labels.
        blended: (N, C) logits of the blend; the weights and offsets for each row are fitted on
            other rows, so that metrics of the blend are unbiased.
    """

    def __init__(
        self, rows: LabelledRows, candidates: Sequence[ComparedModel], metric: str | None = None
    ) -> None:
        self.rows, self.candidates = rows, candidates
        self.metric = metric or rows.task.metrics[0]
        self.lower = self.metric in LOWER
        self.measured = [c for c in candidates if c.scores is not None]
        scores = [c.scores for c in candidates if c.scores is not None]
        self.targets = rows.targets[rows.held_out]
        self.counts = _counts(rows) if self.metric in BALANCED else None
        self._adjusted: dict[str, np.ndarray] = {}
        # Thresholds by the array's id; arrays are kept alive, so that ids stay unique.
        self._thresholds: dict[int, tuple[np.ndarray, float]] = {}
        self.weights, self.offsets = fit_blend(scores, self.targets, self.counts)
        self.blended = cross_fitted(scores, self.targets, self.counts)

    @property
    def members(self) -> list[tuple[ComparedModel, float]]:
        """The candidates in the blend and their weights.

        A candidate that was scored on the first fold only was trained on the blend's probabilities,
        so its logits have the blend's scale, and the two are averaged by its share.
        """
        others = [c for c in self.candidates if c.scores is None]
        rest = 1.0 - sum(c.share for c in others)
        weights = [rest * float(w) for w in self.weights] + [c.share for c in others]
        return [m for m in zip([*self.measured, *others], weights, strict=True) if m[1] > 0]

    @cached_property
    def alone(self) -> ComparedModel | None:
        """The candidate that is used instead of the blend, or None if the blend is better.

        The best of several candidates is partly lucky, so a candidate has to beat the blend by more
        than chance. The distilled network is a single candidate and need not.
        """
        best = max(self.measured, key=self.worth)
        if len(self.members) == 1:
            return best
        blended, chance = self.worth(None), 0.0 if self.lower else self.chance
        if self.worth(best) == blended or self.worth(best) > blended + chance:
            return best
        student = next((c for c in self.measured if c.name == "student"), None)
        return None if student is None or self.worth(student) < blended else student

    @property
    def chance(self) -> float:
        """Upper bound of the standard error of a proportion of the held-out rows."""
        return 0.5 / math.sqrt(len(self.rows.held_out))

    @property
    def used(self) -> tuple[list[tuple[ComparedModel, float]], np.ndarray, np.ndarray]:
        """The selected model: members with their weights, the offsets (C), and the held-out logits
        (N, C)."""
        best = self.alone
        if best is None:
            return self.members, self.offsets, self.blended
        weight, offsets = self.by_itself(best)
        return [(best, weight)], offsets, self.adjusted(best)

    def share_of(self, scores: np.ndarray) -> float:
        """The blend weight for a model that was distilled from the other candidates.

        Args:
            scores: (n, C) logits of the first fold's held-out rows, whose labels neither the model
                nor its teachers have seen.
        """
        member_scores = [c.scores[: len(scores)] for c in self.candidates if c.scores is not None]
        both = [blend(member_scores, self.weights), scores]
        weights, _ = fit_blend(both, self.targets[: len(scores)], self.counts)
        return float(weights[1] / weights.sum())

    def adjusted(self, model: ComparedModel) -> np.ndarray:
        """The calibrated logits of a single candidate, (N, C) or (n, C) for the first fold; each
        row's factor and offsets are fitted on other rows."""
        scores = _known_logits(model)
        if model.name not in self._adjusted:
            targets = self.targets[: len(scores)]
            self._adjusted[model.name] = cross_fitted([scores], targets, self.counts)
        return self._adjusted[model.name]

    def by_itself(self, model: ComparedModel) -> tuple[float, np.ndarray]:
        """The factor and the offsets (C) for the logits of a candidate that is used alone."""
        scores = _known_logits(model)
        weights, offsets = fit_blend([scores], self.targets[: len(scores)], self.counts)
        return max(float(weights[0]), _LEAST_WEIGHT), offsets

    def worth(self, model: ComparedModel | None) -> float:
        """The metric of a candidate, or of the blend (None), negated where lower is better."""
        value = self.value(self.blended if model is None else self.adjusted(model))
        return -value if self.lower else value

    def worth_on_first_fold(self, model: ComparedModel) -> float:
        """Like ``worth``, on the first fold's held-out rows, for which all models have logits."""
        first = len(self.rows.folds[0][1])
        value = self.value(self.adjusted(model)[:first])
        return -value if self.lower else value

    def loss_of(self, model: ComparedModel) -> float:
        """The loss on the held-out rows of the first fold."""
        targets = self.targets[: len(self.rows.folds[0][1])]
        return loss(targets, self.adjusted(model)[: len(targets)])

    def metrics(self, scores: np.ndarray, chosen: np.ndarray | None = None) -> Scores:
        """The metrics of logits (N, C), or (n, C) for the first fold.

        Args:
            chosen: indices of held-out rows; by default all.
        """
        held = self.rows.held_out[: len(scores)]
        self.tune(scores)
        if chosen is not None:
            scores, held = scores[chosen], held[chosen]
        return self._score_decisions(
            scores, [self.rows.rows[i] for i in held], self.rows.targets[held]
        )

    def value(self, scores: np.ndarray, chosen: np.ndarray | None = None) -> float:
        """The selection metric of logits; see ``metrics`` for the arguments."""
        return self.metrics(scores, chosen).values[self.metric]

    def tune(self, scores: np.ndarray) -> None:
        """Set the task's threshold to the one with the best metric for the logits."""
        task = self.rows.task
        if not isinstance(task, MultiLabelTask):
            return
        if id(scores) not in self._thresholds:
            held = [self.rows.rows[i] for i in self.rows.held_out[: len(scores)]]
            task.tune(list(from_scores(task.name, scores)), EncodedRows([]), held)
            self._thresholds[id(scores)] = scores, task.threshold
        task.threshold = self._thresholds[id(scores)][1]

    def value_of(self, rows: Sequence[Row], scores: np.ndarray, like: np.ndarray) -> float:
        """The metric of other rows' logits (rows, C).

        Args:
            like: the same model's logits of the held-out rows.
        """
        self.tune(like)
        targets = targets_of(self.rows.task, rows)
        return self._score_decisions(scores, rows, targets).values[self.metric]

    def _score_decisions(self, scores: np.ndarray, rows: Sequence[Row], targets: Targets) -> Scores:
        task = self.rows.task
        raws = from_scores(task.name, scores)
        found = task.score(
            rows, [task.decide(r, row, None) for r, row in zip(raws, rows, strict=True)]
        )
        if task.name == "regress":
            return found
        return replace(found, values={**found.values, LOG_LOSS: loss(targets, scores)})


def _known_logits(model: ComparedModel) -> np.ndarray:
    """The known logits: (N, C), or (n, C) for the first fold."""
    scores = model.partial if model.scores is None else model.scores
    assert scores is not None
    return scores


def check_metric(metric: str, task: Task) -> None:
    """Raise ``InputError`` unless the metric is available for the task."""
    known = (*task.metrics, *(() if task.name == "regress" else ("weighted_f1", LOG_LOSS)))
    if metric not in known:
        raise InputError(f"metric is {metric!r}; {task.name} has {', '.join(known)}")


def best_network(compared: Comparison) -> ComparedModel | None:
    """The network with the best score that Transformers can load; None if there is none.

    The distilled network was trained on more texts, and a few held-out rows are weak evidence, so
    another network has to be better by log loss as well.
    """
    # Transformers does not support n-gram embeddings.
    networks = [c for c in compared.candidates if c.kind == "network" and c.name != "ngrams"]
    worth = compared.worth
    if any(c.scores is None for c in networks):
        worth = compared.worth_on_first_fold
    best = max(networks, key=lambda c: (worth(c), -compared.loss_of(c)), default=None)
    taught = next((c for c in networks if c.name == "student"), None)
    if best is None or taught is None or worth(best) == worth(taught):
        return taught or best
    return best if compared.loss_of(best) < compared.loss_of(taught) else taught
