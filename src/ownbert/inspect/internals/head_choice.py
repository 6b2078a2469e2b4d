"""Selection of attention layers and heads."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ownbert.exceptions import InputError
from ownbert.inspect.observing import require_layers
from ownbert.inspect.overview.parameters import ranges
from ownbert.nn.model import Model

# Selected heads by layer, both counted from 0.
ChosenHeads = Mapping[int, Sequence[int]]


@dataclass(frozen=True)
class HeadChoice:
    """Selection of attention heads.

    Args:
        layers: layers from 0, in any order; negative ones count from the end. None: all.
        heads: heads from 0; None: all.
    """

    layers: Sequence[int] | None = None
    heads: Sequence[int] | None = None

    def of(self, model: Model) -> ChosenHeads:
        """The selected heads of a model that are not pruned, by layer.

        Raises:
            InputError: a layer or head does not exist.
        """
        kept, chosen = heads_by_layer(model), self.layers
        count = len(kept)
        ends = range(-count, 0)
        given = range(count) if chosen is None else chosen
        layers = list(dict.fromkeys(n + count if n in ends else n for n in given))
        require_layers(layers, count)
        known = sorted({head for layer in layers for head in kept[layer]})
        for head in self.heads or ():
            if head not in known:
                raise InputError(
                    f"there is no head {head} in these layers; they have {ranges(known)}"
                )
        selected = known if self.heads is None else self.heads
        return {layer: [head for head in kept[layer] if head in selected] for layer in layers}


ALL_HEADS = HeadChoice()


def heads_by_layer(model: Model) -> tuple[tuple[int, ...], ...]:
    """The heads of each layer that are not pruned; shared blocks count once per use."""
    schedule = [block for block, _ in model.encoder.schedule()]
    return tuple(tuple(block.attention.kept) for block in schedule)  # pyright: ignore
