"""XLNet's additional arguments and outputs: memory, permutation masks, predicted tokens.

B sequences, S longest sequence, P predictions, R tokens of the memory, D hidden.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ownbert.exceptions import InputError
from ownbert.nn.context import Cache
from ownbert.nn.encoder import Encoder
from ownbert.nn.model import Model, Outputs
from ownbert.nn.positions import RelativeSinusoids
from ownbert.transformers import losses
from ownbert.transformers.padded_inputs import PackedInputs

_STREAMS = ((), ("mlm",))
_BEAM = (
    *("start_top_log_probs", "start_top_index", "end_top_log_probs", "end_top_index"),
    "cls_logits",
)
_MASKED_OUT = 1e30  # subtracted from the logits of tokens that cannot be in an answer


@dataclass(frozen=True)
class Memory:
    """Hidden states of earlier tokens.

    Args:
        given: (R, B, D) for each layer, returned by an earlier call.
        cache: their keys and values; None without a memory.
        returned: whether the call returns a memory.
    """

    given: tuple[Tensor, ...]
    cache: Cache | None
    returned: bool


def arguments(call: Any, model: Model, given: dict[str, Any]) -> tuple[dict[str, Any], Memory]:
    """Convert ``input_mask`` to an attention mask, and extract the memory.

    Args:
        call: the ``PaddedCall`` of the model.
        given: arguments by name.

    Raises:
        InputError: arguments are inconsistent, or not supported by this class.
    """
    given = dict(given)
    input_mask = given.pop("input_mask", None)
    if input_mask is not None:
        if given.get("attention_mask") is not None:
            raise InputError("give either attention_mask or input_mask, not both")
        given["attention_mask"] = 1 - input_mask
    if given.get("target_mapping") is not None and call.kinds not in _STREAMS:
        raise InputError(
            "target_mapping needs a model that predicts tokens, XLNetModel or XLNetLMHeadModel"
        )
    stack, mems = model.encoder, given.pop("mems", None)
    mems = _checked(mems, stack)
    use_mems, training = given.get("use_mems"), model.training
    config = call.config
    if use_mems is None:
        use_mems = config.use_mems_train if training else config.use_mems_eval
    return given, Memory(mems, memory_cache(stack, mems) if mems else None, bool(use_mems))


def _checked(mems: Any, stack: Encoder) -> tuple[Tensor, ...]:
    if mems is None or (len(mems) and all(one is None for one in mems)):
        return ()
    layers, width = len(stack.blocks), stack.config.hidden_size
    mems = tuple(mems)
    shapes = {tuple(one.shape) if isinstance(one, Tensor) else None for one in mems}
    shape = shapes.pop() if len(shapes) == 1 else None
    if len(mems) != layers or shape is None or len(shape) != 3 or shape[2] != width:
        raise InputError(
            f"mems must be {layers} tensors of shape (tokens, batch, {width}), as returned by an "
            "earlier call"
        )
    return mems if shape[0] else ()


def memory_cache(stack: Encoder, mems: tuple[Tensor, ...]) -> Cache:
    """Keys and values of the hidden states of earlier tokens, (R, B, D) for each layer.

    They belong to segment 0, as in Transformers.
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


def needs_padding(model: Model, given: Mapping[str, Any], memory: Memory) -> bool:
    """Whether a result depends on the model's values at padding.

    The token used for a sequence's vector may be padding, a mean includes padding, and the
    returned memory contains all positions.
    """
    mask = given.get("attention_mask")
    if mask is None:
        return False
    if memory.returned:
        return bool((mask != 1).any())
    for spec in model.specs.values():
        if spec.kind not in ("classification", "choice"):
            continue
        read = mask.flatten(0, -2)  # including choices
        read = {"last": read[:, -1:], "first": read[:, :1]}.get(spec.pooling, read)
        return bool((read != 1).any())
    return False


