"""The initial model of a fine-tuning run: a pretrained or new encoder, and a new head."""

from pathlib import Path
from typing import Any

import torch

from ownbert.checkpoint import Description, load, new_model
from ownbert.nn.model import Model
from ownbert.tasks.finetune_recipe import FinetuneRecipe
from ownbert.tasks.task import Task


def make_model(
    description: Description, task: Task, recipe: FinetuneRecipe, *, adapted: Path | None = None
) -> Model:
    """Create the initial model: the pretrained encoder, or a new one of the same size, and a head.

    Args:
        description: description of the model folder.
        task: task that defines the head.
        recipe: recipe with the model settings.
        adapted: folder of the same encoder after pretraining on the texts of the task, if any.
    """
    torch.manual_seed(recipe.seed)
    settings = recipe.model
    spec, pooler = task.head_spec(description), task.has_pooler(description)
    if settings.new:
        assert settings.dropout is not None
        model = new_model(
            description, [spec], pooler=pooler, labels=task.labels, dropout=settings.dropout
        )
        if model.config.image is not None:
            embeddings: Any = model.encoder.embeddings
            embeddings.start()
    else:
        pretrained = task.pretrained_head(description)
        model = load(
            description,
            heads=[spec] if pretrained is None else [spec, pretrained],
            pooler=pooler,
            labels=task.labels,
            dropout=settings.dropout,
            anew=[] if knows_labels(description, task) else [spec.kind],
        )
        if pretrained is not None:
            _take_features(model, task, pretrained.kind)
    if adapted is not None:
        take_encoder(model, adapted)
    if settings.freeze:
        encoder = model.encoder
        below = (encoder.embeddings, encoder.distances, encoder.convolution)
        for part in (*below, *encoder.blocks[: settings.freeze]):
            if part is not None:
                part.requires_grad_(False)
    return model


def _take_features(model: Model, task: Task, pretrained: str) -> None:
    """Initialise the word features of the task's head from another head, which is removed."""
    head: Any = model.heads[task.head]
    other: Any = model.heads.pop(pretrained)
    del model.specs[pretrained]
    head.features.start_from(other.features, task.pretrained_features, task.features)


def knows_labels(description: Description, task: Task) -> bool:
    """Whether the folder's head, if any, is for the task's labels: with the same names in the same
    order, or without names."""
    theirs, own = description.labels, tuple(task.labels)
    has_head = task.head in {spec.kind for spec in description.specs}
    unnamed = theirs == tuple(f"LABEL_{i}" for i in range(len(own)))
    return not has_head or not own or theirs == own or unnamed


@torch.no_grad()
def take_encoder(model: Model, folder: Path) -> None:
    """Copy the encoder weights of ``folder`` to ``model``; its heads and pooler are unchanged."""
    adapted = dict(load(folder, heads=[], pooler=False).named_parameters())
    for name, parameter in model.named_parameters():
        if name in adapted:
            # The embedding table of ``model`` may have more rows than the tokenizer has tokens.
            parameter[: len(adapted[name])].copy_(adapted[name])
