"""Packed batches: sequences of any length, concatenated without padding.

T tokens, B sequences, S longest sequence, E embedding size, M masked tokens, W words, F features of
a word, P patches, C labels.
An answer belongs to a sequence, or to a group of consecutive sequences.

Padding exists only in ``from_padded`` and ``to_padded`` and temporarily inside attention.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ownbert.batches.example import Example as Example
from ownbert.batches.layout import Layout, make_layout, to_device
from ownbert.batches.sampled_softmax import Candidates


@dataclass(frozen=True)
class Batch:
    """Packed sequences and their targets.

    Args:
        token_ids, type_ids, positions: (T).
        layout: which rows attend to which.
        masked_positions: (M) rows of masked tokens in the packed batch.
        masked_ids: (M) original ids of the masked tokens.
        order: (M) prediction order of the masked tokens, from 0 in each sequence, for permutation
            language modelling.
        predicted: (M) rows of the tokens predicted by a query stream.
        next_sentence: (B), see ``Example``.
        labels: (answers) or (answers, C).
        weights: (answers) weights of the losses; None: all 1.
        tags: (T), see ``Example``.
        words: (W, 1 + F), see ``Example``.
        groups: number of consecutive sequences of each answer; None: one each.
        task_ids: (T), for models with task embeddings.
        embeds: (T, E) embeddings that replace those of token_ids.
        replaced: (T) true for tokens replaced by a generator.
        patches: (T - B, values) patches of images, whose rows follow a class token.
        source: sequences that a decoder attends to, one for each sequence.
        cross: layout of cross-attention.
        candidates: words for a sampled softmax, including all words of the batch; None: the
            vocabulary.
        dummy: whether the batch has no targets; such a batch lets a process without sequences take
            part in a step.
        continues_step: whether the next batch belongs to the same step, which was split to save
            memory.
    """

    token_ids: Tensor
    type_ids: Tensor
    positions: Tensor
    layout: Layout
    masked_positions: Tensor | None = None
    masked_ids: Tensor | None = None
    order: Tensor | None = None
    predicted: Tensor | None = None
    next_sentence: Tensor | None = None
    labels: Tensor | None = None
    weights: Tensor | None = None
    tags: Tensor | None = None
    words: Tensor | None = None
    groups: tuple[int, ...] | None = None
    task_ids: Tensor | None = None
    embeds: Tensor | None = None
    replaced: Tensor | None = None
    patches: Tensor | None = None
    source: "Batch | None" = None
    cross: Layout | None = None
    candidates: Candidates | None = None
    dummy: bool = False
    continues_step: bool = False

    @property
    def tokens(self) -> int:
        return sum(self.layout.lengths)

    @property
    def sequences(self) -> int:
        return len(self.layout.lengths)

    @property
    def answers(self) -> int:
        """Number of answers: one per sequence, or per group of sequences."""
        return self.sequences if self.groups is None else len(self.groups)

    @property
    def first(self) -> Tensor:
        """Rows (B) of the first tokens."""
        return self.layout.cu_seqlens[:-1]

    def to(self, device: torch.device | str) -> "Batch":
        """The batch on another device, or itself if it is already there."""
        if self.token_ids.device == torch.device(device):
            return self
        moved = {
            f.name: to_device(value, device)
            for f in fields(self)
            if isinstance(value := getattr(self, f.name), Tensor)
        }
        source, cross = (x and x.to(device) for x in (self.source, self.cross))
        return replace(self, layout=self.layout.to(device), source=source, cross=cross, **moved)


def pack(examples: Sequence[Example]) -> Batch:
    """Concatenate examples, at least one, into a batch; all have the targets of the first one."""
    lengths = tuple(length for e in examples for length in e.lengths)
    layout = make_layout(lengths)
    starts = np.concatenate([[0], np.cumsum([len(e.token_ids) for e in examples])])
    first, source = examples[0], None
    patches = [e.patches for e in examples if e.patches is not None]
    if first.source is not None:
        source = pack([e.source for e in examples if e.source])
        layout = replace(layout, causal=True)  # causal self-attention of a decoder
    masked_positions = masked_ids = None
    if first.masked_positions is not None:
        pairs: Any = zip(starts, examples, strict=False)
        masked_positions = _join([start + e.masked_positions for start, e in pairs])
        masked_ids = _join([e.masked_ids for e in examples])
    return Batch(
        token_ids=_join([e.token_ids for e in examples]),
        type_ids=_join([e.type_ids for e in examples]),
        positions=_join([np.arange(n) for n in lengths]),
        layout=layout,
        masked_positions=masked_positions,
        masked_ids=masked_ids,
        order=None if first.order is None else _join([e.order for e in examples]),
        next_sentence=_column([e.next_sentence for e in examples]),
        labels=_column([e.label for e in examples]),
        weights=_column([e.weight for e in examples]),
        tags=None if first.tags is None else _join([e.tags for e in examples]),
        words=None if first.words is None else _join([e.words for e in examples]),
        groups=None if first.parts is None else tuple(len(e.lengths) for e in examples),
        patches=None if not patches else torch.from_numpy(np.concatenate(patches)),
        source=source,
        cross=None if source is None else replace(layout, keys=source.layout, causal=False),
    )


def read_again(batch: Batch, start_id: int) -> Batch:
    """The decoder's batch for reading each sequence again, shifted by one token: ``start_id`` comes
    first, and the last token is dropped."""
    assert batch.embeds is None
    layout = batch.layout
    return replace(
        batch,
        token_ids=batch.token_ids.roll(1).index_fill(0, batch.first, start_id),
        layout=replace(layout, causal=True),
        source=batch,
        cross=replace(layout, keys=layout),
    )


def _join(arrays: Sequence) -> Tensor:
    return torch.from_numpy(np.concatenate(arrays).astype(np.int64, copy=False))


def _column(values: Sequence[Any]) -> Tensor | None:
    if values[0] is None:
        return None
    return torch.from_numpy(np.stack([np.asarray(v) for v in values]))


def from_padded(
    input_ids: Tensor,
    attention_mask: Tensor | None = None,
    token_type_ids: Tensor | None = None,
    position_ids: Tensor | None = None,
    *,
    task_type_ids: Tensor | None = None,
    inputs_embeds: Tensor | None = None,
) -> tuple[Batch, Tensor]:
    """Pack a padded batch; return it, and the index (T) for ``to_padded``.

    Tokens keep their positions in the padded batch, so padding on the left has the same effect as
    in Transformers. ids, types and positions are (B, S), as in Transformers; the mask is 0 for
    padding; ``inputs_embeds`` (B, S, E). A row without tokens is an ``InputError``.
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
        task_ids=None if task_type_ids is None else task_type_ids.expand(size).flatten()[index],
        embeds=None if inputs_embeds is None else inputs_embeds.flatten(0, 1)[index],
    )
    return batch, index


def to_padded(hidden: Tensor, index: Tensor, size: tuple[int, int]) -> Tensor:
    """Undo ``from_padded``: (T, ...) -> (B, S, ...), with zeros for padding."""
    if len(index) == size[0] * size[1]:
        return hidden.reshape(*size, *hidden.shape[1:])
    flat = hidden.new_zeros((size[0] * size[1], *hidden.shape[1:]))
    return flat.index_copy(0, index, hidden).view(*size, *hidden.shape[1:])
