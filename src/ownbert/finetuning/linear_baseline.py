"""Linear models beside a fine-tuned network: on TF-IDF, as a baseline on the same rows (a network
below it has learnt too little, or has too few rows), and on the frozen network, as initial head."""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import torch
from torch import nn

from ownbert.batches.example import Example
from ownbert.exceptions import InputError
from ownbert.language.messages import Message
from ownbert.nn.model import Model
from ownbert.nn.output_heads import ClassificationHead
from ownbert.tasks.embed import EmbeddingTask
from ownbert.tasks.finetune_recipe import TEXT_TASKS
from ownbert.tasks.packed_network import PackedNetwork
from ownbert.tasks.related_rows import clusters_of
from ownbert.tasks.row_network import in_batches, mean_per_row
from ownbert.tasks.rows import Row, is_soft
from ownbert.tasks.task import Task
from ownbert.tasks.text_input import EncodedRows
from ownbert.time_limit import OutOfTime, check_time, time_limit
from ownbert.train.metric_names import LOWER, shown_name
from ownbert.views.blending import from_scores, loss
from ownbert.views.linear_models import LinearView, Targets, centre_and_scale, fit_linear
from ownbert.views.tokens import text_kind
from ownbert.views.view_features import NgramView, Texts

# Maximum seconds, and maximum share of the run's time limit.
_SECONDS, _SHARE = 20.0, 0.05
# Maximum characters of training texts times labels, a few seconds of fitting.
_MOST_WORK = 100_000_000
# Inverse regularisation strength for labels and for regression.
_STRENGTH, _STRENGTH_OF_NUMBERS = 10.0, 1.0
_TITLE = "TF-IDF with a linear model"


@dataclass(frozen=True)
class LinearBaseline:
    """The ``value`` of a metric on the dev rows of a linear model on TF-IDF of words and bigrams;
    ``rows``: number of training rows used, if not all."""

    metric: str
    value: float
    rows: int | None

    def lines(self, network: float) -> list[str]:
        """The comparison for the user, with a warning if the ``network`` has a worse value."""
        score = Message(
            "TF-IDF with a linear model: {metric!t} {value:.3f} on the same rows",
            *(shown_name(self.metric), self.value),
        )
        if self.rows is not None:
            score += Message(", trained on {rows:,} of the training rows", self.rows)
        gain = self.value - network if self.metric in LOWER else network - self.value
        if gain >= 0:
            return [score]
        warning = Message(
            "the network is worse ({network:.3f}): try more {--epochs}, another "
            "{--learning-rate}, or ownbert fit, which combines both",
            network,
        )
        return [score, Message("warning: {line!t}", warning)]

    @property
    def sentence(self) -> str:
        """A sentence for the model card, below the metrics of the network."""
        rows = "" if self.rows is None else Message(" ({rows:,} training rows)", self.rows)
        return Message(
            "TF-IDF with a linear model has {metric!t} {value:.4f} on the same rows{rows}.",
            *(shown_name(self.metric), self.value, rows),
        )


class WordBaseline(LinearBaseline):
    """The score of cosine similarities of TF-IDF vectors, for tasks that learn text embeddings."""

    def lines(self, network: float) -> list[str]:
        score = Message(
            "only TF-IDF: {metric} {value:.3f} on the same rows",
            shown_name(self.metric),
            self.value,
        )
        if network >= self.value:
            return [score]
        warning = Message(
            "the vectors ({network:.3f}) find matching texts less often than TF-IDF: "
            "ownbert search can rank by both",
            network,
        )
        return [score, Message("warning: {line!t}", warning)]

    @property
    def sentence(self) -> str:
        return Message(
            "TF-IDF without a network has {metric} {value:.4f} on the same rows.",
            shown_name(self.metric),
            self.value,
        )


def seconds_for_baseline(max_minutes: float | None) -> float:
    """Maximum seconds for ``score_baseline`` in a run with this time limit, if any."""
    return min(_SECONDS, _SHARE * 60 * (math.inf if max_minutes is None else max_minutes))


def can_be_compared(task: Task, train: Sequence[Row], dev: Sequence[Row] | None) -> bool:
    """Whether a bag-of-words model suits the task, and there are dev rows."""
    if task.made is not None and dev:
        return True
    if task.name not in TEXT_TASKS or not dev:
        return False
    return not (task.takes_soft_targets and any(is_soft(row.target) for row in train))


def score_baseline(
    task: Task, train: Sequence[Row], dev: Sequence[Row], metric: str, *, seconds: float
) -> LinearBaseline | str:
    """Fit a linear model on the training rows, and score it on the dev rows, within ``seconds``;
    the task is not modified. Returns the score, or the reason why there is none; errors must not
    end a finished training."""
    try:
        with time_limit(seconds):
            return _score(copy.copy(task), train, dev, metric)
    except OutOfTime:
        reason = Message("it would take more than {seconds:.0f} seconds", seconds)
    except InputError as error:
        reason = error.message
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
    return Message("not compared with a linear model: {reason}", reason)


