"""A forward pass of the familiar face: padded tensors in, named and padded outputs out."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ownbert.config import EncoderConfig
from ownbert.errors import InputError
from ownbert.hf import losses
from ownbert.hf.checks import check_inputs, check_tensors
from ownbert.hf.inputs import Packed, Padded, masks_of_heads, pack
from ownbert.hf.outputs import ModelOutput, field_names, logits_by_name
from ownbert.nn.context import Cache, Context
from ownbert.nn.encoder import Encoder
from ownbert.nn.model import Outputs
from ownbert.nn.patches import picture_batch

_SENTENCE = ("nsp", "sop", "classification", "choice")
_OTHER_LABEL = {"nsp": "next_sentence_label", "sop": "sentence_order_label"}


def run(face: Any, given: dict[str, Any]) -> Any:
    """The outputs for arguments by name."""
    kinds, size = face.kinds, None
    check_tensors(given)
    if kinds == ("choice",):
        given, size = _flat(given)
    stack = face.model.encoder
    keep = kept_layers(stack, wanted(face, given, "output_attentions"))
    if stack.config.image is not None:
        padded, packed = Padded(keep=keep), _pictures(stack.config, given, keep)
    else:
        padded = _padded(face, given, keep)
        check_inputs(stack, given, padded.size)
        dense = not face.packed or _needs_padding(kinds, given, face.head.decoder)
        packed = pack(padded, stack.config, dense=dense)
    out = face.model(
        packed.batch,
        kinds,
        context=packed.context,
        keep_hidden=bool(wanted(face, given, "output_hidden_states")),
    )
    values = _values(kinds, out, packed, padded)
    if not kinds and not face.with_pooler:
        values.pop("pooler_output", None)
    if padded.keep:
        values |= attention_weights(packed, padded, stack)
    if size is not None:
        values["logits"] = values["logits"].view(size)
    loss = _loss(face, values, given)
    fields = field_names(kinds, decoder=face.head.decoder)
    named = ModelOutput(fields, {"loss": loss, **values})
    return named if returns_names(face, given) else _plain(face, named)


def returns_names(face: Any, given: dict[str, Any]) -> bool:
    """Whether a call returns values by name, or a tuple."""
    value = given.get("return_dict")
    return bool(face.config.use_return_dict if value is None else value)


def _plain(face: Any, named: ModelOutput) -> tuple[Any, ...]:
    """The tuple that ``return_dict=False`` gives, which differs from that of the names a little."""
    if face.kinds or face.main_input_name == "pixel_values":
        return named.to_tuple()
    # The cache stands before the hidden states, and a pooler that is not there leaves a None.
    first = [named.last_hidden_state]
    if face.head.pooler:
        first.append(named.pooler_output)
    rest = ("past_key_values", "hidden_states", "attentions", "cross_attentions")
    return (*first, *(named[name] for name in rest if name in named))


def wanted(face: Any, given: dict[str, Any], name: str) -> Any:
    """An option of a call; where the call has none, that of the config."""
    value = given.get(name)
    return getattr(face.config, name) if value is None else value


def _pictures(config: EncoderConfig, given: dict[str, Any], keep: frozenset[int]) -> Packed:
    """Pictures as sequences, all of one length."""
    pixels = given.get("pixel_values")
    if pixels is None:
        raise InputError("give pixel_values, pictures of shape (batch, channels, height, width)")
    for name in ("bool_masked_pos", "interpolate_pos_encoding"):
        if given.get(name) is not None and given[name] is not False:
            raise InputError(f"{name} cannot be done here: every patch is seen, at its own place")
    assert config.image is not None
    batch = picture_batch(pixels, config.image)
    size = len(pixels), config.image.patches + 1
    head_mask = masks_of_heads(given.get("head_mask"), config, size[0])
    context = Context(batch.layout, batch.positions, head_mask, keep)
    index = torch.arange(batch.tokens, device=pixels.device)
    return Packed(batch, context, index, size, None)


def _flat(given: dict[str, Any]) -> tuple[dict[str, Any], tuple[int, int]]:
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


def _padded(face: Any, given: dict[str, Any], keep: frozenset[int]) -> Padded:
    names = Padded.__dataclass_fields__.keys() - {"cache", "keep"}
    tensors = {name: given[name] for name in names if given.get(name) is not None}
    config = face.model.config
    if not config.is_decoder:
        tensors.pop("encoder_hidden_states", None)
    elif "encoder_hidden_states" in tensors and not config.add_cross_attention:
        raise InputError(
            "encoder_hidden_states needs a model with add_cross_attention true in its config"
        )
    return Padded(**tensors, cache=cache_of(face, config, given), keep=keep)


def cache_of(face: Any, config: EncoderConfig, given: dict[str, Any]) -> Cache | None:
    """The cache that a call goes on with, or a new one where it wants one."""
    past = given.get("past_key_values")
    if past is not None and not config.is_decoder:
        raise InputError("past_key_values needs a model with is_decoder true in its config")
    if past is not None and not isinstance(past, Cache):
        try:
            past = Cache.from_layers(past)
        except (AttributeError, IndexError, TypeError, ValueError):
            raise InputError("past_key_values must be what an earlier call gave back") from None
    if past is not None or not config.is_decoder or given.get("labels") is not None:
        return past
    again = face.training and face.model.encoder.gradient_checkpointing
    return Cache() if wanted(face, given, "use_cache") and not again else None


def kept_layers(stack: Encoder, option: Any) -> frozenset[int]:
    """Numbers of the layers whose attention weights ``output_attentions`` asks for."""
    count = len(stack.schedule())
    if option is None or isinstance(option, bool | int):
        return frozenset(range(count)) if option else frozenset()
    wrong = [layer for layer in option if not -count <= layer < count]
    if wrong:
        raise InputError(
            f"output_attentions asks for layer {wrong[0]}; the layers are 0..{count - 1}"
        )
    return frozenset(layer % count for layer in option)


def _needs_padding(kinds: tuple[str, ...], given: dict[str, Any], decoder: bool) -> bool:
    """Whether a result depends on what the model makes of padding.

    The softmax over the places of an answer runs over all of them, and a label may stand at one.
    """
    mask, labels = given.get("attention_mask"), given.get("labels")
    if mask is None or mask.ndim != 2:
        return False
    if kinds == ("span",):
        return True
    if labels is None or labels.shape != mask.shape or "discriminator" in kinds:
        return False
    labelled = labels != losses.NO_LABEL
    if decoder:  # A token is told by the place before it.
        labelled = F.pad(labelled[:, 1:], (0, 1))
    return bool((labelled & (mask != 1)).any())


def _values(kinds: tuple[str, ...], out: Outputs, packed: Packed, padded: Padded) -> dict[str, Any]:
    """The outputs by name, padded."""
    logits = {
        kind: rows if kind in _SENTENCE else packed.padded(rows)
        for kind, rows in out.logits.items()
    }
    values: dict[str, Any] = logits_by_name(kinds, logits)
    if not kinds:
        values["last_hidden_state"] = packed.padded(out.hidden)
        values["pooler_output"] = out.pooled
    if out.hidden_states:
        values["hidden_states"] = tuple(packed.padded(h) for h in out.hidden_states)
    if padded.cache is not None:
        values["past_key_values"] = padded.cache
    return values


def attention_weights(packed: Packed, padded: Padded, stack: Encoder) -> dict[str, Any]:
    """Attention weights of each layer, None where they were not asked for."""
    context, count = packed.context, len(stack.schedule())
    layout = context.layout
    keys, width = packed.index, packed.size[1]
    if layout.keys is not None:
        width = layout.keys.max_seqlen
        keys = torch.arange(packed.size[0] * width, device=keys.device)
    own = packed.weights(context.attentions, layout, keys, width)
    values = {"attentions": tuple(own.get(i) for i in range(count))}
    cross, encoder = context.cross, padded.encoder_hidden_states
    if cross is None or encoder is None or packed.sources is None:
        return values
    other = packed.weights(context.cross_attentions, cross, packed.sources, encoder.shape[1])
    return values | {"cross_attentions": tuple(other.get(i) for i in range(count))}


def _loss(face: Any, values: dict[str, Any], given: dict[str, Any]) -> Tensor | None:
    labels, kinds = given.get("labels"), face.kinds
    if kinds == ("span",):
        starts, ends = given.get("start_positions"), given.get("end_positions")
        if starts is None or ends is None:
            return None
        return losses.span(values["start_logits"], values["end_logits"], starts, ends)
    if len(kinds) == 2:
        other = given.get(_OTHER_LABEL[kinds[1]])
        if labels is None or other is None:
            return None
        first, second = (v for name, v in values.items() if name.endswith("_logits"))
        return losses.masked_lm(first, labels) + losses.one_of(
            second, other, _OTHER_LABEL[kinds[1]]
        )
    if kinds == ("nsp",) and labels is None:
        labels = given.get("next_sentence_label")
    if not kinds or labels is None:
        return None
    logits = values["logits"]
    if face.head.decoder:
        return losses.causal_lm(logits, labels, given.get("num_items_in_batch"))
    if kinds == ("mlm",):
        return losses.masked_lm(logits, labels)
    if kinds == ("classification",):
        return losses.sequence(logits, labels, face.config)
    if kinds == ("discriminator",):
        return losses.replaced(logits, labels, given.get("attention_mask"))
    return losses.one_of(logits, labels)
