"""Compares the candidates of ``fit``, blends them, and decides how they choose labels.

N: held-out rows, C: labels or values. A decision (C) is added to log-probabilities, of which the
largest wins, or, for several labels per row, to log-odds, of which those above 0 do.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
from scipy.special import expit, logit

from ownbert.fitting.rows.labelled_rows import LOG_LOSS, LabelledRows, targets_of
from ownbert.tasks.classification import SingleLabelTask
from ownbert.tasks.metrics import Scores
from ownbert.tasks.multilabel import MultiLabelTask
from ownbert.tasks.related_rows import bootstrap
from ownbert.tasks.rows import Row
from ownbert.tasks.task import Task
from ownbert.tasks.thresholds import Aim, best_thresholds, settled
from ownbert.train.metric_names import BALANCED, LOWER
from ownbert.views.blending import (
    Decide,
    Decided,
    FittedBlend,
    blend,
    clearly_better,
    cross_fitted,
    fit_blend,
    fit_decided,
    from_scores,
    loss,
)
from ownbert.views.linear_models import Targets, log_softmax

# What matters of a candidate beyond its kind: what it learnt from, and whether Transformers can
# load it, which does not support n-gram embeddings.
ROLES = SELF_TRAINED, JOINED, NGRAMS, DISTILLED = "self-trained", "joined", "ngrams", "distilled"
# A candidate that is better than the blend by this many standard errors is used alone. The standard
# error is that of bootstrap samples: their number, fewer for more than _ROWS rows together.
_STANDARD_ERRORS, _SAMPLES, _ROWS = 2.5, 60, 200_000
# Models whose metrics differ by at most this many standard errors are alike.
_CLOSE = 2.0
# Lower bound of the temperature that offsets are divided by.
_LEAST_WEIGHT = 1e-3
_TRIED = 100  # thresholds with two labels


@dataclass
class ComparedModel:
    """A model and its logits for the held-out rows."""

    name: str  # used in file names
    title: str  # shown to the user
    kind: str  # network, linear or frozen
    folders: tuple[str, ...]  # relative to the output folder
    seconds: float  # training time
    scores: np.ndarray  # (N, C) logits, or (n, C) of the first fold's rows if ``partial``
    first: tuple[str, ...] = ()  # folders of the models trained on the first fold only
    partial: bool = False
    share: float = 0.0  # weight in the blend if ``partial``
    unknown: tuple[int, ...] = ()  # held-out rows in which a linear model knows no feature
    role: str = ""  # one of ``ROLES``, or ""

    def about(self) -> dict[str, Any]:
        """All fields except the logits and the role, for JSON."""
        return {k: v for k, v in vars(self).items() if k not in ("scores", "role")}

    @property
    def unknown_rows(self) -> np.ndarray:
        """(N) or (n) whether the model knows no feature of a held-out row."""
        return np.isin(np.arange(len(self.scores)), self.unknown)


@dataclass(frozen=True)
class Judged:
    """A model's results ``found`` for N held-out rows, and its metrics on them."""

    task: Task
    rows: Sequence[Row]
    targets: Targets
    found: Decided
    metric: str

    def __len__(self) -> int:
        return len(self.found)

    @property
    def scores(self) -> np.ndarray:
        """(N, C) scores of calibrated probabilities, or values."""
        return self.found.scores

    @cached_property
    def outputs(self) -> np.ndarray:
        """(N, C) probabilities or values."""
        return from_scores(self.task.name, self.scores)

    @cached_property
    def decided(self) -> list[Any]:
        """The prediction for each row."""
        unknown = self.found.unknown.tolist()
        every = zip(self.outputs, self.found.decision, self.rows, unknown, strict=True)
        return [
            deciding(self.task, decision).decide(output, row, note)
            for output, decision, row, note in every
        ]

    @property
    def predictions(self) -> list[Any]:
        """The bare predictions: labels, or numbers."""
        return [self.task.plain(*pair) for pair in zip(self.decided, self.rows, strict=True)]

    @property
    def labels(self) -> np.ndarray:
        """(N) indices of the predicted labels in a single-label task."""
        return np.asarray([decision.label for decision in self.decided], dtype=np.int64)

    @cached_property
    def metrics(self) -> Scores:
        """The metrics on all rows."""
        return self._score(self.rows, self.decided, self.targets, self.scores)

    def _score(
        self, rows: Sequence[Row], decided: Sequence[Any], targets: Targets, scores: np.ndarray
    ) -> Scores:
        found = self.task.score(rows, decided)
        if self.task.name == "regress":
            return found
        return replace(found, values={**found.values, LOG_LOSS: loss(targets, scores)})

    def permuted(self, order: np.ndarray) -> Scores:
        """The metrics if the predictions belonged to the rows in this order (N)."""
        rows = [self.rows[i] for i in order]
        return self._score(rows, self.decided, self.targets[order], self.scores)

    def value(self, chosen: np.ndarray | None = None) -> float:
        """The selection metric on the rows at some indices, by default on all."""
        if chosen is None:
            return self.metrics.values[self.metric]
        rows, decided = ([values[i] for i in chosen] for values in (self.rows, self.decided))
        scores = self._score(rows, decided, self.targets[chosen], self.scores[chosen])
        return scores.values[self.metric]


