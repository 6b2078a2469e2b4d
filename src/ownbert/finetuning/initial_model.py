"""The initial model of a fine-tuning run: a pretrained or new encoder with a new head, and its word
embedding table with only the words of the training rows."""

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from ownbert.checkpoint import Description, load, new_model
from ownbert.config.variants import SecondReading
from ownbert.nn.model import Model
from ownbert.nn.variants.ngram_embeddings import ngram_tables
from ownbert.tasks.finetune_recipe import FinetuneRecipe
from ownbert.tasks.task import Task
from ownbert.tasks.text_input import EncodedRows


def make_model(
    description: Description, task: Task, recipe: FinetuneRecipe, *, adapted: Path | None = None
) -> Model:
    """Create the initial model: the pretrained encoder, or a new one of the same size, and a head.

    ``adapted``: folder of the same encoder after pretraining on the texts of the task, if any.
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
            new_heads=[] if knows_labels(description, task) else [spec.kind],
        )
        if pretrained is not None:  # its word features are taken over, and it is removed
            head: Any = model.heads[task.head]
            other: Any = model.heads.pop(pretrained.kind)
            del model.specs[pretrained.kind]
            head.features.start_from(other.features, task.pretrained_features, task.features)
    if adapted is not None:
        take_encoder(model, adapted)
    if settings.freeze:
        encoder = model.encoder
        below = (encoder.embeddings, encoder.distances, encoder.convolution)
        for part in (*below, *encoder.blocks[: settings.freeze]):
            if part is not None:
                part.requires_grad_(False)
    return model


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


class WordsInUse:
    """Replaces the word embedding table (V, E) of a model by one with only the words in ``data``;
    the attribute ``data`` has indices into the smaller table.

    Other words get no gradient. Updating them would take the optimizer more than half of a step for
    short texts (docs/lab/fine-tuning.md), and weight decay would shrink them.
    """

    def __init__(self, model: Model, data: EncodedRows) -> None:
        self.model = model
        self.full, self.second_reading = model.encoder.embeddings.word, model.second_reading
        words = [np.unique(e.token_ids) for e in data.examples]
        if data.masking is not None:
            words.append(np.asarray([data.masking.mask_id]))
        if self.second_reading is not None:
            words.append(np.asarray([self.second_reading.start_id]))
        ids = np.unique(np.concatenate(words))
        self.index_of = np.full(self.full.num_embeddings, -1, dtype=np.int64)
        self.index_of[ids] = np.arange(len(ids))
        self.ids = torch.from_numpy(ids).to(model.device)
        self.used = nn.Embedding.from_pretrained(self.full.weight.detach()[self.ids], freeze=False)
        self.tables = ngram_tables(model)
        self._use()
        masking = data.masking and replace(
            data.masking,
            mask_id=int(self.index_of[data.masking.mask_id]),
            ordinary=data.masking.ordinary[ids],
        )
        examples = [replace(e, token_ids=self.index_of[e.token_ids]) for e in data.examples]
        self.data = replace(data, examples=examples, masking=masking)

    @torch.no_grad()
    def restore(self) -> None:
        """Restore the full table with the trained rows."""
        self.full.weight[self.ids] = self.used.weight
        self._set_embeddings(self.full, self.second_reading)
        for table in self.tables:
            table.ids = None

    @contextlib.contextmanager
    def all(self) -> Iterator[None]:
        """Context with the full table, for texts with other words."""
        self.restore()
        try:
            yield
        finally:
            self._use()

    def _use(self) -> None:
        second_reading = self.second_reading
        if second_reading is not None:
            start = int(self.index_of[second_reading.start_id])
            second_reading = replace(second_reading, start_id=start)
        self._set_embeddings(self.used, second_reading)
        for table in self.tables:
            table.ids = self.ids

    def _set_embeddings(self, table: nn.Embedding, second_reading: SecondReading | None) -> None:
        model = self.model
        model.second_reading = second_reading
        for stack in filter(None, (model.encoder, model.decoder)):
            stack.embeddings.word = table
