"""Classes with Transformers' API, generated for each family from its table of architectures."""

import re
from functools import cache
from typing import Any

from ownbert.errors import InputError
from ownbert.families import all_families
from ownbert.families.mapping.family import Family
from ownbert.families.mapping.rules import Tie
from ownbert.hf.arguments import signature
from ownbert.hf.configs import PretrainedConfig, config_class
from ownbert.hf.custom import CustomModel
from ownbert.hf.pretrained import PreTrainedModel
from ownbert.hf.seq2seq.generation import GreedyGeneration


def config_name(family: Family) -> str:
    """The name of the config class: BertConfig for bert, T5Config for t5."""
    first = next(iter(family.architectures))
    return re.sub("(EncoderModel|Model|For.*)$", "", first) + "Config"


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
    kinds = tuple(head.kind for head in spec.heads)
    heads, calls = " and ".join(kinds), family.calls
    arguments, rest = calls.arguments(kinds, spec.decoder)
    tied = [rule.theirs for rule in family.weight_map.rules if isinstance(rule, Tie)]
    members: dict[str, Any] = {
        "family": family,
        "architecture": architecture,
        "config_class": config_of(family.model_type),
        "arguments": signature(arguments, rest),
        "accepts_loss_kwargs": spec.decoder or kinds in calls.update_losses,
        "base_class": classmethod(lambda cls: model_of(base)),
        "_tied_weights_keys": tied if "mlm" in kinds else None,
        "main_input_name": arguments[0],
        "__module__": "ownbert.hf",
        "__doc__": f"{family.model_type} " + (f"with the head {heads}." if heads else "alone."),
    }
    parents = (GreedyGeneration, PreTrainedModel) if spec.decoder else (PreTrainedModel,)
    return type(architecture, parents, members)
