"""The attention weights of chosen layers and heads as numbers, for programs.

T tokens of an example, S of one of its sequences, H heads of a layer.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from ownbert.batches.batch import Example, pack
from ownbert.inspect.internals.observation import HeadChoice, heads_by_layer, require_heads
from ownbert.inspect.observing import evaluating
from ownbert.nn.model import Model

# The heads of layers, both by their numbers from 0.
ChosenHeads = Mapping[int, Sequence[int]]


def chosen_heads(
    model: Model, layers: Sequence[int], heads: Sequence[int] | None = None
) -> ChosenHeads:
    """The heads that a layer and a head name, without those that are pruned.

    Args:
        model: of texts.
        layers: their numbers from 0; negative ones count from the last layer, which is -1.
        heads: their numbers from 0; None: all.

    Raises:
        InputError: the model has no such layer or head.
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
    """Run a model once and take its attention weights.

    Args:
        model: of texts.
        example: what it reads; may have several sequences.
        chosen: of ``chosen_heads``.

    Returns:
        For each sequence the weights of each layer, float32 (its chosen heads, S, S): a row for
        each token, with the weights of the tokens that it attends to.
    """
    batch = pack([example]).to(model.device)
    kept = heads_by_layer(model)
    context = model.encoder.plain_context(batch)
    context.keep = frozenset(chosen)
    context.attentions = found = _Taken(
        {layer: [kept[layer].index(head) for head in chosen[layer]] for layer in chosen}
    )
    with evaluating(model):
        model(batch, [], context=context)
    count = len(batch.layout.lengths)
    return [{layer: found.maps[layer][i] for layer in chosen} for i in range(count)]


class _Taken(dict[int, list[Tensor]]):
    """Takes the weights of a ``Context`` as layers make them: those of one layer exist at a time.

    Args:
        indices: of the heads that are kept of each layer.
    """

    def __init__(self, indices: Mapping[int, Sequence[int]]) -> None:
        super().__init__()
        self.indices = indices
        self.maps: dict[int, list[np.ndarray]] = {}

    def __setitem__(self, layer: int, weights: list[Tensor]) -> None:
        own = list(self.indices[layer])
        self.maps[layer] = [each[own].float().cpu().numpy() for each in weights]  # (H, S, S)
