"""State that a forward pass carries from block to block, and outputs that it collects.

T tokens, B sequences, S longest sequence, L layers, H heads, K head size, D hidden; T', S' and B'
are of the keys, or after reordering.
"""

from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from ownbert.batches.layout import Layout, make_layout
from ownbert.nn.variants.disentangled import DistanceVectors


def per_sequence(rows: Tensor, layout: Layout) -> Tensor:
    """(T, ...) -> (B, S, ...); ``ValueError`` if the sequences have different lengths."""
    if len({*layout.lengths}) > 1:
        raise ValueError(
            f"a cache needs sequences of equal length, not {min(layout.lengths)} to "
            f"{layout.max_seqlen}: hide padding with a mask"
        )
    return rows.unflatten(0, (len(layout.lengths), -1))


def rows_of(layout: Layout, order: Tensor) -> tuple[Tensor, Layout]:
    """Rows (T') of the sequences ``order`` (B') in their new order, and the new layout."""
    numbers = order.tolist()
    chosen = make_layout([layout.lengths[b] for b in numbers], layout.cu_seqlens.device)
    starts = layout.cu_seqlens[:-1][order] - chosen.cu_seqlens[:-1]
    rows = torch.arange(sum(chosen.lengths), device=starts.device)
    return rows + starts[chosen.sequences], chosen


class Cache:
    """Cached keys and values by layer: ``self_attention`` of earlier tokens, (B, S, H, K) each,
    with padding masked; ``cross_attention`` of the encoder states, (T', H, K) each, packed in
    ``memory_layout``."""

    def __init__(self) -> None:
        self.self_attention: dict[int, tuple[Tensor, Tensor]] = {}
        self.cross_attention: dict[int, tuple[Tensor, Tensor]] = {}
        self.memory_layout: Layout | None = None

    @property
    def length(self) -> int:
        """Number of cached tokens per sequence."""
        return next(iter(self.self_attention.values()))[0].shape[1] if self.self_attention else 0

    def append(
        self, layer: int, keys: Tensor, values: Tensor, layout: Layout
    ) -> tuple[Tensor, Tensor]:
        """Append keys and values of new tokens; return all of the layer. (T, H, K) -> (T', H, K)
        each."""
        keys, values = per_sequence(keys, layout), per_sequence(values, layout)
        if layer in self.self_attention:
            old_keys, old_values = self.self_attention[layer]
            keys, values = torch.cat((old_keys, keys), 1), torch.cat((old_values, values), 1)
        self.self_attention[layer] = keys, values
        return keys.flatten(0, 1), values.flatten(0, 1)

    def reorder_self_attention(self, order: Tensor) -> None:
        """Select the decoder's sequences ``order`` (B'), as in beam search."""
        _select(self.self_attention, order)

    def reorder_cross_attention(self, order: Tensor) -> None:
        """Select the encoder's sequences ``order`` (B')."""
        assert self.memory_layout is not None
        rows, self.memory_layout = rows_of(self.memory_layout, order)
        _select(self.cross_attention, rows)


def _select(kept: dict[int, tuple[Tensor, Tensor]], rows: Tensor) -> None:
    """Select rows of the keys and values of all layers, in place."""
    for layer, (keys, values) in kept.items():
        # Indexing with brackets takes three times as long on a CPU.
        kept[layer] = keys.index_select(0, rows), values.index_select(0, rows)


@dataclass(frozen=True)
class QueryStream:
    """The second stream of hidden states, for tokens that are predicted without seeing themselves
    (Yang et al. 2019, section 2.3). Its M rows follow the T rows of the tokens.

    Args:
        rows: (M) row of each predicted token.
        layout: visible keys of the queries at all T rows.
        mapping: (B, P, S) mapping between the P queries and the S places of each sequence; None:
            each query corresponds to one of ``rows``.
    """

    rows: Tensor
    layout: Layout
    mapping: Tensor | None = None

    def to_tokens(self, queries: Tensor) -> Tensor:
        """(M, H, K) -> (T, H, K), zero for tokens that are not predicted."""
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
    """Form in which hidden states and attention weights are returned; the network continues from
    the returned tensors, so ``torch.autograd.grad`` can use them."""

    def hidden(self, rows: Tensor) -> tuple[Any, Tensor]:
        """The returned form of hidden states (T, D), and the same rows derived from it."""
        ...

    def attended(self, weights: list[Tensor], v: Tensor, layout: Layout) -> tuple[Any, Tensor]:
        """The returned form of weights (H, S, S') of each sequence, and the weighted sums (T, H, K)
        of the values v (T', H, K)."""
        ...


class AsPacked:
    """Packed hidden states, and weights by sequence."""

    def hidden(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        return rows, rows

    def attended(
        self, weights: list[Tensor], v: Tensor, layout: Layout
    ) -> tuple[list[Tensor], Tensor]:
        pairs = zip(weights, v.split((layout.keys or layout).lengths), strict=True)
        return weights, torch.cat([torch.einsum("hij,jhk->ihk", w, vs) for w, vs in pairs])


@dataclass
class Context:
    """Inputs of the blocks besides hidden states, and collected outputs.

    Layers are counted in the order of execution, so a shared block of ALBERT counts several times.

    Args:
        positions: (T) positions of the tokens.
        head_mask: (L, H) or (L, B, H) factors for the outputs of heads.
        keep: layers whose attention weights are collected.
        encoder_hidden: (T', D) encoder states for cross-attention.
        cache: keys and values of earlier tokens.
        segments: (T) segments of the tokens if attention depends on them; None: a single segment.
        query_stream: tokens predicted by a second stream.
        attentions, cross_attentions: collected weights by layer, (H, S, S') for each sequence.
        query_attentions: weights of the second stream, with a row for each token.
        distances: relative-position vectors shared by all layers of DeBERTa.
        returned: form of collected tensors if their gradients are needed, which is slower.
        last_hidden: the hidden states after the stack, in that form.
    """

    layout: Layout
    positions: Tensor
    head_mask: Tensor | None = None
    keep: frozenset[int] = frozenset()
    encoder_hidden: Tensor | None = None
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
