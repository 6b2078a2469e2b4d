"""A word embedding table with only the words of the training rows."""

import contextlib
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch
from torch import nn

from ownbert.config.variants import SecondReading
from ownbert.nn.model import Model
from ownbert.nn.variants.ngram_embeddings import ngram_tables
from ownbert.tasks.text_input import EncodedRows


class WordsInUse:
    """Replaces the word embedding table (V, E) of a model by one with only the words in ``data``.

    Other words get no gradient. Updating them would take the optimizer more than half of a step for
    short texts (docs/lab/fine-tuning.md), and weight decay would shrink them.

    Args:
        model: model whose word table is replaced, also in its decoder.
        data: rows whose words are kept.

    Attributes:
        data: the rows, with indices into the smaller table.
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
