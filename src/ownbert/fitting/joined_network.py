"""A network with the linear models of the blend built in, so that its metric is close to theirs.

Linear models learn in seconds what a network cannot learn in a short time or from few labels. N
rows, C labels or regression values.
"""

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch

from ownbert.batches.example import Example
from ownbert.checkpoint import save
from ownbert.corpus.sparse import Matrix
from ownbert.exceptions import InputError
from ownbert.finetuning.finetuning_run import FinetuningRun
from ownbert.finetuning.initial_model import make_model
from ownbert.finetuning.linear_baseline import inputs_of_head
from ownbert.finetuning.token_pairs import can_hold_codes, can_hold_pairs, repeated_share
from ownbert.finetuning.token_scores import (
    TokenScores,
    can_hold_scores,
    fit_to_labels,
    fit_token_scores,
    with_token_scores,
)
from ownbert.fitting.comparison import Comparison
from ownbert.fitting.networks import finetuning_run, taught_texts
from ownbert.fitting.rows.fit_input import FitInput
from ownbert.inference.blend import BlendMember
from ownbert.inference.engines import Compute
from ownbert.inference.opened_blend import Members, score_until
from ownbert.tasks.rows import Row
from ownbert.time_limit import OutOfTime, clock_seconds, seconds_left, time_limit
from ownbert.views.blending import clearly_better, fit_blend, loss
from ownbert.views.linear_models import Targets

# Maximum numbers of texts, scores (texts times labels) and characters for the regression.
_MOST_TEXTS, _MOST_SCORES, _MOST_CHARACTERS = 60_000, 1_500_000, 20_000_000
# Maximum share of the time for reading and scoring these texts; maximum share of labelled texts.
_SCORING, _LABELLED = 0.5, 0.75
# Damping is tried if at least this share of the tokens are repeated, as in long documents: with
# shorter texts the network is worse (docs/lab/distilled-network.md). It is also tried only if the
# time left is at least this multiple of the time for scores without damping.
_REPEATED_SHARE, _TIME_FACTOR = 0.25, 3.0
# Maximum loss with damping, relative to that without: a network computes damped scores less exactly
# (docs/lab/distilled-network.md).
_DAMPED = 0.97
# Strengths of the penalty of the scores fitted to labels, and the first one to be tried. How many
# texts there are, and how long they are, decides which is best (docs/lab/distilled-network.md).
_STRENGTHS, _FIRST = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0), 2
_SEARCHING = 0.25  # maximum share of the time left
# Maximum share of the time for scoring the tokens of the vocabulary one by one.
_ALONE = 0.25
# Maximum number of token pairs with scores. Each needs a unit of the feed-forward network.
_MOST_PAIRS = 1024


class Start(NamedTuple):
    """A network to which scores can be added, with a head, which has zero weights if it is new; and
    the fine-tuning run of the network, which encodes texts for it."""

    run: FinetuningRun
    model: Any


def start_of(compared: Comparison, base: Path, *, device: str, seed: int) -> Start:
    """Load the network of a folder, with or without a head for the task.

    Raises:
        InputError: scores cannot be added to it.
    """
    rows = compared.rows
    run = finetuning_run(rows, rows.first_fold[0], base, device=device, seed=seed)
    model: Any = make_model(run.description, run.task, run.recipe)
    if not can_hold_scores(model):
        raise InputError("linear models cannot be built into a network of this kind")
    if not run.keeps_head:
        last = model.heads["classification"].dense
        with torch.no_grad():
            last.weight.zero_()
            last.bias.zero_()
    return Start(run, model)


