"""Metrics by chance: those of the same predictions, assigned to random rows. N: rows."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ownbert.tasks.finetune_recipe import TEXT_TASKS
from ownbert.tasks.related_rows import clusters_of, permutations
from ownbert.tasks.rows import Row
from ownbert.tasks.task import Task
from ownbert.time_limit import seconds_left
from ownbert.train.metric_names import LOWER, decimals, shown_name

_DRAWS, _FEWEST_DRAWS = 40, 10
# With fewer clusters, the rows of one cannot be told from those of another.
_FEWEST_CLUSTERS = 5
# A metric that is better by fewer standard deviations may be due to chance. Of several metrics, one
# is sooner better by chance than the metric that was named.
_CLEARLY, _ANY_CLEARLY, _NOT_AT_ALL = 2.5, 3.5, 1.0
# A smaller gain, relative to the largest possible one, is none: thresholds that were chosen on the
# same rows gain as much.
_LEAST_GAIN = 0.02
_ROUNDING = 1e-6
# Rows that ``chance_warning`` looks at: with fewer nothing is clear, and more take long.
_FEWEST_ROWS, _MOST_ROWS = 30, 5_000


@dataclass(frozen=True)
class Chance:
    """A metric of predictions that are assigned to random rows.

    Args:
        mean: mean over the assignments.
        deviation: standard deviation.
    """

    mean: float
    deviation: float

    def is_beaten(self, value: float, deviations: float, *, lower: bool) -> bool:
        """Whether a value is better than the mean by more than this many deviations."""
        gain = self.mean - value if lower else value - self.mean
        least = _LEAST_GAIN * (self.mean if lower else 1 - self.mean)
        return gain > max(deviations * self.deviation, least, _ROUNDING)


def metrics_by_chance(
    metrics: Callable[[np.ndarray], Mapping[str, float]], clusters: np.ndarray
) -> dict[str, Chance]:
    """The metrics of predictions that are assigned to random rows.

    Args:
        metrics: the metrics of the predictions, in their order, for the rows with these indices.
        clusters: (N) number of the cluster of each row; targets of a cluster stay together.

    Returns:
        Empty if there are too few clusters.

    Source: Ojala and Garriga 2010, "Permutation Tests for Studying Classifier Performance", test 1.
    """
    if len(np.unique(clusters)) < _FEWEST_CLUSTERS:
        return {}
    draws = []
    for order in permutations(clusters, _DRAWS):
        draws.append(metrics(order))
        if seconds_left() <= 0 and len(draws) >= _FEWEST_DRAWS:
            break
    values = {name: [draw[name] for draw in draws] for name in draws[0]}
    return {name: Chance(float(np.mean(v)), float(np.std(v, ddof=1))) for name, v in values.items()}


def like_guessing(
    metric: str, values: Mapping[str, float], chance: Mapping[str, Chance]
) -> str | None:
    """How a model compares with guessing if it is not clearly better, in words; None if it is
    better by this metric, or by far by another one, or if this is unknown."""

    def beats(name: str, deviations: float) -> bool:
        return chance[name].is_beaten(values[name], deviations, lower=name in LOWER)

    if metric not in chance or metric not in values or beats(metric, _CLEARLY):
        return None
    if any(beats(name, _ANY_CLEARLY) for name in chance if name in values):
        return None
    clearly = "not clearly" if beats(metric, _NOT_AT_ALL) else "no"
    return f"{clearly} better than guessing"


def chance_warning(
    task: Task, rows: Sequence[Row], decided: Sequence[Any], values: Mapping[str, float]
) -> str | None:
    """A warning if predictions are not clearly better than guessing.

    Args:
        task: the task; others than labels, sets of labels and numbers have no such warning.
        rows: N rows with targets.
        decided: their predictions.
        values: the metrics.
    """
    metric = task.metrics[0]
    if (task.name not in TEXT_TASKS and not task.counts_labels) or len(rows) < _FEWEST_ROWS:
        return None
    if len(rows) > _MOST_ROWS:
        chosen = np.random.default_rng(0).choice(len(rows), _MOST_ROWS, replace=False)
        rows, decided = ([each[i] for i in chosen] for each in (rows, decided))
        values = task.score(rows, decided).values
    clusters = clusters_of([task.fold_keys(row) for row in rows])
    chance = metrics_by_chance(
        lambda order: task.score([rows[i] for i in order], decided).values, clusters
    )
    if (guessing := like_guessing(metric, values, chance)) is None:
        return None
    score = f"{shown_name(metric)} {decimals(values[metric])}"
    return f"{score} is {guessing} ({decimals(chance[metric].mean)} by chance)"
