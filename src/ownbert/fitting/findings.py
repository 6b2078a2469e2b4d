"""What ``fit`` found, as the data of its report. N held-out rows, C labels."""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ownbert.errors import InputError
from ownbert.fitting.candidates import ComparedModel, Comparison
from ownbert.fitting.labelled_rows import LabelledRows
from ownbert.fitting.report.advice import give_advice
from ownbert.fitting.report.calibration import calibrate
from ownbert.fitting.report.contents import LeaderboardRow, Report, bootstrap_margin
from ownbert.fitting.report.drift import compare_texts
from ownbert.fitting.report.label_errors import find_label_errors
from ownbert.fitting.report.learning_curve import LearningCurve, fit_learning_curve
from ownbert.fitting.report.typical import hardest_rows, largest_errors, typical_rows
from ownbert.inference.blend_predictor import BlendPredictor, MemberScorer, score_all
from ownbert.tasks.rows import Row
from ownbert.views.blending import blend as add_up
from ownbert.views.blending import from_scores
from ownbert.views.features import VIEWS, Texts
from ownbert.views.linear import fit_linear

BLEND_TITLE = "blend of all"
_SAMPLES = 200  # of the bootstrap
# Texts that are timed at most, and so many first: if these take long, they are enough.
TIMED, _TIMED_FIRST, _LONG = 64, 8, 0.5
_DRAWS = (3, 3, 3, 1)  # of each share
_SHARES = (1 / 8, 1 / 4, 1 / 2, 1.0)
# Learning curves are of this view, which is fitted in seconds.
_CURVE_VIEW, _CURVE_STRENGTH = "tfidf", 10.0
# Models that have learnt from others, by name: kinds of their own in the leaderboard.
_KINDS = {"student": "distilled", "self-trained": "self-trained"}


def make_report(
    compared: Comparison,
    labelled: Texts,
    unlabelled: Texts,
    test: Sequence[Row],
    *,
    blend: BlendPredictor,
    points: Sequence[tuple[float, float]],
    settings: Mapping[str, Any],
    data: Mapping[str, Any],
) -> Report:
    """The report on everything that was compared.

    Args:
        compared: the candidates with their scores.
        labelled, unlabelled: the texts.
        test: rows that chose nothing; may be empty.
        blend: the blend, to be timed.
        points: minutes of pretraining, and scores of a linear model on the network then.
        settings, data: facts to be shown.
    """
    rows, task = compared.rows, compared.rows.task
    held, targets = rows.held_out, rows.targets[rows.held_out]
    texts = [" / ".join(rows.rows[i].texts) for i in held]
    scores = compared.metrics(compared.blended)
    board: list[LeaderboardRow] = []
    tested: dict[str, np.ndarray] = {}  # of each candidate the scores of the test rows
    for model in compared.candidates:
        scorer = MemberScorer(blend.folder, model.kind, model.folders, "auto", blend.precision)
        if test:
            tested[model.name] = score_all(scorer, test)
        board.append(_row(compared, model, blend, scorer, test, tested.get(model.name)))
    best = compared.blended
    value, spread = compared.value(best), _spread(compared, best)
    board.append(
        LeaderboardRow(
            BLEND_TITLE,
            "blend",
            value,
            spread,
            seconds=sum(c.seconds for c in compared.candidates),
            size=sum(row.size or 0 for row in board),
            texts_per_second=_speed(blend.scores, rows),
            test_score=_blended_test_score(compared, blend, test, tested) if test else None,
        )
    )
    report = Report(
        task=task.name,
        metric=compared.metric,
        leaderboard=tuple(board),
        best=BLEND_TITLE,
        held_out=len(held),
        scores=scores,
        labels=tuple(task.labels),
        texts=texts,
        places=[rows.rows[i].place("") for i in held],
        data=data,
        settings=settings,
    )
    report = replace(report, margin=_margin(compared), learning_curve=_curve(compared, labelled))
    if points:
        report = replace(report, minutes_curve=fit_learning_curve(points, unit="minutes"))
    if len(unlabelled):
        report = replace(report, drift=compare_texts(labelled.tokens, unlabelled.tokens))
    report = replace(report, **_of_rows(compared, targets.values))
    return replace(report, advice=give_advice(report))