def imitate(
    compared: Comparison,
    inputs: FitInput,
    folder: Path,
    start: Start,
    seconds: float,
    like: TokenScores | None = None,
) -> TokenScores:
    """Fit token scores to the predictions of the first fold's linear models; or, with such scores
    (``like``), to those of the final models, which have learnt from all rows, in the same way.

    Raises:
        InputError: the blend has no linear model.
        OutOfTime: the time limit has passed.
    """
    chosen = [(c, w) for c, w in compared.members if c.kind == "linear" and c.first]
    if not chosen:
        raise InputError("the blend has no linear model")
    # For regression, weights must add up to 1; otherwise their sum determines the confidence.
    total = sum(w for _, w in chosen) if compared.rows.task.name == "regress" else 1.0
    linear = [
        BlendMember(c.name, c.kind, c.folders if like else c.first, w / total) for c, w in chosen
    ]
    run, rows, labelled = start.run, compared.rows, inputs.labelled.rows
    long = sum(len(text) for row in labelled for text in row) // len(labelled) + 1
    most = min(_MOST_TEXTS, _MOST_SCORES // rows.targets.size, _MOST_CHARACTERS // long)
    indices = rows.learnt if like else rows.folds[0][0]
    rng = np.random.default_rng(inputs.recipe.seed)
    learnt = rng.permutation(indices)[: int(_LABELLED * most)]
    members = Members(folder, linear, Compute(inputs.recipe.device))
    examples: list[Example] = []

    def scores_of(texts: Sequence[Row]) -> np.ndarray:
        examples.extend(_read(run, texts))
        return members(texts)

    limit = _SCORING * seconds
    scores = score_until(scores_of, _texts(inputs, learnt, most, limit), limit)
    if compared.rows.task.name == "classify":
        scores = scores - scores.mean(1, keepdims=True)
    two_texts = len(rows.rows[0].texts) > 1
    return _fit_scores(
        compared,
        start,
        examples,
        scores,
        learnt[: len(scores)],
        like,
        most_pairs=_MOST_PAIRS if can_hold_pairs(start.model) else 0,
        alone=None if two_texts else _scores_alone(members, run, _ALONE * seconds),
    )


def _fit_scores(
    compared: Comparison,
    start: Start,
    examples: Sequence[Example],
    scores: np.ndarray,
    learnt: np.ndarray,
    like: TokenScores | None,
    **options: Any,
) -> TokenScores:
    """Fit token scores to the scores of texts, and to the labels of the rows ``learnt``, which are
    the first of these texts: predictions of linear models for their own training texts say little.
    The penalty of the latter, and whether repeated tokens are damped, is what is best on the
    held-out rows."""
    run, rows = start.run, compared.rows
    special, size = run.builder.tokenizer.special_ids, run.config.vocab_size
    held_out, targets = _read(run, rows.first_fold[1]), rows.targets[rows.folds[0][1]]

    def imitated(damped: bool) -> _Fitted:
        first = fit_token_scores(examples, scores, size, special, damped=damped, **options)
        counts = first.counts(examples[: len(learnt)]), first.counts(held_out)
        return _Fitted(first, *counts, rows.targets[learnt], targets)

    if like is not None:
        return imitated(like.damped).fit_like(like)
    start_time = clock_seconds()
    best = imitated(False)
    with contextlib.suppress(OutOfTime), time_limit(seconds_left() / 2):
        best.try_strength(_STRENGTHS[_FIRST])
    elapsed = clock_seconds() - start_time
    with contextlib.suppress(OutOfTime), time_limit(_SEARCHING * seconds_left()):
        for further in (_STRENGTHS[_FIRST + 1 :], _STRENGTHS[_FIRST - 1 :: -1]):
            if [*itertools.takewhile(best.try_strength, further)]:
                break
    left = seconds_left()
    in_time = left > _TIME_FACTOR * elapsed
    if in_time and can_hold_codes(start.model) and repeated_share(examples) >= _REPEATED_SHARE:
        with contextlib.suppress(OutOfTime), time_limit(left / 2):
            damped = imitated(True)
            damped.try_strength(best.scores.strength)
            best = damped if damped.loss < _DAMPED * best.loss else best
    return best.scores


class _Fitted:
    """Token scores that imitate linear models, and ``scores``, their best sum with scores fitted to
    labels, with its ``loss`` on the held-out rows. ``counts`` are the features (n, V + P) of the
    labelled texts, ``held_out`` those of the held-out rows (N, V + P)."""

    def __init__(
        self,
        imitated: TokenScores,
        counts: Matrix,
        held_out: Matrix,
        labels: Targets,
        targets: Targets,
    ) -> None:
        self.imitated, self.counts, self.held_out = imitated, counts, held_out
        self.labels, self.targets = labels, targets
        self._use(self._summed())

    def _parts(self, *strengths: float) -> list[TokenScores]:
        """The scores that imitate linear models, and those fitted to labels."""
        fitted = (fit_to_labels(self.imitated, self.counts, self.labels, s) for s in strengths)
        return [self.imitated, *fitted]

    def _summed(self, *strengths: float) -> TokenScores:
        parts = self._parts(*strengths)
        weights, offsets = fit_blend([self._logits(part) for part in parts], self.targets)
        return _sum(parts, self.held_out, weights, offsets)

    def _logits(self, scores: TokenScores) -> np.ndarray:
        return self.held_out @ scores.table + scores.bias

    def _use(self, scores: TokenScores) -> None:
        self.scores, self.loss = scores, loss(self.targets, self._logits(scores))

    def try_strength(self, strength: float) -> bool:
        """Fit scores to the labels with a strength of the penalty, and return whether they are the
        first, or better than those before by more than chance."""
        summed = self._summed(strength)
        logits = self._logits(summed), self._logits(self.scores)
        used = summed.weights[-1] > 0  # otherwise they differ by rounding
        better = len(self.scores.weights) == 1 or (used and clearly_better(self.targets, *logits))
        if better:
            self._use(summed)
        return better

    def fit_like(self, like: TokenScores) -> TokenScores:
        """The sum with the penalty, weights and offsets of another one."""
        parts = self._parts(*[like.strength][: len(like.weights) - 1])
        return _sum(parts, self.held_out, like.weights, like.offsets)


def _sum(
    fitted: Sequence[TokenScores], counts: Matrix, weights: np.ndarray, offsets: np.ndarray
) -> TokenScores:
    """A weighted sum of scores of the same tokens and pairs, centred for texts like those of
    ``counts``."""
    table, bias = (
        np.tensordot(weights, [getattr(part, name) for part in fitted], 1).astype(np.float32)
        for name in ("table", "bias")
    )
    bias = (bias + offsets).astype(np.float32)
    joined = replace(fitted[-1], table=table, bias=bias, weights=weights, offsets=offsets)
    return joined.centred(counts)


def _scores_alone(members: Members, run: FinetuningRun, seconds: float) -> np.ndarray:
    """(V, C): for each token of the vocabulary, the scores of a text of only this token minus those
    of an empty text; 0 for the last tokens if the time does not suffice."""
    tokenizer, size = run.builder.tokenizer, run.config.vocab_size
    special, count = set(tokenizer.special_ids), min(size, tokenizer.vocab_size)
    words = ("" if i in special else tokenizer.decode([i]) for i in range(count))
    texts = [Row(0, (word,)) for word in ("", *words)]
    scores = score_until(members, texts, seconds)
    if run.task.name == "classify":
        scores -= scores.mean(1, keepdims=True)
    differences = np.zeros((size, scores.shape[1]), np.float32)
    differences[: len(scores) - 1] = scores[1:] - scores[0]
    return differences


def join(
    compared: Comparison,
    scores: TokenScores,
    start: Start,
    path: Path,
    like: tuple[np.ndarray, np.ndarray] | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Save a copy of a network that adds token scores to its own outputs, with the weights of both
    and offsets (C) of ``like``, or fitted on the held-out rows of the first fold, and return these.

    Raises:
        OutOfTime: the time limit has passed.
    """
    (run, model), task = start, compared.rows.task
    examples = _read(run, compared.rows.first_fold[1])
    wide, hidden = with_token_scores(model, scores, examples), model.config.hidden_size
    last = cast(Any, wide.heads["classification"]).dense
    vectors, matrix = inputs_of_head(wide, task.head, examples), last.weight.detach().numpy()
    own = vectors[:, :hidden] @ matrix[:, :hidden].T + last.bias.detach().numpy()
    added, target = vectors[:, hidden:] @ matrix[:, hidden:].T, scores.added(examples)
    if task.name == "classify":  # a value added to all labels has no effect
        added, target = (x - x.mean(1, keepdims=True) for x in (added, target))
    # LayerNorm and the pooler scale the scores, and shift them a little.
    centred, centred_target = (x - x.mean(0) for x in (added, target))
    factor = float((centred_target**2).sum() / max(1e-9, (centred * centred_target).sum()))
    bias = scores.bias + (target - factor * added).mean(0)
    parts = [own, factor * added + bias]
    used = parts if matrix[:, :hidden].any() else parts[1:]
    weights, offsets = like or fit_blend(used, compared.targets[: len(examples)])
    weights = np.concatenate([np.zeros(2 - len(weights)), weights])
    with torch.no_grad():
        last.weight[:, :hidden] *= float(weights[0])
        last.weight[:, hidden:] *= float(weights[1] * factor)
        last.bias.mul_(float(weights[0])).add_(torch.from_numpy(weights[1] * bias + offsets))
    save(wide, path, tokenizer=run.builder.tokenizer, values=run.task.values())
    run.task.write(path, wide)
    return weights, offsets


def _read(run: FinetuningRun, texts: Sequence[Row]) -> Sequence[Example]:
    """Encode texts for the network."""
    return run.task.encode(texts, run.builder, training=False).examples


def _texts(inputs: FitInput, learnt: np.ndarray, most: int, seconds: float) -> Iterator[Row]:
    """Yield the training rows ``learnt``, then as many other texts as can probably be scored in the
    rest of ``seconds``."""
    start, rows, seed = clock_seconds(), inputs.rows, inputs.recipe.seed
    yield from (Row(0, rows.rows[i].texts) for i in learnt)
    if len(rows.rows[0].texts) > 1:
        return
    elapsed = max(1e-3, clock_seconds() - start)
    count = min(most - len(learnt), max(0, int(len(learnt) * (seconds / elapsed - 1))))
    texts = (inputs.labelled, inputs.similar)
    pieces, mixed = taught_texts(rows, *texts, count, mix=True, seed=seed)
    yield from (Row(0, (text,)) for text in (*pieces, *mixed)[:count])
