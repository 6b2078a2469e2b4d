"""Self-training of linear models (Yarowsky 1995).

The unlabelled texts with the most confident predictions of the models' blend get the predicted
label, in the label proportions of the labelled texts, and are added to the training rows. A second
round adds more texts. N held-out rows, U unlabelled texts, F features, C labels.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ownbert.corpus.sparse import sparse
from ownbert.fitting.rows.labelled_rows import LabelledRows
from ownbert.time_limit import check_time, seconds_left
from ownbert.views.blending import blend
from ownbert.views.linear_models import LinearModel, Targets, fit_linear, log_softmax
from ownbert.views.linear_view import LinearView
from ownbert.views.view_features import Texts

# Share of the unlabelled texts that get a label in each round.
_SHARES = (0.3, 0.5)
_STRENGTH = 10.0
_MOST_TEXTS = 20_000


@dataclass(frozen=True)
class _Features:
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
    members: Path,
    folder: Path,
    *,
    first: Path | None = None,
) -> tuple[list[Path], np.ndarray, np.ndarray]:
    """Self-train linear models and save them in ``folder``.

    Args:
        names: names of the models.
        weights: their weights in the blend.
        rows: labelled rows with one label each.
        labelled: texts of all rows.
        unlabelled: unlabelled texts.
        members: folder of the models.
        folder: folder for the new models.
        first: folder for the models of the first fold, if they are wanted separately.

    Returns:
        The folders of the models; their mean scores (N, C) of the held-out rows; and whether no
        model knows a feature of a row (N). Rows are scored only by models that were trained, and
        whose unlabelled texts were labelled, without these rows.

    Raises:
        OutOfTime: the time limit has passed.
    """
    texts = Texts(unlabelled.rows[:_MOST_TEXTS], unlabelled.kind)
    views = [LinearView.load(members / name) for name in names]
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
        unknown.append(np.all([model.knows_nothing(each) for model, each in models], axis=0))
    fitted = of_folds[0]
    if rows.refit:
        fitted = _rounds(features, weights, rows.targets[rows.learnt], rows.learnt, seconds)
    folders = [folder / name for name in names]
    for path, view, model in zip(folders, views, fitted, strict=True):
        LinearView(view.view, model, view.kind).save(path, beside=True)
    if first is not None:
        for name, view, model in zip(names, views, of_folds[0], strict=True):
            LinearView(view.view, model, view.kind).save(first / name, beside=True)
    return folders, np.concatenate(scores), np.concatenate(unknown)


def _rounds(
    features: Sequence[_Features],
    weights: np.ndarray,
    targets: Targets,
    learn: np.ndarray,
    seconds: float,
) -> list[LinearModel]:
    """Fit models in rounds to labelled rows with the given targets, and to unlabelled texts."""
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
