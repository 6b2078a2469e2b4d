"""Defines mistakes, and the model's confidence in them, for each task.

N rows, C labels, W words of a row.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ownbert.language.messages import Message
from ownbert.tasks.answer import compare
from ownbert.tasks.metrics import find_label_errors
from ownbert.tasks.rows import Row
from ownbert.tasks.tag import are_entity_tags, entities


class Named(str):
    """A name shown instead of a label or an answer, and translated there."""

    __slots__ = ()


NONE = Named("none")
_NO_ANSWER, _AN_ANSWER = Named("no answer"), Named("an answer")


@dataclass(frozen=True)
class WrongPrediction:
    """A wrong prediction; a row may have several.

    Args:
        confidence: probability of the prediction; for regression its distance from the truth.
        target: name of the prediction in ``Explainer``; None: nothing to explain.
        wanted: argument for ``Explainer`` to get this target; by default the prediction.
        against: whether the model predicts that the target does not apply.
    """

    row: int
    label: str
    predicted: str
    confidence: float
    target: str | None = None
    wanted: str | None = None
    against: bool = False


@dataclass(frozen=True)
class Judgement:
    """Predictions for N rows, compared with the truth.

    Args:
        badness: (N) 1 for rows with a wrong prediction, else 0; for regression the mean distance.
        wrong: wrong predictions in any order; for regression all rows.
        pairs: (label, prediction) of all confusions.
        groups: names, and masks (N) of their rows.
        doubtful: rows whose label may be wrong, most likely first.
    """

    badness: np.ndarray
    wrong: Sequence[WrongPrediction]
    pairs: Sequence[tuple[str, str]] = ()
    groups: Mapping[str, np.ndarray] = field(default_factory=dict)
    doubtful: Sequence[WrongPrediction] = ()


def judge_labels(
    task: Any, rows: Sequence[Row], raws: Sequence[np.ndarray], decided: Sequence[Any]
) -> Judgement:
    """Single-label: wrong labels with their probabilities."""
    probabilities = np.stack(raws)
    truth = np.asarray([task.label_indices[row.target] for row in rows])
    best = np.asarray([each.label for each in decided])

    def answer(i: int) -> WrongPrediction:
        name = task.labels[best[i]]
        return WrongPrediction(i, rows[i].target, name, float(probabilities[i, best[i]]), name)

    wrong = np.flatnonzero(best != truth).tolist()
    return Judgement(
        (best != truth).astype(float),
        [answer(i) for i in wrong],
        [(task.labels[truth[i]], task.labels[best[i]]) for i in wrong],
        {Message("label {name}", name): truth == index for index, name in enumerate(task.labels)},
        [answer(error.row) for error in find_label_errors(probabilities, truth)],
    )


def judge_label_sets(
    task: Any, rows: Sequence[Row], raws: Sequence[np.ndarray], _: Sequence[Any]
) -> Judgement:
    """Multi-label: missing and superfluous labels with the probability of the wrong decision. A
    missing label is paired with the superfluous ones in the confusions."""
    probabilities = np.stack(raws)  # (N, C)
    truth = np.stack([task.target(row) for row in rows]) > 0.5
    assigned = probabilities >= task.threshold

    def wrong(i: int, c: int) -> WrongPrediction:
        name, holds = task.labels[c], bool(assigned[i, c])
        confidence = probabilities[i, c] if holds else 1 - probabilities[i, c]
        both = (Message("not {name}", name), name) if holds else (name, Message("not {name}", name))
        return WrongPrediction(i, *both, float(confidence), name, name, not holds)

    pairs: list[tuple[str, str]] = []
    for true, predicted in zip(truth, assigned, strict=True):
        missing = [task.labels[c] for c in np.flatnonzero(true & ~predicted)]
        extra = [task.labels[c] for c in np.flatnonzero(predicted & ~true)]
        if missing or extra:
            pairs += [(a, b) for a in missing or [NONE] for b in extra or [NONE]]
    doubtful = []
    for c in range(len(task.labels)):
        of_label = np.stack([1 - probabilities[:, c], probabilities[:, c]], 1)
        for error in find_label_errors(of_label, truth[:, c].astype(int)):
            if assigned[error.row, c] != truth[error.row, c]:
                doubtful.append((error.score, wrong(error.row, c)))
    doubtful.sort(key=lambda pair: -pair[0])
    places = np.argwhere(assigned != truth).tolist()
    return Judgement(
        (assigned != truth).any(1).astype(float),
        [wrong(i, c) for i, c in places],
        pairs,
        {Message("label {name}", name): truth[:, c] for c, name in enumerate(task.labels)},
        [each for _, each in doubtful],
    )


def judge_numbers(
    task: Any, rows: Sequence[Row], _: Sequence[np.ndarray], decided: Sequence[Any]
) -> Judgement:
    """Regression: distances from the true values; no row is right or wrong."""
    truth = np.asarray([row.target for row in rows], dtype=float)  # (N, C)
    predicted = np.stack(decided)
    distance = np.abs(predicted - truth)
    one = len(task.labels) == 1
    # Columns may have different units, so each is scaled by its standard deviation.
    spread = np.maximum(truth.std(0), 1e-9)
    column = (distance / spread).argmax(1)

    def answer(i: int) -> WrongPrediction:
        c = int(column[i])
        name = task.labels[c]
        start = "" if one else f"{name} "
        shown = f"{start}{truth[i, c]:.4g}", f"{start}{predicted[i, c]:.4g}"
        return WrongPrediction(i, *shown, float(distance[i, c]), name, None if one else name)

    groups: dict[str, np.ndarray] = {}
    for c, name in enumerate(task.labels):
        low, high = np.quantile(truth[:, c], (0.25, 0.75))
        start = "" if one else f"{name} "
        groups[Message("numbers {column}up to {value:.4g}", start, low)] = truth[:, c] <= low
        groups[Message("numbers {column}from {value:.4g}", start, high)] = truth[:, c] >= high
    order = np.argsort(-(distance / spread).max(1), kind="stable").tolist()
    return Judgement(distance.mean(1), [answer(i) for i in order], groups=groups)


def judge_tags(
    task: Any, rows: Sequence[Row], raws: Sequence[np.ndarray], decided: Sequence[Any]
) -> Judgement:
    """Tagging: for entities the missing, superfluous and mistyped ones and wrong boundaries, with
    the mean probability of the predicted tags; for other tags each wrong word."""
    are_entities = are_entity_tags(task.labels)
    wrong: list[WrongPrediction] = []
    pairs: list[tuple[str, str]] = []
    for i, (row, decision) in enumerate(zip(rows, decided, strict=True)):
        compared = _entities_of if are_entities else _words_of
        for true, predicted_entity, label, predicted in compared(row.target, decision.tags):
            start, end = (predicted_entity or true)[1:]
            kind = None if predicted_entity is None else predicted_entity[0]
            name = None if predicted_entity is None else f"{kind}: {' '.join(row.texts[start:end])}"
            right, shown = (
                NONE if one is None else f"{one[0]}: {' '.join(row.texts[one[1] : one[2]])}"
                for one in (true, predicted_entity)
            )
            confidence = float(decision.probabilities[start:end].mean())
            wrong.append(WrongPrediction(i, right, shown, confidence, name, kind))
            pairs.append((label, predicted))
    kinds = sorted({kind for row in rows for kind in _kinds(row.target, are_entities)})
    groups: dict[str, np.ndarray] = {
        Message("label {kind}", kind): np.asarray(
            [kind in _kinds(row.target, are_entities) for row in rows]
        )
        for kind in kinds
    }
    badness = np.asarray(
        [float(tuple(o.tags) != tuple(r.target)) for r, o in zip(rows, decided, strict=True)]
    )
    return Judgement(badness, wrong, pairs, groups, _doubtful_tags(task, rows, raws))


def _kinds(tags: Sequence[str], are_entities: bool) -> set[str]:
    return {kind for kind, _, _ in entities(tags)} if are_entities else set(tags)


def _entities_of(
    truth: Sequence[str], predicted_tags: Sequence[str]
) -> list[tuple[Any, Any, str, str]]:
    """Differing entities: truth, prediction, and names of both for the confusions."""
    right, predicted = entities(truth), entities(predicted_tags)
    differing = []
    for entity in right:
        if entity in predicted:
            continue
        other = next((o for o in predicted if o[1] < entity[2] and entity[1] < o[2]), None)
        name = NONE if other is None else other[0]
        same = other is not None and other[0] == entity[0]
        differing.append(
            (
                entity,
                other,
                entity[0],
                Message("{name}, other words", name) if same else name,
            )
        )
    for other in predicted:
        if all(o[2] <= other[1] or other[2] <= o[1] for o in right):
            differing.append((None, other, NONE, other[0]))
    return differing


def _words_of(truth: Sequence[str], predicted: Sequence[str]) -> list[tuple[Any, Any, str, str]]:
    pairs = enumerate(zip(truth, predicted, strict=True))
    return [((a, i, i + 1), (b, i, i + 1), a, b) for i, (a, b) in pairs if a != b]


def _doubtful_tags(
    task: Any, rows: Sequence[Row], raws: Sequence[np.ndarray]
) -> list[WrongPrediction]:
    """Words whose tag may be wrong."""
    indices = {label: c for c, label in enumerate(task.labels)}
    places = [(i, w) for i, row in enumerate(rows) for w in range(len(row.target))]
    truth = np.asarray([indices[tag] for row in rows for tag in row.target])
    probabilities = np.concatenate(raws)
    doubtful = []
    for error in find_label_errors(probabilities, truth):
        i, w = places[error.row]
        right, likely = (
            f"{task.labels[c]}: {rows[i].texts[w]}" for c in (error.given, error.suggested)
        )
        confidence = float(probabilities[error.row, error.suggested])
        doubtful.append(WrongPrediction(i, right, likely, confidence))
    return doubtful


def judge_answers(
    task: Any, rows: Sequence[Row], _: Sequence[np.ndarray], decided: Sequence[Any]
) -> Judgement:
    """Question answering: answers that match none of the true ones, with their probability, and
    whether start or end is right."""
    wrong, pairs, badness = [], [], np.zeros(len(rows))
    for i, (row, decision) in enumerate(zip(rows, decided, strict=True)):
        if compare([gold.text for gold in row.target], decision.text)[0] == 1:
            continue
        badness[i] = 1
        right = repr(row.target[0].text) if row.target else _NO_ANSWER
        name = decision.text or _NO_ANSWER
        shown = repr(decision.text) if decision.text else _NO_ANSWER
        wrong.append(WrongPrediction(i, right, shown, decision.score, name))
        pairs.append((_AN_ANSWER if row.target else _NO_ANSWER, _place(row, decision)))
    starts = [row.texts[0].split()[:1] for row in rows]
    begins = {words[0].lower() for words in starts if words}
    groups: dict[str, np.ndarray] = {
        Message("questions that begin with {word}", word): np.asarray(
            [bool(row_starts) and row_starts[0].lower() == word for row_starts in starts]
        )
        for word in sorted(begins)
    }
    groups["questions without an answer"] = np.asarray([not row.target for row in rows])
    return Judgement(badness, wrong, pairs, groups)


def _place(row: Row, answer: Any) -> str:
    """Where a wrong answer is, relative to the true ones."""
    if answer.start is None:
        return _NO_ANSWER
    if not row.target:
        return _AN_ANSWER
    spans = []
    for gold in row.target:
        start = row.texts[1].find(gold.text) if gold.start is None else gold.start
        if start >= 0:
            spans.append((start, start + len(gold.text)))
    if any(start == answer.start for start, _ in spans):
        return Named("right start, other end")
    if any(end == answer.end for _, end in spans):
        return Named("other start, right end")
    if any(start < answer.end and answer.start < end for start, end in spans):
        return Named("other start and end, overlapping")
    return Named("elsewhere")


def judge_choices(
    task: Any, rows: Sequence[Row], raws: Sequence[np.ndarray], _: Sequence[Any]
) -> Judgement:
    """Multiple choice: wrong choices with their probabilities. Choices of different rows are
    unrelated, so confusions are between positions, which may be biased."""
    best = [int(raw.argmax()) for raw in raws]
    badness = np.asarray([float(b != r.target) for b, r in zip(best, rows, strict=True)])

    def answer(i: int) -> WrongPrediction:
        choices, place = rows[i].texts[1:], best[i]
        shown = choices[rows[i].target], choices[place]
        return WrongPrediction(i, *shown, float(raws[i][place]), Message("choice {index}", place))

    wrong = [answer(i) for i in np.flatnonzero(badness).tolist()]
    most = max(len(raw) for raw in raws)
    groups: dict[str, np.ndarray] = {
        Message(
            "rows whose correct choice is number {place}", place + task.first_label
        ): np.asarray([row.target == place for row in rows])
        for place in range(most)
    }
    return Judgement(badness, wrong, groups=groups)


# Keyed by the name of the task.
JUDGES: Mapping[str, Callable[[Any, Any, Any, Any], Judgement]] = {
    "classify": judge_labels,
    "multilabel": judge_label_sets,
    "regress": judge_numbers,
    "tag": judge_tags,
    "answer": judge_answers,
    "choose": judge_choices,
    "image": judge_labels,
}
