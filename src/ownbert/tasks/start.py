"""The model that a fine-tuning run starts with: a pretrained encoder, and a new head on it."""

from dataclasses import replace
from pathlib import Path

import torch

from ownbert.checkpoint import Description, load
from ownbert.nn.model import Model
from ownbert.tasks.recipe import FinetuneRecipe
from ownbert.tasks.task import Task


def make_model(
    said: Description, task: Task, recipe: FinetuneRecipe, *, adapted: Path | None = None
) -> Model:
    """The encoder of the recipe's folder (or, from scratch, one of its size) with the head of the
    task. adapted: a folder whose encoder has learnt from the texts of the task since."""
    torch.manual_seed(recipe.seed)
    settings, spec, pooler = recipe.model, task.spec(said), task.pooler(said)
    if settings.from_scratch:
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


@torch.no_grad()
def take_encoder(model: Model, folder: Path) -> None:
    """Put the encoder of ``folder`` in the place of that of ``model``; heads and pooler stay."""
    theirs = dict(load(folder, heads=[], pooler=False).named_parameters())
    for name, parameter in model.named_parameters():
        if name in theirs:
            # A table of words may have rows that no token of the tokenizer has.
            parameter[: len(theirs[name])].copy_(theirs[name])
