"""Requests for the attention of a model to an input."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from ownbert.batches.example import Example
from ownbert.inspect.internals.attention_maps import attention_maps
from ownbert.inspect.internals.head_choice import ChosenHeads
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
    maps = attention_maps(model, query.example, query.heads)
    return [
        {
            "tokens": tokenizer.tokens(ids.tolist()),
            "layers": [
                {
                    "layer": layer,
                    "heads": [
                        {"head": head, "weights": np.round(weights.astype(np.float64), 6)}
                        for head, weights in zip(query.heads[layer], of_layer, strict=True)
                    ],
                }
                for layer, of_layer in row_maps.items()
            ],
        }
        for ids, row_maps in zip(query.example.split(query.example.token_ids), maps, strict=True)
    ]