def _score(task: Task, train: Sequence[Row], dev: Sequence[Row], metric: str) -> LinearBaseline:
    kind = text_kind(text for row in train for text in row.texts)
    if isinstance(task, EmbeddingTask):
        first, second = (Texts([(row.texts[side],) for row in dev], kind) for side in (0, 1))
        # Document frequencies include the texts to be searched, as in use.
        others = [(text,) for row in _affordable(train, 1) for text in {*row.texts}]
        view = NgramView.fit(Texts([*first.rows, *second.rows], kind), Texts(others, kind))
        check_time()
        vectors = view.features(first), view.features(second)
        return WordBaseline(metric, task.score_vectors(dev, *vectors).values[metric], None)
    chosen = _affordable(train, len(task.labels))
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


def _affordable(rows: Sequence[Row], labels: int) -> Sequence[Row]:
    """All rows, or a random sample that fits in the time."""
    work = sum(len(text) for row in rows for text in row.texts) * max(1, labels)
    if work <= _MOST_WORK:
        return rows
    count = max(1, len(rows) * _MOST_WORK // work)
    order = np.random.default_rng(0).permutation(len(rows))[:count]
    return [rows[i] for i in sorted(order)]


def targets_of(task: Task, rows: Sequence[Row]) -> Targets:
    """The targets of rows, for linear models and blends."""
    size, index = len(task.labels), {label: i for i, label in enumerate(task.labels)}
    if task.name == "classify":
        return Targets("classify", np.asarray([index[row.target] for row in rows]), size)
    if task.name == "multilabel":
        values = np.zeros((len(rows), size), dtype=np.float32)
        for i, row in enumerate(rows):
            values[i, [index[label] for label in row.target]] = 1
        return Targets("multilabel", values, size)
    values = np.asarray([row.target for row in rows], dtype=np.float64).reshape(len(rows), -1)
    return Targets("regress", values, values.shape[1])


# Inverse regularisation strength with few rows: of .1, .3, 1, 10 and 100 the best one after
# fine-tuning, which gains more from a cautious head (docs/lab/fine-tuning.md). With many rows, the
# one of several with the smallest loss on every fifth row, or cluster of connected rows.
_STRENGTH_OF_FEW, _STRENGTHS, _HELD_OUT = 1.0, (1.0, 10.0, 100.0), 5
# With more tokens in total, computing the vectors would take too long.
MOST_TOKENS = 4_000_000


def start_at_linear(
    model: Model,
    task: Task,
    rows: Sequence[Row],
    examples: Sequence[Example],
    *,
    precision: str,
    few: bool,
) -> None:
    """Set the last layer of the task's head to a linear model fitted to the frozen network on N
    rows; other layers do not change. The head has no n-grams. For ``few`` see ``DefaultSettings``.

    The gradients of a randomly initialised head distort the pretrained features. A head that is
    already optimal for the frozen network needs a smaller learning rate and preserves them.

    Source: Kumar et al. 2022 ("Fine-tuning can distort pretrained features"), LP-FT. Below, F is
    the number of inputs of the head's last layer, C that of labels or regression values.
    """
    last = cast(ClassificationHead, model.heads[task.head]).dense
    features = inputs_of_head(model, task.head, examples, precision=precision)
    mean, scale = centre_and_scale(features)
    features, targets = (features - mean) / scale, _targets(task, rows)
    strength = _STRENGTH_OF_FEW
    if not few:
        held_out = clusters_of([task.fold_keys(row) for row in rows]) % _HELD_OUT == 0

        def loss_of(strength: float) -> float:
            linear = fit_linear(features[~held_out], targets[~held_out], strength)
            return loss(targets[held_out], linear.scores(features[held_out]))

        strength = strength if held_out.all() else min(_STRENGTHS, key=loss_of)
    linear = fit_linear(features, targets, strength)
    weights = linear.weights.T / scale  # (C, F)
    with torch.no_grad():
        last.weight.copy_(torch.from_numpy(weights))
        last.bias.copy_(torch.from_numpy(linear.bias - weights @ mean))


def inputs_of_head(
    model: Model, head: str, examples: Sequence[Example], *, precision: str = "float32"
) -> np.ndarray:
    """Compute the inputs of a head's last layer: (N, F) float32, averaged over the windows of a
    long document."""
    module, training = cast(Any, model.heads[head]), model.training
    last, module.dense = module.dense, nn.Identity()
    network = PackedNetwork(model, precision)

    def vectors(batch: Sequence[Example]) -> np.ndarray:
        check_time()
        return mean_per_row(network.logits(batch, head), batch)

    try:
        return np.stack(in_batches(examples, vectors)).astype(np.float32)
    finally:
        module.dense = last
        model.train(training)


def _targets(task: Any, rows: Sequence[Row]) -> Targets:
    """The rows' targets and weights; regression values are standardised, as for the network."""
    targets = replace(targets_of(task, rows), each_row=np.array([row.weight for row in rows]))
    if task.name != "regress":
        return targets
    return replace(targets, values=np.stack([task.target(row) for row in rows]))
