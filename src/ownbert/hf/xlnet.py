"""What XLNet alone takes and returns: memory, what tokens see of each other, what is predicted.

B sequences, S longest sequence, P predictions, R tokens of the memory, D hidden.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ownbert.errors import InputError
from ownbert.hf.inputs import PackedInputs
from ownbert.nn.context import Cache
from ownbert.nn.encoder import Encoder
from ownbert.nn.model import Outputs
from ownbert.nn.positions import RelativeSinusoids

_STREAMS = ((), ("mlm",))


@dataclass(frozen=True)
class Memory:
    """Hidden states of earlier tokens.

    Args:
        given: of each layer (R, B, D), what an earlier call returned.
        cache: their keys and values; None without a memory.
        kept: whether the call returns its own.
    """

    given: tuple[Tensor, ...]
    cache: Cache | None
    kept: bool


def arguments(model: Any, given: dict[str, Any]) -> tuple[dict[str, Any], Memory]:
    """The arguments with ``input_mask`` as an attention mask, and the memory.

    Raises:
        InputError: arguments do not go together, or are not for this class.
    """
    given = dict(given)
    hidden = given.pop("input_mask", None)
    if hidden is not None:
        if given.get("attention_mask") is not None:
            raise InputError("give either attention_mask or input_mask, not both")
        given["attention_mask"] = 1 - hidden
    if given.get("target_mapping") is not None and model.kinds not in _STREAMS:
        raise InputError(
            "target_mapping needs a model that predicts tokens, XLNetModel or XLNetLMHeadModel"
        )
    stack, mems = model.model.encoder, given.pop("mems", None)
    mems = _checked(mems, stack)
    wanted, training = given.get("use_mems"), model.training
    config = model.config
    if wanted is None:
        wanted = config.use_mems_train if training else config.use_mems_eval
    return given, Memory(mems, memory_cache(stack, mems) if mems else None, bool(wanted))


def _checked(mems: Any, stack: Encoder) -> tuple[Tensor, ...]:
    if mems is None or (len(mems) and all(one is None for one in mems)):
        return ()
    layers, width = len(stack.blocks), stack.config.hidden_size
    mems = tuple(mems)
    shapes = {tuple(one.shape) if isinstance(one, Tensor) else None for one in mems}
    shape = shapes.pop() if len(shapes) == 1 else None
    if len(mems) != layers or shape is None or len(shape) != 3 or shape[2] != width:
        raise InputError(
            f"mems must be {layers} tensors of one shape (tokens, batch, {width}), what an earlier "
            "call returned"
        )
    return mems if shape[0] else ()


def memory_cache(stack: Encoder, mems: tuple[Tensor, ...]) -> Cache:
    """Keys and values of the hidden states of earlier tokens, (R, B, D) of each layer.

    They are of segment 0, as in Transformers.
    """
    cache = Cache()
    for layer, (block, hidden) in enumerate(zip(stack.blocks, mems, strict=True)):
        attention: Any = block.attention
        rows = hidden.transpose(0, 1)  # (B, R, D)
        q, k, v = attention.project(rows.flatten(0, 1))
        segments = torch.zeros(len(k), dtype=torch.long, device=k.device)
        bias: RelativeSinusoids = attention.bias
        _, k = bias.extended(q, k, segments, segments)
        cache.self_attention[layer] = tuple(x.unflatten(0, rows.shape[:2]) for x in (k, v))  # pyright: ignore
    return cache


def needs_padding(model: Any, given: Mapping[str, Any], memory: Memory) -> bool:
    """Whether a result depends on what the model computes for padding.

    The token that a sequence's vector is taken from may be padding, a mean includes it, and the
    memory that is returned is of all places.
    """
    mask = given.get("attention_mask")
    if mask is None:
        return False
    if memory.kept:
        return bool((mask != 1).any())
    for spec in model.model.specs.values():
        if spec.kind not in ("classification", "choice"):
            continue
        read = mask.flatten(0, -2)  # of choices too
        read = {"last": read[:, -1:], "first": read[:, :1]}.get(spec.pooling, read)
        return bool((read != 1).any())
    return False


def field_names(kinds: tuple[str, ...], names: tuple[str, ...]) -> tuple[str, ...]:
    """Names of the outputs in the order of Transformers 4.57.6."""
    if not kinds:
        return "last_hidden_state", "mems", "hidden_states", "attentions"
    first = names[: names.index("hidden_states")]
    return (*first, "mems", "hidden_states", "attentions")


def next_memory(
    model: Any, out: Outputs, packed: PackedInputs, memory: Memory
) -> tuple[Tensor, ...]:
    """Of each layer the hidden states before it (R, B, D), the last ``mem_len`` of them."""
    config, found = model.config, []
    most, reused = config.mem_len or 0, config.reuse_len or 0
    for layer, rows in enumerate(out.hidden_states[:-1]):
        hidden = packed.padded(rows[: packed.batch.tokens]).transpose(0, 1)  # (S, B, D)
        hidden = hidden[:reused] if reused > 0 else hidden
        if memory.given:
            hidden = torch.cat((memory.given[layer], hidden))
        found.append(hidden[-most:].detach())
    return tuple(found)


def both_streams(first: Sequence[Tensor | None], packed: PackedInputs) -> tuple[Any, ...]:
    """Attention weights of each layer, of the tokens and of the query stream."""
    second = packed.query_attention_weights()
    return tuple(None if w is None else (w, second[i]) for i, w in enumerate(first))
