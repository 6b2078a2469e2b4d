"""What a forward pass takes along from block to block, and what it collects on the way.

T tokens, B sequences, S longest sequence, L layers, H heads, K head size, D hidden; T', S' and B'
those of the keys, or after a change of order.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from ownbert.batches.layout import Layout, make_layout
from ownbert.nn.variants.disentangled import DistanceVectors


def per_sequence(rows: Tensor, layout: Layout) -> Tensor:
    """(T, ...) -> (B, S, ...).

    Raises:
        ValueError: the sequences differ in length.
    """
    if len({*layout.lengths}) > 1:
        raise ValueError(
            f"a cache needs sequences of one length, not {min(layout.lengths)} to "
            f"{layout.max_seqlen}: hide padding by a mask"
        )
    return rows.unflatten(0, (len(layout.lengths), -1))


def rows_of(layout: Layout, order: Tensor) -> tuple[Tensor, Layout]:
    """Rows (T') of the sequences ``order`` (B') in their new order, and the layout of these."""
    numbers = order.tolist()
    chosen = make_layout([layout.lengths[b] for b in numbers], layout.cu_seqlens.device)
    starts = layout.cu_seqlens[:-1][order] - chosen.cu_seqlens[:-1]
    rows = torch.arange(sum(chosen.lengths), device=starts.device)
    return rows + starts[chosen.sequences], chosen


class Cache:
    """Keys and values that need not be computed again, by layer.

    ``cache[layer]`` gives (keys, values), or (keys, values, cross keys, cross values) in a decoder
    with cross attention, each (B, H, S, K) as in Transformers.

    Attributes:
        self_attention: of earlier tokens, (B, S, H, K) each; a mask hides padding.
        cross_attention: of an encoder's hidden states, (T', H, K) each, laid end to end.
        memory_layout: of these hidden states.
    """

    def __init__(self) -> None:
        self.self_attention: dict[int, tuple[Tensor, Tensor]] = {}
        self.cross_attention: dict[int, tuple[Tensor, Tensor]] = {}
        self.memory_layout: Layout | None = None

    @property
    def length(self) -> int:
        """Tokens per sequence that are in the cache already."""
        return next(iter(self.self_attention.values()))[0].shape[1] if self.self_attention else 0

    def append(
        self, layer: int, keys: Tensor, values: Tensor, layout: Layout
    ) -> tuple[Tensor, Tensor]:
        """Put keys and values of new tokens behind those of the layer.

        Args:
            layer: its number.
            keys, values: (T, H, K).
            layout: of the new tokens.

        Returns:
            All keys and values of the layer, laid end to end: (T', H, K) each.
        """
        keys, values = per_sequence(keys, layout), per_sequence(values, layout)
        if layer in self.self_attention:
            old_keys, old_values = self.self_attention[layer]
            keys, values = torch.cat((old_keys, keys), 1), torch.cat((old_values, values), 1)
        self.self_attention[layer] = keys, values
        return keys.flatten(0, 1), values.flatten(0, 1)

    def reorder_self_attention(self, order: Tensor) -> None:
        """Take the sequences ``order`` (B') of the decoder's own, as a beam search does."""
        for layer, kept in self.self_attention.items():
            # By an index in brackets it takes three times as long on a CPU.
            self.self_attention[layer] = (
                kept[0].index_select(0, order),
                kept[1].index_select(0, order),
            )

    def reorder_cross_attention(self, order: Tensor) -> None:
        """Take the sequences ``order`` (B') of the encoder's."""
        assert self.memory_layout is not None
        rows, self.memory_layout = rows_of(self.memory_layout, order)
        for layer, kept in self.cross_attention.items():
            self.cross_attention[layer] = (
                kept[0].index_select(0, rows),
                kept[1].index_select(0, rows),
            )

    def get_seq_length(self) -> int:
        return self.length

    def __len__(self) -> int:
        return len(self.self_attention)

    def __getitem__(self, layer: int) -> tuple[Tensor, ...]:
        if layer not in self.self_attention:
            raise IndexError(f"the cache has {len(self)} layers; there is no layer {layer}")
        kept = list(self.self_attention[layer])
        if layer in self.cross_attention:
            assert self.memory_layout is not None
            kept += [per_sequence(x, self.memory_layout) for x in self.cross_attention[layer]]
        return tuple(x.transpose(1, 2) for x in kept)

    @classmethod
    def from_layers(cls, layers: Sequence[Sequence[Tensor]]) -> "Cache":
        """The cache of what ``cache[layer]`` gives, layer by layer."""
        cache = cls()
        for number, kept in enumerate(layers):
            parts = [x.transpose(1, 2) for x in kept]
            cache.self_attention[number] = parts[0], parts[1]
            if len(parts) == 4:
                count, length = parts[2].shape[:2]
                cache.memory_layout = make_layout([length] * count, parts[2].device)
                cache.cross_attention[number] = parts[2].flatten(0, 1), parts[3].flatten(0, 1)
        return cache


@dataclass(frozen=True)
class QueryStream:
    """A second stream of hidden states: of tokens that are to be predicted and do not see
    themselves (Yang et al. 2019, section 2.3).

    Its M rows stand behind the T rows of the tokens.

    Args:
        rows: (M), the row of each token that is predicted.
        layout: which keys the queries at all T rows see.
        mapping: (B, P, S), how the P queries of each sequence are made of, and added to, its S
            places; None: each is the one of ``rows``.
    """

    rows: Tensor
    layout: Layout
    mapping: Tensor | None = None

    def to_tokens(self, queries: Tensor) -> Tensor:
        """(M, H, K) -> (T, H, K), zero where no token is predicted."""
        if self.mapping is not None:
            queries = queries.unflatten(0, self.mapping.shape[:2])
            spread = torch.einsum("bps,bphk->bshk", self.mapping.to(queries.dtype), queries)
            return spread.flatten(0, 1)
        spread = queries.new_zeros(sum(self.layout.lengths), *queries.shape[1:])
        return spread.index_copy(0, self.rows, queries)

    def of_tokens(self, out: Tensor) -> Tensor:
        """(T, H, K) -> (M, H, K)"""
        if self.mapping is None:
            return out[self.rows]
        out = out.unflatten(0, (len(self.mapping), -1))
        return torch.einsum("bps,bshk->bphk", self.mapping.to(out.dtype), out).flatten(0, 1)


class Returned(Protocol):
    """How hidden states and attention weights are returned. The network goes on from what is
    returned, so ``torch.autograd.grad`` finds its gradients."""

    def hidden(self, rows: Tensor) -> tuple[Any, Tensor]:
        """What is returned of hidden states (T, D), and the same rows made of it."""
        ...

    def attended(self, weights: list[Tensor], v: Tensor, layout: Layout) -> tuple[Any, Tensor]:
        """What is returned of weights (H, S, S') of each sequence, and their sums (T, H, K) of
        the values v (T', H, K)."""
        ...


class AsPacked:
    """Hidden states by row, and weights by sequence."""

    def hidden(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        return rows, rows

    def attended(
        self, weights: list[Tensor], v: Tensor, layout: Layout
    ) -> tuple[list[Tensor], Tensor]:
        pairs = zip(weights, v.split((layout.keys or layout).lengths), strict=True)
        return weights, torch.cat([torch.einsum("hij,jhk->ihk", w, vs) for w, vs in pairs])


@dataclass
class Context:
    """What the blocks need besides hidden states, and what they collect.

    Layers are counted as blocks run, so one of ALBERT's may count several times.

    Args:
        layout: of the batch.
        positions: (T), of the batch.
        head_mask: (L, H) or (L, B, H), factors for the outputs of heads.
        cross_head_mask: that of cross attention; None: ``head_mask``.
        keep: layers whose attention weights are wanted.
        encoder_hidden: (T', D), what cross attention attends to.
        cross: the layout of this attention.
        cache: keys and values of earlier tokens.
        segments: (T), of the tokens, where attention tells them apart; None: all are of one.
        query_stream: tokens that are predicted by a second stream.
        attentions, cross_attentions: the weights that are wanted, by layer, (H, S, S') for each
            sequence.
        query_attentions: those of the second stream, a row for each token.
        distances: the vectors of distances that all layers of DeBERTa share.
        returned: the form of what is kept, where gradients at it are wanted, which is slower.
        last_hidden: the hidden states after the stack, in that form.
    """

    layout: Layout
    positions: Tensor
    head_mask: Tensor | None = None
    keep: frozenset[int] = frozenset()
    encoder_hidden: Tensor | None = None
    cross_head_mask: Tensor | None = None
    cross: Layout | None = None
    cache: Cache | None = None
    segments: Tensor | None = None
    query_stream: QueryStream | None = None
    attentions: dict[int, list[Tensor]] = field(default_factory=dict)
    cross_attentions: dict[int, list[Tensor]] = field(default_factory=dict)
    query_attentions: dict[int, list[Tensor]] = field(default_factory=dict)
    distances: DistanceVectors | None = None
    returned: Returned | None = None
    last_hidden: Any = None
