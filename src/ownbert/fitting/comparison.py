"""Compares the candidates of ``fit`` and blends them. N: held-out rows, C: labels or values."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from ownbert.exceptions import InputError
from ownbert.fitting.rows.labelled_rows import LabelledRows, targets_of
from ownbert.tasks.metrics import Scores
from ownbert.tasks.multilabel import MultiLabelTask
from ownbert.tasks.rows import Row
from ownbert.tasks.task import Task
from ownbert.tasks.text_input import EncodedRows
from ownbert.train.watch.metric_names import BALANCED, LOWER
from ownbert.views.blending import (
    blend,
    clearly_better,
    cross_fitted,
    fit_blend,
    from_scores,
    loss,
    rows_without_features,
)
from ownbert.views.linear_models import Targets

LOG_LOSS = "log_loss"
# A candidate that is better than the blend by this many standard errors is used alone. The standard
# error is that of bootstrap samples: their number, fewer for more than _ROWS rows together.
_STANDARD_ERRORS, _SAMPLES, _ROWS = 2.5, 60, 200_000
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

    @property
    def joined(self) -> bool:
        """Whether it is a network with built-in linear models."""
        return self.name.startswith("joined")

    def about(self) -> dict[str, Any]:
        """All fields except the logits, and whether these are partial, for JSON."""
        known = {k: v for k, v in asdict(self).items() if k != "scores"}
        return {**known, "partial": self.scores is None}


class Comparison:
    """Candidates compared on the held-out rows, and their blend.

    Args:
        rows: the labelled rows.
        candidates: compared models; at least one has ``scores``.
        metric: selection metric; by default the task's main metric.
        has_texts: whether there are unlabelled texts, from which a distilled network learns most.

    Attributes:
        weights: blend weights of the candidates with ``scores``.
        offsets: (C) offsets added to the blend's logits; zeros if the metric favours frequent
            labels.
        blended: (N, C) logits of the blend; the weights and offsets for each row are fitted on
            other rows, so that metrics of the blend are unbiased.
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
        scores = [c.scores for c in candidates if c.scores is not None]
        self.targets = rows.targets[rows.held_out]
        self.counts = rows.label_counts if self.metric in BALANCED else None
        self._adjusted: dict[str, np.ndarray] = {}
        # Thresholds, and rows without known features, by the array's id; arrays are kept alive, so
        # that ids stay unique.
        self._thresholds: dict[int, tuple[np.ndarray, float]] = {}
        self._unknown: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        self.weights, self.offsets = fit_blend(scores, self.targets, self.counts)
        unknown = [_unknown_rows(c) for c in self.measured]
        self.blended = cross_fitted(scores, self.targets, self.counts, unknown=unknown)
        without = rows_without_features(self.weights, unknown)
        self._unknown[id(self.blended)] = self.blended, without

    @property
    def members(self) -> list[tuple[ComparedModel, float]]:
        """The candidates in the blend and their weights.

        A candidate that was scored on the first fold only was trained on the blend's probabilities,
        so its logits have the blend's scale, and the two are averaged by its share.
        """
        others = [c for c in self.candidates if c.scores is None]
        rest = 1.0 - sum(c.share for c in others)
        weights = [rest * float(w) for w in self.weights] + [c.share for c in others]
        return [m for m in zip([*self.measured, *others], weights, strict=True) if m[1] > 0]

    @cached_property
    def alone(self) -> ComparedModel | None:
        """The candidate that is used instead of the blend, or None if the blend is better.

        The best of several candidates is partly lucky, so a candidate has to beat the blend by more
        than chance, on the same rows. The distilled network is a single candidate and need not.
        """
        best = max(self.measured, key=self.worth)
        if len(self.members) == 1:
            return best
        blended = self.worth(None)
        if self.worth(best) == blended or self._surpasses_blend(best):
            return best
        student = next((c for c in self.measured if c.name == "student"), None)
        return None if student is None or self.worth(student) < blended else student

    def _surpasses_blend(self, model: ComparedModel) -> bool:
        gain = self.worth(model) - self.worth(None)
        count = len(self.rows.held_out)
        if gain <= 0 or gain > self._chance(count):
            return gain > 0
        rng, own = np.random.default_rng(0), self.adjusted(model)
        samples = min(_SAMPLES, max(10, _ROWS // count))
        drawn = [rng.integers(0, count, count) for _ in range(samples)]
        gains = [self.value(own, rows) - self.value(self.blended, rows) for rows in drawn]
        return gain > _STANDARD_ERRORS * float(np.std(gains))

    def _chance(self, rows: int) -> float:
        """Upper bound of the standard error of a proportion over this many rows; 0 if the metric is
        not a proportion."""
        return 0.0 if self.lower else 0.5 / math.sqrt(rows)

    @property
    def used(self) -> tuple[list[tuple[ComparedModel, float]], np.ndarray, np.ndarray]:
        """The selected model: members with their weights, the offsets (C), and the held-out logits
        (N, C)."""
        best = self.alone
        if best is None:
            return self.members, self.offsets, self.blended
        weight, offsets = self.by_itself(best)
        return [(best, weight)], offsets, self.adjusted(best)

    def share_of(self, scores: np.ndarray) -> float:
        """The blend weight for a model that was distilled from the other candidates.

        Args:
            scores: (n, C) logits of the first fold's held-out rows, whose labels neither the model
                nor its teachers have seen.
        """
        member_scores = [c.scores[: len(scores)] for c in self.candidates if c.scores is not None]
        both = [blend(member_scores, self.weights), scores]
        targets, offsets = self.targets[: len(scores)], self._rare_label_offsets(len(scores))
        weights, _ = fit_blend(both, targets, self.counts, offsets=offsets)
        return float(weights[1] / weights.sum())

    def adjusted(self, model: ComparedModel) -> np.ndarray:
        """The calibrated logits of a single candidate, (N, C) or (n, C) for the first fold; each
        row's factor and offsets are fitted on other rows."""
        scores = known_logits(model)
        if model.name not in self._adjusted:
            targets = self.targets[: len(scores)]
            unknown = _unknown_rows(model)
            offsets = self._known_offsets(model)
            given = {"unknown": [unknown], "offsets": offsets}
            logits = cross_fitted([scores], targets, self.counts, **given)
            self._adjusted[model.name] = logits
            self._unknown[id(logits)] = logits, unknown
        return self._adjusted[model.name]

    def by_itself(self, model: ComparedModel) -> tuple[float, np.ndarray]:
        """The factor and the offsets (C) for the logits of a candidate that is used alone."""
        scores = known_logits(model)
        targets, offsets = self.targets[: len(scores)], self._known_offsets(model)
        weights, offsets = fit_blend([scores], targets, self.counts, offsets=offsets)
        return max(float(weights[0]), _LEAST_WEIGHT), offsets

    def _known_offsets(self, model: ComparedModel) -> np.ndarray | None:
        """The offsets that a model has already; None if they are to be fitted."""
        if self.rows.task.name == "multilabel" and model.joined:
            return np.zeros(self.targets.size)  # fitted when the linear models were built in
        return self._rare_label_offsets(len(known_logits(model)))

    def _rare_label_offsets(self, rows: int) -> np.ndarray | None:
        """The blend's offsets if logits are known for this many rows, the first fold, in which rare
        labels occur too rarely to fit offsets; None otherwise, and if labels are balanced
        (docs/lab/distilled-network.md)."""
        return None if self.counts is None or rows == len(self.targets) else self.offsets

    def worth(self, model: ComparedModel | None) -> float:
        """The metric of a candidate, or of the blend (None), negated where lower is better."""
        value = self.value(self.blended if model is None else self.adjusted(model))
        return -value if self.lower else value

    def worth_on_first_fold(self, model: ComparedModel) -> float:
        """Like ``worth``, on the first fold's held-out rows, for which all models have logits."""
        value = self.value_on_first_fold(self.adjusted(model))
        return -value if self.lower else value

    def value_on_first_fold(self, scores: np.ndarray) -> float:
        """The metric of a model's logits (N, C) or (n, C) on the first fold's held-out rows."""
        first = scores[: len(self.rows.folds[0][1])]
        self._unknown[id(first)] = first, self._unknown_in(scores)[: len(first)]
        return self.value(first)

    def loss_of(self, model: ComparedModel) -> float:
        """The loss on the held-out rows of the first fold."""
        targets = self.targets[: len(self.rows.folds[0][1])]
        return loss(targets, self.adjusted(model)[: len(targets)])

    def best_on_first_fold(self, models: Sequence[ComparedModel]) -> ComparedModel:
        """The best of at least one model on the first fold's held-out rows: of those whose metric
        differs from the largest by chance alone, the one with the smallest loss, which is less
        noisy."""
        worth = [self.worth_on_first_fold(model) for model in models]
        least = max(worth) - self._chance(len(self.rows.folds[0][1]))
        close = [model for model, own in zip(models, worth, strict=True) if own >= least]
        return min(close, key=self.loss_of)

    def surpasses(self, model: ComparedModel, other: ComparedModel, errors: float) -> bool:
        """Whether a model is better than another on the first fold's held-out rows: by the metric,
        and by the loss by more than this many standard errors."""
        targets = self.targets[: len(self.rows.folds[0][1])]
        one, two = (self.adjusted(each)[: len(targets)] for each in (model, other))
        more = self.worth_on_first_fold(model) > self.worth_on_first_fold(other)
        return more and clearly_better(targets, one, two, errors)

    def metrics(self, scores: np.ndarray, chosen: np.ndarray | None = None) -> Scores:
        """The metrics of logits (N, C), or (n, C) for the first fold.

        Args:
            chosen: indices of held-out rows; by default all.
        """
        held_out = self.rows.held_out[: len(scores)]
        self.tune(scores)
        unknown = self._unknown_in(scores)
        if chosen is not None:
            scores, held_out, unknown = scores[chosen], held_out[chosen], unknown[chosen]
        rows = [self.rows.rows[i] for i in held_out]
        return self._score_decisions(scores, rows, self.rows.targets[held_out], unknown)

    def value(self, scores: np.ndarray, chosen: np.ndarray | None = None) -> float:
        """The selection metric of logits; see ``metrics`` for the arguments."""
        return self.metrics(scores, chosen).values[self.metric]

    def predictions(self, scores: np.ndarray) -> list[Any]:
        """The predictions for the held-out rows with these logits (N, C), or (n, C) for the first
        fold."""
        self.tune(scores)
        task, unknown = self.rows.task, self._unknown_in(scores).tolist()
        rows = [self.rows.rows[i] for i in self.rows.held_out[: len(scores)]]
        decided = task.decide_each(list(from_scores(task.name, scores)), rows, unknown)
        return [task.plain(each, row) for each, row in zip(decided, rows, strict=True)]

    def tune(self, scores: np.ndarray) -> None:
        """Set the task's threshold to the one with the best metric for the logits of rows with a
        known feature."""
        task = self.rows.task
        if not isinstance(task, MultiLabelTask):
            return
        if id(scores) not in self._thresholds:
            known = np.flatnonzero(~self._unknown_in(scores))
            if len(known):
                rows = [self.rows.rows[i] for i in self.rows.held_out[known]]
                task.tune(list(from_scores(task.name, scores[known])), EncodedRows([]), rows)
            self._thresholds[id(scores)] = scores, task.threshold
        task.threshold = self._thresholds[id(scores)][1]

    def value_of(
        self, rows: Sequence[Row], scores: np.ndarray, unknown: np.ndarray, like: np.ndarray
    ) -> float:
        """The metric of other rows' logits (rows, C).

        Args:
            unknown: (rows) whether a row has no known feature.
            like: the same model's logits of the held-out rows.
        """
        self.tune(like)
        targets = targets_of(self.rows.task, rows)
        return self._score_decisions(scores, rows, targets, unknown).values[self.metric]

    def _unknown_in(self, scores: np.ndarray) -> np.ndarray:
        """(N) whether the held-out rows with these logits have no known feature."""
        return self._unknown.get(id(scores), (scores, np.zeros(len(scores), dtype=bool)))[1]

    def _score_decisions(
        self, scores: np.ndarray, rows: Sequence[Row], targets: Targets, unknown: np.ndarray
    ) -> Scores:
        task = self.rows.task
        raws = list(from_scores(task.name, scores))
        found = task.score(rows, task.decide_each(raws, rows, unknown.tolist()))
        if task.name == "regress":
            return found
        return replace(found, values={**found.values, LOG_LOSS: loss(targets, scores)})


def known_logits(model: ComparedModel) -> np.ndarray:
    """The known logits: (N, C), or (n, C) for the first fold."""
    scores = model.partial if model.scores is None else model.scores
    assert scores is not None
    return scores


def _unknown_rows(model: ComparedModel) -> np.ndarray:
    """(N) or (n) whether the model knows no feature of a held-out row."""
    return np.isin(np.arange(len(known_logits(model))), model.unknown)


def check_metric(metric: str, task: Task) -> None:
    """Raise ``InputError`` unless the metric is available for the task."""
    known = (*task.metrics, *(() if task.name == "regress" else ("weighted_f1", LOG_LOSS)))
    if metric not in known:
        raise InputError(f"metric is {metric!r}; {task.name} has {', '.join(known)}")


def best_network(compared: Comparison) -> ComparedModel | None:
    """The best network that Transformers can load; None if there is none.

    A few held-out rows are weak evidence. With unlabelled texts, the distilled network has learnt
    from the most texts; next come networks with built-in linear models, which have all that the
    others have. A less favoured network has to be better both by the metric and by the loss: than
    one with built-in linear models by more than the loss's standard error. A network that is used
    instead of the blend is always taken.
    """
    # Transformers does not support n-gram embeddings.
    networks = [c for c in compared.candidates if c.kind == "network" and c.name != "ngrams"]
    alone = compared.alone
    for network in networks:
        if network is alone and len(network.folders) == 1:
            return network
    taught = [c for c in networks if c.name == "student"]
    joined = [c for c in networks if c.joined]
    others = [c for c in networks if c.name != "student" and not c.joined]
    groups = (taught, joined, others) if compared.has_texts else (joined, taught, others)
    best: ComparedModel | None = None
    for found in (compared.best_on_first_fold(group) for group in groups if group):
        if best is None or compared.surpasses(found, best, float(best.joined)):
            best = found
    return best
