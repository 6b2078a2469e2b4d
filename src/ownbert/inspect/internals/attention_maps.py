"""Attention weights of selected layers and heads as arrays.

T tokens of an example, S tokens of one of its sequences, H heads of a layer.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from ownbert.batches.batch import Example, pack
from ownbert.inspect.internals.observation import HeadChoice, heads_by_layer, require_heads
from ownbert.inspect.observing import evaluating
from ownbert.nn.model import Model

# Selected heads by layer, both counted from 0.
ChosenHeads = Mapping[int, Sequence[int]]


def chosen_heads(
    model: Model, layers: Sequence[int], heads: Sequence[int] | None = None
) -> ChosenHeads:
    """Resolve layers and heads, skipping pruned heads.

    Args:
        model: text model.
        layers: layers from 0; negative ones count from the end, -1 is the last.
        heads: heads from 0; None: all.

    Raises:
        InputError: a layer or head does not exist.
    """
    kept = heads_by_layer(model)
    ends = range(-len(kept), 0)
    numbers = list(dict.fromkeys(n + len(kept) if n in ends else n for n in layers))
    require_heads(HeadChoice(numbers, heads), kept)
    return {
        layer: [head for head in kept[layer] if heads is None or head in heads] for layer in numbers
    }


@torch.inference_mode()
def attention_maps(
    model: Model, example: Example, chosen: ChosenHeads
) -> list[dict[int, np.ndarray]]:
    """Run a model once and return its attention weights.

    Args:
        model: text model.
        example: input; may have several sequences.
        chosen: result of ``chosen_heads``.

    Returns:
        For each sequence the weights by layer, float32 (selected heads, S, S): one row per query
        token, with its weights over key tokens.
    """
    batch = pack([example]).to(model.device)
    kept = heads_by_layer(model)
    context = model.encoder.plain_context(batch)
    context.keep = frozenset(chosen)
    context.attentions = found = _SelectedWeights(
        {layer: [kept[layer].index(head) for head in chosen[layer]] for layer in chosen}
    )
    with evaluating(model):
        model(batch, [], context=context)
    count = len(batch.layout.lengths)
    return [{layer: found.maps[layer][i] for layer in chosen} for i in range(count)]


class _SelectedWeights(dict[int, list[Tensor]]):
    """Collects the weights of a ``Context`` layer by layer, so that only one layer is in memory.

    Args:
        indices: indices of the selected heads of each layer.
    """

    def __init__(self, indices: Mapping[int, Sequence[int]]) -> None:
        super().__init__()
        self.indices = indices
        self.maps: dict[int, list[np.ndarray]] = {}

    def __setitem__(self, layer: int, weights: list[Tensor]) -> None:
        selected = list(self.indices[layer])
        self.maps[layer] = [each[selected].float().cpu().numpy() for each in weights]  # (H, S, S)
