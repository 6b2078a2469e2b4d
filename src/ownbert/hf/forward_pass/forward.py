"""The forward pass with Transformers' API: padded tensors in, named padded outputs out.

``model`` is a model of ``ownbert.hf`` and ``model.model`` the packed model inside. B sequences, S
longest sequence, C choices.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ownbert.config.encoder import EncoderConfig
from ownbert.exceptions import InputError
from ownbert.hf.forward_pass import losses
from ownbert.hf.forward_pass import xlnet_models as xlnet
from ownbert.hf.forward_pass.inputs import (
    PackedInputs,
    PaddedInputs,
    check_inputs,
    check_tensors,
    pack,
    pack_images,
)
from ownbert.hf.forward_pass.outputs import ModelOutput, field_names, logits_by_name
from ownbert.nn.context import Cache
from ownbert.nn.encoder import Encoder
from ownbert.nn.model import Outputs

_PER_SEQUENCE = ("nsp", "sop", "classification", "choice")
_LABELS = ("labels", "start_positions")
_OTHER_LABEL = {"nsp": "next_sentence_label", "sop": "sentence_order_label"}


def forward(model: Any, given: dict[str, Any]) -> Any:
    """Compute the outputs for named arguments."""
    kinds, choices, calls = model.kinds, None, model.calls
    for name in calls.unsupported:
        if given.get(name) is not None:
            raise InputError(f"{name} is not supported: padded batches are packed here")
    check_tensors(given)
    memory = None
    if calls.memory:
        given, memory = xlnet.arguments(model, given)
    if kinds == ("choice",):
        given, choices = _flatten_choices(given)
    stack = model.model.encoder
    keep = attention_layers(stack, option(model, given, "output_attentions"))
    if stack.config.image is not None:
        packed = pack_images(given, stack.config, keep)
    else:
        padded = _padded(model, given, keep)
        check_inputs(stack, given, padded.size)
        dense = not model.packed or _needs_padding(kinds, given, model.architecture_spec.decoder)
        if memory is not None:
            dense = dense or xlnet.needs_padding(model, given, memory)
            padded.cache = memory.cache
        packed = pack(padded, stack.config, dense=dense)
        packed = packed.with_hooked(stack.embeddings.word, padded.input_ids)
    states = bool(option(model, given, "output_hidden_states"))
    kept = memory is not None and memory.returned
    if torch.is_grad_enabled() and (states or keep or not kinds):
        packed.context.returned = packed
    out = model.model(packed.batch, kinds, context=packed.context, keep_hidden=states or kept)
    values = named_values(model, kinds, stack, out, packed, states=states)
    if memory is not None:
        values |= {"mems": xlnet.next_memory(model, out, packed, memory) if kept else None}
    if not kinds and not model.with_pooler:
        values.pop("pooler_output", None)
    if choices is not None:
        values["logits"] = values["logits"].view(choices)
    loss = None
    if kinds == ("beam_span",):
        values |= xlnet.answers(model, given, packed.padded(out.hidden), values.pop("logits"))
        loss = values.pop("loss", None)
    else:
        loss = loss_of(model, values, given)
    fields = field_names(kinds, decoder=model.architecture_spec.decoder)
    fields = fields if memory is None else xlnet.field_names(kinds, fields)
    named = ModelOutput(fields, {"loss": loss, **values})
    return named if returns_names(model, given) else _as_tuple(model, named)


def returns_names(model: Any, given: dict[str, Any]) -> bool:
    """Whether a call returns named values or a tuple."""
    value = given.get("return_dict")
    return bool(model.config.use_return_dict if value is None else value)


def _as_tuple(model: Any, named: ModelOutput) -> tuple[Any, ...]:
    """The tuple for ``return_dict=False``, which differs slightly from the order of named
    values."""
    values = model.calls.as_tuple(model.kinds, named)
    if values is not None or model.kinds:
        return named.to_tuple() if values is None else values
    # The cache precedes the hidden states, and a missing pooler output is None.
    first = [named.last_hidden_state]
    if model.architecture_spec.pooler:
        first.append(named.pooler_output)
    rest = ("past_key_values", "hidden_states", "attentions", "cross_attentions")
    return (*first, *(named[name] for name in rest if name in named))


def option(model: Any, given: dict[str, Any], name: str) -> Any:
    """An option of a call; by default that of the config."""
    value = given.get(name)
    return getattr(model.config, name) if value is None else value


def _flatten_choices(given: dict[str, Any]) -> tuple[dict[str, Any], tuple[int, int]]:
    """Choices (B, C, S) as (B x C, S), and (B, C)."""
    name = "input_ids" if given.get("input_ids") is not None else "inputs_embeds"
    tensor = given.get(name)
    if tensor is None or tensor.ndim != (3 if name == "input_ids" else 4):
        raise InputError("multiple choice needs input_ids of shape (batch, choices, length)")
    flat = dict(given)
    names = ("input_ids", "attention_mask", "token_type_ids", "task_type_ids", "position_ids")
    for key in (*names, "inputs_embeds"):
        if flat.get(key) is not None:
            flat[key] = flat[key].flatten(0, 1)
    return flat, (tensor.shape[0], tensor.shape[1])


def _padded(model: Any, given: dict[str, Any], keep: frozenset[int]) -> PaddedInputs:
    names = PaddedInputs.__dataclass_fields__.keys() - {"cache", "keep"}
    tensors = {name: given[name] for name in names if given.get(name) is not None}
    config = model.model.config
    if not config.is_decoder:
        tensors.pop("encoder_hidden_states", None)
    elif "encoder_hidden_states" in tensors and not config.add_cross_attention:
        raise InputError(
            "encoder_hidden_states needs a model with add_cross_attention true in its config"
        )
    return PaddedInputs(**tensors, cache=cache_of(model, config, given), keep=keep)


def cache_of(model: Any, config: EncoderConfig, given: dict[str, Any]) -> Cache | None:
    """The cache that a call continues, or a new one if the call returns one."""
    past = given.get("past_key_values")
    if past is not None and not config.is_decoder:
        raise InputError("past_key_values needs a model with is_decoder true in its config")
    if past is not None and not isinstance(past, Cache):
        try:
            past = Cache.from_layers(past)
        except (AttributeError, IndexError, TypeError, ValueError):
            raise InputError("past_key_values must be those returned by an earlier call") from None
    if past is not None or not config.is_decoder:
        return past
    if model.kinds not in model.calls.cached and any(
        given.get(name) is not None for name in _LABELS
    ):
        return None
    recomputes = model.training and model.model.encoder.gradient_checkpointing
    return Cache() if option(model, given, "use_cache") and not recomputes else None


def attention_layers(stack: Encoder, option: Any) -> frozenset[int]:
    """Layers whose attention weights are requested by ``output_attentions``."""
    count = len(stack.schedule())
    if option is None or isinstance(option, bool | int):
        return frozenset(range(count)) if option else frozenset()
    wrong = [layer for layer in option if layer not in range(-count, count)]
    if wrong:
        raise InputError(
            f"output_attentions requests layer {wrong[0]}; the layers are 0..{count - 1}"
        )
    return frozenset(layer % count for layer in option)


def _needs_padding(kinds: tuple[str, ...], given: dict[str, Any], decoder: bool) -> bool:
    """Whether a result depends on the model's values at padding.

    The softmax over answer positions includes padding, and labels may be at padding.
    """
    mask, labels = given.get("attention_mask"), given.get("labels")
    if mask is None or mask.ndim != 2:
        return False
    if kinds in (("span",), ("beam_span",)):
        return True
    if labels is None or labels.shape != mask.shape or "discriminator" in kinds:
        return False
    labelled = labels != losses.NO_LABEL
    if decoder:  # Tokens are predicted from the previous position.
        labelled = F.pad(labelled[:, 1:], (0, 1))
    return bool((labelled & (mask != 1)).any())


def named_values(
    model: Any,
    kinds: tuple[str, ...],
    stack: Encoder,
    out: Outputs,
    packed: PackedInputs,
    *,
    states: bool,
) -> dict[str, Any]:
    """The outputs by name, padded: logits or hidden states, and what is requested."""
    logits = {
        kind: rows if kind in _PER_SEQUENCE else packed.answers(rows)
        for kind, rows in out.logits.items()
    }
    values: dict[str, Any] = logits_by_name(kinds, logits)
    if not kinds:
        shown = packed.shown(packed.context.last_hidden or out.hidden)
        values["last_hidden_state"] = shown[-1]
        values["pooler_output"] = out.pooled
    if states:
        layers: tuple[Any, ...] = out.hidden_states
        if model.calls.normed_states:
            layers = (*layers[:-1], packed.context.last_hidden or out.hidden)
        values["hidden_states"] = tuple(x for h in layers for x in packed.shown(h))
    if packed.context.cache is not None:
        values["past_key_values"] = packed.context.cache
    if packed.context.keep:
        values |= _attention_weights(packed, stack)
    return values


def _attention_weights(packed: PackedInputs, stack: Encoder) -> dict[str, Any]:
    """Attention weights (B, H, S, S') of each layer, None for layers that were not kept; with a
    query stream, those of the tokens and of the stream."""
    context = packed.context
    weights: dict[str, Any] = {"attentions": packed.weights(context.attentions, context.layout)}
    if context.cross is not None:
        weights["cross_attentions"] = packed.weights(context.cross_attentions, context.cross)
    if context.query_stream is not None:
        second = packed.weights(context.query_attentions, context.layout)
        weights["attentions"] = {i: (w, second[i]) for i, w in weights["attentions"].items()}
    count = len(stack.schedule())
    return {name: tuple(layers.get(i) for i in range(count)) for name, layers in weights.items()}


def loss_of(model: Any, values: dict[str, Any], given: dict[str, Any]) -> Tensor | None:
    """The loss of named outputs for the labels of a call; None without labels."""
    labels, kinds = given.get("labels"), model.kinds
    if kinds == ("span",):
        return losses.span(values, given)
    if len(kinds) == 2:
        other = given.get(_OTHER_LABEL[kinds[1]])
        if labels is None or other is None:
            return None
        first, second = (v for name, v in values.items() if name.endswith("_logits"))
        sentence_loss = losses.cross_entropy(second, other, _OTHER_LABEL[kinds[1]])
        return losses.cross_entropy(first, labels) + sentence_loss
    if kinds == ("nsp",) and labels is None:
        labels = given.get("next_sentence_label")
    if not kinds or labels is None:
        return None
    logits = values["logits"]
    count = given.get("num_items_in_batch") if model.accepts_loss_kwargs else None
    if model.architecture_spec.decoder:
        return losses.causal_lm(logits, labels, count)
    if kinds == ("classification",) and model.calls.loss_by_shape and not model.config.problem_type:
        loss = losses.sequence_by_shape(logits, labels)
        if logits.shape[-1] == 1:
            values["logits"] = logits.view(-1)  # as in Transformers
        return loss
    if kinds == ("classification",):
        return losses.sequence(logits, labels, model.config)
    if kinds == ("discriminator",):
        return losses.replaced(logits, labels, given.get("attention_mask"))
    return losses.cross_entropy(logits, labels, count=count)
