"""Compares the candidates of ``fit`` and blends them. N: held-out rows, C: labels or values."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from ownbert.fitting.decisions import deciding, how_to_decide
from ownbert.fitting.rows.labelled_rows import LOG_LOSS, LabelledRows, targets_of
from ownbert.tasks.metrics import Scores
from ownbert.tasks.related_rows import bootstrap
from ownbert.tasks.rows import Row
from ownbert.tasks.task import Task
from ownbert.train.watch.metric_names import BALANCED, LOWER
from ownbert.views.blending import (
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
from ownbert.views.linear_models import Targets

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


@dataclass
class ComparedModel:
    """A model and its logits for the held-out rows.

    Args:
        name: identifier, used in file names.
        title: name shown to the user.
        kind: network, linear or frozen.
        folders: model folders, relative to the output folder.
        seconds: training time.
        first: folders of the models trained on the first fold only.
        scores: (N, C) logits; None if only the first fold was scored.
        partial: (n, C) logits of the first fold's held-out rows if ``scores`` is None.
        share: weight in the blend if ``scores`` is None.
        unknown: indices of held-out rows in which a linear model knows no feature.
        role: one of ``ROLES``, or "".
    """

    name: str
    title: str
    kind: str
    folders: tuple[str, ...]
    seconds: float
    first: tuple[str, ...] = ()
    scores: np.ndarray | None = None
    partial: np.ndarray | None = None
    share: float = 0.0
    unknown: tuple[int, ...] = ()
    role: str = ""

    @property
    def joined(self) -> bool:
        """Whether it is a network with built-in linear models."""
        return self.role == JOINED

    def about(self) -> dict[str, Any]:
        """All fields except the logits and the role, and whether the former are partial, for
        JSON."""
        fields = {k: v for k, v in asdict(self).items() if k not in ("scores", "role")}
        return {**fields, "partial": self.scores is None}


@dataclass(frozen=True)
class Judged:
    """A model's results for held-out rows, and its metrics on them.

    Args:
        task: the task.
        rows: N held-out rows.
        targets: their targets.
        found: scores and decisions for these rows.
        metric: selection metric.
    """

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
        return [self.task.plain(*each) for each in zip(self.decided, self.rows, strict=True)]

    @property
    def labels(self) -> np.ndarray:
        """(N) indices of the predicted labels in a single-label task."""
        return np.asarray([each.label for each in self.decided], dtype=np.int64)

    def metrics(self, chosen: np.ndarray | None = None) -> Scores:
        """The metrics on some of the rows, by default on all."""
        if chosen is None:
            return self._of_all
        rows, decided = ([each[i] for i in chosen] for each in (self.rows, self.decided))
        return self._score(rows, decided, self.targets[chosen], self.scores[chosen])

    @cached_property
    def _of_all(self) -> Scores:
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
        """The selection metric on some of the rows, by default on all."""
        return self.metrics(chosen).values[self.metric]

    def first(self, count: int) -> "Judged":
        """The first rows."""
        if count >= len(self):
            return self
        chosen = slice(count)
        parts = (self.rows[chosen], self.targets[chosen], self.found.rows(chosen))
        found = Judged(self.task, *parts, self.metric)
        vars(found)["decided"] = self.decided[chosen]  # not decided again at each call
        return found


class Comparison:
    """Candidates compared on the held-out rows, and their blend.

    Args:
        rows: the labelled rows.
        candidates: compared models; at least one has ``scores``.
        metric: selection metric; by default the task's main metric.
        has_texts: whether there are unlabelled texts, from which a distilled network learns most.

    Attributes:
        fitted: the blend of the candidates with ``scores``.
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
        self.measured = [c for c in candidates if c.scores is not None]
        self._scores = [c.scores for c in candidates if c.scores is not None]
        self.targets = rows.targets[rows.held_out]
        self.clusters = rows.clusters[rows.held_out]
        self.counts = rows.label_counts
        balanced = self.metric in (*BALANCED, "f1")
        unequal = self.counts is not None and self.counts.min() < self.counts.max()
        decide = how_to_decide(rows.task, self.metric, balanced=balanced and unequal)
        # Options of ``fit_decided``.
        self._options: dict[str, Any] = {"balanced": balanced, "decide": decide}
        self._adjusted: dict[str, Judged] = {}
        self.fitted = fit_decided(self._scores, self.targets, self.counts, **self._options)

    @cached_property
    def blended(self) -> Judged:
        unknown = [_unknown_rows(c) for c in self.measured]
        fitting = {**self._options, "clusters": self.clusters}
        found = cross_fitted(self._scores, self.targets, self.counts, unknown=unknown, **fitting)
        return self.judge(found)

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
        others = [c for c in self.candidates if c.scores is None]
        weights = [self._rest * float(w) for w in self.fitted.weights] + [c.share for c in others]
        return [m for m in zip([*self.measured, *others], weights, strict=True) if m[1] > 0]

    @property
    def _rest(self) -> float:
        """The share of the candidates with scores for all rows."""
        return 1.0 - sum(c.share for c in self.candidates if c.scores is None)

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
        error = self._error_of_difference(own, blended)
        if gain > _STANDARD_ERRORS * error:
            return True
        pair = own.scores, blended.scores
        return gain > _CLOSE * error and clearly_better(self.targets, *pair, _CLOSE)

    def _error_of_difference(self, one: Judged, other: Judged) -> float:
        """The standard error of the difference of two models' metrics on the same rows, by a
        bootstrap of clusters."""
        samples = min(_SAMPLES, max(10, _ROWS // len(one)))
        drawn = bootstrap(self.clusters[: len(one)], samples)
        return float(np.std([one.value(rows) - other.value(rows) for rows in drawn], ddof=1))

    @property
    def used(self) -> tuple[list[tuple[ComparedModel, float]], FittedBlend, Judged]:
        """The selected model: members with their weights, how they are calibrated and decide, and
        the held-out results."""
        best = self.alone
        if best is None:
            return self.members, self._as_given(self.blend, self.blended), self.blended
        fitted, judged = self.by_itself(best), self.adjusted(best)
        return [(best, float(fitted.weights[0]))], self._as_given(fitted, judged), judged

    def _as_given(self, fitted: FittedBlend, judged: Judged) -> FittedBlend:
        """A blend with the threshold that the user wants, chosen on the probabilities that are kept
        of the held-out rows, so that later commands choose the same one."""
        if not self.rows.task.given_thresholds:
            return fitted
        decide = self._options["decide"]
        return fitted._replace(decision=decide(judged.scores, judged.targets, fitted.decision))

    def share_of(self, scores: np.ndarray) -> float:
        """The blend weight for a model that was distilled from the other candidates.

        Args:
            scores: (n, C) logits of the first fold's held-out rows, whose labels neither the model
                nor its teachers have seen.
        """
        teachers = blend([c[: len(scores)] for c in self._scores], *self.fitted[:2])
        targets = self.targets[: len(scores)]
        counts = self.counts if self._options["balanced"] else None
        known = None if counts is None else self.fitted.decision
        weights, _ = fit_blend([teachers, scores], targets, counts, offsets=known)
        return float(weights[1] / weights.sum())

    def adjusted(self, model: ComparedModel) -> Judged:
        """The results of a single candidate, for all held-out rows or those of the first fold; what
        is fitted for a row is fitted on other rows."""
        if model.name not in self._adjusted:
            fitting = {**self._fitting(model), "unknown": [_unknown_rows(model)]}
            self._adjusted[model.name] = self.judged(known_logits(model), **fitting)
        return self._adjusted[model.name]

    def judged(self, scores: np.ndarray, **fitting: Any) -> Judged:
        """The results of a model with logits (N, C), or (n, C) of the first fold; what is fitted
        for a row is fitted on other rows."""
        count, fitting = len(scores), {**self._options, **fitting}
        fitting["clusters"] = self.clusters[:count]
        return self.judge(cross_fitted([scores], self.targets[:count], self.counts, **fitting))

    def by_itself(self, model: ComparedModel) -> FittedBlend:
        """The factor, offsets and decision of a candidate that is used alone."""
        scores = known_logits(model)
        targets = self.targets[: len(scores)]
        weights, *others = fit_decided([scores], targets, self.counts, **self._fitting(model))
        return FittedBlend(np.maximum(weights, _LEAST_WEIGHT), *others)

    def _fitting(self, model: ComparedModel) -> dict[str, Any]:
        """What is known of a model already.

        Rare labels occur too rarely in the first fold to fit a decision: models with scores for its
        rows alone have that of the blend (docs/lab/distilled-network.md).
        """
        fitting = dict(self._options)
        if self.rows.task.name == "multilabel" and model.joined:
            # Offsets were fitted when the linear models were built in.
            fitting["offsets"] = np.zeros(self.targets.size)
        if len(known_logits(model)) < len(self.targets):
            fitting["decision"] = self.fitted.decision
        return fitting

    def worth(self, model: ComparedModel | None) -> float:
        """The metric of a candidate, or of the blend (None), negated where lower is better."""
        value = (self.blended if model is None else self.adjusted(model)).value()
        return -value if self.lower else value

    def worth_on_first_fold(self, model: ComparedModel) -> float:
        """Like ``worth``, on the first fold's held-out rows, for which all models have logits."""
        value = self.on_first_fold(self.adjusted(model)).value()
        return -value if self.lower else value

    def on_first_fold(self, judged: Judged) -> Judged:
        """A model's results for the first fold's held-out rows."""
        return judged.first(len(self.rows.folds[0][1]))

    def loss_of(self, model: ComparedModel) -> float:
        """The loss on the held-out rows of the first fold."""
        judged = self.on_first_fold(self.adjusted(model))
        return loss(judged.targets, judged.scores)

    def best_on_first_fold(self, models: Sequence[ComparedModel]) -> ComparedModel:
        """The best of at least one model on the first fold's held-out rows: of those whose metric
        differs from the largest by chance alone, the one with the smallest loss, which is less
        noisy."""
        worth = [self.worth_on_first_fold(model) for model in models]
        best = models[int(np.argmax(worth))]
        close = [
            model
            for model, own in zip(models, worth, strict=True)
            if model is best or self._is_close(model, best, max(worth) - own)
        ]
        return min(close, key=self.loss_of)

    def _is_close(self, model: ComparedModel, best: ComparedModel, lead: float) -> bool:
        if lead <= 0:
            return True
        pair = [self.on_first_fold(self.adjusted(each)) for each in (best, model)]
        return lead <= _CLOSE * self._error_of_difference(*pair)

    def surpasses(self, model: ComparedModel, other: ComparedModel, errors: float) -> bool:
        """Whether a model is better than another on the first fold's held-out rows: by the metric,
        and by the loss by more than this many standard errors."""
        one, two = (self.on_first_fold(self.adjusted(each)) for each in (model, other))
        more = self.worth_on_first_fold(model) > self.worth_on_first_fold(other)
        return more and clearly_better(one.targets, one.scores, two.scores, errors)

    def value_of(self, rows: Sequence[Row], found: Decided, like: Judged) -> float:
        """The metric of other rows.

        Args:
            rows: n rows.
            found: results for them.
            like: the same model's results for the held-out rows.
        """
        targets = targets_of(self.rows.task, rows)
        return Judged(like.task, rows, targets, found, self.metric).value()


def known_logits(model: ComparedModel) -> np.ndarray:
    """The known logits: (N, C), or (n, C) for the first fold."""
    scores = model.partial if model.scores is None else model.scores
    assert scores is not None
    return scores


def _unknown_rows(model: ComparedModel) -> np.ndarray:
    """(N) or (n) whether the model knows no feature of a held-out row."""
    return np.isin(np.arange(len(known_logits(model))), model.unknown)


def best_network(compared: Comparison) -> ComparedModel | None:
    """The best network that Transformers can load; None if there is none.

    A few held-out rows are weak evidence. With unlabelled texts, the distilled network has learnt
    from the most texts; next come networks with built-in linear models, which have all that the
    others have. A less favoured network has to be better both by the metric and by the loss: than
    one with built-in linear models by more than the loss's standard error. A network that is used
    instead of the blend is always taken.
    """
    networks = [c for c in compared.candidates if c.kind == "network" and c.role != NGRAMS]
    alone = compared.alone
    for network in networks:
        if network is alone and len(network.folders) == 1:
            return network
    distilled = [c for c in networks if c.role == DISTILLED]
    joined = [c for c in networks if c.joined]
    others = [c for c in networks if c.role not in (DISTILLED, JOINED)]
    groups = (distilled, joined, others) if compared.has_texts else (joined, distilled, others)
    best: ComparedModel | None = None
    for found in (compared.best_on_first_fold(group) for group in groups if group):
        if best is None or compared.surpasses(found, best, float(best.joined)):
            best = found
    return best
