"""Looks up model and config classes by name; ``AutoConfig``, ``AutoModel`` and
``AutoModelFor...``, which select them by config.json."""

from functools import cache
from pathlib import Path
from typing import Any, ClassVar

from ownbert.checks import known
from ownbert.exceptions import InputError
from ownbert.families import ENCODER_DECODERS, all_families, all_kinds
from ownbert.families.mapping.family import Family
from ownbert.hf.classes import config_name, config_of, custom_model_of, model_of
from ownbert.hf.configs import OWN, read_config
from ownbert.hub import pretrained_folder

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
        config = config_name(family)
        if name == config:
            return config_of(family.model_type)
        base = config.removesuffix("Config") + "PreTrainedModel"
        if name == base and isinstance(family, Family):
            return custom_model_of(family.model_type)
    return None


def _start(model_type: str) -> str:
    """The prefix of the class names of a family: Bert for bert."""
    families = {**ENCODER_DECODERS, **all_families()}
    known(*sorted(families))("model_type", model_type)
    return config_name(families[model_type]).removesuffix("Config")


def _start_of(name: Any, options: dict[str, Any], *, or_file: bool = True) -> str:
    folder = pretrained_folder(name, options, or_file=or_file)
    kind = read_config(folder).get("model_type")
    if kind is None:
        raise InputError(f"{folder}: config.json names no model_type")
    return _start(str(kind).removeprefix(OWN))


class AutoConfig:
    """``from_pretrained`` creates a config of the class named in a folder's config.json."""

    def __init__(self):
        raise InputError("use AutoConfig.from_pretrained(folder)")

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, **changes: Any) -> Any:
        """The config of a folder; for the arguments see its class."""
        kind = class_named(_start_of(pretrained_model_name_or_path, changes) + "Config")
        return kind.from_pretrained(pretrained_model_name_or_path, **changes)

    @classmethod
    def for_model(cls, model_type: str, **values: Any) -> Any:
        """A new config of a family."""
        return class_named(_start(model_type) + "Config")(**values)


class _AutoModel:
    end: ClassVar[str]

    def __init__(self):
        raise InputError(f"use {type(self).__name__}.from_pretrained(folder)")

    @classmethod
    def _class(cls, start: str) -> Any:
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
            kind = cls._class(_start_of(named, options, or_file=config is not None))
        else:
            kind = cls._class(_start(config.model_type))
        return kind.from_pretrained(pretrained_model_name_or_path, *args, config=config, **options)

    @classmethod
    def from_config(cls, config: Any, **options: Any) -> Any:
        """A model with new weights."""
        return cls._class(_start(config.model_type))._from_config(config, **options)


@cache
def _auto_model(name: str) -> Any:
    end = name.removeprefix("AutoModel")
    if end == name or end not in _ENDS:
        return None
    return type(name, (_AutoModel,), {"end": end, "__module__": "ownbert.hf"})
