"""What a linear model on TF-IDF scores on the rows that a fine-tuned network is measured on.

A network that is below it has learnt too little, or has too few rows for what it can do.
"""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ownbert.errors import InputError
from ownbert.tasks.finetune_recipe import TEXT_TASKS
from ownbert.tasks.rows import Row
from ownbert.tasks.sentence_embedding.rank import EmbeddingTask
from ownbert.tasks.soft_targets import is_soft
from ownbert.tasks.task import Task
from ownbert.tasks.text_input import EncodedRows
from ownbert.time_limit import OutOfTime, check_time, time_limit
from ownbert.train.watch.metric_names import LOWER, shown_name
from ownbert.views.blending import from_scores
from ownbert.views.linear_models import Targets, fit_linear
from ownbert.views.linear_view import LinearView
from ownbert.views.tokens import text_kind
from ownbert.views.view_features import NgramView, Texts

# Seconds for all of it, at most, and the share of a time limit of the run.
_SECONDS, _SHARE = 20.0, 0.05
# Characters of training texts, times labels, that are learnt from: what takes a few seconds.
_MOST_WORK = 100_000_000
# Inverse weight of the penalty, of labels and of numbers.
_STRENGTH, _STRENGTH_OF_NUMBERS = 10.0, 1.0
_TITLE = "TF-IDF with a linear model"


@dataclass(frozen=True)
class LinearBaseline:
    """The score of a linear model on TF-IDF of 1 to 2 words.

    Args:
        metric: of the task.
        value: of it, on the dev rows.
        rows: training rows that it has learnt from, if not all.
    """

    metric: str
    value: float
    rows: int | None

    def lines(self, network: float) -> list[str]:
        """The comparison for the user, with a warning where the network is worse.

        Args:
            network: its value of the metric on the same rows.
        """
        score = f"{_TITLE}: {shown_name(self.metric)} {self.value:.3f} on the same rows"
        if self.rows is not None:
            score += f", learnt from {self.rows:,} of the training rows"
        gain = self.value - network if self.metric in LOWER else network - self.value
        if gain >= 0:
            return [score]
        warning = (
            f"the network is worse ({network:.3f}): try more --epochs, another "
            "--learning-rate, or ownbert fit, which combines both"
        )
        return [f"warning: {warning}", score]

    @property
    def sentence(self) -> str:
        """For the model card, below the metrics of the network."""
        line = f"{_TITLE} has {shown_name(self.metric)} {self.value:.4f} on the same rows"
        return f"{line}." if self.rows is None else f"{line} ({self.rows:,} training rows)."


class WordBaseline(LinearBaseline):
    """The score of cosines of TF-IDF of 1 to 2 words, where vectors of texts are learnt."""

    def lines(self, network: float) -> list[str]:
        score = f"TF-IDF alone: {shown_name(self.metric)} {self.value:.3f} on the same rows"
        if network >= self.value:
            return [score]
        warning = (
            f"the vectors ({network:.3f}) find less often than TF-IDF what belongs together: "
            "ownbert search ranks by both"
        )
        return [f"warning: {warning}", score]

    @property
    def sentence(self) -> str:
        return f"TF-IDF alone has {shown_name(self.metric)} {self.value:.4f} on the same rows."


def seconds_for_baseline(max_minutes: float | None) -> float:
    """The seconds that ``score_baseline`` may take in a run with this limit, if any."""
    return min(_SECONDS, _SHARE * 60 * (math.inf if max_minutes is None else max_minutes))


def can_be_compared(task: Task, train: Sequence[Row], dev: Sequence[Row] | None) -> bool:
    """Whether a model of words answers what the task asks, and there are dev rows."""
    if task.made is not None and dev:
        return True
    if task.name not in TEXT_TASKS or not dev:
        return False
    return not (task.takes_soft_targets and any(is_soft(row.target) for row in train))


def score_baseline(
    task: Task, train: Sequence[Row], dev: Sequence[Row], metric: str, *, seconds: float
) -> LinearBaseline | str:
    """Fit a linear model on the training rows, and score it on the dev rows.

    Args:
        task: has learnt its labels; remains as it is.
        train, dev: rows with their targets.
        metric: of the task.
        seconds: after which it is given up.

    Returns:
        The score, or why there is none. It comes after the training, which nothing here may end.
    """
    try:
        with time_limit(seconds):
            return _score(copy.copy(task), train, dev, metric)
    except OutOfTime:
        reason = f"it would take more than {seconds:.0f} seconds"
    except InputError as error:
        reason = str(error)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
    return f"not compared with a linear model: {reason}"


def _score(task: Task, train: Sequence[Row], dev: Sequence[Row], metric: str) -> LinearBaseline:
    if isinstance(task, EmbeddingTask):
        return _score_words(task, train, dev, metric)
    chosen = _affordable(train, len(task.labels))
    kind = text_kind(text for row in train for text in row.texts)
    texts = Texts([row.texts for row in chosen], kind)
    view = NgramView.fit(texts, Texts([], kind))
    check_time()
    strength = _STRENGTH_OF_NUMBERS if task.name == "regress" else _STRENGTH
    model = fit_linear(view.features(texts), targets_of(task, chosen), strength)
    check_time()
    scores = LinearView(view, model, kind).scores([row.texts for row in dev])
    raws = list(from_scores(task.name, scores))
    task.tune(raws, EncodedRows([]), dev)
    decided = [task.decide(raw, row, None) for raw, row in zip(raws, dev, strict=True)]
    value = task.score(dev, decided).values[metric]
    return LinearBaseline(metric, value, len(chosen) if len(chosen) < len(train) else None)


def _score_words(
    task: EmbeddingTask, train: Sequence[Row], dev: Sequence[Row], metric: str
) -> WordBaseline:
    kind = text_kind(text for row in train for text in row.texts)
    first, second = (Texts([(row.texts[side],) for row in dev], kind) for side in (0, 1))
    # It learns how frequent words are from the texts that are searched too, as it would in use.
    others = [(text,) for row in _affordable(train, 1) for text in {*row.texts}]
    view = NgramView.fit(Texts([*first.rows, *second.rows], kind), Texts(others, kind))
    check_time()
    value = task.score_vectors(dev, view.features(first), view.features(second)).values[metric]
    return WordBaseline(metric, value, None)


def _affordable(rows: Sequence[Row], labels: int) -> Sequence[Row]:
    """All rows, or as many of them, drawn at random, as there is time for."""
    work = sum(len(text) for row in rows for text in row.texts) * max(1, labels)
    if work <= _MOST_WORK:
        return rows
    count = max(1, len(rows) * _MOST_WORK // work)
    order = np.random.default_rng(0).permutation(len(rows))[:count]
    return [rows[i] for i in sorted(order)]


def targets_of(task: Task, rows: Sequence[Row]) -> Targets:
    """The targets of rows, for linear models and blends."""
    size = len(task.labels)
    if task.name == "classify":
        index = {label: i for i, label in enumerate(task.labels)}
        return Targets("classify", np.asarray([index[row.target] for row in rows]), size)
    if task.name == "multilabel":
        values = np.zeros((len(rows), size), dtype=np.float32)
        index = {label: i for i, label in enumerate(task.labels)}
        for i, row in enumerate(rows):
            values[i, [index[label] for label in row.target]] = 1
        return Targets("multilabel", values, size)
    values = np.asarray([row.target for row in rows], dtype=np.float64).reshape(len(rows), -1)
    return Targets("regress", values, values.shape[1])
