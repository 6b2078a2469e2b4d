"""What a ``fit`` folder has beside its models and the report: the network that Transformers loads,
held-out predictions for predictions with a reject option, and the model card.

C labels or values.
"""

import shutil
from pathlib import Path

import numpy as np
from scipy.special import logit

from ownbert.checkpoint import CONFIG, describe
from ownbert.fitting.comparison import Comparison, best_network, deciding
from ownbert.fitting.linear_candidates import PROBE_VECTORS
from ownbert.fitting.networks import calibrate_network, copy_network
from ownbert.fitting.report.conclusions import headline, other_metrics
from ownbert.fitting.report.contents import Report
from ownbert.fitting.report.sections import plain_value, sections
from ownbert.fitting.rows.labelled_rows import LabelledRows
from ownbert.inference.blend import OwnNetwork, blend_of
from ownbert.inference.calibrate import learn, sorted_errors
from ownbert.inference.engines import Compute
from ownbert.inference.open_folder import open_folder
from ownbert.inference.row_summary import write_training_rows
from ownbert.language import translated
from ownbert.run.file_names import HELD_OUT
from ownbert.run.model_card import MAX_ROWS, in_words, save_card, table
from ownbert.tasks.kinds import KINDS
from ownbert.tasks.task import KEY, Task, task_class
from ownbert.views.blending import fit_blend, from_scores
from ownbert.views.linear_models import STRENGTHS, fit_linear
from ownbert.views.tokens import text_kind
from ownbert.views.view_features import VIEWS, Texts


def save_network(compared: Comparison, folder: Path) -> OwnNetwork | None:
    """Save the best network in the folder of the run, calibrated; None if there is none."""
    best = best_network(compared)
    if best is None:
        return None
    copy_network(folder / best.folders[0], folder)
    judged, fitted = compared.adjusted(best), compared.by_itself(best)
    task, factor = deciding(judged.task, fitted.decision), float(fitted.weights[0])
    calibrate_network(folder, task, factor, fitted.offsets)
    rows = same = None
    if task.discrete:
        rows, own = len(judged), judged.predictions
        used = compared.used[2].predictions[:rows]
        same = sum(a == b for a, b in zip(used, own, strict=True))
    return OwnNetwork(best.name, rows, same, factor, tuple(map(float, fitted.offsets)))


def restore_network(folder: Path, task: Task, name: str) -> list[str]:
    """Copy the folder's network back to the folder of its candidate, without its calibration, so
    that a resumed run can compare and replace it. Returns the folder relative to that of the run;
    empty if the run has another network."""
    blend = blend_of(folder)
    if blend is None or blend.network is None or blend.network.name != name:
        return []
    network, path = blend.network, folder / "members" / name
    shutil.rmtree(path, ignore_errors=True)
    copy_network(folder, path)
    calibrate_network(path, task, 1 / network.factor, -np.asarray(network.offsets) / network.factor)
    return [f"members/{name}"]


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
    """Write training_rows.json and held_out.npz into a finished folder; for ``gains``, see
    ``gains_of_all_rows``. ``embed``: compute missing vectors, which takes time."""
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
    """The expected gain of final models over those of the folds, which have fewer training rows
    (see ``learn``); None if the final models are not trained on more rows, or if there are so many
    that the gain is small.

    Linear models are trained on the rows of each fold, and again without as many rows as the fold
    holds out. Errors are assumed to be linear in 1 / rows, on the scale of log-odds. ``decision``
    (C): how the selected model chooses labels; None: the most probable one.
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


def write_fit_card(folder: Path, report: Report) -> str | None:
    """Write README.md with the leaderboard, unless the user has written one; return a warning, if
    any."""
    task, network = task_class(report.task), (folder / CONFIG).exists()
    blend, decides = blend_of(folder), {}
    if network:
        decides = describe(folder).values.get(KEY, {})
    own = None if blend is None else blend.network
    board = next(section for section in sections(report) if section.key == "leaderboard")
    settings = {k: v for k, v in report.settings.items() if k not in report.data and v is not False}
    facts = [*in_words(map(_texts, report.data.items())), *map(_texts, settings.items())]
    others = [row[:2] for row in other_metrics(report)]
    values = {
        "task": task,
        "report": report,
        "headline": translated(headline(report)[0]),
        "lead": board.lead,
        "leaderboard": table(board.columns, board.rows, most=MAX_ROWS),
        "other_metrics": table(("metric", "value"), in_words(others)) if others else "",
        "facts": table(("", ""), facts),
        # Linear models alone take only seconds.
        "network": network,
        "ordinary": network and report.ordinary,
        "alone": blend is not None and blend.is_network,
        "agreed": (own.same, own.rows) if own is not None and own.rows else (),
        "threshold": decides.get("threshold"),
        "decision": decides.get("decision"),
    }
    # Without a network there is nothing for Transformers to load.
    library = task.library if network else "ownbert"
    front = {"library_name": library, "pipeline_tag": KINDS[task.name].pipeline}
    return save_card(folder, front, __file__, values)


def _texts(fact: tuple[str, object]) -> tuple[str, str]:
    """A setting as shown in the card; files by name only, because the card may be published."""
    name, value = fact
    values = value if isinstance(value, list | tuple) else [value]
    return name, ", ".join(Path(v).name if isinstance(v, str) else plain_value(v) for v in values)
