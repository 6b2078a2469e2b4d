"""Collects the data of the ``fit`` report. N: held-out rows, C: labels."""

import contextlib
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ownbert.checkpoint import describe
from ownbert.exceptions import InputError
from ownbert.files.writing import make_folder
from ownbert.fitting.comparison import (
    DISTILLED,
    SELF_TRAINED,
    ComparedModel,
    Comparison,
    Judged,
    best_network,
    deciding,
)
from ownbert.fitting.linear_candidates import probe_scores
from ownbert.fitting.networks import copy_network
from ownbert.fitting.progress import Attempts
from ownbert.fitting.report.conclusions import give_advice
from ownbert.fitting.report.contents import (
    LeaderboardRow,
    Report,
    bootstrap_margin,
    hardest_rows,
    largest_errors,
    typical_rows,
)
from ownbert.fitting.report.statistics import (
    LearningCurve,
    calibrate,
    compare_texts,
    fit_learning_curve,
)
from ownbert.fitting.rows.fit_input import FitInput
from ownbert.fitting.rows.labelled_rows import LabelledRows
from ownbert.inference.blend import BlendMember
from ownbert.inference.engines import Compute
from ownbert.inference.evaluate import metrics_by_chance
from ownbert.inference.opened_blend import Members, score_all
from ownbert.language.messages import Message
from ownbert.tables.tables import place_within
from ownbert.tasks.metrics import find_label_errors
from ownbert.tasks.multilabel import MultiLabelTask
from ownbert.tasks.related_rows import bootstrap
from ownbert.tasks.rows import Row
from ownbert.time_limit import OutOfTime, check_time, clock_seconds, seconds_left, time_limit
from ownbert.views.blending import Decided, FittedBlend, rows_without_features
from ownbert.views.blending import blend as add_up
from ownbert.views.linear_models import fit_linear
from ownbert.views.view_features import VIEWS, Texts

# Number of checkpoints, and the first one as a share of the run: an earlier network knows little
# more than word frequencies. Pretraining for fewer minutes has no curve.
_MOMENTS, _FIRST, _FEWEST_MINUTES = 6, 0.25, 1.0
# Maximum characters of the probed rows, a few seconds of the run.
_MOST_CHARACTERS = 300_000
# Share of the pretraining's time for probing the checkpoints.
_SHARE = 0.06

Points = tuple[tuple[float, float], ...]


class Checkpoints:
    """Copies a network during a pretraining of about so many ``minutes``; a callback for each time
    it is saved. The copies are in subfolders named after their seconds."""

    def __init__(self, folder: Path, minutes: float) -> None:
        self.folder, self.minutes = folder, minutes

    def __call__(self, network: Path, saved: Mapping[str, Any]) -> None:
        """Copy the network if enough time has passed since the last copy."""
        seconds, total = saved["seconds"], 60 * self.minutes
        if self.minutes < _FEWEST_MINUTES or seconds < _FIRST * total:
            return
        interval = (1 - _FIRST) * total / _MOMENTS
        if all(seconds - measured >= interval for measured in self.taken):
            copy_network(network, make_folder(self.folder / f"{seconds:.3f}"))

    @property
    def taken(self) -> list[float]:
        """The seconds of the copies, the last one first."""
        return sorted((float(path.name) for path in self.folder.glob("*")), reverse=True)

    def measure(self, rows: LabelledRows, metric: str | None = None) -> Points:
        """(minutes, score of a linear probe) of as many copies as fit in a small share of the
        pretraining's time; then the copies are removed."""
        some, points = _subset(rows), []
        limit = _SHARE * 60 * self.minutes
        with contextlib.suppress(OutOfTime), time_limit(limit):
            for seconds in self.taken:
                path = self.folder / f"{seconds:.3f}"
                scores = probe_scores(path, some, seconds=limit / _MOMENTS)
                model = ComparedModel("probe", "", "frozen", (), 0.0, scores)
                points.append((seconds / 60, Comparison(some, [model], metric).blended.value()))
                check_time()
        shutil.rmtree(self.folder, ignore_errors=True)
        return tuple(sorted(points))


def _subset(rows: LabelledRows) -> LabelledRows:
    """A subset of the rows within the maximum size, in the same folds."""
    order = np.random.default_rng(0).permutation(len(rows.rows))
    sizes = np.cumsum([sum(map(len, rows.rows[i].texts)) for i in order])
    chosen = np.sort(order[: max(2, int(np.searchsorted(sizes, _MOST_CHARACTERS)))])
    if len(chosen) == len(rows.rows):
        return rows
    place = {int(old): new for new, old in enumerate(chosen)}

    def renumbered(indices: Iterable[int]) -> np.ndarray:
        return np.asarray([place[int(i)] for i in indices if int(i) in place], dtype=np.int64)

    folds = [(renumbered(learn), renumbered(held_out)) for learn, held_out in rows.folds]
    return replace(
        rows,
        rows=[rows.rows[i] for i in chosen],
        targets=rows.targets[chosen],
        folds=[(learn, held_out) for learn, held_out in folds if len(learn) and len(held_out)],
        clusters=rows.clusters[chosen],
    )