def _of_rows(compared: Comparison, targets: np.ndarray) -> dict[str, Any]:
    """What is said of single rows, by task."""
    task, scores = compared.rows.task, compared.blended
    outputs = from_scores(task.name, scores)
    if task.name == "regress":
        if outputs.shape[1] > 1:
            return {}
        return {"hardest": tuple(largest_errors(outputs[:, 0], targets[:, 0]))}
    if task.name == "multilabel":
        return {}
    counts = Counter(compared.rows.rows[i].target for i in compared.rows.learnt)
    return {
        "train_counts": tuple(counts.get(label, 0) for label in task.labels),
        "calibration": calibrate(scores, targets),
        "label_errors": tuple(find_label_errors(outputs, targets)),
        "hardest": tuple(hardest_rows(outputs, targets)),
        "typical": tuple(typical_rows(outputs, targets)),
    }


def _blended_test_score(
    compared: Comparison,
    blend: BlendPredictor,
    test: Sequence[Row],
    tested: Mapping[str, np.ndarray],
) -> float:
    """From the scores of its members: to predict the test rows takes longest in a report."""
    members = blend.blend.members
    scores = add_up([tested[m.name] for m in members], np.asarray([m.weight for m in members]))
    return compared.value_of(test, scores + compared.offsets)


def _row(
    compared: Comparison,
    model: ComparedModel,
    blend: BlendPredictor,
    scorer: MemberScorer,
    test: Sequence[Row],
    tested: np.ndarray | None,
) -> LeaderboardRow:
    scores = None if model.scores is None else compared.adjusted(model)
    kind = _KINDS.get(model.name, model.kind)
    weights = {m.name: m.weight for m in blend.blend.members}
    test_score = None
    if tested is not None:
        test_score = compared.value_of(test, tested + compared.offsets_of(model))
    return LeaderboardRow(
        model.title,
        "network" if kind == "frozen" else kind,
        float("nan") if scores is None else compared.value(scores),
        None if scores is None else _spread(compared, scores),
        test_score=test_score,
        seconds=model.seconds,
        size=_size(blend.folder, model),
        texts_per_second=_speed(scorer, compared.rows),
        weight=weights.get(model.name, 0.0) / max(sum(weights.values()), 1e-12),
    )


def _size(folder: Path, candidate: ComparedModel) -> int:
    files = (f for own in candidate.folders for f in (folder / own).rglob("*") if f.is_file())
    return sum(f.stat().st_size for f in files)


def _speed(scorer: Callable[[Sequence[Row]], np.ndarray], rows: LabelledRows) -> float:
    """Texts per second in use."""
    sample = [rows.rows[i] for i in rows.held_out[:TIMED]]
    for some in (sample[:_TIMED_FIRST], sample):
        began = time.perf_counter()
        scorer(some)
        seconds = max(time.perf_counter() - began, 1e-6)
        if seconds > _LONG:
            break
    return len(some) / seconds


def _spread(compared: Comparison, scores: np.ndarray) -> float:
    """The standard deviation of the metric, by a bootstrap over rows."""
    rng = np.random.default_rng(0)
    rows = len(scores)
    draws = [compared.value(scores, rng.integers(0, rows, rows)) for _ in range(_SAMPLES // 4)]
    return float(np.std(draws, ddof=1))


def _margin(compared: Comparison) -> Any:
    """By how much the blend is better than the best linear model."""
    linear = [compared.adjusted(c) for c in compared.measured if c.name in VIEWS]
    if not linear:
        return None
    best = max(linear, key=compared.value)
    index = np.arange(len(best))

    def score(_: np.ndarray, chosen: np.ndarray) -> float:
        kind, rows = chosen[:, 0], chosen[:, 1]
        return compared.value(compared.blended if kind[0] else best, rows)

    ours = np.stack([np.ones_like(index), index], axis=1)
    theirs = np.stack([np.zeros_like(index), index], axis=1)
    return bootstrap_margin(score, index, ours, theirs, draws=_SAMPLES)


def _curve(compared: Comparison, labelled: Texts) -> LearningCurve | None:
    """The score of a linear model by the number of training rows."""
    rows = compared.rows
    learn, held = rows.folds[0]
    view = VIEWS[_CURVE_VIEW].fit(labelled, Texts([], labelled.kind))
    features = view.features(labelled)
    rng = np.random.default_rng(0)
    points = []
    for share, draws in zip(_SHARES, _DRAWS, strict=True):
        count = round(share * len(learn))
        if count < 8:
            continue
        found = []
        for _ in range(draws):
            own = rng.permutation(learn)[:count]
            if len({str(rows.rows[i].target) for i in own}) < 2:
                continue
            model = fit_linear(features[own], rows.targets[own], _CURVE_STRENGTH)
            found.append(compared.value_of_fold(model.scores(features[held])))
        if found:
            points.append((count, *found))
    try:
        return fit_learning_curve(points)
    except InputError:
        return None
