"""Prunes heads or layers in rounds, and measures the score after each round."""

import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ownbert.checkpoint import describe, save
from ownbert.exceptions import InputError
from ownbert.families import family_of
from ownbert.figures import figure_class, plotted, save_figure
from ownbert.files.writing import refuse_unwritable
from ownbert.inspect.heads.importance import (
    LabelledModel,
    gradient_importance,
    labelled_model,
    remaining_heads,
)
from ownbert.nn.model import Model
from ownbert.tables.columns import ColumnNames
from ownbert.tasks.task import task_of
from ownbert.train.watch.metric_names import shown_name

# Passes over all rows; the median time is used.
_PASSES = 3


@dataclass(frozen=True)
class PruningRound:
    """The model after a round.

    Args:
        layers: number of remaining layers.
        heads: number of remaining heads.
        metric: name of the task's main metric.
        score: value of the metric.
        tokens_per_second: throughput on all rows, including the task's decisions; median of three
            passes.
    """

    layers: int
    heads: int
    metric: str
    score: float
    tokens_per_second: float


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
                f"a share of {share:g} is {pruned} of {heads} heads; from 1 to {most} can be "
                "pruned: each layer keeps at least one head"
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
                f"{count} of {layers} layers cannot be dropped; from 1 to {layers - 1} can"
            )
        return self._prune_in_rounds(
            whole, lambda labelled, number: labelled.model.keep_layers(layers - number), count
        )

    def _opened(self) -> LabelledModel:
        output = Path(self.output)
        if output.exists() and (not output.is_dir() or any(output.iterdir())):
            raise InputError(f"{output} already exists and is not empty; choose another folder")
        if not output.is_dir():
            refuse_unwritable(output)
        return self._with_rows(self.folder)

    def _with_rows(self, folder: str | Path) -> LabelledModel:
        return labelled_model(
            folder, self.data, rows=self.rows, columns=self.columns, device=self.device
        )

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
        _save(labelled, Path(self.output))
        return rounds_so_far

    def _tuned(self, labelled: LabelledModel) -> LabelledModel:
        """The model after fine-tuning on the training rows."""
        from ownbert.finetuning.finetune import finetune

        columns: dict[str, Any] = labelled.task.columns.settings()
        with tempfile.TemporaryDirectory() as work:
            pruned, tuned = Path(work, "pruned"), Path(work, "tuned")
            _save(labelled, pruned)
            finetune(
                labelled.task.name,
                model=pruned,
                train=self.train,
                output=tuned,
                epochs=self.epochs,
                device=self.device,
                quiet=True,
                **columns,
            )
            if {*describe(tuned).labels} != {*describe(pruned).labels}:
                raise InputError("the training rows have other labels than the model")
            return self._with_rows(tuned)


def _save(labelled: LabelledModel, folder: Path) -> None:
    model, tokenizer = labelled.model, labelled.opened.tokenizer
    save(model, folder, tokenizer=tokenizer, values=labelled.task.values())
    labelled.task.write(folder, model)


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
    speed = tokens / statistics.median(seconds)
    model = labelled.model
    remaining = len(model.encoder.blocks), len(remaining_heads(model))
    return PruningRound(*remaining, labelled.metric, score, speed)


# Inches per cell, enough for a number of three digits.
_CELL = 0.6


def draw_importance(
    importance: np.ndarray, left: Sequence[tuple[int, int]], title: str, path: Path
) -> None:
    """Plot importance (L, H) as a heat map, first layer at the bottom; pruned heads stay white.

    Raises:
        InputError: matplotlib is missing, or the name has no image extension.
    """
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
    """Plot score and speed of each round by the number of remaining heads or layers.

    Raises:
        InputError: matplotlib is missing, or the name has no image extension.
    """
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