BLEND_TITLE = "blend of all"
# Most labels whose thresholds are shown.
_SHOWN = 20
_SAMPLES, _FEWEST_SAMPLES = 200, 20  # bootstrap samples
# Maximum number of timed texts; the first few suffice if they take long (seconds).
TIMED, _TIMED_FIRST, _LONG = 64, 8, 0.5
_DRAWS = (3, 3, 3, 1)  # per training-set size
_SHARES = (1 / 8, 1 / 4, 1 / 2, 1.0)
# Learning curves use this view, which is fitted in seconds.
_CURVE_VIEW, _CURVE_STRENGTH = "tfidf", 10.0
_TestOutputs = tuple[np.ndarray, np.ndarray]  # see ``_answers``


def make_report(
    compared: Comparison, inputs: FitInput, folder: Path, points: Points, attempt: Attempts
) -> Report:
    """Build the report on all compared models, whose candidates are in ``folder``; ``attempt``
    leaves out parts that fail or run out of time.

    ``points``: (minutes of pretraining, score of a linear probe at that time).
    """
    rows, task, test = compared.rows, compared.rows.task, inputs.test
    members, fitted, judged = compared.used
    held_out = rows.held_out
    weights = {member.name: weight for member, weight in members}
    tested: dict[str, _TestOutputs] = {}  # by candidate
    board = [
        _row(compared, model, weights, inputs, folder, tested, attempt)
        for model in compared.candidates
    ]
    best = BLEND_TITLE if compared.alone is None else compared.alone.title
    if len(compared.candidates) > 1:
        board.append(_blend_row(compared, board, test, tested, attempt))
    network = best_network(compared)
    report = Report(
        task=task.name,
        metric=compared.metric,
        lower=compared.lower,
        leaderboard=tuple(board),
        best=best,
        network="" if network is None else network.title,
        ordinary=network is None or not describe(folder).has_own_heads,
        left_out=dict(attempt.left_out),
        held_out=len(held_out),
        scores=judged.metrics,
        labels=tuple(task.labels),
        train_counts=_train_counts(rows),
        texts=[" / ".join(rows.rows[i].texts) for i in held_out],
        places=[place_within(rows.file, rows.rows[i].line) for i in held_out],
        test_rows=len(test),
        learnt_from_test=inputs.learnt_from_test,
        known_groups_in_test=inputs.known_groups_in_test,
        data={
            "labelled texts": len(rows.learnt),
            "texts without labels": len(inputs.read),
            "kind of text": "words" if inputs.kind == "marked" else inputs.kind,
            "compared on": rows.source,
            **({"times": rows.period} if rows.period else {}),
            **_decides(judged, fitted),
        },
        settings={k: v for k, v in asdict(inputs.recipe).items() if v not in (None, ())},
    )
    for name, (title, make) in _parts(compared, judged, inputs, points).items():
        result = attempt(title, make)
        if result is not None:
            report = replace(report, **{name: result})
    return replace(report, advice=attempt("what to do next", lambda: give_advice(report)) or ())


def _parts(
    compared: Comparison, judged: Judged, inputs: FitInput, points: Points
) -> dict[str, tuple[str, Callable[[], Any]]]:
    """For each field of the report that can fail: its name in messages, and what makes it."""
    task, outputs, targets = compared.rows.task, judged.outputs, judged.targets.values
    clusters = compared.clusters[: len(judged)]
    parts: dict[str, tuple[str, Callable[[], Any]]] = {
        "chance": (
            "the metrics by chance",
            lambda: metrics_by_chance(lambda order: judged.permuted(order).values, clusters),
        ),
        "margin": ("the margin over the best linear model", lambda: _margin(compared)),
        "learning_curve": ("gain from more labels", lambda: _curve(compared, inputs.labelled)),
    }
    if points:
        curve = partial(fit_learning_curve, points, unit="minutes")
        parts["minutes_curve"] = "gain from more minutes", curve
    if len(inputs.unlabelled):
        drift = partial(compare_texts, inputs.labelled.tokens, inputs.unlabelled.tokens)
        parts["drift"] = "labelled vs. unlabelled texts", drift
    if task.name == "regress":
        if outputs.shape[1] == 1:
            largest = partial(largest_errors, outputs[:, 0], targets[:, 0])
            parts["hardest"] = "the hardest texts", largest
        return parts
    if not isinstance(task, MultiLabelTask):
        rated = outputs, targets, judged.labels
        parts |= {
            "calibration": ("calibration", lambda: calibrate(judged.scores, targets)),
            "label_errors": (
                "likely label errors",
                lambda: tuple(find_label_errors(outputs, targets)),
            ),
            "hardest": ("the hardest texts", lambda: hardest_rows(*rated)),
            "typical": ("the most typical texts", lambda: typical_rows(*rated)),
        }
    return parts


