"""Which rows of a packed batch attend to which, and their grouping for attention.

T tokens, B sequences, S longest sequence; T' and S' are of the keys, if these come from another
batch. Rows are tokens of the packed batch; places are rows of the padded groups, including padding.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ownbert.exceptions import InputError

# Attention processes a group of sequences in one call, padded to the longest. A call costs about as
# much as this many score elements of one head, which determines when a new group pays off. In
# bfloat16 this includes oneDNN's compilation of the group's products, since shapes rarely repeat.
_CALL_COST = 3_000
_CALL_COST_COMPILED = 24_000
_CALL_COST_ELSEWHERE = 60_000
# In bfloat16 the padded length of a group is a multiple of this, and its number of sequences a
# power of two, so that shapes repeat.
_STEP_COMPILED = 16


@dataclass(frozen=True)
class Layout:
    """The structure of a batch for attention: sequences and visible keys.

    Args:
        cu_seqlens: (B+1); sequence b has the rows ``cu_seqlens[b] : cu_seqlens[b + 1]``.
        lengths: (B) lengths on the CPU, so that forward passes do not synchronise.
        keys: layout of the keys if they come from another batch (cross-attention, a cache).
        causal: whether the last query of a sequence sees all keys, the one before all but the last,
            and so on.
        mask: (B, S or 1, S') true where a query sees a key; only for sequences of equal length.
        window: maximum distance of visible keys in tokens; None: unlimited.
        ranks: (T) prediction order of tokens: a query only sees keys of lower rank, and keys of
            rank -1, which are not predicted; None: no restriction.
        sees_itself: with ``ranks``, whether a token sees itself.
    """

    cu_seqlens: Tensor
    lengths: tuple[int, ...]
    keys: "Layout | None" = None
    causal: bool = False
    mask: Tensor | None = None
    window: int | None = None
    ranks: Tensor | None = None
    sees_itself: bool = True

    def __post_init__(self) -> None:
        other = self.keys or self
        if len(other.lengths) != len(self.lengths):
            raise ValueError(
                f"{len(self.lengths)} sequences of queries and {len(other.lengths)} of keys"
            )
        if self.mask is not None:
            sizes = len(self.lengths), self.max_seqlen, other.max_seqlen
            even = {*self.lengths} == {sizes[1]} and {*other.lengths} == {sizes[2]}
            if not even or self.mask.shape not in (sizes, (sizes[0], 1, sizes[2])):
                raise ValueError(
                    f"a mask of shape {tuple(self.mask.shape)} is not for {sizes[0]} sequences of "
                    f"{sizes[1]} queries and {sizes[2]} keys each"
                )
        if self.ranks is not None and (self.keys is not None or self.mask is not None):
            raise ValueError("ranks cannot be combined with a mask or with keys of another batch")
        if self.causal and self.keys is not None:
            pairs = zip(self.lengths, self.keys.lengths, strict=True)
            if any(queries > sources for queries, sources in pairs):
                raise ValueError("a causal layout needs at least as many keys as queries")

    @property
    def max_seqlen(self) -> int:
        return max(self.lengths)

    @cached_property
    def sequences(self) -> Tensor:
        """The sequence index of each row (T)."""
        return torch.repeat_interleave(self.cu_seqlens.diff(), output_size=sum(self.lengths))

    @cached_property
    def neighbours(self) -> tuple[Tensor, Tensor]:
        """The rows before and after each row in its sequence (T); at the ends, the row itself."""
        rows = torch.arange(sum(self.lengths), device=self.cu_seqlens.device)
        starts, ends = self.cu_seqlens[:-1].long(), self.cu_seqlens[1:].long() - 1
        return (rows - 1).index_copy(0, starts, starts), (rows + 1).index_copy(0, ends, ends)

    # Operations on packed rows, which ``ownbert.exporting.padded`` has for padded ones.

    def first(self, x: Tensor) -> Tensor:
        """The first row of each sequence: (T, ...) -> (B, ...)."""
        return x[self.cu_seqlens[:-1]]

    def sums(self, x: Tensor) -> Tensor:
        """(T, ...) summed over each sequence: (B, ...), at least in float32."""
        x = x.to(torch.promote_types(x.dtype, torch.float32))
        zeros = x.new_zeros(len(self.lengths), *x.shape[1:])
        return zeros.index_add(0, self.sequences, x)

    def means(self, x: Tensor) -> Tensor:
        """(T, D) averaged over each sequence: (B, D), at least in float32."""
        return self.sums(x) / self.cu_seqlens.diff()[:, None]

    def largest(self, x: Tensor) -> Tensor:
        """The maximum of each channel: (T, D) -> (B, D)."""
        return torch.segment_reduce(x, "max", lengths=self.cu_seqlens.diff())

    def spread(self, x: Tensor) -> Tensor:
        """One row per sequence to one per token: (B, ...) -> (T, ...)."""
        return x[self.sequences]

    def beside(self, x: Tensor, *, repeat: bool) -> tuple[Tensor, Tensor]:
        """The rows before and after each row in its sequence, (T, ...) each; at the ends zero, or
        with ``repeat`` the row itself."""
        before, after = (x.index_select(0, rows) for rows in self.neighbours)
        if repeat:
            return before, after
        starts, ends = self.cu_seqlens[:-1], self.cu_seqlens[1:] - 1
        return before.index_fill(0, starts, 0.0), after.index_fill(0, ends, 0.0)

    @property
    def hides(self) -> bool:
        """Whether any rows of a query's own sequence are invisible to it."""
        hidden = self.mask is not None or self.ranks is not None
        return self.keys is not None or self.causal or hidden or self.near

    @property
    def near(self) -> bool:
        """Whether the window hides any keys, that is, some sequence is longer."""
        longest = (self.keys or self).max_seqlen
        return self.window is not None and longest - 1 > self.window

    @cached_property
    def is_token(self) -> Tensor | None:
        """(T, 1) false for rows that do not see themselves, which are padding; None without a
        mask."""
        if self.mask is None:
            return None
        alike = self.mask[:, 0] if self.mask.shape[1] == 1 else self.mask.diagonal(dim1=1, dim2=2)
        return alike.reshape(-1, 1)

    def within(self, window: int | None) -> "Layout":
        """The layout of local attention, with keys at a distance of at most ``window`` tokens;
        itself if that hides nothing. Cached, so that all layers share it with its computed
        properties."""
        if window not in self._local:
            local = replace(self, window=window)
            self._local[window] = local if local.near else self
        return self._local[window]

    @property
    def near_alone(self) -> bool:
        """Whether the window is the only restriction, and hides any keys."""
        hidden = self.mask is not None or self.ranks is not None
        return self.near and not (hidden or self.causal or self.keys is not None)

    @cached_property
    def without_window(self) -> "Layout":
        """The layout without the window."""
        return replace(self, window=None)

    @cached_property
    def _local(self) -> "dict[int | None, Layout]":
        return {}

    @cached_property
    def equal_lengths(self) -> "EqualLengths":
        return find_equal_lengths(self.lengths, self.cu_seqlens.device)

    @cached_property
    def grouping(self) -> "Grouping":
        return _group(self)

    @cached_property
    def group_costs(self) -> tuple[int, int]:
        """The cost of a group, and the number that its padded length is a multiple of."""
        if self.cu_seqlens.device.type != "cpu":
            return _CALL_COST_ELSEWHERE, 1
        if not torch.is_autocast_enabled("cpu"):
            return _CALL_COST, 1
        # With other keys there is often one query each, and a mask has a fixed size.
        plain = self.keys is None and self.mask is None
        return _CALL_COST_COMPILED, _STEP_COMPILED if plain else 1

    @property
    def longest_padded(self) -> tuple[int, int]:
        """The maximum padded length of queries and of keys."""
        _, step = self.group_costs
        longest = self.max_seqlen, (self.keys or self).max_seqlen
        queries, keys = (-(-size // step) * step for size in longest)
        return queries, keys

    @cached_property
    def offsets(self) -> Tensor:
        """``cu_seqlens`` in 32 bits, as required by kernels."""
        return self.cu_seqlens.to(torch.int32)

    @cached_property
    def plans(self) -> dict[int, Any]:
        """Attention's cache for data computed once per batch and number of heads."""
        return {}

    def to(self, device: torch.device | str) -> "Layout":
        return replace(
            self,
            cu_seqlens=to_device(self.cu_seqlens, device),
            keys=None if self.keys is None else self.keys.to(device),
            mask=None if self.mask is None else to_device(self.mask, device),
            ranks=None if self.ranks is None else to_device(self.ranks, device),
        )


def to_device(x: Tensor, device: torch.device | str) -> Tensor:
    """``x`` on another device, or itself if already there; does not wait for a GPU."""
    target = torch.device(device)
    if target.type == "cuda" and x.device.type == "cpu":
        # A copy from pageable memory would wait for all previous work of the GPU.
        x = x.pin_memory()
    return x.to(target, non_blocking=target.type != "cpu")


def make_layout(lengths: Sequence[int], device: torch.device | str = "cpu") -> Layout:
    """Create the layout of concatenated sequences by their lengths in tokens (B)."""
    if not lengths or min(lengths) < 1:
        raise InputError("a batch needs at least one sequence, and every sequence one token")
    cu_seqlens = torch.from_numpy(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64))
    return Layout(to_device(cu_seqlens, device), tuple(int(n) for n in lengths))


@dataclass(frozen=True)
class EqualLengths:
    """Contiguous sequences of equal lengths: (first row, sequences, length) of each span. If the
    batch is not sorted by length, ``order`` (T) are the sorted rows, and ``places`` (T) its
    inverse."""

    spans: tuple[tuple[int, int, int], ...]
    order: Tensor | None
    places: Tensor | None


def find_equal_lengths(lengths: Sequence[int], device: torch.device) -> EqualLengths:
    """Group sequences by length into as few spans as possible, sorted if necessary."""
    lens = np.asarray(lengths, dtype=np.int64)
    change = np.flatnonzero(np.diff(lens))
    order = places = None
    if len(np.unique(lens)) <= len(change):  # a length recurs after another length
        sorting = np.argsort(lens, kind="stable")
        parts = np.split(np.arange(lens.sum()), np.cumsum(lens)[:-1])
        rows = torch.from_numpy(np.concatenate([parts[b] for b in sorting]))
        order = to_device(rows, device)
        places = to_device(rows.argsort(), device)
        lens = lens[sorting]
        change = np.flatnonzero(np.diff(lens))
    edges = [0, *(change + 1).tolist(), len(lens)]
    starts = np.concatenate([[0], np.cumsum(lens)])
    spans = ((int(starts[a]), b - a, int(lens[a])) for a, b in itertools.pairwise(edges))
    return EqualLengths(tuple(spans), order, places)


@dataclass(frozen=True)
class PaddedIndex:
    """The index from rows to places and back, for queries or keys.

    Args:
        rows: (places) row at each place; an arbitrary row at padding.
        places: (T) place of each row.
        padding: (places) true for padding; None without padding.
        same: whether nothing is moved.
    """

    rows: Tensor
    places: Tensor
    padding: Tensor | None
    same: bool


@dataclass(frozen=True)
class PaddedGroup:
    """Sequences of similar length, with queries and keys padded to the longest.

    Args:
        members: indices of the sequences.
        queries: places of the queries.
        keys: places of the keys.
        shift: see ``distances``.
        mask: broadcastable to (B, 1, S, S'), true for visible keys, and all true for a query
            without visible keys; None if all keys are visible.
        seen: broadcastable to (B, 1, S, 1), false for a query without visible keys; None if there
            is certainly none.
    """

    members: tuple[int, ...]
    queries: slice
    keys: slice
    shift: Tensor
    mask: Tensor | None
    seen: Tensor | None
    _masks: dict[torch.dtype, Tensor] = field(default_factory=dict, repr=False, compare=False)

    @property
    def count(self) -> int:
        return len(self.members)

    @cached_property
    def distances(self) -> Tensor:
        """Query position minus key position, (1 or B, S, S')."""
        queries, keys = ((s.stop - s.start) // self.count for s in (self.queries, self.keys))
        return distances(queries, keys, self.shift)

    def hidden(self, dtype: torch.dtype) -> Tensor:
        """The additive mask of scores in ``dtype``."""
        assert self.mask is not None
        if dtype not in self._masks:
            zeros = torch.zeros(self.mask.shape, dtype=dtype, device=self.mask.device)
            self._masks[dtype] = zeros.masked_fill_(~self.mask, lowest(dtype))
        return self._masks[dtype]


def lowest(dtype: torch.dtype) -> float:
    """A score with zero softmax weight, finite also in bfloat16, which autocast may use."""
    return max(torch.finfo(dtype).min, torch.finfo(torch.bfloat16).min)


def distances(queries: int, keys: int, shift: Tensor) -> Tensor:
    """Query position minus key position within sequences, (1 or B, S, S'); the keys of a sequence
    start ``shift`` (1 or B) tokens before its queries."""
    rows = torch.arange(queries, device=shift.device)[:, None]
    return shift[:, None, None] + rows - torch.arange(keys, device=shift.device)


@dataclass(frozen=True)
class Grouping:
    """All groups of a batch, and the index of the places of queries and keys."""

    groups: tuple[PaddedGroup, ...]
    queries: PaddedIndex
    keys: PaddedIndex


def _group(layout: Layout) -> Grouping:
    """Sort by length, then split where padding would cost more than another call."""
    device = layout.cu_seqlens.device
    q_lens = np.asarray(layout.lengths, dtype=np.int64)
    k_lens = q_lens if layout.keys is None else np.asarray(layout.keys.lengths, dtype=np.int64)
    call_cost, step = layout.group_costs
    queries = _PaddedIndexBuilder(q_lens, step)
    keys = queries if layout.keys is None else _PaddedIndexBuilder(k_lens, step)
    groups = []
    for members in _split_by_length(queries.filled, keys.filled, call_cost, step > 1):
        q_span = queries.add(members)
        k_span = q_span if keys is queries else keys.add(members)
        mask, seen = _mask(layout, members, queries, keys)
        shift = _shift(q_lens[members], k_lens[members], device)
        groups.append(PaddedGroup(tuple(members.tolist()), q_span, k_span, shift, mask, seen))
    q_index = queries.build(device)
    return Grouping(tuple(groups), q_index, q_index if keys is queries else keys.build(device))


def _split_by_length(
    q_lens: np.ndarray, k_lens: np.ndarray, call_cost: int, few: bool
) -> list[np.ndarray]:
    """The sequences of each group; with ``few``, in powers of two."""
    order = np.lexsort((-q_lens, -k_lens))
    groups, first = [], 0
    while first < len(order):
        left = order[first:]
        longest = int(k_lens[left[0]]) * np.maximum.accumulate(q_lens[left])
        waste = longest * np.arange(1, len(left) + 1) - np.cumsum(q_lens[left] * k_lens[left])
        count = max(1, int(np.searchsorted(waste, call_cost, side="right")))
        if few:
            count = 1 << (count.bit_length() - 1)
        groups.append(left[:count])
        first += count
    return groups


class _PaddedIndexBuilder:
    """Assigns places to groups, one after the other; padded lengths are multiples of ``step``."""

    def __init__(self, lengths: np.ndarray, step: int) -> None:
        self.lengths, self.filled = lengths, -(-lengths // step) * step
        self.starts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
        self.places = np.empty(int(lengths.sum()), dtype=np.int64)
        self.rows, self.padding, self.end = [], [], 0

    def add(self, members: np.ndarray) -> slice:
        """Add sequences padded to the longest; return their places."""
        lens, longest = self.lengths[members], self.longest(members)
        inside = np.arange(longest) < lens[:, None]  # (count, longest)
        grid = self.starts[members][:, None] + np.minimum(np.arange(longest), lens[:, None] - 1)
        at = self.end + np.arange(len(members) * longest).reshape(len(members), longest)
        self.places[grid[inside]] = at[inside]
        self.rows.append(grid.ravel())
        self.padding.append(~inside.ravel())
        start, self.end = self.end, self.end + at.size
        return slice(start, self.end)

    def longest(self, members: np.ndarray) -> int:
        """The padded length of a group."""
        return int(self.filled[members].max())

    def build(self, device: torch.device) -> PaddedIndex:
        rows, padding = np.concatenate(self.rows), np.concatenate(self.padding)
        same = len(rows) == len(self.places) and bool((rows == np.arange(len(rows))).all())
        return PaddedIndex(
            to_device(torch.from_numpy(rows), device),
            to_device(torch.from_numpy(self.places), device),
            to_device(torch.from_numpy(padding), device) if padding.any() else None,
            same,
        )


def visible_by_rank(ranks: Tensor, sees_itself: bool) -> Tensor:
    """Visibility of keys by rank within sequences: (..., S) -> (..., S, S)."""
    visible = ranks[..., None, :] < ranks.clamp(min=0)[..., None]
    if sees_itself:
        visible = visible | torch.eye(ranks.shape[-1], dtype=torch.bool, device=ranks.device)
    return visible


def _shift(q_lens: np.ndarray, k_lens: np.ndarray, device: torch.device) -> Tensor:
    """The shift of ``distances``: queries and keys of a sequence end together."""
    shift = k_lens - q_lens
    shift = shift[:1] if (shift == shift[0]).all() else shift
    return to_device(torch.from_numpy(shift), device)


def _mask(
    layout: Layout,
    members: np.ndarray,
    query_index: _PaddedIndexBuilder,
    key_index: _PaddedIndexBuilder,
) -> tuple[Tensor | None, Tensor | None]:
    """The visible keys of a group's queries, and queries with any, as in ``PaddedGroup``."""
    device = layout.cu_seqlens.device
    q_lens, k_lens = query_index.lengths[members], key_index.lengths[members]
    queries, keys = query_index.longest(members), key_index.longest(members)
    mask = None
    if (k_lens < keys).any():
        inside = np.arange(keys) < k_lens[:, None]
        mask = to_device(torch.from_numpy(inside)[:, None, None, :], device)
    if layout.causal and queries > 1:
        causal = (distances(queries, keys, _shift(q_lens, k_lens, device)) >= 0)[:, None]
        mask = causal if mask is None else mask & causal
    if layout.window is not None and keys - 1 > layout.window:
        far = distances(queries, keys, _shift(q_lens, k_lens, device)).abs()
        near = (far <= layout.window)[:, None]
        mask = near if mask is None else mask & near
    if layout.ranks is not None:
        rows = to_device(torch.from_numpy(query_index.rows[-1]), device)
        ranks = layout.ranks[rows].view(len(members), queries)
        dense = visible_by_rank(ranks, layout.sees_itself)[:, None]
    elif layout.mask is not None:
        dense = layout.mask[to_device(torch.from_numpy(members), device)][:, None]
    else:
        return mask, None
    mask = dense if mask is None else mask & dense
    seen = mask.any(-1, keepdim=True)
    return mask | ~seen, seen
