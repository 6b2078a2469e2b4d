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
from ownbert.nn.encoder_stack import Encoder
from ownbert.nn.model import Outputs

# Arguments that index an embedding table.
_TABLES = {
    "input_ids": "word",
    "token_type_ids": "token_type",
    "task_type_ids": "task_type",
    "position_ids": "position",
}
_NOT_TENSORS = (
    *("past_key_values", "use_cache", "mems", "use_mems", "output_attentions"),
    *("output_hidden_states", "return_dict", "num_items_in_batch"),
    "interpolate_pos_encoding",
)


def check_tensors(inputs: Mapping[str, Any], device: torch.device) -> None:
    """Raise ``InputError`` for an argument that is not a tensor on ``device`` but must be one."""
    for name, value in inputs.items():
        if value is None or name in _NOT_TENSORS:
            continue
        kind = type(value).__name__
        if isinstance(value, Tensor):
            if value.device != device:
                message = (
                    "{name} is on {device}, the model on {device2}; move it there: "
                    "{name}.to(model.device)"
                )
                raise InputError(message, name, value.device, device)
        elif isinstance(value, Mapping) or kind == "BatchEncoding":
            raise InputError(
                "{name} is a {kind}; pass its values by name: model(**inputs)", name, kind
            )
        elif isinstance(value, str) or (isinstance(value, list) and str in map(type, value)):
            raise InputError(
                "{name} is text; a tokenizer makes tensors of it, return_tensors='pt'", name
            )
        else:
            message = "{name} is a {kind}; it must be a tensor: torch.tensor(...)"
            raise InputError(message, name, kind)


def check_shape(name: str, value: Tensor, *shapes: tuple[int | str, ...]) -> None:
    """Raise ``InputError`` if a tensor has none of the shapes; a text is any size above 0."""
    for shape in shapes:
        if len(shape) == value.ndim and all(
            size > 0 if isinstance(wanted, str) else size == wanted
            for size, wanted in zip(value.shape, shape, strict=True)
        ):
            return
    wanted = ", ".join(str(shape).replace("'", "") for shape in shapes)
    if len(shapes) == 1:
        message = "{name} has shape {shape}; it must be {wanted}"
    else:
        message = "{name} has shape {shape}; it must be one of {wanted}"
    raise InputError(message, name, tuple(value.shape), wanted)


def check_range(name: str, values: Tensor, count: int, what: str) -> None:
    """Raise ``InputError`` for a value outside of 0..count - 1. Values are only checked on a CPU,
    because reading them would synchronise with other devices."""
    if values.device.type != "cpu" or not values.numel():
        return
    least, most = (int(x) for x in torch.aminmax(values))
    if least < 0 or most >= count:
        message = "{name} contains {wrong}; there are {count} {what}, 0..{count2}"
        raise InputError(message, name, least if least < 0 else most, count, what, count - 1)


def padded_size(inputs: Mapping[str, Any]) -> tuple[int, int]:
    """(B, S) of the ids or embeddings of a call; ``InputError`` if they have an invalid shape."""
    ids, embeds = inputs.get("input_ids"), inputs.get("inputs_embeds")
    if (ids is None) == (embeds is None):
        raise InputError(
            "give either input_ids or inputs_embeds, not both"
            if ids is not None
            else "give either input_ids or inputs_embeds"
        )
    tensor: Tensor = embeds if ids is None else ids  # pyright: ignore[reportAssignmentType]
    if 0 in tensor.shape[:2]:
        raise InputError("a batch needs at least one text, and every text one token")
    if ids is None:
        check_shape("inputs_embeds", tensor, ("batch", "length", "width"))
    else:
        check_shape("input_ids", tensor, ("batch", "length"))
    return tensor.shape[0], tensor.shape[1]


