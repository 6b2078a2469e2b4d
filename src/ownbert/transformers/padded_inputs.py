"""Checks and packs padded inputs, and pads the outputs of the packed model.

B sequences, S longest sequence, T tokens, L layers, H heads, D hidden; S' and T' are of the keys:
an encoder's output, or a cache and the new tokens.

Padding is removed before the encoder, and outputs are zero there. If Transformers' result depends
on padding (a 3-D mask, a cache, answer spans, left padding), all positions are processed instead,
and padding is masked.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ownbert.batches.batch import Batch, from_padded, to_padded
from ownbert.batches.layout import Layout, make_layout
from ownbert.config.encoder import SEGMENTS, EncoderConfig
from ownbert.exceptions import InputError
from ownbert.nn.context import Cache, Context, QueryStream
from ownbert.nn.encoder import Encoder

_INTEGERS = (torch.long, torch.int)
# Arguments that index an embedding table.
_TABLES = {
    "input_ids": "word",
    "token_type_ids": "token_type",
    "task_type_ids": "task_type",
    "position_ids": "position",
}
# Arguments that are not tensors.
_NOT_TENSORS = (
    *("past_key_values", "use_cache", "mems", "use_mems", "output_attentions"),
    *("output_hidden_states", "return_dict", "num_items_in_batch"),
    "interpolate_pos_encoding",
)


def check_tensors(given: Mapping[str, Any], device: torch.device) -> None:
    """Raise ``InputError`` for an argument that is not a tensor on ``device`` but must be one."""
    for name, value in given.items():
        if value is None or name in _NOT_TENSORS:
            continue
        if isinstance(value, Tensor):
            if value.device != device:
                raise InputError(
                    "{name} is on {device}, the model on {device2}; move it there: "
                    "{name}.to(model.device)",
                    name,
                    value.device,
                    device,
                )
            continue
        kind = type(value).__name__
        if isinstance(value, Mapping) or kind == "BatchEncoding":
            raise InputError(
                "{name} is a {kind}; pass its values by name: model(**inputs)", name, kind
            )
        if isinstance(value, str) or (
            isinstance(value, list) and value and str in map(type, value)
        ):
            raise InputError(
                "{name} is text; a tokenizer makes tensors of it, return_tensors='pt'", name
            )
        raise InputError("{name} is a {kind}; it must be a tensor: torch.tensor(...)", name, kind)


def check_inputs(stack: Encoder, given: Mapping[str, Any], size: tuple[int, int]) -> None:
    """Check ids, types and positions against their tables, and shapes (B, S); raise
    ``InputError``."""
    config, embeddings = stack.config, stack.embeddings
    for name, table in _TABLES.items():
        value = given.get(name)
        if value is None:
            continue
        if value.shape not in (size, (1, size[1]), (size[1],)):
            raise InputError(
                "{name} has shape {shape}; it must be {size}", name, tuple(value.shape), size
            )
        if value.dtype not in _INTEGERS:
            raise InputError(
                "{name} contains {dtype}; it must contain whole numbers, torch.long",
                name,
                value.dtype,
            )
        # The actual table, which may have been replaced; not every model has all tables.
        if hasattr(embeddings, table):
            count = getattr(embeddings, table).num_embeddings
            check_range(name, value, count, "rows of the table")
    mask = given.get("attention_mask")
    if mask is not None and not bool(((mask == 0) | (mask == 1)).all()):
        raise InputError(
            "attention_mask must be 1 for tokens and 0 for padding, and contains other values"
        )
    types = given.get("token_type_ids")
    if types is not None and config.positions.segments:
        check_range("token_type_ids", types, SEGMENTS, "segments")
    embeds = given.get("inputs_embeds")
    width = embeddings.word.embedding_dim
    if embeds is not None and (embeds.shape[-1] != width or not embeds.is_floating_point()):
        raise InputError(
            "inputs_embeds has shape {shape} and {dtype}; it must be {size} and floating point",
            tuple(embeds.shape),
            embeds.dtype,
            (*size, width),
        )
    if config.is_decoder and given.get("encoder_hidden_states") is not None:
        _check_encoder(given, size, config.hidden_size)


def _check_encoder(given: Mapping[str, Any], size: tuple[int, int], width: int) -> None:
    hidden, mask = given["encoder_hidden_states"], given.get("encoder_attention_mask")
    if hidden.ndim != 3 or hidden.shape[0] != size[0] or hidden.shape[2] != width:
        raise InputError(
            "encoder_hidden_states has shape {shape}; it must be ({size}, length, {width})",
            tuple(hidden.shape),
            size[0],
            width,
        )
    shapes = (tuple(hidden.shape[:2]), (*size, hidden.shape[1]))
    if mask is not None and tuple(mask.shape) not in shapes:
        raise InputError(
            "encoder_attention_mask has shape {shape}; it must be {shapes} or {shapes2}",
            tuple(mask.shape),
            shapes[0],
            shapes[1],
        )


def check_range(name: str, values: Tensor, count: int, what: str) -> None:
    """Raise ``InputError`` for a value outside of 0..count - 1. Values are only checked on a CPU,
    because reading them would synchronise with other devices."""
    if values.device.type != "cpu" or not values.numel():
        return
    least, most = (int(x) for x in torch.aminmax(values))
    if least < 0 or most >= count:
        wrong = least if least < 0 else most
        raise InputError(
            "{name} contains {wrong}; there are {count} {what}, 0..{count2}",
            name,
            wrong,
            count,
            what,
            count - 1,
        )


@dataclass
class PaddedInputs:
    """Arguments of a forward call, by their names in Transformers.

    Args:
        cache: keys and values of earlier tokens.
        keep: layers whose attention weights are returned.
        perm_mask: (B, S, S), for XLNet, 1 where a token does not see another one.
        target_mapping: (B, P, S), for XLNet, 1 at the token that each query predicts.
    """

    input_ids: Tensor | None = None
    attention_mask: Tensor | None = None
    token_type_ids: Tensor | None = None
    task_type_ids: Tensor | None = None
    position_ids: Tensor | None = None
    head_mask: Tensor | None = None
    inputs_embeds: Tensor | None = None
    encoder_hidden_states: Tensor | None = None
    encoder_attention_mask: Tensor | None = None
    perm_mask: Tensor | None = None
    target_mapping: Tensor | None = None
    cache: Cache | None = None
    keep: frozenset[int] = frozenset()

    @property
    def size(self) -> tuple[int, int]:
        """(B, S).

        Raises:
            InputError: neither or both of ids and embeddings are given, or they have an invalid
                shape.
        """
        if (self.input_ids is None) == (self.inputs_embeds is None):
            both = ", not both" if self.input_ids is not None else ""
            raise InputError("give either input_ids or inputs_embeds" + both)
        given = self._given
        dims = 2 if self.input_ids is not None else 3
        if given.ndim != dims:
            name = "input_ids" if dims == 2 else "inputs_embeds"
            shape = "(batch, length)" if dims == 2 else "(batch, length, width)"
            raise InputError(
                "{name} has shape {shape}; it must be {shape2}", name, tuple(given.shape), shape
            )
        if not given.shape[0] or not given.shape[1]:
            raise InputError("a batch needs at least one text, and every text one token")
        return given.shape[0], given.shape[1]

    @property
    def device(self) -> torch.device:
        return self._given.device

    @property
    def _given(self) -> Tensor:
        given = self.inputs_embeds if self.input_ids is None else self.input_ids
        assert given is not None
        return given


@dataclass(frozen=True)
class PackedInputs:
    """A packed batch, its context, and data for padding the outputs.

    Args:
        index: (T) index of each token among the B x S padded positions.
        size: (B, S).
        source_index: (T') index of each row of the encoder's output for cross-attention among the
            B x S' padded positions.
        source_length: S' of the encoder's output.
    """

    batch: Batch
    context: Context
    index: Tensor
    size: tuple[int, int]
    source_index: Tensor | None = None
    source_length: int = 0

    def padded(self, rows: Tensor) -> Tensor:
        """(T, ...) -> (B, S, ...)"""
        return to_padded(rows, self.index, self.size)

    def answers(self, rows: Tensor) -> Tensor:
        """Like ``padded``; with a query stream (M, ...) -> (B, P, ...)."""
        if self.context.query_stream is None:
            return self.padded(rows)
        return rows.unflatten(0, (self.size[0], -1))

    def streams(self, rows: Tensor) -> tuple[Tensor, ...]:
        """(T, ...) -> (B, S, ...); with a query stream (T + M, ...) -> also (B, P, ...)."""
        if self.context.query_stream is None:
            return (self.padded(rows),)
        count = self.batch.tokens
        return self.padded(rows[:count]), self.answers(rows[count:])

    def shown(self, hidden: Any) -> tuple[Tensor, ...]:
        """Hidden states in returned form: results of ``hidden``, or ``streams`` of packed rows."""
        return hidden if isinstance(hidden, tuple) else self.streams(hidden)

    # Implementation of ``Returned``, for gradients with respect to returned tensors.

    def hidden(self, rows: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
        shown = self.streams(rows)
        back = [part.flatten(0, 1) for part in shown]
        back[0] = back[0][self.index]
        return shown, back[0] if len(back) == 1 else torch.cat(back)

    def attended(self, weights: list[Tensor], v: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
        positions = self._token_positions(layout)
        shown = self._pad_weights(weights, *positions)
        _, columns, length = positions
        values = to_padded(v, torch.cat(list(columns)), (self.size[0], length))  # (B, S', H, K)
        out = torch.einsum("bhij,bjhk->bihk", shown, values).flatten(0, 1)
        return shown, out[self.index]

    def weights(self, layers: dict[int, Any], layout: Layout) -> dict[int, Tensor]:
        """Collected attention weights by layer, (B, H, S, S'): results of ``attended`` unchanged,
        others padded."""
        positions = self._token_positions(layout)
        return {
            layer: weights
            if isinstance(weights, Tensor)
            else self._pad_weights(weights, *positions)
            for layer, weights in layers.items()
        }

    def _token_positions(self, layout: Layout) -> tuple[Sequence[Tensor], Sequence[Tensor], int]:
        """The positions of each sequence's queries and keys, and S' of the keys."""
        keys, length = self.index, self.size[1]
        if layout is self.context.cross and self.source_index is not None:
            keys, length = self.source_index, self.source_length
        elif layout.keys is not None:
            length = layout.keys.max_seqlen
            keys = torch.arange(self.size[0] * length, device=keys.device)
        columns = keys.split((layout.keys or layout).lengths)
        return self.index.split(layout.lengths), columns, length

    def _pad_weights(
        self, weights: list[Tensor], rows: Sequence[Tensor], columns: Sequence[Tensor], length: int
    ) -> Tensor:
        """(H, queries, keys) of each sequence -> (B, H, S, ``length``)."""
        shape = self.size[1], length
        if all(one.shape[1:] == shape for one in weights):
            return torch.stack(weights)
        padded = []
        for one, row, column in zip(weights, rows, columns, strict=True):
            index = (row % shape[0])[:, None] * length + column % length  # (queries, keys)
            flat = one.new_zeros(one.shape[0], shape[0] * length)
            padded.append(flat.index_copy(1, index.flatten(), one.flatten(1)).unflatten(1, shape))
        return torch.stack(padded)


def pack_images(given: Mapping[str, Any], stack: Encoder, keep: frozenset[int]) -> PackedInputs:
    """Images (B, channels, height, width) as sequences of patches with equal lengths."""
    pixels = given.get("pixel_values")
    if pixels is None:
        raise InputError("give pixel_values, images of shape (batch, channels, height, width)")
    for name in ("bool_masked_pos", "interpolate_pos_encoding"):
        if given.get(name) is not None and given[name] is not False:
            raise InputError(
                "{name} is not supported: all patches are visible, in their order", name
            )
    embeddings: Any = stack.embeddings
    batch, config = embeddings.batch(pixels), stack.config
    head_mask = expand_head_mask(given.get("head_mask"), config, len(pixels))
    context = Context(batch.layout, batch.positions, head_mask, keep)
    index = torch.arange(batch.tokens, device=pixels.device)
    return PackedInputs(batch, context, index, (len(pixels), batch.layout.lengths[0]))


def pack(given: PaddedInputs, config: EncoderConfig, *, dense: bool) -> PackedInputs:
    """The packed batch of a call; ``dense``: process all positions."""
    size, past = given.size, 0 if given.cache is None else given.cache.length
    if past and given.cache is not None and given.cache.self_attention[0][0].shape[0] != size[0]:
        cached = given.cache.self_attention[0][0].shape[0]
        raise InputError(
            "past_key_values are of {cached} texts, the input has {size}", cached, size[0]
        )
    mask = _mask(given, config, size, past)
    positions = _positions(given, config, size, past)
    _check_length(config, positions, size[1] + past)
    permuted = given.perm_mask is not None or given.target_mapping is not None
    dense = dense or given.cache is not None or mask.ndim == 3 or permuted
    dense = dense or _padding_matters(mask, config)
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
    by_others = mask  # keys visible to queries that do not see themselves
    if dense:
        keys = make_layout([size[1] + past] * size[0], given.device) if past else None
        seen = by_others = mask if mask.ndim == 3 else mask[:, None]
        if config.disentangled is not None and mask.ndim == 2:
            seen = seen & mask[:, :, None]  # Padding sees nothing, either.
        if config.mask_vector:
            by_others = _permuted(seen, given.perm_mask, size)
            seen = by_others | torch.eye(size[1], dtype=torch.bool, device=given.device)
        layout = replace(layout, keys=keys, mask=None if bool(seen.all()) else seen)
    head_mask = expand_head_mask(given.head_mask, config, size[0])
    context = Context(layout, batch.positions, head_mask, given.keep, cache=given.cache)
    if config.positions.segments:
        context.segments = batch.type_ids.long()
    if given.target_mapping is not None:
        query_layout = replace(layout, mask=None if bool(by_others.all()) else by_others)
        context.query_stream = _query_stream(given.target_mapping, query_layout, size)
        count = len(context.query_stream.rows)
        predicted = torch.arange(batch.tokens, batch.tokens + count, device=given.device)
        batch = replace(batch, masked_positions=predicted)
    packed = PackedInputs(replace(batch, layout=layout), context, index, size)
    hidden = given.encoder_hidden_states
    if hidden is None:
        return packed
    context.encoder_hidden, context.cross, source_index = _cross_attention(
        hidden, given.encoder_attention_mask, layout, dense
    )
    return replace(packed, source_index=source_index, source_length=hidden.shape[1])


def _mask(given: PaddedInputs, config: EncoderConfig, size: tuple[int, int], past: int) -> Tensor:
    """(B, S') or (B, S, S'), true for visible keys."""
    keys = size[1] + past
    if given.attention_mask is None:
        return torch.ones(size[0], keys, dtype=torch.bool, device=given.device)
    mask = given.attention_mask == 1  # Other values mean masked, as in Transformers.
    if mask.shape not in ((size[0], keys), (size[0], size[1], keys)):
        raise InputError(
            "attention_mask has shape {shape}; it must be {size} or {size2}",
            tuple(mask.shape),
            (size[0], keys),
            (size[0], size[1], keys),
        )
    return mask


def _padding_matters(mask: Tensor, config: EncoderConfig) -> bool:
    """Whether results depend on the position of padding: on the left, or between tokens."""
    if bool(mask.all()):
        return False
    if config.positions.pads_left:  # Only gaps change distances.
        ones = mask.long()
        begins = ones.diff(dim=1, prepend=torch.zeros_like(ones[:, :1])) == 1
        return bool((begins.sum(1) > 1).any())
    if not bool(mask[:, 0].all()):
        return True
    # Distances (and MobileBERT's neighbours) include padding, so gaps matter.
    counted = config.positions.counts_gaps
    counted = counted or config.local_attention is not None or config.disentangled is not None
    neighbours = config.mobile is not None and config.mobile.trigram_input
    return (counted or neighbours) and bool((mask[:, 1:] & ~mask[:, :-1]).any())


def _permuted(seen: Tensor, perm_mask: Tensor | None, size: tuple[int, int]) -> Tensor:
    """Visibility of other tokens (B, 1 or S, S), excluding those masked by ``perm_mask``."""
    if perm_mask is None:
        return seen
    if perm_mask.shape != (*size, size[1]):
        raise InputError(
            "perm_mask has shape {shape}; it must be {size}",
            tuple(perm_mask.shape),
            (*size, size[1]),
        )
    return seen & (perm_mask <= 0)


def _query_stream(mapping: Tensor, layout: Layout, size: tuple[int, int]) -> QueryStream:
    if mapping.ndim != 3 or mapping.shape[::2] != size or not mapping.shape[1]:
        raise InputError(
            "target_mapping has shape {shape}; it must be ({size}, predictions, {size2})",
            tuple(mapping.shape),
            size[0],
            size[1],
        )
    return QueryStream(torch.arange(mapping.shape[0] * mapping.shape[1]), layout, mapping)


def _positions(
    given: PaddedInputs, config: EncoderConfig, size: tuple[int, int], past: int
) -> Tensor:
    """(B or 1, S) positions from 0. RoBERTa counts non-padding tokens, BERT all positions."""
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
            "the input is {length} tokens long, the model has {max_length} positions; truncate it",
            length,
            config.max_length,
        )
    if positions.device.type == "cpu" and int(positions.max()) >= config.max_length:
        raise InputError(
            "position {max} is beyond the table of {max_position_embeddings} positions; "
            "truncate the input",
            int(positions.max()) + config.position_offset,
            config.max_position_embeddings,
        )


def _cross_attention(
    hidden: Tensor, mask: Tensor | None, layout: Layout, dense: bool
) -> tuple[Tensor, Layout, Tensor]:
    """Rows (T', D) of the encoder's output for cross-attention, their layout and index."""
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


def expand_head_mask(mask: Tensor | None, config: EncoderConfig, sequences: int) -> Tensor | None:
    """(L, H) or (L, B, H) from (H), (L, H), (L, B, H) or (L, B, H, 1, 1)."""
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
            "head_mask has shape {value}; it must be {heads}, {layers} or {layers2}",
            tuple(given),
            (heads,),
            (layers, heads),
            (layers, sequences, heads),
        )
    if config.num_hidden_groups is None:
        return mask
    # Transformers 4.57.6 uses the mask of a group's first layers for all layers of the group.
    each, inner = layers // config.num_hidden_groups, config.inner_group_num
    rows = [config.group_of(layer) * each + i for layer in range(layers) for i in range(inner)]
    return mask[rows]
