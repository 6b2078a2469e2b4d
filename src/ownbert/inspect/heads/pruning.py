"""Take the least important heads away, round by round, and see what is left of the score."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ownbert.checkpoint import save
from ownbert.errors import InputError
from ownbert.families import family_of
from ownbert.files import refuse_unwritable
from ownbert.inspect.heads.importance import (
    LabelledModel,
    gradient_importance,
    labelled_model,
    left_heads,
)
from ownbert.nn.model import Model

# Over all rows, of which the median time counts.
_PASSES = 3


@dataclass(frozen=True)
class PruningRound:
    """What is left after a round.

    Args:
        heads: how many.
        metric, score: the task's first metric.
        tokens_per_second: of all rows, with the decisions: the median of three passes.
    """

    heads: int
    metric: str
    score: float
    tokens_per_second: float


def prune_heads(
    folder: str | Path,
    data: Any,
    output: str | Path,
    *,
    share: float = 0.3,
    rounds: int = 5,
    rows: int | None = None,
    device: str = "auto",
    on_round: Callable[[PruningRound], None] = lambda found: None,
) -> list[PruningRound]:
    """Prune a share of a model's heads in rounds, and save what is left.

    In each round the importance of the heads that are left is measured anew. A layer keeps one
    head. The folder has ``pruned_heads`` in its config.json, as Transformers knows them;
    ``ownbert finetune --model`` trains it on.

    Args:
        folder: of a fine-tuned model.
        data: labelled rows, as for ``ownbert.evaluate``: dev rows, not test rows.
        output: the folder for the pruned model, new or empty.
        share: of all heads, between 0 and 1.
        rounds: at least 1.
        rows: at most so many of the data.
        device: auto, cpu or cuda.
        on_round: called after each round, with the whole model first.

    Returns:
        The whole model, and each round.

    Raises:
        InputError: the model has too few heads, or folder or rows cannot be used.

    Source: Michel, Levy and Neubig 2019, section 4.
    """
    output = Path(output)
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise InputError(f"{output} is there already and not empty; choose another folder")
    refuse_unwritable(output)
    labelled = labelled_model(folder, data, rows=rows, device=device)
    model, found = labelled.model, []
    family_of(model.model_type, str(folder)).require_pruning()
    heads = len(left_heads(model))
    gone = round(share * heads)
    most = heads - len(model.encoder.blocks)  # one for each layer is left
    if not 1 <= gone <= most:
        raise InputError(
            f"{share:g} of {heads} heads are {gone}; from 1 to {most} can be pruned: a layer keeps "
            "one head"
        )
    for number in range(rounds + 1):
        if number:
            _prune(model, gradient_importance(labelled), round(gone * number / rounds), heads)
        found.append(_measured(labelled))
        on_round(found[-1])
    save(
        model,
        output,
        tokenizer=getattr(labelled.builder, "tokenizer", None),
        values=labelled.task.values(),
    )
    labelled.task.write(output, model)
    return found


def _prune(model: Model, importance: np.ndarray, gone: int, heads: int) -> None:
    """Prune the least important heads until ``gone`` of ``heads`` are away."""
    order = sorted(left_heads(model), key=lambda at: importance[at])
    chosen: dict[int, list[int]] = {}
    missing = gone - (heads - len(order))
    for layer, head in order:
        own = chosen.setdefault(layer, [])
        if missing and len(own) + 1 < len(model.config.kept_heads(layer)):
            own.append(head)
            missing -= 1
    model.prune_heads({layer: numbers for layer, numbers in chosen.items() if numbers})


def _measured(labelled: LabelledModel) -> PruningRound:
    tokens = sum(len(example.token_ids) for example in labelled.examples)
    score, taken = 0.0, []
    for _ in range(_PASSES):
        began = time.perf_counter()
        score = labelled.score()
        taken.append(time.perf_counter() - began)
    speed = tokens / statistics.median(taken)
    return PruningRound(len(left_heads(labelled.model)), labelled.metric, score, speed)
