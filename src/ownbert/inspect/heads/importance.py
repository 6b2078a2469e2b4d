"""Importance of a trained model's attention heads. L layers, H heads of a layer."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.cells import set_cell_size
from torch import Tensor

from ownbert.batches.batch import Batch, pack
from ownbert.batches.by_tokens import batches_by_tokens
from ownbert.checkpoint import describe
from ownbert.exceptions import InputError
from ownbert.inference.compute import TORCH, Compute
from ownbert.inference.embedding.embedding_outputs import of_length_one
from ownbert.inference.opened import Networks, given_rows, read_labelled_rows
from ownbert.inspect.observing import evaluating
from ownbert.language import translated
from ownbert.nn.model import Model
from ownbert.objectives.objective import Objective
from ownbert.tables.columns import ColumnNames
from ownbert.tasks.rows import Row
from ownbert.tasks.task import Task
from ownbert.tasks.text_input import EncodedRows

_TOKENS = 4096  # tokens per forward pass


@dataclass(frozen=True)
class LabelledModel:
    """A fine-tuned model with encoded labelled rows."""

    opened: Networks
    rows: Sequence[Row]
    data: EncodedRows

    @property
    def task(self) -> Task:
        """The task of the folder."""
        return self.opened.task

    @property
    def model(self) -> Model:
        """The folder's only model."""
        return self.opened.models[0]

    def score(self) -> float:
        """The task's main metric."""
        decided = self.task.decide_each(self.opened.raws_of(self.data), self.rows, self.data.notes)
        return float(self.task.score(self.rows, decided).values[self.metric])

    @property
    def metric(self) -> str:
        """The name of the task's main metric."""
        return self.task.metrics[0]

    def batches(self) -> Sequence[Batch]:
        """All rows in packed batches of similar length."""
        examples = self.data.examples
        sizes = [len(example.token_ids) for example in examples]
        order = np.argsort(sizes, kind="stable")
        return [
            pack([examples[i] for i in chosen]).to(self.model.device)
            for chosen in batches_by_tokens(order, sizes, _TOKENS)
        ]


def labelled_model(
    folder: str | Path,
    data: Any,
    *,
    rows: int | None = None,
    columns: ColumnNames | None = None,
    device: str = "auto",
) -> LabelledModel:
    """Load a fine-tuned folder and labelled rows for it.

    Args:
        folder: folder of a single network for texts or images.
        data: labelled rows, see ``ownbert.evaluate``.
        rows: maximum number of rows.
        columns: columns named by the user; by default those used in training.
        device: auto, cpu or cuda.

    Raises:
        InputError: the folder or the rows cannot be used.
    """
    data = given_rows(data)
    description = describe(folder)
    assert description.folder is not None
    compute = Compute(device, engine=TORCH, packed=False)
    opened = Networks(description.folder, [description], compute, columns=columns)
    if opened.task.head == "embedding":
        raise InputError("heads are measured by the loss of a task with labels; embed has none")
    read = read_labelled_rows(opened.task, data, opened.folder)[:rows]
    return LabelledModel(opened, read, opened.encoded(read))


def gradient_importance(labelled: LabelledModel) -> np.ndarray:
    """The expected sensitivity of the loss to masking each head: (L, H).

    The mean over batches of the absolute gradient with respect to a factor of 1 on the head's
    output, divided by the layer's Euclidean norm to make layers comparable; pruned heads have 0.

    Source: Michel, Levy and Neubig 2019, equation 2 and section 4.1.
    """
    model = labelled.model
    objective = labelled.task.objective(model)
    total, count = torch.zeros(_shape(model), device=model.device), 0
    with evaluating(model):
        for batch in labelled.batches():
            mask = torch.ones(_shape(model), device=model.device, requires_grad=True)
            loss = _loss(labelled, objective, batch, mask)
            (gradient,) = torch.autograd.grad(loss, mask)
            total += gradient.abs()
            count += 1
    importance = (total / count).cpu().numpy()
    return of_length_one(importance)


def masking_importance(labelled: LabelledModel) -> np.ndarray:
    """The increase of the mean loss when each single head is masked: (L, H)."""
    model = labelled.model
    objective, batches = labelled.task.objective(model), labelled.batches()
    increase = np.zeros(_shape(model))

    def mean_loss(mask: Tensor) -> float:
        losses = [float(_loss(labelled, objective, batch, mask)) for batch in batches]
        return sum(losses) / sum(objective.count(batch) for batch in batches)

    with evaluating(model), torch.inference_mode():
        ones = torch.ones(_shape(model), device=model.device)
        whole = mean_loss(ones)
        for layer, head in remaining_heads(model):
            mask = ones.clone()
            mask[layer, head] = 0
            increase[layer, head] = mean_loss(mask) - whole
    return increase


def remaining_heads(model: Model) -> list[tuple[int, int]]:
    """The (layer, head) pairs that are not pruned."""
    return [(i, h) for i in range(len(model.encoder.blocks)) for h in model.config.kept_heads(i)]


def _shape(model: Model) -> tuple[int, int]:
    config = model.config
    if len(model.encoder.blocks) != len(model.encoder.schedule()):
        raise InputError(
            "the layers share their weights (ALBERT): a head does not belong to a single layer"
        )
    return len(model.encoder.blocks), config.num_attention_heads


def _loss(labelled: LabelledModel, objective: Objective, batch: Batch, mask: Tensor) -> Tensor:
    """The summed loss of a batch, with the outputs of heads multiplied by ``mask`` (L, H)."""
    model, head = labelled.model, labelled.task.head
    context = replace(model.encoder.plain_context(batch), head_mask=mask)
    return objective(model(batch, [head], context=context).logits[head], batch).total


def heads_table(importance: np.ndarray, kept: Sequence[tuple[int, int]]) -> list[str]:
    """A table with one line per layer and one number per head; pruned heads are dots."""
    left = set(kept)
    width = max(8, len(f"layer {len(importance) - 1}"))
    lines = [" " * width + "".join(f"{head:>8}" for head in range(importance.shape[1]))]
    for layer, row in enumerate(importance):
        cells = (f"{v:8.3f}" if (layer, h) in left else f"{'.':>8}" for h, v in enumerate(row))
        lines.append(set_cell_size(translated(f"layer {layer}"), width) + "".join(cells))
    return lines
