"""A forward pass of the familiar face: padded tensors in, named and padded outputs out."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ownbert.errors import InputError
from ownbert.hf import losses
from ownbert.hf.checks import check_inputs, check_tensors
from ownbert.hf.inputs import Packed, Padded, pack
from ownbert.hf.outputs import ModelOutput, field_names, logits_by_name
from ownbert.nn.context import Cache
from ownbert.nn.model import Outputs

_SENTENCE = ("nsp", "sop", "classification", "choice")
_OTHER_LABEL = {"nsp": "next_sentence_label", "sop": "sentence_order_label"}


def run(face: Any, given: dict[str, Any]) -> Any:
    """The outputs for arguments by name."""
    kinds, size = face.kinds, None
    check_tensors(given)
    if kinds == ("choice",):
        given, size = _flat(given)
    padded = _padded(face, given)
    check_inputs(face, given, padded.size)
    dense = not face.packed or _needs_padding(kinds, given, face.head.decoder)
    packed = pack(padded, face.model.config, dense=dense)
    out = face.model(
        packed.batch,
        kinds,
        context=packed.context,
        keep_hidden=bool(_asked(face, given, "output_hidden_states")),
    )
    values = _values(kinds, out, packed, padded)
    if not kinds and not face.with_pooler:
        values.pop("pooler_output", None)
    if padded.keep:
        values |= _weights(out, packed, padded, len(face.model.encoder.schedule()))
    if size is not None:
        values["logits"] = values["logits"].view(size)
    loss = _loss(face, values, given)
    fields = field_names(kinds, decoder=face.head.decoder)
    named = ModelOutput(fields, {"loss": loss, **values})
    as_names = given.get("return_dict")
    as_names = face.config.use_return_dict if as_names is None else as_names
    return named if as_names else _plain(face, named)


def _plain(face: Any, named: ModelOutput) -> tuple[Any, ...]:
    """The tuple that ``return_dict=False`` gives, which differs from that of the names a little."""
    if face.kinds:
        return named.to_tuple()
    # The cache stands before the hidden states, and a pooler that is not there leaves a None.
    first = [named.last_hidden_state]
    if face.head.pooler:
        first.append(named.pooler_output)
    rest = ("past_key_values", "hidden_states", "attentions", "cross_attentions")
    return (*first, *(named[name] for name in rest if name in named))


def _asked(face: Any, given: dict[str, Any], name: str) -> Any:
    value = given.get(name)
    return getattr(face.config, name) if value is None else value


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


def _padded(face: Any, given: dict[str, Any]) -> Padded:
    names = Padded.__dataclass_fields__.keys() - {"cache", "keep"}
    tensors = {name: given[name] for name in names if given.get(name) is not None}
    config = face.model.config
    if not config.is_decoder:
        tensors.pop("encoder_hidden_states", None)
    elif "encoder_hidden_states" in tensors and not config.add_cross_attention:
        raise InputError(
            "encoder_hidden_states needs a model with add_cross_attention true in its config"
        )
    return Padded(**tensors, cache=_cache(face, given), keep=_kept_layers(face, given))


def _cache(face: Any, given: dict[str, Any]) -> Cache | None:
    past = given.get("past_key_values")
    if past is not None and not face.model.config.is_decoder:
        raise InputError("past_key_values needs a model with is_decoder true in its config")
    if past is not None and not isinstance(past, Cache):
        try:
            past = Cache.from_layers(past)
        except (AttributeError, IndexError, TypeError, ValueError):
            raise InputError("past_key_values must be what an earlier call gave back") from None
    if past is not None or not face.model.config.is_decoder or given.get("labels") is not None:
        return past
    wanted = _asked(face, given, "use_cache")
    again = face.training and face.model.encoder.gradient_checkpointing
    return Cache() if wanted and not again else None


def _kept_layers(face: Any, given: dict[str, Any]) -> frozenset[int]:
    asked = _asked(face, given, "output_attentions")
    count = len(face.model.encoder.schedule())
    if asked is None or isinstance(asked, bool | int):
        return frozenset(range(count)) if asked else frozenset()
    wrong = [layer for layer in asked if not -count <= layer < count]
    if wrong:
        raise InputError(
            f"output_attentions asks for layer {wrong[0]}; the layers are 0..{count - 1}"
        )
    return frozenset(layer % count for layer in asked)


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


def _weights(out: Outputs, packed: Packed, padded: Padded, count: int) -> dict[str, Any]:
    """Attention weights of each layer, None where they were not asked for."""
    layout = packed.context.layout
    keys, width = packed.index, packed.size[1]
    if layout.keys is not None:
        width = layout.keys.max_seqlen
        keys = torch.arange(packed.size[0] * width, device=keys.device)
    own = packed.weights(out.attentions, layout, keys, width)
    values = {"attentions": tuple(own.get(i) for i in range(count))}
    cross, encoder = packed.context.cross, padded.encoder_hidden_states
    if cross is None or encoder is None or packed.sources is None:
        return values
    other = packed.weights(out.cross_attentions, cross, packed.sources, encoder.shape[1])
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
