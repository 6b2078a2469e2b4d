"""The model that a fine-tuning run starts with: a pretrained encoder, and a new head on it."""

from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from ownbert.checkpoint import Description, load
from ownbert.nn.model import Model
from ownbert.tasks.recipe import FinetuneRecipe
from ownbert.tasks.task import Task

# The slowest wave of positions turns by so little of the fastest from one patch to the next.
_SLOWEST = 100.0


def make_model(
    said: Description, task: Task, recipe: FinetuneRecipe, *, adapted: Path | None = None
) -> Model:
    """The encoder of the recipe's folder (or, from scratch, one of its size) with the head of the
    task. adapted: a folder whose encoder has learnt from the texts of the task since."""
    torch.manual_seed(recipe.seed)
    settings, spec, pooler = recipe.model, task.spec(said), task.pooler(said)
    if settings.new:
        assert settings.dropout is not None
        config = replace(
            said.config,
            hidden_dropout_prob=settings.dropout,
            attention_probs_dropout_prob=settings.dropout,
        )
        model = Model(
            config,
            [replace(spec, dropout=None)],
            pooler=pooler,
            labels=task.labels,
            model_type=said.family.model_type,
        )
        if config.image is not None:
            table = model.encoder.embeddings.position.weight
            with torch.no_grad():
                table[1:] = waves(config.image.grid, config.hidden_size)
    else:
        model = load(
            settings.folder,
            heads=[spec],
            pooler=pooler,
            labels=task.labels,
            dropout=settings.dropout,
        )
    if adapted is not None:
        take_encoder(model, adapted)
    if settings.freeze:
        for part in (model.encoder.embeddings, *model.encoder.blocks[: settings.freeze]):
            part.requires_grad_(False)
    return model


def waves(grid: tuple[int, int], width: int) -> Tensor:
    """Positions of patches down and across to start with, (P, D): sines and cosines of each (Beyer
    et al. 2022, section 2). Positions that start at random are learnt much more slowly."""
    count = -(-width // 4)
    rates = _SLOWEST ** -(torch.arange(count) / max(1, count - 1))
    down, across = torch.meshgrid(*(torch.arange(side) for side in grid), indexing="ij")
    angles = [place.flatten()[:, None] * rates for place in (down, across)]
    columns = [wave(angle) for angle in angles for wave in (torch.sin, torch.cos)]
    return torch.cat(columns, 1)[:, :width]


@torch.no_grad()
def take_encoder(model: Model, folder: Path) -> None:
    """Put the encoder of ``folder`` in the place of that of ``model``; heads and pooler stay."""
    theirs = dict(load(folder, heads=[], pooler=False).named_parameters())
    for name, parameter in model.named_parameters():
        if name in theirs:
            # A table of words may have rows that no token of the tokenizer has.
            parameter[: len(theirs[name])].copy_(theirs[name])