def check_inputs(stack: Encoder, inputs: Mapping[str, Any]) -> None:
    """Check ids, types and positions against their tables, and shapes; raise ``InputError``."""
    config, embeddings, size = stack.config, stack.embeddings, padded_size(inputs)
    for name in _TABLES.keys() & inputs.keys():
        value = inputs[name]
        if value is None:
            continue
        if value.shape not in (size, (1, size[1]), (size[1],)):
            check_shape(name, value, size)
        if value.dtype not in (torch.long, torch.int):
            message = "{name} contains {dtype}; it must contain whole numbers, torch.long"
            raise InputError(message, name, value.dtype)
        # The actual table, which may have been replaced; not every model has all tables.
        table = getattr(embeddings, _TABLES[name], None)
        if table is not None:
            check_range(name, value, table.num_embeddings, "rows of the table")
    mask, types = inputs.get("attention_mask"), inputs.get("token_type_ids")
    if mask is not None and not bool(((mask == 0) | (mask == 1)).all()):
        raise InputError(
            "attention_mask must be 1 for tokens and 0 for padding, and contains other values"
        )
    if types is not None and config.positions.segments:
        check_range("token_type_ids", types, SEGMENTS, "segments")
    embeds, width = inputs.get("inputs_embeds"), embeddings.word.embedding_dim
    if embeds is not None and (embeds.shape[-1] != width or not embeds.is_floating_point()):
        raise InputError(
            "inputs_embeds has shape {shape} and {dtype}; it must be {size} and floating point",
            tuple(embeds.shape),
            embeds.dtype,
            (*size, width),
        )
    hidden, mask = (inputs.get(f"encoder_{name}") for name in ("hidden_states", "attention_mask"))
    if config.is_decoder and hidden is not None:
        shape = (size[0], "length", config.hidden_size)
        check_shape("encoder_hidden_states", hidden, shape)
        if mask is not None:
            length = hidden.shape[1]
            check_shape("encoder_attention_mask", mask, (size[0], length), (*size, length))