def _train_counts(rows: LabelledRows) -> tuple[int, ...]:
    """(C) training rows per label; empty for numbers."""
    if rows.task.name == "regress":
        return ()
    if isinstance(rows.task, MultiLabelTask):
        return tuple(map(int, rows.task.label_counts(rows.training)))
    counts = Counter(row.target for row in rows.training)
    return tuple(counts[label] for label in rows.task.labels)


def _decides(judged: Judged, fitted: FittedBlend) -> dict[str, str]:
    """How labels are chosen: the probability from which a label is predicted, if it is not .5 or
    the largest."""
    task: Any = deciding(judged.task, fitted.decision)
    thresholds = judged.task.given_thresholds
    if isinstance(task, MultiLabelTask):
        values = np.atleast_1d(task.threshold)
        if len(values) == 1:
            return {"threshold": f"{values[0]:.3f}"}
        found = dict(zip(task.labels, values, strict=True))
    elif task.name == "classify" and len(task.labels) == 2 and np.any(fitted.decision):
        label = next(iter(thresholds), task.positive_label)
        own = task.labels.index(label)
        found = {label: 1 / (1 + np.exp(fitted.decision[own] - fitted.decision[1 - own]))}
    else:
        return {}
    scores = {score.label: score for score in judged.metrics.labels}
    shown = []
    for label, value in [*found.items()][:_SHOWN]:
        reached = ""
        if label in thresholds:
            own = scores[label]
            reached = f" (precision {own.precision:.3f}, recall {own.recall:.3f})"
        shown.append(f"{label} {value:.3f}{reached}")
    return {"threshold": ", ".join(shown) + (", ..." if len(found) > _SHOWN else "")}


def _blend_row(
    compared: Comparison,
    board: Sequence[LeaderboardRow],
    test: Sequence[Row],
    tested: Mapping[str, _TestOutputs],
    attempt: Attempts,
) -> LeaderboardRow:
    """The blend's leaderboard row: the size and speed of its members, the training time of all."""
    members, test_score = compared.members, None
    if test and all(model.name in tested for model, _ in members):
        outputs = [tested[c.name] for c, _ in members]
        found = _together(outputs, [w for _, w in members], compared.blend)
        test_score = compared.value_of(test, found)
    titles = {model.title for model, _ in members}
    used = [row for row in board if row.name in titles]
    speeds = [row.texts_per_second for row in used]
    has_speeds = all(speeds)
    return LeaderboardRow(
        BLEND_TITLE,
        "blend",
        compared.blended.value(),
        attempt(Message("± of {blend_title}", BLEND_TITLE), partial(_spread, compared, None)),
        seconds=sum(c.seconds for c in compared.candidates),
        size=sum(row.size or 0 for row in used),
        texts_per_second=1 / sum(1 / speed for speed in speeds if speed) if has_speeds else None,
        test_score=test_score,
        first_score=compared.value_on_first_fold(compared.blended),
    )


def _row(
    compared: Comparison,
    model: ComparedModel,
    weights: Mapping[str, float],
    inputs: FitInput,
    folder: Path,
    tested: dict[str, _TestOutputs],
    attempt: Attempts,
) -> LeaderboardRow:
    """The leaderboard row of a candidate, whose outputs for the test rows are added to
    ``tested``."""
    title, judged, speed, test_score = model.title, compared.adjusted(model), None, None
    alone = [BlendMember(model.name, model.kind, model.folders, 1.0)]
    opening = partial(Members, folder, alone, Compute(inputs.recipe.device))
    if (scorer := attempt(Message("opening {title}", title), opening)) is not None:
        speed = attempt(
            Message("the speed of {title}", title), partial(_speed, scorer, compared.rows)
        )
        answers = partial(_answers, scorer, inputs.test)
        if (
            inputs.test
            and (outputs := attempt(Message("test score of {title}", title), answers)) is not None
        ):
            tested[model.name] = outputs
            fitted = compared.by_itself(model)
            together = _together([outputs], fitted.weights.tolist(), fitted)
            test_score = compared.value_of(inputs.test, together)
    spread = attempt(f"± of {title}", partial(_spread, compared, model))
    kind = "network" if model.kind == "frozen" else model.kind
    return LeaderboardRow(
        title,
        # Models trained on predictions of other models have kinds of their own.
        model.role if model.role in (DISTILLED, SELF_TRAINED) else kind,
        judged.value(),
        spread,
        test_score=test_score,
        seconds=model.seconds,
        size=_size(folder, model),
        texts_per_second=speed,
        weight=weights.get(model.name, 0.0) / max(sum(weights.values()), 1e-12),
        rows=len(judged) if len(judged) < len(compared.targets) else None,
        first_score=compared.value_on_first_fold(judged),
    )


