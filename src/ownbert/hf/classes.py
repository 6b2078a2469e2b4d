"""Classes with Transformers' API, generated for each family from its table of architectures."""

import inspect
import re
from functools import cache
from typing import Any

from ownbert.errors import InputError
from ownbert.families import all_families
from ownbert.families.family import ArchitectureSpec, Family
from ownbert.families.rules import Tie
from ownbert.hf.arguments import signature
from ownbert.hf.configs import PretrainedConfig, config_class
from ownbert.hf.custom import CustomModel
from ownbert.hf.forward import UNPADDED
from ownbert.hf.pretrained import PreTrainedModel
from ownbert.hf.seq2seq.generation import GreedyGeneration

_LAST = ("output_attentions", "output_hidden_states", "return_dict")
_CROSS_ATTENTION = ("encoder_hidden_states", "encoder_attention_mask")
_CACHE = ("past_key_values", "use_cache")
_CACHE_POSITION = ("bert", "roberta", "xlm-roberta", "camembert")  # families with it
_LABELS = {
    ("mlm", "nsp"): ("labels", "next_sentence_label"),
    ("mlm", "sop"): ("labels", "sentence_order_label"),
    ("span",): ("start_positions", "end_positions"),
}


def config_name(family: Family) -> str:
    """The name of the config class: BertConfig for bert, T5Config for t5."""
    first = next(iter(family.architectures))
    return re.sub("(EncoderModel|Model|For.*)$", "", first) + "Config"


def reads_images(family: Family) -> bool:
    return "patch_size" in family.defaults


@cache
def config_of(model_type: str) -> type[PretrainedConfig]:
    family = all_families()[model_type]
    return config_class(family, config_name(family))


@cache
def custom_model_of(model_type: str) -> type[CustomModel]:
    """The base class of custom models: ``BertPreTrainedModel`` for bert."""
    config = config_of(model_type)
    members = {
        "family": all_families()[model_type],
        "config_class": config,
        "__module__": "ownbert.hf",
    }
    name = config.__name__.removesuffix("Config") + "PreTrainedModel"
    return type(name, (CustomModel,), members)


@cache
def model_of(architecture: str) -> type[PreTrainedModel]:
    """The class of an architecture.

    Raises:
        InputError: unknown name.
    """
    for family in all_families().values():
        if architecture in family.architectures:
            return _model_class(family, architecture)
    raise InputError(f"architecture {architecture!r} is not known")


def _model_class(family: Family, architecture: str) -> type[PreTrainedModel]:
    spec = family.architectures[architecture]
    base = next(name for name, other in family.architectures.items() if not other.heads)
    heads = " and ".join(head.kind for head in spec.heads)
    members: dict[str, Any] = {
        "family": family,
        "architecture": architecture,
        "config_class": config_of(family.model_type),
        "arguments": _signature(family, spec),
        "accepts_loss_kwargs": spec.decoder or _counts_labels(family, spec),
        "base_class": classmethod(lambda cls: model_of(base)),
        "_tied_weights_keys": _tied(family) if "mlm" in heads else None,
        "main_input_name": "pixel_values" if reads_images(family) else "input_ids",
        "__module__": "ownbert.hf",
        "__doc__": f"{family.model_type} " + (f"with the head {heads}." if heads else "alone."),
    }
    parents = (GreedyGeneration, PreTrainedModel) if spec.decoder else (PreTrainedModel,)
    return type(architecture, parents, members)


def _tied(family: Family) -> list[str]:
    return [rule.theirs for rule in family.weight_map.rules if isinstance(rule, Tie)]


def _counts_labels(family: Family, spec: ArchitectureSpec) -> bool:
    """Whether the loss is normalised by the labels in all batches of an update."""
    return family.model_type == "modernbert" and [head.kind for head in spec.heads] == ["mlm"]


def _signature(family: Family, spec: ArchitectureSpec) -> inspect.Signature:
    """The signature of the forward pass, in the order of Transformers 4.57.6."""
    kinds = tuple(head.kind for head in spec.heads)
    if reads_images(family):
        further = ["head_mask", "labels"] if kinds else ["bool_masked_pos", "head_mask"]
        return signature(["pixel_values", *further, "interpolate_pos_encoding"], "kwargs")
    if "mem_len" in family.defaults:
        return _xlnet_signature(kinds)
    names = ["input_ids", "attention_mask"]
    labels = _LABELS.get(kinds, ("labels",) if kinds else ())
    if "local_attention" in family.defaults:
        names += ["sliding_window_mask", "position_ids"]
        names += [] if kinds == ("span",) else ["inputs_embeds"]
        rest = None if kinds in ((), ("tokens",)) else "kwargs"
        return signature([*names, *labels, *UNPADDED, *_LAST], rest)
    if "relative_attention" in family.defaults:
        names += ["token_type_ids", "position_ids", "inputs_embeds"]
        return signature([*names, *labels, *_LAST])
    if family.fixed.get("type_vocab_size") != 0:
        names += ["token_type_ids", "position_ids"]
    if "task_type_vocab_size" in family.defaults:
        names.insert(3, "task_type_ids")
    names += ["head_mask", "inputs_embeds"]
    if kinds == ("choice",) and family.weight_map.prefix == "roberta.":
        names = ["input_ids", "token_type_ids", "attention_mask", "labels"]
        names += ["position_ids", "head_mask", "inputs_embeds"]
    crossing = not kinds or spec.decoder or (kinds == ("mlm",) and family.model_type != "electra")
    decodes = "add_cross_attention" in family.defaults
    if decodes and crossing:
        names += _CROSS_ATTENTION
    names += [name for name in labels if name not in names]
    if decodes and (not kinds or spec.decoder):
        names += _CACHE
    last = _LAST
    if family.model_type == "mobilebert" and not kinds:
        last = ("output_hidden_states", "output_attentions", "return_dict")
    if family.model_type in _CACHE_POSITION and not kinds:
        last = (*last, "cache_position")
    if not spec.decoder:
        return signature([*names, *last], "kwargs" if kinds == ("nsp",) else None)
    if family.model_type == "bert":
        return signature([*names, *last, "cache_position"], "loss_kwargs")
    return signature([*names, *last], "kwargs")


def _xlnet_signature(kinds: tuple[str, ...]) -> inspect.Signature:
    masks = ["attention_mask", "mems", "perm_mask", "target_mapping"]
    names = [*masks, "token_type_ids", "input_mask"]
    if kinds == ("choice",):
        names = ["token_type_ids", "input_mask", *masks]
    labels = _LABELS.get(kinds, ("labels",) if kinds else ())
    if kinds == ("beam_span",):
        labels = (*_LABELS[("span",)], "is_impossible", "cls_index", "p_mask")
    further = ["head_mask", "inputs_embeds", *labels, "use_mems"]
    return signature(["input_ids", *names, *further, *_LAST], "kwargs")
