"""Sequences of any length laid end to end, with nothing between them.

T tokens, B sequences, S longest sequence, P places (tokens and padding), M masked tokens.

Padding exists in ``from_padded`` and ``to_padded`` and, for a moment, inside attention.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from ownbert.errors import InputError

# A group of sequences is attended to in one call, padded to its longest. A call costs about as
# much as this many score elements, which decides when a shorter sequence is worth a new group.
_CALL_COST = 60_000


@dataclass(slots=True)
class Example:
    """One sequence before it is packed; arrays are of length L, masked ones of length m."""

    token_ids: np.ndarray
    type_ids: np.ndarray
    masked_positions: np.ndarray | None = None
    masked_ids: np.ndarray | None = None
    next_sentence: int | None = None  # 0: the second part follows the first, 1: it does not
    label: int | None = None


@dataclass(frozen=True)
class Group:
    """``count`` sequences padded to ``longest``; its places are ``start : stop`` of all places."""

    count: int
    longest: int
    start: int
    stop: int
    mask: Tensor | None  # (count, 1, 1, longest) true at tokens; None where there is no padding


@dataclass(frozen=True)
class Layout:
    """What attention must know of a batch: which rows belong together.

    cu_seqlens (B+1): sequence b is the rows ``cu_seqlens[b] : cu_seqlens[b + 1]``. ``lengths`` is
    the same on the host, so that no forward pass waits for a device.
    """

    cu_seqlens: Tensor
    lengths: tuple[int, ...]

    @property
    def max_seqlen(self) -> int:
        return max(self.lengths)

    @cached_property
    def grouping(self) -> "Grouping":
        return _group(self.lengths, self.cu_seqlens.device)


@dataclass(frozen=True)
class Grouping:
    """Rows (T) to places (P) and back.

    rows (P): the row at each place, some real row at padding; places (T): the place of each row;
    padding (P): true where a place holds no token, or None where there is no padding at all.
    """

    groups: tuple[Group, ...]
    rows: Tensor
    places: Tensor
    padding: Tensor | None


def _group(lengths: Sequence[int], device: torch.device) -> Grouping:
    """Sort by length, then cut where padding would cost more than another call."""
    lens = np.asarray(lengths, dtype=np.int64)
    starts = np.concatenate([[0], np.cumsum(lens)[:-1]])
    order = np.argsort(-lens, kind="stable")
    groups, rows, padding = [], [], []
    places = np.empty(int(lens.sum()), dtype=np.int64)
    first = place = 0
    while first < len(order):
        longest = int(lens[order[first]])
        waste = np.cumsum(longest**2 - lens[order[first:]] ** 2)
        count = max(1, int(np.searchsorted(waste, _CALL_COST, side="right")))
        members = order[first : first + count]
        inside = np.arange(longest) < lens[members][:, None]  # (count, longest)
        grid = starts[members][:, None] + np.minimum(np.arange(longest), lens[members][:, None] - 1)
        at = place + np.arange(count * longest).reshape(count, longest)
        places[grid[inside]] = at[inside]
        rows.append(grid.ravel())
        padding.append(~inside.ravel())
        mask = None if inside.all() else torch.from_numpy(inside)[:, None, None, :].to(device)
        groups.append(Group(count, longest, place, place + count * longest, mask))
        place += count * longest
        first += count
    pad = np.concatenate(padding)
    return Grouping(
        tuple(groups),
        torch.from_numpy(np.concatenate(rows)).to(device),
        torch.from_numpy(places).to(device),
        torch.from_numpy(pad).to(device) if pad.any() else None,
    )


@dataclass(frozen=True)
class Batch:
    """Packed sequences and their targets.

    token_ids, type_ids, positions (T); masked_positions (M) rows of the packed batch, and
    masked_ids (M) what stood there; next_sentence, labels (B).
    """

    token_ids: Tensor
    type_ids: Tensor
    positions: Tensor
    layout: Layout
    masked_positions: Tensor | None = None
    masked_ids: Tensor | None = None
    next_sentence: Tensor | None = None
    labels: Tensor | None = None

    @property
    def tokens(self) -> int:
        return sum(self.layout.lengths)

    @property
    def sequences(self) -> int:
        return len(self.layout.lengths)

    @property
    def first(self) -> Tensor:
        """Rows (B) of the first token of each sequence."""
        return self.layout.cu_seqlens[:-1]

    def to(self, device: torch.device | str) -> "Batch":
        """The batch on another device; itself if it is there already."""
        if self.token_ids.device == torch.device(device):
            return self
        moved = {
            f.name: value.to(device, non_blocking=True)
            for f in fields(self)
            if isinstance(value := getattr(self, f.name), Tensor)
        }
        layout = Layout(self.layout.cu_seqlens.to(device), self.layout.lengths)
        return replace(self, layout=layout, **moved)


def pack(examples: Sequence[Example]) -> Batch:
    """Lay examples end to end; a target is kept if the first example has it."""
    lengths = tuple(len(e.token_ids) for e in examples)
    layout = make_layout(lengths)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    head = examples[0]
    masked_positions = masked_ids = None
    if head.masked_positions is not None:
        masked_positions = _join(
            [
                start + e.masked_positions
                for start, e in zip(starts, examples, strict=False)
                if e.masked_positions is not None
            ]
        )
        masked_ids = _join([e.masked_ids for e in examples])
    return Batch(
        token_ids=_join([e.token_ids for e in examples]),
        type_ids=_join([e.type_ids for e in examples]),
        positions=_join([np.arange(n) for n in lengths]),
        layout=layout,
        masked_positions=masked_positions,
        masked_ids=masked_ids,
        next_sentence=_column([e.next_sentence for e in examples]),
        labels=_column([e.label for e in examples]),
    )


def _join(arrays: Sequence) -> Tensor:
    return torch.from_numpy(np.concatenate(arrays).astype(np.int64, copy=False))


def _column(values: Sequence[int | None]) -> Tensor | None:
    return None if values[0] is None else torch.tensor(values, dtype=torch.int64)


def make_layout(lengths: Sequence[int], device: torch.device | str = "cpu") -> Layout:
    """Layout of sequences of these lengths, all of them at least 1."""
    if not lengths or min(lengths) < 1:
        raise InputError("a batch needs at least one sequence, and every sequence one token")
    cu_seqlens = torch.from_numpy(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64))
    return Layout(cu_seqlens.to(device), tuple(int(n) for n in lengths))


def from_padded(
    input_ids: Tensor,
    attention_mask: Tensor | None = None,
    token_type_ids: Tensor | None = None,
    position_ids: Tensor | None = None,
) -> tuple[Batch, Tensor]:
    """Packed batch of a padded one (B, S), and the index (T) that ``to_padded`` takes.

    Tokens keep the positions of their places, so padding on the left means what it does in
    Transformers. A row without any token is refused.
    """
    size = input_ids.shape
    if attention_mask is None:
        attention_mask = torch.ones_like(input_ids)
    keep = attention_mask.bool()
    lengths = keep.sum(1).tolist()
    index = keep.flatten().nonzero().squeeze(1)
    if position_ids is None:
        position_ids = torch.arange(size[1], device=input_ids.device)
    if token_type_ids is None:
        token_type_ids = torch.zeros_like(input_ids)
    batch = Batch(
        token_ids=input_ids.flatten()[index],
        type_ids=token_type_ids.expand(size).flatten()[index],
        positions=position_ids.expand(size).flatten()[index],
        layout=make_layout(lengths, input_ids.device),
    )
    return batch, index


def to_padded(hidden: Tensor, index: Tensor, size: tuple[int, int]) -> Tensor:
    """(T, ...) to (B, S, ...) with zeros where there is no token."""
    flat = hidden.new_zeros((size[0] * size[1], *hidden.shape[1:]))
    flat[index] = hidden
    return flat.view(*size, *hidden.shape[1:])
