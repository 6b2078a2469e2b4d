"""Prunes heads by importance, or layers, in rounds, and measures the score after each round.

L layers, H heads of a layer.
"""

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.cells import set_cell_size
from torch import Tensor

from ownbert.batches.batch import Batch, pack
from ownbert.batches.example import batches_by_tokens
from ownbert.checkpoint import describe, save
from ownbert.exceptions import InputError
from ownbert.families import family_of
from ownbert.figures import figure_class, plotted, save_figure
from ownbert.files.writing import refuse_unwritable
from ownbert.inference.embedding_outputs import of_length_one
from ownbert.inference.engines import TORCH, Compute
from ownbert.inference.opened import Networks, given_rows, read_labelled_rows
from ownbert.inspect.internals.observing import evaluating
from ownbert.language import translated
from ownbert.language.messages import Message
from ownbert.nn.model import Model
from ownbert.tables.columns import ColumnNames
from ownbert.tasks.task import task_of
from ownbert.train.metric_names import shown_name

# Passes over all rows; the median time is used.
_PASSES = 3
# Inches per cell, enough for a number of three digits.
_CELL = 0.6
_TOKENS = 4096  # tokens per forward pass


@dataclass(frozen=True)
class PruningRound:
    """The model after a round: numbers of remaining layers and heads, the task's main metric, and
    the throughput on all rows, including the task's decisions; median of three passes."""

    layers: int
    heads: int
    metric: str
    score: float
    tokens_per_second: float


class LabelledModel:
    """A folder of a single fine-tuned network for texts or images, with encoded labelled rows.

    Args:
        data: labelled rows, see ``ownbert.evaluate``.
        rows: maximum number of rows.
        columns: columns named by the user; by default those used in training.

    Raises:
        InputError: the folder or the rows cannot be used.
    """

    def __init__(
        self,
        folder: str | Path,
        data: Any,
        *,
        rows: int | None = None,
        columns: ColumnNames | None = None,
        device: str = "auto",
    ) -> None:
        data = given_rows(data)
        description = describe(folder)
        assert description.folder is not None
        compute = Compute(device, engine=TORCH, packed=False)
        self.opened = Networks(description.folder, [description], compute, columns=columns)
        self.task, self.model = self.opened.task, self.opened.models[0]
        if self.task.head == "embedding":
            raise InputError("heads are measured by the loss of a task with labels; embed has none")
        self.rows = read_labelled_rows(self.task, data, self.opened.folder)[:rows]
        self.data = self.opened.encoded(self.rows)
        self.metric = self.task.metrics[0]

    def score(self) -> float:
        """The task's main metric."""
        decided = self.task.decide_each(self.opened.raws_of(self.data), self.rows, self.data.notes)
        return float(self.task.score(self.rows, decided).values[self.metric])

    @cached_property
    def batches(self) -> Sequence[Batch]:
        """All rows in packed batches of similar length."""
        examples = self.data.examples
        sizes = [len(example.token_ids) for example in examples]
        order = np.argsort(sizes, kind="stable")
        return [
            pack([examples[i] for i in chosen]).to(self.model.device)
            for chosen in batches_by_tokens(order, sizes, _TOKENS)
        ]

    def loss(self, mask: Tensor) -> Iterator[tuple[Tensor, int]]:
        """Yield the summed loss and the number of targets of each batch, with the outputs of heads
        multiplied by ``mask`` (L, H)."""
        model, head, objective = self.model, self.task.head, self.task.objective(self.model)
        for batch in self.batches:
            context = replace(model.encoder.plain_context(batch), head_mask=mask)
            logits = model(batch, [head], context=context).logits[head]
            yield objective(logits, batch).total, objective.count(batch)

    def save(self, folder: Path) -> None:
        """Write the model with its tokenizer and task."""
        values = self.task.values()
        save(self.model, folder, tokenizer=self.opened.tokenizer, values=values)
        self.task.write(folder, self.model)


