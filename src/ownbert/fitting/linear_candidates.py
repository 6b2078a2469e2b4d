"""The linear candidates of ``fit``, and their self-training.

N: held-out rows, U: unlabelled texts, F: features, C: labels or regression values.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ownbert.corpus.sparse import sparse
from ownbert.files.writing import atomic_path
from ownbert.fitting.rows.labelled_rows import LabelledRows
from ownbert.inference.embedder import Embedder
from ownbert.inference.opened_blend import FrozenProbe, embed_rows
from ownbert.time_limit import check_time, clock_seconds, seconds_left
from ownbert.views.blending import blend, fit_blend, loss
from ownbert.views.linear_models import (
    HINGE_STRENGTHS,
    STRENGTHS,
    LinearModel,
    LinearView,
    Targets,
    centre_and_scale,
    fit_linear,
    log_softmax,
)
from ownbert.views.view_features import FEWEST_TEXTS, VIEWS, Texts, texts_with, unit_rows

# Naive Bayes weights help with few labels; with many they took minutes and were no better.
_MOST_NB_LABELS = 4
# Squared hinge loss is tried only where one label is this many times as frequent as another: with
# balanced labels, logistic regressions were as good.
_UNEQUAL = 2.0
# N-grams take too long above this number of characters in all labelled texts.
_MOST_CHARACTERS = 20_000_000
# Work file: the frozen network's vectors of all rows.
PROBE_VECTORS = "probe-vectors.npy"
# A factor for the logits, and offsets (C) added to them.
_Calibration = tuple[float, np.ndarray]


def view_helps(name: str, rows: LabelledRows, kind: str) -> bool:
    """Whether a view suits the rows, for a kind of text (see ``ownbert.views.tokens.KINDS``)."""
    # Word trigrams gain a point of micro-F1 with several labels per row, and lose up to one point
    # of macro-F1 with a single label (docs/lab/fit.md).
    if name in ("tfidf", "trigrams"):
        return (name == "trigrams") == (rows.targets.task == "multilabel")
    if name == "characters":
        characters = sum(len(text) for row in rows.rows for text in row.texts)
        return kind != "ids" and characters <= _MOST_CHARACTERS
    if name == "nb":
        return rows.targets.task != "regress" and rows.targets.size <= _MOST_NB_LABELS
    return True


class FittedOnFolds(NamedTuple):
    """Linear models of one kind, trained on all rows and on the folds: the final model, that of the
    first fold, the out-of-fold logits (N, C) of the held-out rows, and (N) whether the model that
    scores a row knows no feature of it."""

    model: LinearModel
    first: LinearModel
    scores: np.ndarray
    unknown: np.ndarray


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
) -> tuple[np.ndarray, np.ndarray]:
    """Fit a linear model on the view ``name`` and save it in ``folder``, and that of the first fold
    in ``first``, two levels below the parent of ``folder``.

    ``labelled``: texts of all rows; ``learnt``: those that the final model is trained on;
    ``unlabelled``: other texts; ``seconds``: see ``fit_on_folds``.

    Returns:
        The ``scores`` and ``unknown`` of ``FittedOnFolds``.

    Raises:
        OutOfTime: the time limit has passed.
    """
    start = clock_seconds()
    view = VIEWS[name].fit(learnt, unlabelled)
    check_time()
    fitted = fit_on_folds(
        view.features(labelled),
        rows,
        naive_bayes=name == "nb",
        elsewhere=view.elsewhere,
        seconds=seconds - (clock_seconds() - start),
    )
    LinearView(view, fitted.model, labelled.kind).save(folder)
    if first is not None:
        LinearView(view, fitted.first, labelled.kind).save(first, beside=True)
    return fitted.scores, fitted.unknown


def fit_probe(
    encoder: Path,
    rows: LabelledRows,
    folder: Path,
    *,
    first: Path | None = None,
    device: str = "auto",
    keep: Path | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Fit a linear model on the vectors of the network in ``encoder``, a folder inside ``folder``,
    and save it like ``fit_view``, which returns the same. The vectors of all rows are written to
    ``keep``."""
    embedder = Embedder(encoder, device=device)
    vectors = embed_rows(embedder, rows.texts())
    features, mean, scale = standardised(vectors, rows)
    check_time()
    fitted = fit_on_folds(features, rows)
    FrozenProbe(embedder, mean, scale, fitted.model).save(folder)
    if keep is not None:
        with atomic_path(keep) as path, path.open("wb") as file:
            np.save(file, vectors.astype(np.float16))
    if first is not None:
        FrozenProbe(embedder, mean, scale, fitted.first).save(first, beside=True)
    return fitted.scores, np.zeros(len(fitted.scores), dtype=bool)


