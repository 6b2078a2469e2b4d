"""The word table in fine-tuning: only the rows of words in the training data are learnt.

V vocabulary, U words in use, E embedding size. Other words get no gradient. Carrying them along
costs an optimiser more than half of a step where texts are short (docs/benchmarks.md), and weight
decay would only wear them off.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import torch
from torch import nn

from ownbert.data.batch import Example
from ownbert.nn.model import Model
from ownbert.tasks.text_input import EncodedRows


class WordsInUse:
    """Puts a table (U, E) in the place of that of the model (V, E), for the ids of ``data``."""

    def __init__(self, model: Model, data: EncodedRows) -> None:
        self.model = model
        self.whole = model.encoder.embeddings.word
        ids = np.unique(np.concatenate([np.unique(e.token_ids) for e in data.examples]))
        self.places = np.full(self.whole.num_embeddings, -1, dtype=np.int64)
        self.places[ids] = np.arange(len(ids))
        self.ids = torch.from_numpy(ids).to(model.device)
        self.used = nn.Embedding.from_pretrained(self.whole.weight.detach()[self.ids], freeze=False)
        model.encoder.embeddings.word = self.used
        self.data = replace(data, examples=[self._placed(e) for e in data.examples])

    def _placed(self, example: Example) -> Example:
        return replace(example, token_ids=self.places[example.token_ids])

    @torch.no_grad()
    def restore(self) -> None:
        """Give the model its whole table again, with what was learnt in it."""
        self.whole.weight[self.ids] = self.used.weight
        self.model.encoder.embeddings.word = self.whole

    @contextmanager
    def all(self) -> Iterator[None]:
        """The whole table for a while, for texts with other words."""
        self.restore()
        try:
            yield
        finally:
            self.model.encoder.embeddings.word = self.used
