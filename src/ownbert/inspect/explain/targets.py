"""Explanation targets of predictions: one number for each label, entity, span, choice, ...

N copies of an example in a batch, T tokens of the example, B sequences of the batch, C labels.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ownbert.batches.batch import Batch, Example
from ownbert.exceptions import InputError
from ownbert.nn.model import Model
from ownbert.tasks.answer import best_span, null_span
from ownbert.tasks.classification import SingleLabelTask
from ownbert.tasks.row_objectives import mean_per_row, pad_choices, vectors_of_rows
from ownbert.tasks.rows import Row
from ownbert.tasks.task import Task

Score = Callable[[Tensor, Batch], Tensor]
Transform = Callable[[Tensor], Tensor]
# Number of most probable predictions shown with an explanation.
_ANSWERS = 3


@dataclass(frozen=True)
class Target:
    """A number in a row's prediction that can be explained.

    Args:
        score: maps logits and batch to (N), differentiably: a logit, value or cosine.
        probability: the same for a probability; None if there is none.
        reads: (T) weight of each token in the input of the head.
        shown: probability or value shown to the user.
        answers: most probable predictions with their probabilities, for discrete predictions.
    """

    name: str
    score: Score
    probability: Score | None
    reads: np.ndarray
    shown: float
    answers: tuple[tuple[str, float], ...] = ()


def targets_of(
    task: Task,
    model: Model,
    row: Row,
    example: Example,
    raw: np.ndarray,
    note: Any,
    target: str | None,
    labels: int = 1,
) -> list[Target]:
    """The targets of a row's prediction, or the wanted ones.

    Args:
        raw, note: outputs of the row, and its note in ``EncodedRows``.
        target: a label, the number of a choice, or an entity type; by default the prediction.
        labels: number of most probable labels for single-label tasks.

    Raises:
        InputError: the label or choice does not exist.
    """
    if task.head == "choice":
        return [_choice(example, raw, target)]
    if task.head == "tokens":
        return _tags(task, row, example, raw, target)
    if task.head == "span":
        return [_span(task, row, example, raw, note)]
    if task.head == "embedding":
        return [_similarity(example, raw)]
    return _labels(task, model, example, raw, target, labels)


def masked_word(
    example: Example,
    token: int,
    mask: int,
    name: str,
    shown: float,
    answers: tuple[tuple[str, float], ...] = (),
) -> Target:
    """The logit of a token at the masked position ``mask``, counted from 0."""
    assert example.masked_positions is not None
    count = len(example.masked_positions)
    reads = np.zeros(len(example.token_ids))
    reads[example.masked_positions[mask]] = 1

    def of_token(transform: Transform, logits: Tensor, batch: Batch) -> Tensor:
        return transform(logits.float().unflatten(0, (-1, count))[:, mask])[:, token]  # (N, V)

    return Target(name, *_score_and_probability(of_token), reads, shown, answers)


def _score_and_probability(
    value: Callable[[Transform, Tensor, Batch], Tensor], dim: int = -1
) -> tuple[Score, Score]:
    """A value (N) of logits, and the same of their softmax over ``dim``."""
    return partial(value, lambda logits: logits), partial(value, partial(F.softmax, dim=dim))


def probability(task: Any, logits: Tensor, batch: Batch) -> Tensor:
    """(B, C) -> (rows, C): probabilities like those of ``task.raw``, but differentiable."""
    single = isinstance(task, SingleLabelTask)
    function = partial(F.softmax, dim=-1) if single else torch.sigmoid
    if task.averages_logits:
        return function(mean_per_row(logits.float(), batch))
    return mean_per_row(function(logits.float()), batch)


def _labels(
    task: Any, model: Model, example: Example, raw: np.ndarray, target: str | None, labels: int
) -> list[Target]:
    """The most probable labels, the positive labels, or values; averaged over the windows of a
    document."""
    reads = _pooled(model.specs[task.head].pooling, example)

    def make_target(index: int) -> Target:
        def score(logits: Tensor, batch: Batch) -> Tensor:
            return mean_per_row(logits.float(), batch)[:, index]

        def share(logits: Tensor, batch: Batch) -> Tensor:
            return probability(task, logits, batch)[:, index]

        name = str(task.labels[index]) if len(task.labels) > index else "value"
        probability_of = share if task.gives_probabilities else None
        return Target(name, score, probability_of, reads, float(raw[index]), answers)

    answers = likeliest(raw, task.labels.__getitem__) if isinstance(task, SingleLabelTask) else ()

    return [make_target(index) for index in chosen_labels(task, raw, target, labels)]


def chosen_labels(task: Any, raw: np.ndarray, target: str | None, most: int) -> list[int]:
    """The indices of the label of this name, or of the most probable labels (``most`` of them, for
    single-label tasks), the positive labels, or the values of a row with outputs (C)."""
    if target is not None:
        return [_index(task.labels, target)]
    if isinstance(task, SingleLabelTask):
        return np.argsort(-task.preferences(raw), kind="stable")[:most].tolist()
    holds = raw >= task.threshold if task.name == "multilabel" else np.ones(len(raw), bool)
    return np.flatnonzero(holds).tolist() or [int(raw.argmax())]


def _choice(example: Example, raw: np.ndarray, target: str | None) -> Target:
    """The logit of a choice minus the mean of the others."""
    index = int(raw.argmax()) if target is None else _index(range(len(raw)), target)
    assert example.parts is not None
    reads = np.zeros(len(example.token_ids))
    reads[sum(example.parts[:index])] = 1

    def score(logits: Tensor, batch: Batch) -> Tensor:
        scores = pad_choices(logits, batch)  # (N, choices)
        others = torch.arange(scores.shape[1]) != index
        return scores[:, index] - scores[:, others].mean(-1)

    def probability(logits: Tensor, batch: Batch) -> Tensor:
        return pad_choices(logits, batch).softmax(-1)[:, index]

    answers = likeliest(raw, "choice {}".format)
    return Target(f"choice {index}", score, probability, reads, float(raw[index]), answers)


def _tags(
    task: Any, row: Row, example: Example, raw: np.ndarray, target: str | None
) -> list[Target]:
    """The mean over the words of each entity."""
    assert example.tags is not None
    first = np.flatnonzero(example.tags >= 0)  # first token of each word
    predicted = raw.argmax(-1)
    spans = task.entities([task.labels[i] for i in predicted])
    if target is not None:
        kinds = {kind for kind, _, _ in spans}
        if target not in kinds:
            known = ", ".join(sorted(kinds)) or "none"
            raise InputError("the prediction has no {target!r}; it has {options}", target, known)
        spans = [span for span in spans if span[0] == target]

    def make_target(kind: str, start: int, end: int) -> Target:
        rows = torch.from_numpy(first[start:end])
        classes = torch.from_numpy(predicted[start:end])
        reads = np.zeros(len(example.token_ids))
        reads[first[start:end]] = 1 / (end - start)

        def mean_over_words(transform: Transform, logits: Tensor, batch: Batch) -> Tensor:
            words = logits.float().unflatten(0, (-1, len(reads)))[:, rows]  # (N, words, C)
            return transform(words)[:, torch.arange(len(classes)), classes].mean(-1)

        name = f"{kind}: {' '.join(row.texts[start:end])}"
        shown = float(raw[range(start, end), predicted[start:end]].mean())
        return Target(name, *_score_and_probability(mean_over_words), reads, shown)

    return [make_target(*span) for span in spans]


def _span(task: Any, row: Row, example: Example, raw: np.ndarray, note: Any) -> Target:
    """The logits of the first and the last token of the answer, or of "no answer"."""
    decided = task.decide(raw, row, note)
    positions = note.positions
    span = best_span(raw, positions, task.settings.answer_length)
    if decided.start is None or span is None:
        span = null_span(raw, positions)
        first = last = positions[span.window].cls
    else:
        window = positions[span.window]
        first, last = (window.first + token - window.begin for token in (span.first, span.last))
    reads = np.zeros(len(example.token_ids))
    reads[[first, last]] += 0.5
    begin = positions[span.window].start
    inside = slice(begin, positions[span.window].end)

    def ends(logits: Tensor) -> Tensor:
        return logits.float().unflatten(0, (-1, len(reads)))[:, inside]  # (N, tokens, 2)

    def score(logits: Tensor, batch: Batch) -> Tensor:
        return ends(logits)[:, first - begin, 0] + ends(logits)[:, last - begin, 1]

    def probability(logits: Tensor, batch: Batch) -> Tensor:
        likely = ends(logits).softmax(1)
        return likely[:, first - begin, 0] * likely[:, last - begin, 1]

    return Target(decided.text or "no answer", score, probability, reads, decided.score)


def _similarity(example: Example, raw: np.ndarray) -> Target:
    assert example.parts is not None
    reads = np.concatenate([np.full(size, 1 / size) for size in example.parts])

    def score(logits: Tensor, batch: Batch) -> Tensor:
        vectors = vectors_of_rows(logits, batch)
        return (vectors[:, 0] * vectors[:, 1]).sum(-1)

    return Target("similarity", score, None, reads, float(raw[0] @ raw[1]))


def likeliest(
    probabilities: np.ndarray, name: Callable[[int], Any]
) -> tuple[tuple[str, float], ...]:
    """The predictions with the largest probabilities (C), named by ``name``."""
    order = np.argsort(-probabilities, kind="stable")[:_ANSWERS]
    return tuple((str(name(i)), float(probabilities[i])) for i in order.tolist())


def _pooled(pooling: str, example: Example) -> np.ndarray:
    """(T) weights of the tokens read by a sentence head: first tokens, or all tokens."""
    parts = example.lengths
    reads = np.zeros(len(example.token_ids))
    starts = np.cumsum([0, *parts[:-1]])
    if pooling in ("pooler", "first"):
        reads[starts] = 1 / len(parts)
    else:
        for start, size in zip(starts, parts, strict=True):
            reads[start : start + size] = 1 / size / len(parts)
    return reads


def _index(known: Sequence[Any], target: str) -> int:
    names = [str(name) for name in known]
    if target not in names:
        raise InputError("there is no {target!r}; choose one of {names}", target, ", ".join(names))
    return names.index(target)
