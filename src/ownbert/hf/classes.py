"""Classes with Transformers' API by name: generated for each family from its architectures, and
``AutoConfig``, ``AutoModel`` and ``AutoModelFor...``, which select them by config.json."""

import inspect
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

from ownbert.checks import known
from ownbert.exceptions import InputError
from ownbert.families import ENCODER_DECODERS, all_families, all_kinds
from ownbert.families.mapping.encoder_decoder import EncoderDecoder
from ownbert.families.mapping.family import Family
from ownbert.families.mapping.weight_map import Tie
from ownbert.hf.configs import OWN, PretrainedConfig, read_config
from ownbert.hf.pretrained import PreTrainedModel
from ownbert.hf.seq2seq.generation import GreedyGeneration
from ownbert.hf.seq2seq.special_models import MarianEncoderDecoder, T5EncoderDecoder
from ownbert.hub import pretrained_folder

# Base classes of the classes of an encoder and a decoder.
_TWO_STACKS = {"marian": MarianEncoderDecoder, "t5": T5EncoderDecoder}


def _family(model_type: str) -> Family | EncoderDecoder:
    families = {**ENCODER_DECODERS, **all_families()}
    known(*sorted(families))("model_type", model_type)
    return families[model_type]


def _start(family: Family | EncoderDecoder) -> str:
    """The prefix of the class names of a family: Bert for bert, T5 for t5."""
    return re.sub("((Encoder|MT)?Model|For.*)$", "", next(iter(family.architectures)))


def config_name(family: Family | EncoderDecoder) -> str:
    """The name of the config class: BertConfig for bert, T5Config for t5."""
    return _start(family) + "Config"


@cache
def config_of(model_type: str) -> type[PretrainedConfig]:
    """The config class of a family, with its name in Transformers."""
    family = _family(model_type)
    members = {
        "family": family,
        "model_type": model_type,
        "defaults": family.defaults,
        "aliases": family.names,
        "follows": family.follows,
        "__module__": "ownbert.hf",
        "__doc__": f"Configuration of {model_type}; keys and defaults as in Transformers.",
    }
    return type(config_name(family), (PretrainedConfig,), members)


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


def _signature(names: Sequence[str], rest: str | None = None) -> inspect.Signature:
    """A signature with these arguments, each None by default; ``rest`` collects other keywords."""
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [inspect.Parameter(name, kind, default=None) for name in names]
    if rest is not None:
        parameters.append(inspect.Parameter(rest, inspect.Parameter.VAR_KEYWORD))
    return inspect.Signature(parameters)


def _model_class(family: Family | EncoderDecoder, architecture: str) -> type[PreTrainedModel]:
    spec = family.architectures[architecture]
    kinds, calls = spec.kinds, family.calls
    heads = " and ".join(kinds)
    arguments, rest = calls.arguments(kinds, spec.decoder)
    members: dict[str, Any] = {
        "family": family,
        "architecture": architecture,
        "config_class": config_of(family.model_type),
        "arguments": _signature(arguments, rest),
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


# Suffixes of the class names of a family, in order of preference, by the suffix of AutoModel.
_ENDS = {
    "": ("Model",),
    "ForPreTraining": ("ForPreTraining", "ForMaskedLM", "LMHeadModel", "ForConditionalGeneration"),
    "ForCausalLM": ("ForCausalLM", "LMHeadModel"),
    "ForSeq2SeqLM": ("ForConditionalGeneration", "MTModel"),
    "ForQuestionAnswering": ("ForQuestionAnsweringSimple", "ForQuestionAnswering"),
    **{
        end: (end,)
        for end in (
            "ForMaskedLM",
            "ForNextSentencePrediction",
            "ForSequenceClassification",
            "ForTokenClassification",
            "ForMultipleChoice",
            "ForImageClassification",
        )
    },
}


def class_named(name: str) -> Any:
    """The model or config class with a name of Transformers; None if there is none."""
    if name.startswith("Auto"):
        return AutoConfig if name == "AutoConfig" else _auto_model(name)
    for family in all_kinds():
        if name in family.architectures:
            return model_of(name)
        if name == config_name(family):
            return config_of(family.model_type)
    return None


def _type_of(name: Any, options: dict[str, Any], *, or_file: bool = True) -> str:
    folder = pretrained_folder(name, options, or_file=or_file)
    kind = read_config(folder).get("model_type")
    if kind is None:
        raise InputError(f"{folder}: config.json names no model_type")
    return str(kind).removeprefix(OWN)


class AutoConfig:
    """``from_pretrained`` creates a config of the class named in a folder's config.json."""

    def __init__(self):
        raise InputError("use AutoConfig.from_pretrained(folder)")

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, **changes: Any) -> Any:
        """The config of a folder; for the arguments see its class."""
        kind = config_of(_type_of(pretrained_model_name_or_path, changes))
        return kind.from_pretrained(pretrained_model_name_or_path, **changes)

    @classmethod
    def for_model(cls, model_type: str, **values: Any) -> Any:
        """A new config of a family."""
        return config_of(model_type)(**values)


class _AutoModel:
    end: ClassVar[str]

    def __init__(self):
        raise InputError(f"use {type(self).__name__}.from_pretrained(folder)")

    @classmethod
    def _class(cls, model_type: str) -> Any:
        start = _start(_family(model_type))
        candidates = (class_named(start + end) for end in _ENDS[cls.end])
        kind = next(filter(None, candidates), None)
        if kind is None:
            class_name = start + (cls.end or "Model")
            raise InputError(f"there is no {class_name} for {cls.__name__}")
        return kind

    @classmethod
    def from_pretrained(
        cls, pretrained_model_name_or_path: Any, *args: Any, config: Any = None, **options: Any
    ) -> Any:
        """Load the model of a folder; for the arguments see its class. Missing heads are newly
        initialised.

        Raises:
            InputError: the folder cannot be used, or its family has no such class.
        """
        if config is None or isinstance(config, str | Path):
            named = pretrained_model_name_or_path if config is None else config
            kind = cls._class(_type_of(named, options, or_file=config is not None))
        else:
            kind = cls._class(config.model_type)
        return kind.from_pretrained(pretrained_model_name_or_path, *args, config=config, **options)

    @classmethod
    def from_config(cls, config: Any, **options: Any) -> Any:
        """A model with new weights."""
        return cls._class(config.model_type)._from_config(config, **options)


@cache
def _auto_model(name: str) -> Any:
    end = name.removeprefix("AutoModel")
    if end == name or end not in _ENDS:
        return None
    return type(name, (_AutoModel,), {"end": end, "__module__": "ownbert.hf"})