def _answers(scorer: Members, rows: Sequence[Row]) -> _TestOutputs:
    """A candidate's logits (N, C), and (N) whether it knows no feature of a row."""
    unknown: list[np.ndarray] = []

    def scores_of(block: Sequence[Row]) -> np.ndarray:
        scores, without = scorer.answers(block)
        unknown.append(without)
        return scores

    return score_all(scores_of, rows), np.concatenate(unknown)


def _together(
    tested: Sequence[_TestOutputs], weights: Sequence[float], fitted: FittedBlend
) -> Decided:
    """Combine the outputs of candidates like ``predict``."""
    scores, unknown = zip(*tested, strict=True)
    without = rows_without_features(weights, unknown)
    scores = add_up(scores, np.asarray(weights), fitted.offsets, unknown)
    return Decided(scores, np.broadcast_to(fitted.decision, scores.shape), without)


def _size(folder: Path, candidate: ComparedModel) -> int:
    files = (f for path in candidate.folders for f in (folder / path).rglob("*") if f.is_file())
    return sum(f.stat().st_size for f in files)


def _speed(scorer: Callable[[Sequence[Row]], np.ndarray], rows: LabelledRows) -> float:
    """Throughput in texts per second."""
    sample = [rows.rows[i] for i in rows.held_out[:TIMED]]
    for texts in (sample[:_TIMED_FIRST], sample):
        start = clock_seconds()
        scorer(texts)
        seconds = max(clock_seconds() - start, 1e-6)
        if seconds > _LONG:
            break
    return len(texts) / seconds


def _spread(compared: Comparison, model: ComparedModel | None) -> float:
    """The standard deviation of the metric of a candidate, or of the blend (None), from a bootstrap
    over rows."""
    judged = compared.blended if model is None else compared.adjusted(model)
    draws = []
    for rows in bootstrap(compared.clusters[: len(judged)], _SAMPLES // 4):
        draws.append(judged.value(rows))
        if seconds_left() <= 0 and len(draws) >= _FEWEST_SAMPLES:
            break
    return float(np.std(draws, ddof=1))


def _margin(compared: Comparison) -> Any:
    """How much better the selected model is than the best linear model; None if it is linear."""
    linear = [c for c in compared.measured if c.kind == "linear" and c.role != SELF_TRAINED]
    if not linear or compared.alone in linear:
        return None
    best, used = compared.adjusted(max(linear, key=compared.worth)), compared.used[2]

    def gain(rows: np.ndarray) -> float:
        check_time()
        difference = used.value(rows) - best.value(rows)
        return -difference if compared.lower else difference

    return bootstrap_margin(gain, compared.clusters, _SAMPLES)


def _curve(compared: Comparison, labelled: Texts) -> LearningCurve | None:
    """The score of a linear model by the number of training rows."""
    if compared.lower:
        return None  # a rising power law does not fit
    rows = compared.rows
    learn, held_out = rows.folds[0]
    view = VIEWS[_CURVE_VIEW].fit(labelled, Texts([], labelled.kind))
    features = view.features(labelled)
    rng = np.random.default_rng(0)
    points = []
    for share, draws in zip(_SHARES, _DRAWS, strict=True):
        count = round(share * len(learn))
        if count < 8:
            continue
        scores = []
        for _ in range(draws):
            # Whole clusters, in random order.
            order = rng.permutation(len(rows.rows))[rows.clusters[learn]]
            subset = learn[np.argsort(order, kind="stable")[:count]]
            if len({str(rows.rows[i].target) for i in subset}) < 2:
                continue
            model = fit_linear(features[subset], rows.targets[subset], _CURVE_STRENGTH)
            scores.append(compared.judged(model.scores(features[held_out])).value())
        if scores:
            points.append((count, *scores))
    try:
        return fit_learning_curve(points, start=len(rows.learnt))
    except InputError:
        return None
