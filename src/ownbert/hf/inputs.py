"""Padded tensors to a packed batch, and what a packed model gives back to padded tensors.

B sequences, S places, K places that are attended to, T tokens, L layers, H heads, D hidden.

Padding is left out before the encoder and is zero after it. Where what Transformers returns
depends on padding (a mask of pairs, a cache, answers, a first place without token) all places go
through the encoder instead, and a mask hides them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ownbert.config import EncoderConfig
from ownbert.data.batch import Batch, from_padded, to_padded
from ownbert.data.layout import Layout, make_layout
from ownbert.errors import InputError
from ownbert.nn.context import Cache, Context


@dataclass
class Padded:
    """Arguments of a forward call, by their names in Transformers."""

    input_ids: Tensor | None = None
    attention_mask: Tensor | None = None
    token_type_ids: Tensor | None = None
    task_type_ids: Tensor | None = None
    position_ids: Tensor | None = None
    head_mask: Tensor | None = None
    inputs_embeds: Tensor | None = None
    encoder_hidden_states: Tensor | None = None
    encoder_attention_mask: Tensor | None = None
    cache: Cache | None = None
    keep: frozenset[int] = frozenset()

    @property
    def size(self) -> tuple[int, int]:
        """(B, S). ``InputError`` unless there are ids or embeddings, and not both."""
        if (self.input_ids is None) == (self.inputs_embeds is None):
            both = ", not both" if self.input_ids is not None else ""
            raise InputError("give either input_ids or inputs_embeds" + both)
        given = self.inputs_embeds if self.input_ids is None else self.input_ids
        assert given is not None
        dims = 2 if self.input_ids is not None else 3
        if given.ndim != dims:
            name = "input_ids" if dims == 2 else "inputs_embeds"
            shape = "(batch, length)" if dims == 2 else "(batch, length, width)"
            raise InputError(f"{name} has shape {tuple(given.shape)}; it must be {shape}")
        if not given.shape[0] or not given.shape[1]:
            raise InputError("a batch needs at least one text, and every text one token")
        return given.shape[0], given.shape[1]

    @property
    def device(self) -> torch.device:
        given = self.inputs_embeds if self.input_ids is None else self.input_ids
        assert given is not None
        return given.device


@dataclass(frozen=True)
class Packed:
    """A batch and its context; index (T) of its rows among the B x S places.

    sources (T'): index of the rows of the encoder that a decoder attends to, among its places.
    """

    batch: Batch
    context: Context
    index: Tensor
    size: tuple[int, int]
    sources: Tensor | None

    def padded(self, rows: Tensor) -> Tensor:
        """(T, ...) -> (B, S, ...)"""
        return to_padded(rows, self.index, self.size)

    def weights(
        self, layers: dict[int, list[Tensor]], layout: Layout, keys: Tensor, width: int
    ) -> dict[int, Tensor]:
        """Attention weights (B, H, S, K) of each layer.

        keys: index of the rows that are attended to among B x ``width`` places.
        """
        rows = self.index.split(layout.lengths)
        columns = keys.split((layout.keys or layout).lengths)
        return {i: self._weights(parts, rows, columns, width) for i, parts in layers.items()}

    def _weights(
        self, parts: list[Tensor], rows: Sequence[Tensor], columns: Sequence[Tensor], width: int
    ) -> Tensor:
        shape = self.size[1], width
        if all(part.shape[1:] == shape for part in parts):
            return torch.stack(parts)
        whole = []
        for part, row, column in zip(parts, rows, columns, strict=True):
            places = (row % shape[0])[:, None] * width + column % width  # (Q, K)
            flat = part.new_zeros(part.shape[0], shape[0] * width)
            whole.append(flat.index_copy(1, places.flatten(), part.flatten(1)).unflatten(1, shape))
        return torch.stack(whole)


def pack(given: Padded, config: EncoderConfig, *, dense: bool) -> Packed:
    """The packed batch of a call; ``dense`` asks for all places to go through the encoder."""
    size, past = given.size, 0 if given.cache is None else given.cache.length
    if past and given.cache is not None and given.cache.self_attention[0][0].shape[0] != size[0]:
        kept = given.cache.self_attention[0][0].shape[0]
        raise InputError(f"past_key_values are of {kept} texts, the input has {size[0]}")
    mask = _mask(given, size, past)
    positions = _positions(given, config, size, past)
    _check_length(config, positions, size[1] + past)
    dense = dense or given.cache is not None or mask.ndim == 3 or _needs_places(mask, config)
    ids = given.input_ids
    if ids is None:
        ids = torch.zeros(size, dtype=torch.long, device=given.device)
    batch, index = from_padded(
        ids,
        None if dense else mask,
        given.token_type_ids,
        positions,
        task_type_ids=given.task_type_ids,
        inputs_embeds=given.inputs_embeds,
    )
    layout = replace(batch.layout, causal=config.is_decoder and mask.ndim == 2)
    if dense:
        keys = make_layout([size[1] + past] * size[0], given.device) if past else None
        seen = mask if mask.ndim == 3 else mask[:, None]
        hidden = None if bool(mask.all()) else seen
        layout = replace(layout, keys=keys, mask=hidden)
    encoder_hidden, cross, sources = _cross(given, layout, dense)
    context = Context(
        layout,
        batch.positions,
        masks_of_heads(given.head_mask, config, size[0]),
        given.keep,
        encoder_hidden,
        cross,
        given.cache,
    )
    return Packed(replace(batch, layout=layout), context, index, size, sources)


def _mask(given: Padded, size: tuple[int, int], past: int) -> Tensor:
    """(B, K) or (B, S, K), true at what may be seen."""
    keys = size[1] + past
    if given.attention_mask is None:
        return torch.ones(size[0], keys, dtype=torch.bool, device=given.device)
    mask = given.attention_mask == 1  # Anything else hides, as in Transformers.
    if mask.shape not in ((size[0], keys), (size[0], size[1], keys)):
        raise InputError(
            f"attention_mask has shape {tuple(mask.shape)}; it must be {(size[0], keys)} or "
            f"{(size[0], size[1], keys)}"
        )
    return mask


def _needs_places(mask: Tensor, config: EncoderConfig) -> bool:
    """Whether places without a token matter: at the start, everywhere, or between two tokens."""
    if bool(mask.all()):
        return False
    if not bool(mask[:, 0].all()):
        return True
    # Distances (and MobileBERT's neighbours) are counted in places, so there must be no holes.
    counted = config.position_embedding_type in ("relative_key", "relative_key_query", "alibi")
    neighbours = config.mobile is not None and config.mobile.trigram_input
    return (counted or neighbours) and bool((mask[:, 1:] & ~mask[:, :-1]).any())


def _positions(given: Padded, config: EncoderConfig, size: tuple[int, int], past: int) -> Tensor:
    """(B or 1, S) from 0 on. RoBERTa counts tokens that are no padding, BERT counts places."""
    if given.position_ids is not None:
        return given.position_ids - config.position_offset
    if config.position_offset and given.input_ids is not None:
        real = (given.input_ids != config.pad_token_id).long()
        return (real.cumsum(1) + past) * real - 1
    return torch.arange(past, size[1] + past, device=given.device)[None]


def _check_length(config: EncoderConfig, positions: Tensor, length: int) -> None:
    if config.max_length is None:
        return
    if length > config.max_length and not config.position_offset:
        raise InputError(
            f"the input has {length} places, the model {config.max_length} positions; cut it"
        )
    if positions.device.type == "cpu" and int(positions.max()) >= config.max_length:
        raise InputError(
            f"position {int(positions.max()) + config.position_offset} is beyond the table of "
            f"{config.max_position_embeddings} positions; cut the input"
        )


def _cross(
    given: Padded, layout: Layout, dense: bool
) -> tuple[Tensor | None, Layout | None, Tensor | None]:
    """Rows (T', D) of the encoder that a decoder attends to, their layout, and their index."""
    hidden = given.encoder_hidden_states
    if hidden is None:
        return None, None, None
    mask = given.encoder_attention_mask
    mask = torch.ones(hidden.shape[:2], device=hidden.device) if mask is None else mask
    mask = mask == 1
    queries = replace(layout, causal=False, mask=None, keys=None)
    if dense or mask.ndim == 3 or not bool(mask.any(1).all()):
        keys = make_layout([hidden.shape[1]] * hidden.shape[0], hidden.device)
        seen = mask if mask.ndim == 3 else mask[:, None]
        layout = replace(queries, keys=keys, mask=None if bool(mask.all()) else seen)
        index = torch.arange(hidden.shape[0] * hidden.shape[1], device=hidden.device)
        return hidden.flatten(0, 1), layout, index
    index = mask.flatten().nonzero().squeeze(1)
    keys = make_layout(mask.sum(1).tolist(), hidden.device)
    return hidden.flatten(0, 1)[index], replace(queries, keys=keys), index


def masks_of_heads(mask: Tensor | None, config: EncoderConfig, sequences: int) -> Tensor | None:
    """(L, H) or (L, B, H) out of (H), (L, H), (L, B, H) or (L, B, H, 1, 1)."""
    if mask is None:
        return None
    layers, heads, given = config.num_hidden_layers, config.num_attention_heads, mask.shape
    if mask.ndim == 1:
        mask = mask.expand(layers, -1)
    if mask.ndim == 5 and mask.shape[3:] == (1, 1):
        mask = mask[..., 0, 0]
    if mask.ndim == 3 and mask.shape[1] == 1:
        mask = mask[:, 0]
    if mask.shape not in ((layers, heads), (layers, sequences, heads)):
        raise InputError(
            f"head_mask has shape {tuple(given)}; it must be {(heads,)}, {(layers, heads)} "
            f"or {(layers, sequences, heads)}"
        )
    if config.num_hidden_groups is None:
        return mask
    # Transformers 4.57.6 gives every layer of a group the mask of the group's first layers.
    each, inner = layers // config.num_hidden_groups, config.inner_group_num
    rows = [config.group_of(layer) * each + i for layer in range(layers) for i in range(inner)]
    return mask[rows]
