"""Checks arguments of a forward pass.

B sequences, S longest sequence, C classes. Values are only checked on a CPU, because reading them
would synchronise with other devices.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ownbert.config.encoder import SEGMENTS
from ownbert.exceptions import InputError
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
    *("output_hidden_states", "return_dict", "num_items_in_batch", "cache_position"),
    *("interpolate_pos_encoding", "encoder_outputs"),
)


def check_tensors(given: Mapping[str, Any]) -> None:
    """Raise ``InputError`` for an argument that is not a tensor but must be one."""
    for name, value in given.items():
        if value is None or name in _NOT_TENSORS or isinstance(value, Tensor):
            continue
        kind = type(value).__name__
        if isinstance(value, Mapping) or kind == "BatchEncoding":
            raise InputError(f"{name} is a {kind}; pass its values by name: model(**inputs)")
        if isinstance(value, str) or (
            isinstance(value, list) and value and str in map(type, value)
        ):
            raise InputError(
                f"{name} is text; a tokenizer makes tensors of it, return_tensors='pt'"
            )
        raise InputError(f"{name} is a {kind}; it must be a tensor: torch.tensor(...)")


def check_inputs(
    stack: Encoder, given: Mapping[str, Any], size: tuple[int, int], prefix: str = ""
) -> None:
    """Check ids, types and positions against their tables, and shapes; raise ``InputError``.

    Args:
        size: (B, S).
        prefix: prefix of the names of the arguments ("decoder_").
    """
    config, embeddings = stack.config, stack.embeddings
    for name, table in _TABLES.items():
        name = prefix + name
        value = given.get(name)
        if value is None:
            continue
        if value.shape not in (size, (1, size[1]), (size[1],)):
            raise InputError(f"{name} has shape {tuple(value.shape)}; it must be {size}")
        if value.dtype not in _INTEGERS:
            raise InputError(
                f"{name} contains {value.dtype}; it must contain whole numbers, torch.long"
            )
        # The actual table, which may have been replaced; not every model has all tables.
        if hasattr(embeddings, table):
            count = getattr(embeddings, table).num_embeddings
            _check_range(name, value, count, "rows of the table")
    types = given.get(prefix + "token_type_ids")
    if types is not None and config.position_embedding_type == "transformer_xl":
        _check_range("token_type_ids", types, SEGMENTS, "segments")
    embeds = given.get(prefix + "inputs_embeds")
    width = embeddings.word.embedding_dim
    if embeds is not None and (embeds.shape[-1] != width or not embeds.is_floating_point()):
        raise InputError(
            f"{prefix}inputs_embeds has shape {tuple(embeds.shape)} and {embeds.dtype}; it must be "
            f"{(*size, width)} and floating point"
        )
    if config.is_decoder and given.get("encoder_hidden_states") is not None:
        _check_encoder(given, size, config.hidden_size)


def _check_encoder(given: Mapping[str, Any], size: tuple[int, int], width: int) -> None:
    hidden, mask = given["encoder_hidden_states"], given.get("encoder_attention_mask")
    if hidden.ndim != 3 or hidden.shape[0] != size[0] or hidden.shape[2] != width:
        raise InputError(
            f"encoder_hidden_states has shape {tuple(hidden.shape)}; it must be "
            f"({size[0]}, length, {width})"
        )
    shapes = (tuple(hidden.shape[:2]), (*size, hidden.shape[1]))
    if mask is not None and tuple(mask.shape) not in shapes:
        raise InputError(
            f"encoder_attention_mask has shape {tuple(mask.shape)}; it must be {shapes[0]} or "
            f"{shapes[1]}"
        )


def class_labels(
    name: str, labels: Tensor, shape: tuple[int, ...], classes: int, ignored: int = -100
) -> Tensor:
    """Flatten labels; raise ``InputError`` for a wrong shape, dtype or class."""
    if labels.numel() != math.prod(shape):
        raise InputError(f"{name} has shape {tuple(labels.shape)}; it must be {tuple(shape)}")
    if labels.is_floating_point() or labels.dtype == torch.bool:
        raise InputError(
            f"{name} contains {labels.dtype}; it must contain whole numbers, torch.long"
        )
    if labels.device.type == "cpu":
        _check_range(name, labels[labels != ignored], classes, "classes")
    return labels.flatten().long()


def _check_range(name: str, values: Tensor, count: int, what: str) -> None:
    if values.device.type != "cpu" or not values.numel():
        return
    least, most = (int(x) for x in torch.aminmax(values))
    if least < 0 or most >= count:
        wrong = least if least < 0 else most
        raise InputError(f"{name} contains {wrong}; there are {count} {what}, 0..{count - 1}")