@dataclass(frozen=True)
class Pruning:
    """Prunes heads or layers of a model in rounds and saves the result.

    Args:
        folder: folder of a fine-tuned model.
        data: labelled rows, see ``ownbert.evaluate``; use dev rows, not test rows.
        output: folder for the pruned model, new or empty.
        rows: maximum number of rows of the data.
        train: rows for fine-tuning the remaining model after each round.
        epochs: epochs of this fine-tuning.
        columns: columns of ``data`` and ``train`` named by the user; by default those used in
            training.
        device: auto, cpu or cuda.
        on_round: called with the full model first, and after each round.
    """

    folder: str | Path
    data: Any
    output: str | Path
    rows: int | None = None
    train: Any = None
    epochs: int = 1
    columns: ColumnNames | None = None
    device: str = "auto"
    on_round: Callable[[PruningRound], None] = lambda found: None

    def heads(self, share: float = 0.3, rounds: int = 5) -> list[PruningRound]:
        """Prune a share of a model's heads, least important first.

        The importance of the remaining heads is measured again in each round. A layer keeps at
        least one head. The folder has ``pruned_heads`` in its config.json, as in Transformers;
        ``ownbert finetune --model`` continues training.

        Args:
            share: share of all heads, between 0 and 1.
            rounds: number of rounds, at least 1.

        Returns:
            The full model, and the model after each round.

        Raises:
            InputError: the model has too few heads, or folder or rows cannot be used.

        Source: Michel, Levy and Neubig 2019, section 4.
        """
        whole = self._opened()
        family_of(whole.model.model_type, str(self.folder)).require_pruning()
        heads = len(remaining_heads(whole.model))
        pruned = round(share * heads)
        most = heads - len(whole.model.encoder.blocks)  # each layer keeps one
        if not 1 <= pruned <= most:
            raise InputError(
                "a share of {share:g} is {pruned} of {heads} heads; from 1 to {most} can be "
                "pruned: each layer keeps at least one head",
                share,
                pruned,
                heads,
                most,
            )
        rounds = min(rounds, pruned)

        def prune(labelled: LabelledModel, number: int) -> None:
            total = round(pruned * number / rounds)
            _prune(labelled.model, gradient_importance(labelled), total, heads)

        return self._prune_in_rounds(whole, prune, rounds)

    def layers(self, count: int = 1) -> list[PruningRound]:
        """Drop layers from the top, one per round.

        Args:
            count: number of layers to drop, fewer than the model has.

        Returns:
            The full model, and the model after each round.

        Raises:
            InputError: the model has too few layers, or folder or rows cannot be used.

        Source: Sajjad et al. 2023 ("On the effect of dropping layers"), section 3.1, top layers.
        """
        whole = self._opened()
        layers = whole.model.config.num_hidden_layers
        if not 1 <= count < layers:
            raise InputError(
                "{count} of {layers} layers cannot be dropped; from 1 to {layers2} can",
                count,
                layers,
                layers - 1,
            )
        return self._prune_in_rounds(
            whole, lambda labelled, number: labelled.model.keep_layers(layers - number), count
        )

    def _opened(self) -> LabelledModel:
        output = Path(self.output)
        if output.exists() and (not output.is_dir() or any(output.iterdir())):
            raise InputError(
                "{output} already exists and is not empty; choose another folder", output
            )
        if not output.is_dir():
            refuse_unwritable(output)
        return self._with_rows(self.folder)

    def _with_rows(self, folder: str | Path) -> LabelledModel:
        given: Any = {"rows": self.rows, "columns": self.columns, "device": self.device}
        return LabelledModel(folder, self.data, **given)

    def _prune_in_rounds(
        self, labelled: LabelledModel, prune: Callable[[LabelledModel, int], None], rounds: int
    ) -> list[PruningRound]:
        """Measure the full model and the model after each call of ``prune``; save the last one."""
        rounds_so_far = []
        for number in range(rounds + 1):
            if number:
                prune(labelled, number)
                labelled = labelled if self.train is None else self._tuned(labelled)
            rounds_so_far.append(_measured(labelled))
            self.on_round(rounds_so_far[-1])
        labelled.task.columns = task_of(describe(self.folder)).columns  # those used in training
        labelled.save(Path(self.output))
        return rounds_so_far

    def _tuned(self, labelled: LabelledModel) -> LabelledModel:
        """The model after fine-tuning on the training rows."""
        from ownbert.finetuning.finetune import finetune

        how: Any = {"epochs": self.epochs, "device": self.device, "quiet": True}
        how |= labelled.task.columns.settings()
        with tempfile.TemporaryDirectory() as work:
            pruned, tuned = Path(work, "pruned"), Path(work, "tuned")
            labelled.save(pruned)
            finetune(labelled.task.name, model=pruned, train=self.train, output=tuned, **how)
            if {*describe(tuned).labels} != {*describe(pruned).labels}:
                raise InputError("the training rows have other labels than the model")
            return self._with_rows(tuned)


def _prune(model: Model, importance: np.ndarray, total: int, heads: int) -> None:
    """Prune the least important heads until ``total`` of the original ``heads`` are pruned."""
    order = sorted(remaining_heads(model), key=lambda at: importance[at])
    chosen: dict[int, list[int]] = {}
    missing = total - (heads - len(order))
    for layer, head in order:
        layer_heads = chosen.setdefault(layer, [])
        if missing and len(layer_heads) + 1 < len(model.config.kept_heads(layer)):
            layer_heads.append(head)
            missing -= 1
    model.prune_heads({layer: numbers for layer, numbers in chosen.items() if numbers})


def _measured(labelled: LabelledModel) -> PruningRound:
    tokens = sum(len(example.token_ids) for example in labelled.data.examples)
    score, seconds = 0.0, []
    for _ in range(_PASSES):
        start = time.perf_counter()
        score = labelled.score()
        seconds.append(time.perf_counter() - start)
    remaining = len(labelled.model.encoder.blocks), len(remaining_heads(labelled.model))
    return PruningRound(*remaining, labelled.metric, score, tokens / statistics.median(seconds))