@dataclass(frozen=True)
class PackedInputs:
    """A packed batch, its context, and data for padding the outputs.

    Args:
        index: (T) index of each token among the B x S padded positions.
        size: (B, S).
        source_index: (T') the same for the encoder's output of cross-attention, of length
            ``source_length``.
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

    def shown(self, hidden: Any) -> tuple[Tensor, ...]:
        """Hidden states in returned form: results of ``hidden`` as they are; packed rows (T, ...)
        -> (B, S, ...), with a query stream (T + M, ...) -> also (B, P, ...)."""
        if isinstance(hidden, tuple):
            return hidden
        if self.context.query_stream is None:
            return (self.padded(hidden),)
        count = self.batch.tokens
        return self.padded(hidden[:count]), self.answers(hidden[count:])

    def last_hidden(self, out: Outputs) -> Tensor:
        return self.shown(self.context.last_hidden or out.hidden)[-1]

    def hidden_states(self, out: Outputs, *, normed: bool) -> tuple[Tensor, ...]:
        """The hidden states of all layers; ``normed``: the last ones after the final norm."""
        layers: tuple[Any, ...] = out.hidden_states
        if normed:
            layers = (*layers[:-1], self.context.last_hidden or out.hidden)
        return tuple(x for hidden in layers for x in self.shown(hidden))

    # Implementation of ``Returned``, for gradients with respect to returned tensors.

    def hidden(self, rows: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
        shown = self.shown(rows)
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
        if all(part.shape[1:] == shape for part in weights):
            return torch.stack(weights)
        padded = []
        for part, row, column in zip(weights, rows, columns, strict=True):
            index = (row % shape[0])[:, None] * length + column % length  # (queries, keys)
            flat = part.new_zeros(part.shape[0], shape[0] * length)
            padded.append(flat.index_copy(1, index.flatten(), part.flatten(1)).unflatten(1, shape))
        return torch.stack(padded)


def pack_images(inputs: Mapping[str, Any], stack: Encoder, keep: frozenset[int]) -> PackedInputs:
    """Images (B, channels, height, width) as sequences of patches with equal lengths."""
    pixels = inputs.get("pixel_values")
    if pixels is None:
        raise InputError("give pixel_values, images of shape (batch, channels, height, width)")
    for name in ("bool_masked_pos", "interpolate_pos_encoding"):
        if inputs.get(name) is not None and inputs[name] is not False:
            message = "{name} is not supported: all patches are visible, in their order"
            raise InputError(message, name)
    embeddings: Any = stack.embeddings
    batch = embeddings.batch(pixels)
    head_mask = expand_head_mask(inputs.get("head_mask"), stack.config, len(pixels))
    context = Context(batch.layout, batch.positions, head_mask, keep)
    index = torch.arange(batch.tokens, device=pixels.device)
    return PackedInputs(batch, context, index, (len(pixels), batch.layout.lengths[0]))


def pack(
    inputs: Mapping[str, Any],
    config: EncoderConfig,
    *,
    dense: bool,
    cache: Cache | None = None,
    keep: frozenset[int] = frozenset(),
) -> PackedInputs:
    """The packed batch of a call.

    Args:
        inputs: tensors by their names in Transformers, checked by ``check_inputs``; for XLNet also
            ``perm_mask`` (B, S, S), 1 where a token does not see another one, and
            ``target_mapping`` (B, P, S), 1 at the token that each query predicts.
        dense: whether to process all positions.
        cache: keys and values of earlier tokens.
        keep: layers whose attention weights are returned.
    """
    size, ids = padded_size(inputs), inputs.get("input_ids")
    past = 0 if cache is None else cache.length
    if past and cache is not None and cache.self_attention[0][0].shape[0] != size[0]:
        cached = cache.self_attention[0][0].shape[0]
        message = "past_key_values are of {cached} texts, the input has {size}"
        raise InputError(message, cached, size[0])
    device = (inputs["inputs_embeds"] if ids is None else ids).device
    mask = inputs.get("attention_mask")
    if mask is None:
        mask = torch.ones(size[0], size[1] + past, device=device)
    mask = mask == 1  # (B, S') or (B, S, S'), true for visible keys
    check_shape("attention_mask", mask, (size[0], size[1] + past), (*size, size[1] + past))
    positions = _positions(inputs, config, size, past, device)
    _check_length(config, positions, size[1] + past)
    mapping, hidden = inputs.get("target_mapping"), inputs.get("encoder_hidden_states")
    permuted = inputs.get("perm_mask") is not None or mapping is not None
    dense = dense or cache is not None or mask.ndim == 3 or permuted
    dense = dense or _padding_matters(mask, config)
    batch, index = from_padded(
        torch.zeros(size, dtype=torch.long, device=device) if ids is None else ids,
        None if dense else mask,
        inputs.get("token_type_ids"),
        positions,
        task_type_ids=inputs.get("task_type_ids"),
        inputs_embeds=inputs.get("inputs_embeds"),
    )
    layout = replace(batch.layout, causal=config.is_decoder and mask.ndim == 2)
    by_others = mask  # keys visible to queries that do not see themselves
    if dense:
        keys = make_layout([size[1] + past] * size[0], device) if past else None
        seen = by_others = mask if mask.ndim == 3 else mask[:, None]
        if config.disentangled is not None and mask.ndim == 2:
            seen = seen & mask[:, :, None]  # Padding sees nothing, either.
        if config.mask_vector:
            if inputs.get("perm_mask") is not None:
                check_shape("perm_mask", inputs["perm_mask"], (*size, size[1]))
                by_others = seen & (inputs["perm_mask"] <= 0)
            seen = by_others | torch.eye(size[1], dtype=torch.bool, device=device)
        layout = replace(layout, keys=keys, mask=None if bool(seen.all()) else seen)
    head_mask = expand_head_mask(inputs.get("head_mask"), config, size[0])
    context = Context(layout, batch.positions, head_mask, keep, cache=cache)
    if config.positions.segments:
        context.segments = batch.type_ids.long()
    if mapping is not None:
        check_shape("target_mapping", mapping, (size[0], "predictions", size[1]))
        rows = torch.arange(size[0] * mapping.shape[1])
        unseen = replace(layout, mask=None if bool(by_others.all()) else by_others)
        context.query_stream = QueryStream(rows, unseen, mapping)
        batch = replace(batch, masked_positions=rows.to(device) + batch.tokens)
    packed = PackedInputs(replace(batch, layout=layout), context, index, size)
    if hidden is None:
        return packed
    context.encoder_hidden, context.cross, source_index = _cross_attention(
        hidden, inputs.get("encoder_attention_mask"), layout, dense
    )
    return replace(packed, source_index=source_index, source_length=hidden.shape[1])


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


def _positions(
    inputs: Mapping[str, Any],
    config: EncoderConfig,
    size: tuple[int, int],
    past: int,
    device: torch.device,
) -> Tensor:
    """(B or 1, S) positions from 0. RoBERTa counts non-padding tokens, BERT all positions."""
    positions, ids = inputs.get("position_ids"), inputs.get("input_ids")
    if positions is not None:
        return positions - config.position_offset
    if config.position_offset and ids is not None:
        real = (ids != config.pad_token_id).long()
        return (real.cumsum(1) + past) * real - 1
    return torch.arange(past, size[1] + past, device=device)[None]


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
    layers, heads, original = config.num_hidden_layers, config.num_attention_heads, mask
    if mask.ndim == 1:
        mask = mask.expand(layers, -1)
    if mask.ndim == 5 and mask.shape[3:] == (1, 1):
        mask = mask[..., 0, 0]
    if mask.ndim == 3 and mask.shape[1] == 1:
        mask = mask[:, 0]
    shapes = (layers, heads), (layers, sequences, heads)
    if mask.shape not in shapes:
        check_shape("head_mask", original, (heads,), *shapes)
    if config.num_hidden_groups is None:
        return mask
    # Transformers 4.57.6 uses the mask of a group's first layers for all layers of the group.
    per_group, inner = layers // config.num_hidden_groups, config.inner_group_num
    rows = [config.group_of(layer) * per_group + i for layer in range(layers) for i in range(inner)]
    return mask[rows]