class Comparison:
    """Candidates compared on the held-out rows, and their blend.

    Args:
        rows: the labelled rows.
        candidates: compared models; at least one has logits of all held-out rows.
        metric: selection metric; by default the task's main metric.
        has_texts: whether there are unlabelled texts, from which a distilled network learns most.

    Attributes:
        measured: the candidates with logits of all held-out rows.
        fitted: the blend of these.
        blended: results of the blend; what is fitted is fitted on other rows, so that metrics are
            unbiased.
    """

    def __init__(
        self,
        rows: LabelledRows,
        candidates: Sequence[ComparedModel],
        metric: str | None = None,
        *,
        has_texts: bool = True,
    ) -> None:
        self.rows, self.candidates, self.has_texts = rows, candidates, has_texts
        self.metric = metric or rows.task.metrics[0]
        self.lower = self.metric in LOWER
        self.measured = [c for c in candidates if not c.partial]
        self._scores = [c.scores for c in self.measured]
        self.targets = rows.targets[rows.held_out]
        self.clusters = rows.clusters[rows.held_out]
        self.counts = rows.label_counts
        self._first = np.arange(len(rows.folds[0][1]))  # held-out rows of the first fold
        balanced = self.metric in (*BALANCED, "f1")
        unequal = self.counts is not None and self.counts.min() < self.counts.max()
        decide = how_to_decide(rows.task, self.metric, balanced=balanced and unequal)
        # Options of ``fit_decided``.
        self._options: dict[str, Any] = {"balanced": balanced, "decide": decide}
        self._adjusted: dict[str, Judged] = {}
        self.fitted = fit_decided(self._scores, self.targets, self.counts, **self._options)

    @cached_property
    def blended(self) -> Judged:
        unknown = [c.unknown_rows for c in self.measured]
        return self._judged(self._scores, self._options, unknown)

    def _judged(
        self,
        scores: Sequence[np.ndarray],
        options: Mapping[str, Any],
        unknown: Sequence[np.ndarray] | None = None,
    ) -> Judged:
        """The results of a blend of logits (N, C), or (n, C) of the first fold, by cross-fitting
        with options of ``fit_decided``."""
        count = len(scores[0])
        fitting = {**options, "unknown": unknown, "clusters": self.clusters[:count]}
        return self.judge(cross_fitted(scores, self.targets[:count], self.counts, **fitting))

    def judge(self, found: Decided) -> Judged:
        """The results (N, C), or (n, C) of the first fold."""
        held_out = self.rows.held_out[: len(found)]
        rows = [self.rows.rows[i] for i in held_out]
        return Judged(self.rows.task, rows, self.rows.targets[held_out], found, self.metric)

    @property
    def members(self) -> list[tuple[ComparedModel, float]]:
        """The candidates in the blend and their weights.

        A candidate that was scored on the first fold only was trained on the blend's probabilities,
        so its logits have the blend's scale, and the two are averaged by its share.
        """
        others = [c for c in self.candidates if c.partial]
        weights = [self._rest * float(w) for w in self.fitted.weights] + [c.share for c in others]
        return [m for m in zip([*self.measured, *others], weights, strict=True) if m[1] > 0]

    @property
    def _rest(self) -> float:
        """The share of the candidates with scores for all rows."""
        return 1.0 - sum(c.share for c in self.candidates if c.partial)

    @property
    def blend(self) -> FittedBlend:
        """The blend with all members; its ``weights`` are those of the candidates with scores."""
        weights, offsets, decision = self.fitted
        return FittedBlend(self._rest * weights, self._rest * offsets, decision)

    @cached_property
    def alone(self) -> ComparedModel | None:
        """The candidate that is used instead of the blend, or None.

        The best of several candidates is partly lucky, so a candidate has to beat the blend by more
        than chance, on the same rows: by the metric; or less clearly by the metric, and by the
        loss. The distilled network is a single candidate: a smaller loss decides if it is not worse
        by the metric.
        """
        for model in sorted(self.measured, key=self.worth, reverse=True):
            if self._replaces_blend(model):
                return model
        return self.members[0][0] if len(self.members) == 1 else None

    def _replaces_blend(self, model: ComparedModel) -> bool:
        gain = self.worth(model) - self.worth(None)
        own, blended = self.adjusted(model), self.blended
        if gain < 0:
            return False
        if model.role == DISTILLED and loss(self.targets, own.scores) <= loss(
            self.targets, blended.scores
        ):
            return True
        if gain == 0:
            return False
        error = self._error_of_difference(own, blended, len(own))
        if gain > _STANDARD_ERRORS * error:
            return True
        pair = own.scores, blended.scores
        return gain > _CLOSE * error and clearly_better(self.targets, *pair, _CLOSE)

    def _error_of_difference(self, own: Judged, other: Judged, count: int) -> float:
        """The standard error of the difference of two models' metrics on the first rows, by a
        bootstrap of clusters."""
        drawn = bootstrap(self.clusters[:count], min(_SAMPLES, max(10, _ROWS // count)))
        return float(np.std([own.value(rows) - other.value(rows) for rows in drawn], ddof=1))

    @property
    def used(self) -> tuple[list[tuple[ComparedModel, float]], FittedBlend, Judged]:
        """The selected model: members with their weights, how they are calibrated and decide, and
        the held-out results."""
        if (best := self.alone) is None:
            members, fitted, judged = self.members, self.blend, self.blended
        else:
            fitted, judged = self.by_itself(best), self.adjusted(best)
            members = [(best, float(fitted.weights[0]))]
        if self.rows.task.given_thresholds:
            # Chosen on the probabilities that are kept, so that later commands choose the same.
            chosen = self._options["decide"](judged.scores, judged.targets, fitted.decision)
            fitted = fitted._replace(decision=chosen)
        return members, fitted, judged

    def share_of(self, scores: np.ndarray) -> float:
        """The blend weight for a model that was distilled from the other candidates.

        Args:
            scores: (n, C) logits of the first fold's held-out rows, whose labels neither the model
                nor its teachers have seen.
        """
        teachers = blend([c[: len(scores)] for c in self._scores], *self.fitted[:2])
        targets = self.targets[: len(scores)]
        counts = self.counts if self._options["balanced"] else None
        offsets = None if counts is None else self.fitted.decision
        weights, _ = fit_blend([teachers, scores], targets, counts, offsets=offsets)
        return float(weights[1] / weights.sum())

    def adjusted(self, model: ComparedModel) -> Judged:
        """The results of a single candidate, for all held-out rows or those of the first fold; what
        is fitted for a row is fitted on other rows."""
        if model.name not in self._adjusted:
            options = self._options_of(model)
            self._adjusted[model.name] = self._judged([model.scores], options, [model.unknown_rows])
        return self._adjusted[model.name]

    def judged(self, scores: np.ndarray) -> Judged:
        """Like ``adjusted``, of another model with logits (n, C) of the first fold."""
        return self._judged([scores], self._options)

    def by_itself(self, model: ComparedModel) -> FittedBlend:
        """The factor, offsets and decision of a candidate that is used alone."""
        targets, options = self.targets[: len(model.scores)], self._options_of(model)
        weights, *others = fit_decided([model.scores], targets, self.counts, **options)
        return FittedBlend(np.maximum(weights, _LEAST_WEIGHT), *others)

    def _options_of(self, model: ComparedModel) -> dict[str, Any]:
        """Options of ``fit_decided`` for a single candidate.

        Rare labels occur too rarely in the first fold to fit a decision: models with scores for its
        rows alone have that of the blend (docs/lab/distilled-network.md).
        """
        options = dict(self._options)
        if self.rows.task.name == "multilabel" and model.role == JOINED:
            # Offsets were fitted when the linear models were built in.
            options["offsets"] = np.zeros(self.targets.size)
        if len(model.scores) < len(self.targets):
            options["decision"] = self.fitted.decision
        return options

    def worth(self, model: ComparedModel | None, chosen: np.ndarray | None = None) -> float:
        """The metric of a candidate, or of the blend (None), negated where lower is better; on the
        held-out rows at some indices, by default on all."""
        value = (self.blended if model is None else self.adjusted(model)).value(chosen)
        return -value if self.lower else value

    def worth_on_first_fold(self, model: ComparedModel) -> float:
        """Like ``worth``, on the first fold's held-out rows, for which all models have logits."""
        return self.worth(model, self._first)

    def value_on_first_fold(self, judged: Judged) -> float:
        """The selection metric on the first fold's held-out rows."""
        return judged.value(self._first)

    def loss_of(self, model: ComparedModel) -> float:
        """The loss on the held-out rows of the first fold."""
        return loss(self.targets[self._first], self.adjusted(model).scores[self._first])

    def best_on_first_fold(self, models: Sequence[ComparedModel]) -> ComparedModel:
        """The best of at least one model on the first fold's held-out rows: of those whose metric
        differs from the largest by chance alone, the one with the smallest loss, which is less
        noisy."""
        worth = [self.worth_on_first_fold(model) for model in models]
        best = models[int(np.argmax(worth))]

        def is_close(model: ComparedModel, lead: float) -> bool:
            if model is best or lead <= 0:
                return True
            pair = self.adjusted(best), self.adjusted(model)
            return lead <= _CLOSE * self._error_of_difference(*pair, len(self._first))

        pairs = zip(models, worth, strict=True)
        close = [model for model, own in pairs if is_close(model, max(worth) - own)]
        return min(close, key=self.loss_of)

    def surpasses(self, model: ComparedModel, other: ComparedModel, errors: float) -> bool:
        """Whether a model is better than another on the first fold's held-out rows: by the metric,
        and by the loss by more than this many standard errors."""
        if self.worth_on_first_fold(model) <= self.worth_on_first_fold(other):
            return False
        own, others = (self.adjusted(each).scores[self._first] for each in (model, other))
        return clearly_better(self.targets[self._first], own, others, errors)

    def value_of(self, rows: Sequence[Row], found: Decided) -> float:
        """The metric of a model's results for other rows (n)."""
        task = self.rows.task
        return Judged(task, rows, targets_of(task, rows), found, self.metric).value()


def best_network(compared: Comparison) -> ComparedModel | None:
    """The best network that Transformers can load; None if there is none.

    A few held-out rows are weak evidence. With unlabelled texts, the distilled network has learnt
    from the most texts; next come networks with built-in linear models, which have all that the
    others have. A less favoured network has to be better both by the metric and by the loss: than
    one with built-in linear models by more than the loss's standard error. A network that is used
    instead of the blend is always taken.
    """
    networks = [c for c in compared.candidates if c.kind == "network" and c.role != NGRAMS]
    for network in networks:
        if network is compared.alone and len(network.folders) == 1:
            return network
    distilled = [c for c in networks if c.role == DISTILLED]
    joined = [c for c in networks if c.role == JOINED]
    others = [c for c in networks if c.role not in (DISTILLED, JOINED)]
    groups = (distilled, joined, others) if compared.has_texts else (joined, distilled, others)
    best: ComparedModel | None = None
    for found in (compared.best_on_first_fold(group) for group in groups if group):
        if best is None or compared.surpasses(found, best, float(best.role == JOINED)):
            best = found
    return best


def how_to_decide(task: Any, metric: str, *, balanced: bool) -> Decide | None:
    """How a decision is chosen on held-out rows (see ``fit_decided``) for the selection metric;
    None: from the label frequencies, or not at all.

    ``balanced``: all labels count equally in the metric, and their frequencies differ.
    """
    if isinstance(task, MultiLabelTask):
        return partial(_of_several, task=task, metric=metric)
    if thresholds := task.given_thresholds:
        return partial(_of_one, task=task, thresholds=thresholds)
    if balanced and task.name == "classify" and len(task.labels) == 2:
        positive = task.labels.index(task.positive_label)
        return partial(_best_of_two, value=partial(_value_of_two, metric=metric, positive=positive))
    return None


def deciding(task: Task, decision: np.ndarray) -> Task:
    """A copy of a task that chooses labels with a decision (C)."""
    if isinstance(task, MultiLabelTask):
        return task.deciding_by(np.round(expit(-decision), 12))
    task = copy.copy(task)
    if isinstance(task, SingleLabelTask):
        task.decision = tuple(map(float, decision)) if np.any(decision) else None
    return task


def missed_thresholds(judged: Judged) -> list[str]:
    """A sentence for each threshold that cannot be chosen as the user asked for."""
    if not (thresholds := judged.task.given_thresholds):
        return []
    truth_and_probabilities = _truth_and_probabilities(judged.scores, judged.targets)
    return settled(thresholds, judged.task.labels, *truth_and_probabilities)[1]


def _truth_and_probabilities(scores: np.ndarray, targets: Targets) -> tuple[np.ndarray, np.ndarray]:
    """(N, C) whether a row has a label, and the probability of it."""
    values = targets.values
    truth = np.eye(targets.size)[values] if targets.task == "classify" else values
    return truth > 0, from_scores(targets.task, scores)


def _of_several(
    scores: np.ndarray, targets: Targets, start: np.ndarray, *, task: MultiLabelTask, metric: str
) -> np.ndarray:
    """The thresholds of several labels per row that the user gave, or those with the best
    metric."""
    if isinstance(task.settings.threshold, float):
        return np.full(targets.size, -logit(task.settings.threshold))
    truth, probabilities = _truth_and_probabilities(scores, targets)
    best = task.deciding_by(best_thresholds(truth, probabilities, metric))
    named, _ = settled(task.given_thresholds, task.labels, truth, probabilities)
    return -logit(best.with_thresholds(named).thresholds)


def _of_one(
    scores: np.ndarray,
    targets: Targets,
    start: np.ndarray,
    *,
    task: SingleLabelTask,
    thresholds: Mapping[str, float | Aim],
) -> np.ndarray:
    """The threshold that the user gave for one of two labels."""
    numbers, _ = settled(thresholds, task.labels, *_truth_and_probabilities(scores, targets))
    return np.asarray(task.with_thresholds(numbers).decision)


def _best_of_two(
    scores: np.ndarray,
    targets: Targets,
    start: np.ndarray,
    *,
    value: Callable[[np.ndarray, np.ndarray], float],
) -> np.ndarray:
    """The decision (2) with the best metric on rows with calibrated scores (N, 2).

    The mean of the metric of the true labels and of that which the probabilities predict: the
    latter is less noisy with few rows of a label, and depends on the calibration. ``value`` is the
    metric, from weights of each row for each label (N, 2), which sum to 1, and predicted indices
    (N); ``start`` (2) is one of the decisions that are tried.
    """
    logs = log_softmax(scores)
    truth, expected = np.eye(2)[targets.values], np.exp(logs)
    margins = logs[:, 1] - logs[:, 0]
    quantiles = np.quantile(margins, np.linspace(0, 1, _TRIED + 2)[1:-1])
    tried = np.append(quantiles, start[0] - start[1])

    def worth(threshold: float) -> float:
        predicted = (margins >= threshold).astype(int)
        return value(truth, predicted) + value(expected, predicted)

    values = np.asarray([worth(threshold) for threshold in tried])
    # The middle of the thresholds that are as good: the largest one may be so by chance.
    best = float(np.median(tried[values >= values.max() - 1e-12]))
    return np.asarray([best / 2, -best / 2])


def _value_of_two(truth: np.ndarray, predicted: np.ndarray, *, metric: str, positive: int) -> float:
    """A metric of two labels; see ``_best_of_two``."""
    pairs = np.stack([truth[predicted == i].sum(0) for i in (0, 1)])  # predicted, true
    right, sums = np.diag(pairs), pairs.sum(0) + pairs.sum(1)
    f1 = 2 * right / np.maximum(sums, 1e-9)
    if metric == "f1":
        return float(f1[positive])
    if metric == "mcc":
        products = pairs.sum(0).prod() * pairs.sum(1).prod()
        return float((right.prod() - pairs[0, 1] * pairs[1, 0]) / np.sqrt(max(products, 1e-9)))
    return float(f1.mean())
