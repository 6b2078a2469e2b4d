"""Initialises a new head with a linear model on the frozen network.

The gradients of a randomly initialised head distort the pretrained features. A head that is already
optimal for the frozen network needs a smaller learning rate and preserves them.

Source: Kumar et al. 2022 ("Fine-tuning can distort pretrained features"), LP-FT. N rows, F inputs
of the head's last layer, C labels or regression values.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch
from torch import nn

from ownbert.batches.example import Example
from ownbert.finetuning.linear_baseline import targets_of
from ownbert.nn.model import Model
from ownbert.nn.output_heads import ClassificationHead
from ownbert.tasks.packed_network import PackedNetwork
from ownbert.tasks.related_rows import clusters_of
from ownbert.tasks.row_network import in_batches, mean_per_row
from ownbert.tasks.rows import Row
from ownbert.tasks.task import Task
from ownbert.time_limit import check_time
from ownbert.views.blending import loss
from ownbert.views.linear_models import Targets, centre_and_scale, fit_linear

# Inverse regularisation strength with few rows: of .1, .3, 1, 10 and 100 the best one after
# fine-tuning, which gains more from a cautious head (docs/lab/fine-tuning.md). With many rows, the
# one of several with the smallest loss on every fifth row, or cluster of connected rows.
_STRENGTH, _STRENGTHS, _HELD_OUT = 1.0, (1.0, 10.0, 100.0), 5
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
    """Set the last layer of the task's head to a linear model fitted to the frozen network.

    Args:
        model: model with the head, which has no n-grams; other layers are unchanged.
        task: classify, multilabel or regress.
        rows: N rows with labels or regression values.
        examples: the encoded rows.
        precision: float32 or bfloat16.
        few: whether there are few rows, see ``DefaultSettings``.

    Raises:
        OutOfTime: the time limit has passed.
    """
    last = cast(ClassificationHead, model.heads[task.head]).dense
    features = inputs_of_head(model, task.head, examples, precision=precision)
    mean, scale = centre_and_scale(features)
    features, targets = (features - mean) / scale, _targets(task, rows)
    strength = _STRENGTH
    if not few:
        clusters = clusters_of([task.fold_keys(row) for row in rows])
        strength = _best_strength(features, targets, clusters)
    linear = fit_linear(features, targets, strength)
    weights = linear.weights.T / scale  # (C, F)
    with torch.no_grad():
        last.weight.copy_(torch.from_numpy(weights))
        last.bias.copy_(torch.from_numpy(linear.bias - weights @ mean))


def _best_strength(features: np.ndarray, targets: Targets, clusters: np.ndarray) -> float:
    held_out = clusters % _HELD_OUT == 0
    if held_out.all():
        return _STRENGTH

    def loss_of(strength: float) -> float:
        linear = fit_linear(features[~held_out], targets[~held_out], strength)
        return loss(targets[held_out], linear.scores(features[held_out]))

    return min(_STRENGTHS, key=loss_of)


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
