"""Requests for the attention of a model to an input."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from ownbert.batches.example import Example
from ownbert.inspect.internals.observation import ChosenHeads, attention_maps
from ownbert.nn.model import Model
from ownbert.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class AttentionQuery:
    """An input, and the heads whose attention is requested."""

    example: Example
    heads: ChosenHeads

    @property
    def numbers(self) -> int:
        """The number of attention weights."""
        return sum(n * n for n in self.example.lengths) * sum(map(len, self.heads.values()))


def weights_by_sequence(
    model: Model, tokenizer: Tokenizer, query: AttentionQuery
) -> list[dict[str, Any]]:
    """The tokens of each sequence, and the weights (S, S) of each layer and head."""
    maps, sequences = attention_maps(model, query.example, query.heads), []
    for ids, by_layer in zip(query.example.split(query.example.token_ids), maps, strict=True):
        layers = []
        for layer, of_layer in by_layer.items():
            rounded = (np.round(weights.astype(np.float64), 6) for weights in of_layer)
            pairs = zip(query.heads[layer], rounded, strict=True)
            heads = [{"head": head, "weights": weights} for head, weights in pairs]
            layers.append({"layer": layer, "heads": heads})
        sequences.append({"tokens": tokenizer.tokens(ids.tolist()), "layers": layers})
    return sequences