def probe_scores(encoder: Path, rows: LabelledRows, *, seconds: float) -> np.ndarray:
    """The held-out logits (N, C) of a linear model on the vectors of a network.

    Raises:
        OutOfTime: the time limit has passed.
    """
    embedder, start = Embedder(encoder), clock_seconds()
    features, _, _ = standardised(embed_rows(embedder, rows.texts()), rows)
    check_time()
    return fit_on_folds(features, rows, seconds=seconds - (clock_seconds() - start)).scores


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
    """Fit linear models on features (all rows, F), dense or sparse.

    Loss function and penalty strength are selected by log loss on the held-out rows, at the best
    temperature, among the settings that fit in the time.

    Args:
        naive_bayes: whether to weight the features by naive Bayes log-count ratios.
        elsewhere: (F) number of unlabelled texts with each feature: on a fold, features that are
            rare without its held-out rows are dropped, as those of new texts are. Otherwise the
            models would be overconfident on new texts.
        seconds: time for trying several settings, after which a dense regression stops; the first
            setting is always fitted completely, unless there is a time limit.

    Raises:
        OutOfTime: the time limit has passed.
    """
    targets, start = rows.targets[rows.held_out], clock_seconds()
    seconds = min(seconds, seconds_left())
    limit = seconds / (len(rows.folds) + 1)
    choices = [{"strength": strength, "naive_bayes": naive_bayes} for strength in STRENGTHS]
    if not naive_bayes and not isinstance(features, np.ndarray) and _hinge_helps(rows):
        strengths = HINGE_STRENGTHS[rows.targets.task]
        choices[1:1] = [{"strength": strength, "hinge": True} for strength in strengths]
    best: tuple[float, dict[str, Any], _Calibration, FittedOnFolds] | None = None
    parts = [_parts(features, fold, elsewhere if rows.refit else None) for fold in rows.folds]
    for number, chosen in enumerate(choices):
        # Time for these settings plus the final model.
        if number and (clock_seconds() - start) * (number + 2) / number > seconds:
            break
        models = [
            fit_linear(learnt, rows.targets[learn], **chosen, seconds=limit)
            for (learnt, _), (learn, _) in zip(parts, rows.folds, strict=True)
        ]
        scores, unknown = _held_out_scores(models, parts)
        weights, offsets = fit_blend([scores], targets)
        loss_value = loss(targets, scores * weights[0] + offsets)
        calibration = float(weights[0]), offsets
        if best is None or loss_value < best[0]:
            if chosen.get("hinge"):  # margins are uncalibrated
                models = [model.scaled(*calibration) for model in models]
                scores, unknown = _held_out_scores(models, parts)
            fitted = FittedOnFolds(models[0], models[0], scores, unknown)
            best = loss_value, chosen, calibration, fitted
    assert best is not None
    _, chosen, calibration, fitted = best
    if not rows.refit:
        return fitted
    del parts
    model = fit_linear(features[rows.learnt], rows.targets[rows.learnt], **chosen, seconds=limit)
    return fitted._replace(model=model.scaled(*calibration) if chosen.get("hinge") else model)


def _hinge_helps(rows: LabelledRows) -> bool:
    """Whether the task is multi-label, or single-label with imbalanced labels."""
    counts = rows.label_counts
    return rows.targets.task == "multilabel" or (
        counts is not None and counts.max() > _UNEQUAL * counts.min()
    )


def _parts(
    features: Any, fold: tuple[np.ndarray, np.ndarray], elsewhere: np.ndarray | None
) -> tuple[Any, Any]:
    """The features of a fold's training rows and of its held-out rows; see ``fit_on_folds``."""
    learn, held_out = (features[rows] for rows in fold)
    if elsewhere is not None and learn.shape[0] >= FEWEST_TEXTS:
        rare = elsewhere + texts_with(learn) < FEWEST_TEXTS
        for part in (learn, held_out):
            part.data[rare[part.indices]] = 0
            unit_rows(part)
    return learn, held_out


def _held_out_scores(
    models: Sequence[LinearModel], parts: Sequence[tuple[Any, Any]]
) -> tuple[np.ndarray, np.ndarray]:
    """The ``scores`` and ``unknown`` of ``FittedOnFolds``."""
    scores = [model.scores(held_out) for model, (_, held_out) in zip(models, parts, strict=True)]
    unknown = [model.knows_nothing(logits) for model, logits in zip(models, scores, strict=True)]
    return np.concatenate(scores), np.concatenate(unknown)