def draw_importance(
    importance: np.ndarray, left: Sequence[tuple[int, int]], title: str, path: Path
) -> None:
    """Plot importance (L, H) as a heat map, first layer at the bottom; pruned heads stay white."""
    layers, heads = importance.shape
    size = (max(4.0, _CELL * heads + 2), max(2.0, _CELL * layers + 1.2))
    figure = figure_class(path)(figsize=size, layout="constrained")
    axis = figure.subplots()
    shown = np.full(importance.shape, np.nan)
    for at in left:
        shown[at] = importance[at]
    picture = axis.imshow(shown, cmap="cividis", origin="lower", aspect="equal")
    middle = (np.nanmin(shown) + np.nanmax(shown)) / 2
    for layer, head in left:
        value = shown[layer, head]
        color = "white" if value < middle else "black"
        axis.text(head, layer, f"{value:.2g}", ha="center", va="center", color=color, fontsize=8)
    axis.set(title=title, xlabel="head", ylabel="layer", xticks=range(heads), yticks=range(layers))
    figure.colorbar(picture, ax=axis)
    save_figure(figure, path)


def draw_rounds(rounds: Sequence[PruningRound], path: Path) -> None:
    """Plot score and speed of each round by the number of remaining heads or layers."""
    layers = len({each.layers for each in rounds}) > 1
    left = [each.layers if layers else each.heads for each in rounds]
    panels = (
        (shown_name(rounds[0].metric), [each.score for each in rounds]),
        ("thousand tokens per second", [each.tokens_per_second / 1000 for each in rounds]),
    )
    with plotted(path, 9, 3.6, len(panels)) as axes:
        for axis, (label, values) in zip(axes, panels, strict=True):
            axis.plot(left, values, marker="o")
            axis.set(ylabel=label, xlabel=f"{'layers' if layers else 'heads'} that are left")
            axis.set_ylim(min(0.0, *values), 1.05 * max(*values, 1e-9))
            axis.invert_xaxis()
            axis.xaxis.get_major_locator().set_params(integer=True)


def gradient_importance(labelled: LabelledModel) -> np.ndarray:
    """The expected sensitivity of the loss to masking each head: (L, H).

    The mean over batches of the absolute gradient with respect to a factor of 1 on the head's
    output, divided by the layer's Euclidean norm to make layers comparable; pruned heads have 0.

    Source: Michel, Levy and Neubig 2019, equation 2 and section 4.1.
    """
    mask = _ones(labelled.model).requires_grad_()
    with evaluating(labelled.model):
        gradients = [torch.autograd.grad(loss, mask)[0].abs() for loss, _ in labelled.loss(mask)]
    total = sum(gradients, torch.zeros(()))
    return of_length_one((total / len(gradients)).cpu().numpy())


def masking_importance(labelled: LabelledModel) -> np.ndarray:
    """The increase of the mean loss when each single head is masked: (L, H)."""
    ones = _ones(labelled.model)
    increase = np.zeros(ones.shape)

    def mean_loss(mask: Tensor) -> float:
        losses, counts = zip(*((float(loss), n) for loss, n in labelled.loss(mask)), strict=True)
        return sum(losses) / sum(counts)

    with evaluating(labelled.model), torch.inference_mode():
        whole = mean_loss(ones)
        for layer, head in remaining_heads(labelled.model):
            mask = ones.clone()
            mask[layer, head] = 0
            increase[layer, head] = mean_loss(mask) - whole
    return increase


def remaining_heads(model: Model) -> list[tuple[int, int]]:
    """The (layer, head) pairs that are not pruned."""
    return [(i, h) for i in range(len(model.encoder.blocks)) for h in model.config.kept_heads(i)]


def _ones(model: Model) -> Tensor:
    """(L, H), a factor for the output of each head."""
    blocks = len(model.encoder.blocks)
    if blocks != len(model.encoder.schedule()):
        raise InputError(
            "the layers share their weights (ALBERT): a head does not belong to a single layer"
        )
    return torch.ones(blocks, model.config.num_attention_heads, device=model.device)


def heads_table(importance: np.ndarray, kept: Sequence[tuple[int, int]]) -> list[str]:
    """A table with one line per layer and one number per head; pruned heads are dots."""
    left = set(kept)
    width = max(8, len(Message("layer {count}", len(importance) - 1)))
    lines = [" " * width + "".join(f"{head:>8}" for head in range(importance.shape[1]))]
    for layer, row in enumerate(importance):
        cells = (f"{v:8.3f}" if (layer, h) in left else f"{'.':>8}" for h, v in enumerate(row))
        lines.append(set_cell_size(translated("layer {layer}", layer), width) + "".join(cells))
    return lines
