"""Attention weights of selected layers and heads as arrays.

S tokens of a sequence, H heads of a layer.
"""

import numpy as np
import torch
from torch import Tensor

from ownbert.batches.batch import Example, pack
from ownbert.inspect.internals.head_choice import ChosenHeads, heads_by_layer
from ownbert.inspect.observing import evaluating
from ownbert.nn.model import Model


@torch.inference_mode()
def attention_maps(
    model: Model, example: Example, chosen: ChosenHeads
) -> list[dict[int, np.ndarray]]:
    """Run a model once and return its attention weights.

    Returns:
        For each sequence the weights by layer, float32 (selected heads, S, S): one row per query
        token, with its weights over key tokens.
    """
    batch, kept = pack([example]).to(model.device), heads_by_layer(model)
    context = model.encoder.plain_context(batch)
    context.keep = frozenset(chosen)
    maps: dict[int, list[np.ndarray]] = {}

    class Collector(dict[int, list[Tensor]]):
        """Selects heads layer by layer, so that only one whole layer is in memory."""

        def __setitem__(self, layer: int, weights: list[Tensor]) -> None:
            selected = [kept[layer].index(head) for head in chosen[layer]]
            maps[layer] = [each[selected].float().cpu().numpy() for each in weights]  # (H, S, S)

    context.attentions = Collector()
    with evaluating(model):
        model(batch, [], context=context)
    count = len(batch.layout.lengths)
    return [{layer: maps[layer][i] for layer in chosen} for i in range(count)]
