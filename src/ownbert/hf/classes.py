"""Classes with Transformers' API, generated for each family from its table of architectures."""

import re
from functools import cache
from typing import Any

from ownbert.exceptions import InputError
from ownbert.families import ENCODER_DECODERS, all_families, all_kinds
from ownbert.families.mapping.encoder_decoder import EncoderDecoder
from ownbert.families.mapping.family import Family
from ownbert.families.mapping.weight_map import Tie
from ownbert.hf.arguments import signature
from ownbert.hf.configs import PretrainedConfig, config_class
from ownbert.hf.custom import CustomModel
from ownbert.hf.pretrained import PreTrainedModel
from ownbert.hf.seq2seq.generation import GreedyGeneration
from ownbert.hf.seq2seq.special_models import MarianEncoderDecoder, T5EncoderDecoder

# Base classes of the classes of an encoder and a decoder.
_TWO_STACKS = {"marian": MarianEncoderDecoder, "t5": T5EncoderDecoder}


def config_name(family: Family | EncoderDecoder) -> str:
    """The name of the config class: BertConfig for bert, T5Config for t5."""
    first = next(iter(family.architectures))
    return re.sub("((Encoder|MT)?Model|For.*)$", "", first) + "Config"


@cache
def config_of(model_type: str) -> type[PretrainedConfig]:
    family = {**ENCODER_DECODERS, **all_families()}[model_type]
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
    for family in all_kinds():
        if architecture in family.architectures:
            return _model_class(family, architecture)
    raise InputError(f"architecture {architecture!r} is not known")


def _model_class(family: Family | EncoderDecoder, architecture: str) -> type[PreTrainedModel]:
    spec = family.architectures[architecture]
    kinds, calls = spec.kinds, family.calls
    heads = " and ".join(kinds)
    arguments, rest = calls.arguments(kinds, spec.decoder)
    members: dict[str, Any] = {
        "family": family,
        "architecture": architecture,
        "config_class": config_of(family.model_type),
        "arguments": signature(arguments, rest),
        "accepts_loss_kwargs": spec.decoder or kinds in calls.update_losses,
        "main_input_name": arguments[0],
        "__module__": "ownbert.hf",
        "__doc__": f"{family.model_type} " + (f"with the head {heads}." if heads else "alone."),
    }
    if isinstance(family, EncoderDecoder):
        return type(architecture, (_TWO_STACKS[family.model_type],), members)
    base = next(name for name, other in family.architectures.items() if not other.heads)
    members["base_class"] = classmethod(lambda cls: model_of(base))
    if "mlm" in kinds:
        tied = [rule.theirs for rule in family.weight_map.rules if isinstance(rule, Tie)]
        members["_tied_weights_keys"] = tied
    parents = (GreedyGeneration, PreTrainedModel) if spec.decoder else (PreTrainedModel,)
    return type(architecture, parents, members)