# Share of the unlabelled texts that get a label in each round.
_SHARES = (0.3, 0.5)
_STRENGTH = 10.0
_MOST_TEXTS = 20_000


class _Features(NamedTuple):
    """A view's features of all labelled rows (rows, F) and of unlabelled texts (U, F)."""

    labelled: Any
    unlabelled: Any
    naive_bayes: bool

    def fit(
        self, learn: np.ndarray, chosen: np.ndarray, targets: Targets, seconds: float
    ) -> LinearModel:
        """Fit a model to labelled rows and chosen unlabelled texts, with the targets of both."""
        check_time()
        rows = self.labelled[learn]
        if len(chosen):
            parts = [rows, self.unlabelled[chosen]]
            rows = np.concatenate(parts) if isinstance(rows, np.ndarray) else sparse.vstack(parts)
        return fit_linear(rows, targets, _STRENGTH, naive_bayes=self.naive_bayes, seconds=seconds)


def self_train(
    names: Sequence[str],
    weights: np.ndarray,
    rows: LabelledRows,
    labelled: Texts,
    unlabelled: Texts,
    folder: Path,
    *,
    first: Path | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Self-train linear models ``names``, which have these weights in the blend, and save them in
    ``folder``, beside the folders of the models, and those of the first fold in ``first``.

    Returns:
        The mean scores (N, C) of the held-out rows, and whether no model knows a feature of a row
            (N). Rows are scored only by models that were trained, and whose unlabelled texts were
            labelled, without these rows.

    Raises:
        OutOfTime: the time limit has passed.
    """
    texts = Texts(unlabelled.rows[:_MOST_TEXTS], unlabelled.kind)
    views = [LinearView.load(folder.parent / name) for name in names]
    features = [
        _Features(v.view.features(labelled), v.view.features(texts), v.view.name == "nb")
        for v in views
    ]
    splits = len(rows.folds) + rows.refit
    # Time limit of each dense regression.
    seconds = seconds_left() / (splits * len(names) * (1 + len(_SHARES)))

    scores, unknown = [], []
    of_folds: list[list[LinearModel]] = []
    for learn, held_out in rows.folds:
        of_folds.append(_rounds(features, weights, rows.targets[learn], learn, seconds))
        of_fold = zip(of_folds[-1], features, strict=True)
        fold_scores = [m.scores(f.labelled[held_out]) for m, f in of_fold]
        scores.append(np.mean(fold_scores, axis=0))
        models = zip(of_folds[-1], fold_scores, strict=True)
        unknown.append(np.all([model.knows_nothing(logits) for model, logits in models], axis=0))
    fitted = of_folds[0]
    if rows.refit:
        fitted = _rounds(features, weights, rows.targets[rows.learnt], rows.learnt, seconds)
    for parent, models in ((folder, fitted), (first, of_folds[0])):
        if parent is not None:
            for name, view, model in zip(names, views, models, strict=True):
                LinearView(view.view, model, view.kind).save(parent / name, beside=True)
    return np.concatenate(scores), np.concatenate(unknown)


def _rounds(
    features: Sequence[_Features],
    weights: np.ndarray,
    targets: Targets,
    learn: np.ndarray,
    seconds: float,
) -> list[LinearModel]:
    """Fit models in rounds to labelled rows with their targets, and to unlabelled texts."""
    no_texts = np.zeros(0, dtype=np.int64)
    models = [f.fit(learn, no_texts, targets, seconds) for f in features]
    first = blend([m.scores(f.unlabelled) for m, f in zip(models, features, strict=True)], weights)
    teacher = first
    for share in _SHARES:
        chosen, labels = _surest(teacher, targets, share)
        all_targets = Targets(targets.task, np.concatenate([targets.values, labels]), targets.size)
        models = [f.fit(learn, chosen, all_targets, seconds) for f in features]
        scores = [m.scores(f.unlabelled) for m, f in zip(models, features, strict=True)]
        teacher = first + blend(scores, weights)
    return models


def _surest(teacher: np.ndarray, targets: Targets, share: float) -> tuple[np.ndarray, np.ndarray]:
    """The texts with the most confident scores (U, C), and their labels. The labels have the same
    proportions as in the labelled rows."""
    logs = log_softmax(teacher)
    labels, sure = logs.argmax(1), logs.max(1)
    priors = np.bincount(targets.values, minlength=targets.size) / len(targets)
    chosen = []
    for label, prior in enumerate(priors):
        with_label = np.flatnonzero(labels == label)
        with_label = with_label[np.argsort(-sure[with_label], kind="stable")]
        chosen.append(with_label[: int(np.ceil(share * prior * len(teacher)))])
    indices = np.concatenate(chosen)
    return indices, labels[indices]
