"""Saves held-out predictions in a ``fit`` folder, for predictions with a reject option."""

from pathlib import Path

import numpy as np
from scipy.special import logit

from ownbert.fitting.comparison import Comparison
from ownbert.fitting.linear_candidates import PROBE_VECTORS
from ownbert.fitting.rows.labelled_rows import LabelledRows
from ownbert.inference.abstaining.calibrate import learn, sorted_errors
from ownbert.inference.compute import Compute
from ownbert.inference.open_folder import open_folder
from ownbert.inference.row_summary import write_training_rows
from ownbert.run.file_names import HELD_OUT
from ownbert.views.blending import fit_blend, from_scores
from ownbert.views.linear_models import STRENGTHS, fit_linear
from ownbert.views.tokens import text_kind
from ownbert.views.view_features import VIEWS, Texts

# The gain of training on all rows is only estimated up to this number of rows, and from this many
# folds, because the run has to end in time.
_MOST_ROWS, _FOLDS = 5_000, 2


def keep_held_out(
    compared: Comparison,
    folder: Path,
    device: str,
    gains: np.ndarray | None,
    *,
    embed: bool = False,
) -> None:
    """Write training_rows.json and held_out.npz into a finished folder.

    Args:
        compared: the candidates with their logits.
        folder: folder of the models, with the probe's vectors if there are any.
        device: device of the models.
        gains: see ``gains_of_all_rows``.
        embed: compute missing vectors, which takes time.
    """
    rows = compared.rows
    write_training_rows(rows.task, rows.rows, folder, compared.used[2].predictions)
    held_out = rows.held_out
    others = np.setdiff1d(np.arange(len(rows.rows)), held_out)
    path = folder / "work" / PROBE_VECTORS
    vectors = np.load(path, allow_pickle=False) if path.exists() else None
    if vectors is not None and len(vectors) == len(rows.rows):
        vectors = vectors[np.concatenate([held_out, others])].astype(np.float32)
    else:
        vectors = embed
    learn(
        open_folder(folder, Compute(device)),
        [rows.rows[i] for i in held_out],
        compared.used[2].outputs,
        [rows.rows[i] for i in others],
        source=rows.source,
        vectors=vectors,
        gains=gains,
    ).save(folder / HELD_OUT)


def gains_of_all_rows(rows: LabelledRows, decision: np.ndarray | None = None) -> np.ndarray | None:
    """The expected gain of final models over those of the folds, which have fewer training rows.

    Linear models are trained on the rows of each fold, and again without as many rows as the fold
    holds out. Errors are assumed to be linear in 1 / rows, on the scale of log-odds.

    Args:
        rows: the labelled rows.
        decision: (C) by which the selected model chooses labels; None: the most probable one.

    Returns:
        See ``learn``; None if the final models are not trained on more rows, or if there are so
        many that the gain is small.
    """
    if rows.task.name != "classify" or not rows.refit or len(rows.rows) > _MOST_ROWS:
        return None
    kind, random = text_kind(row.texts[0] for row in rows.rows), np.random.default_rng(0)
    folds, sizes, scores = rows.folds[:_FOLDS], np.zeros(2), ([], [])
    order = random.permutation(len(rows.rows))  # of the clusters, as new rows are in new ones
    for learnt, held_out in folds:
        drawn = learnt[np.argsort(order[rows.clusters[learnt]], kind="stable")]
        fewer = drawn[: len(learnt) - len(held_out)]
        if len(fewer) < 2:
            return None
        for number, part in enumerate((learnt, fewer)):
            sizes[number] += len(part) / len(folds)
            known, new = (Texts(rows.texts(each), kind) for each in (part, held_out))
            view = VIEWS["tfidf"].fit(known, Texts([], kind))
            model = fit_linear(view.features(known), rows.targets[part], STRENGTHS[0])
            scores[number].append(model.scores(view.features(new)))
    targets = rows.targets[np.concatenate([held_out for _, held_out in folds])]
    own, less = (np.concatenate(each) for each in scores)
    weights, _ = fit_blend([own], targets)
    odds, odds_less = (
        logit(sorted_errors(from_scores("classify", each * weights[0]), targets.values, decision))
        for each in (own, less)
    )
    inverse, inverse_less = len(rows.rows) / sizes
    gains = (odds - odds_less) * (inverse - 1) / (inverse_less - inverse)
    places, new_positions = (np.linspace(0, 1, count) for count in (len(own), len(rows.held_out)))
    return np.stack([np.interp(new_positions, places, each) for each in gains])