def field_names(kinds: tuple[str, ...], names: tuple[str, ...]) -> tuple[str, ...]:
    """Names of the outputs in the order of Transformers 4.57.6."""
    if not kinds:
        return "last_hidden_state", "mems", "hidden_states", "attentions"
    if kinds == ("beam_span",):
        return ("loss", *_BEAM, "mems", "hidden_states", "attentions")
    first = names[: names.index("hidden_states")]
    return (*first, "mems", "hidden_states", "attentions")


def next_memory(
    config: Any, out: Outputs, packed: PackedInputs, memory: Memory
) -> tuple[Tensor, ...]:
    """The input of each layer, (R, B, D): the hidden states of the last ``mem_len`` tokens.

    Args:
        config: has ``mem_len`` and ``reuse_len``.
    """
    layers = []
    most, reused = config.mem_len or 0, config.reuse_len or 0
    for layer, rows in enumerate(out.hidden_states[:-1]):
        hidden = packed.shown(rows)[0].transpose(0, 1)  # (S, B, D)
        hidden = hidden[:reused] if reused > 0 else hidden
        if memory.given:
            hidden = torch.cat((memory.given[layer], hidden))
        layers.append(hidden[-most:].detach())
    return tuple(layers)


def answers(
    call: Any, model: Model, given: Mapping[str, Any], hidden: Tensor, starts: Tensor
) -> dict[str, Tensor]:
    """The loss for given answers, or the most probable starts with their most probable ends.

    Args:
        call: the ``PaddedCall`` of the model.
        given: arguments; ``p_mask`` is 1 for tokens that cannot be in an answer.
        hidden: (B, S, D) last hidden states.
        starts: (B, S) start logits.

    Raises:
        InputError: there are fewer tokens than starts or ends to find.
    """
    head: Any = model.heads["beam_span"]
    mask, cls = given.get("p_mask"), given.get("cls_index")
    rows = torch.arange(len(hidden), device=hidden.device)
    of_cls = hidden[:, -1] if cls is None else hidden[rows, cls.flatten()]
    starts = _without(starts, mask)
    first, last = given.get("start_positions"), given.get("end_positions")
    if first is not None and last is not None:
        chosen = hidden[rows, first.flatten()]  # (B, D)
        ends = _without(head.ends(hidden, chosen[:, None].expand_as(hidden)), mask)
        loss = (
            losses.cross_entropy(starts, first.flatten(), "start_positions")
            + losses.cross_entropy(ends, last.flatten(), "end_positions")
        ) / 2
        impossible = given.get("is_impossible")
        if cls is not None and impossible is not None:
            scores = head.answerable(chosen, of_cls)
            truth = impossible.flatten().to(scores.dtype)
            loss = loss + 0.5 * F.binary_cross_entropy_with_logits(scores, truth)
        return {"loss": loss}
    length, count, further = hidden.shape[1], call.config.start_n_top, call.config.end_n_top
    if max(count, further) > length:
        raise InputError(
            f"start_n_top is {count} and end_n_top {further}, but the input has {length} tokens"
        )
    probabilities = starts.softmax(-1)
    best, at = probabilities.topk(count, -1)  # (B, starts)
    chosen = hidden.gather(1, at[..., None].expand(-1, -1, hidden.shape[-1]))  # (B, starts, D)
    pairs = (len(hidden), length, count, hidden.shape[-1])
    ends = head.ends(hidden[:, :, None].expand(pairs), chosen[:, None].expand(pairs))
    ends = _without(ends, None if mask is None else mask[..., None]).softmax(1)  # (B, S, starts)
    best_ends, at_ends = ends.topk(further, 1)
    mean = (probabilities[..., None] * hidden).sum(1)  # (B, D)
    values = (best, at, best_ends.flatten(1), at_ends.flatten(1), head.answerable(mean, of_cls))
    return dict(zip(_BEAM, values, strict=True))


def _without(scores: Tensor, mask: Tensor | None) -> Tensor:
    """Subtract a large number from the logits of masked tokens."""
    if mask is None:
        return scores
    low = _MASKED_OUT if scores.dtype != torch.float16 else 65500
    return scores * (1 - mask) - low * mask
