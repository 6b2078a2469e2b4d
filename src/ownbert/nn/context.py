"""What a forward pass takes along from block to block, and what it collects on the way.

T tokens, B sequences, S places, L layers, H heads, K head size, D hidden.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ownbert.data.layout import Layout, make_layout


def in_step(rows: Tensor, layout: Layout) -> Tensor:
    """(T, ...) -> (B, S, ...). ``ValueError`` unless all sequences are of one length."""
    if len({*layout.lengths}) > 1:
        raise ValueError(
            f"a cache needs sequences of one length, not {min(layout.lengths)} to "
            f"{layout.max_seqlen}: hide padding by a mask"
        )
    return rows.unflatten(0, (len(layout.lengths), -1))


def rows_of(layout: Layout, order: Tensor) -> tuple[Tensor, Layout]:
    """The rows of the sequences ``order`` (B') in their new order, and the layout of these."""
    numbers = order.tolist()
    chosen = make_layout([layout.lengths[b] for b in numbers], layout.cu_seqlens.device)
    starts = layout.cu_seqlens[:-1][order] - chosen.cu_seqlens[:-1]
    rows = torch.arange(sum(chosen.lengths), device=starts.device)
    return rows + starts[chosen.sequences], chosen


class Cache:
    """Keys and values of earlier tokens, a layer each: (B, S, H, K); a mask hides padding. Those of
    an encoder's hidden states lie end to end, (T', H, K), as ``memory_layout`` says.

    ``cache[layer]`` gives (keys, values), or (keys, values, cross keys, cross values) in a decoder
    with cross attention, each (B, H, S, K) as in Transformers.
    """

    def __init__(self) -> None:
        self.own: dict[int, tuple[Tensor, Tensor]] = {}
        self.cross: dict[int, tuple[Tensor, Tensor]] = {}
        self.memory_layout: Layout | None = None

    @property
    def length(self) -> int:
        """Tokens that are kept already."""
        return next(iter(self.own.values()))[0].shape[1] if self.own else 0

    def append(
        self, layer: int, keys: Tensor, values: Tensor, layout: Layout
    ) -> tuple[Tensor, Tensor]:
        """Put (T, H, K) of ``layout`` behind what is kept; all of the layer, laid end to end."""
        keys, values = in_step(keys, layout), in_step(values, layout)
        if layer in self.own:
            old_keys, old_values = self.own[layer]
            keys, values = torch.cat((old_keys, keys), 1), torch.cat((old_values, values), 1)
        self.own[layer] = keys, values
        return keys.flatten(0, 1), values.flatten(0, 1)

    def reorder_own(self, order: Tensor) -> None:
        """Take the sequences ``order`` (B') of what was written, as a beam search does."""
        for layer, kept in self.own.items():
            # By an index in brackets it takes three times as long on a CPU.
            self.own[layer] = kept[0].index_select(0, order), kept[1].index_select(0, order)

    def reorder_memory(self, order: Tensor) -> None:
        """Take the sequences ``order`` (B') of what an encoder has read."""
        assert self.memory_layout is not None
        rows, self.memory_layout = rows_of(self.memory_layout, order)
        for layer, kept in self.cross.items():
            self.cross[layer] = kept[0].index_select(0, rows), kept[1].index_select(0, rows)

    def get_seq_length(self) -> int:
        return self.length

    def __len__(self) -> int:
        return len(self.own)

    def __getitem__(self, layer: int) -> tuple[Tensor, ...]:
        if layer not in self.own:
            raise IndexError(f"the cache has {len(self)} layers; there is no layer {layer}")
        kept = list(self.own[layer])
        if layer in self.cross:
            assert self.memory_layout is not None
            kept += [in_step(x, self.memory_layout) for x in self.cross[layer]]
        return tuple(x.transpose(1, 2) for x in kept)

    @classmethod
    def of(cls, layers: Sequence[Sequence[Tensor]]) -> "Cache":
        """From what ``cache[layer]`` gives, layer by layer."""
        cache = cls()
        for number, kept in enumerate(layers):
            parts = [x.transpose(1, 2) for x in kept]
            cache.own[number] = parts[0], parts[1]
            if len(parts) == 4:
                count, length = parts[2].shape[:2]
                cache.memory_layout = make_layout([length] * count, parts[2].device)
                cache.cross[number] = parts[2].flatten(0, 1), parts[3].flatten(0, 1)
        return cache


@dataclass
class Context:
    """Layout and positions (T) of a batch, and what is asked of its forward pass.

    Layers are counted as blocks run, so one of ALBERT's may count several times. head_mask (L, H)
    or (L, B, H): what the output of a head is multiplied by. keep: layers whose
    attention weights are wanted; they go to ``attentions`` and ``cross_attentions``, one (H, Q, S)
    a sequence. differentiable: so kept that a gradient by them can be asked for
    (``torch.autograd.grad``), which is slower. encoder_hidden (T', D) is what ``cross`` attends to.
    """

    layout: Layout
    positions: Tensor
    head_mask: Tensor | None = None
    keep: frozenset[int] = frozenset()
    encoder_hidden: Tensor | None = None
    cross: Layout | None = None
    cache: Cache | None = None
    attentions: dict[int, list[Tensor]] = field(default_factory=dict)
    cross_attentions: dict[int, list[Tensor]] = field(default_factory=dict)
    differentiable: bool = False
