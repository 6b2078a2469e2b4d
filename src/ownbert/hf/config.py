"""Configurations of the familiar face: BertConfig and those of its relatives.

One class, made for each family from the keys and defaults in ``families``.
"""

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch

from ownbert.checkpoint.weights import read_model_json
from ownbert.config import EncoderConfig
from ownbert.errors import InputError
from ownbert.families.family import OWN, Family
from ownbert.files import make_folder, model_folder, write_text

CONFIG = "config.json"
# Keys of every configuration of Transformers that a model or a script may look at.
_COMMON: dict[str, Any] = {
    "output_attentions": False,
    "output_hidden_states": False,
    "return_dict": True,
    "problem_type": None,
    "tie_word_embeddings": True,
    "is_encoder_decoder": False,
    "architectures": None,
    "bos_token_id": None,
    "eos_token_id": None,
    "sep_token_id": None,
    "pruned_heads": {},
    "chunk_size_feed_forward": 0,
    "is_decoder": False,
    "add_cross_attention": False,
    "position_embedding_type": "absolute",
    "use_cache": True,
}
# Further ones that scripts read; they change nothing here and are written only where they are set.
_READ: dict[str, Any] = {
    "torchscript": False,
    "tie_encoder_decoder": False,
    **dict.fromkeys(
        (
            "cross_attention_hidden_size",
            "decoder_start_token_id",
            "dtype",
            "finetuning_task",
            "prefix",
            "task_specific_params",
            "tokenizer_class",
            "transformers_version",
        )
    ),
}
# So many keys stand in the order of Transformers' constructor: all of BERT's, ten of every family.
_BY_POSITION = {"bert": 16, "marian": 25}
_PROBLEMS = (
    None,
    "regression",
    "single_label_classification",
    "multi_label_classification",
)


class PretrainedConfig:
    """Keys of a ``config.json`` as attributes; those not given have their family's defaults.

    The first by position too, as in Transformers: ``BertConfig(vocab_size, hidden_size, ...)``.
    """

    family: ClassVar[Family]
    defaults: ClassVar[Mapping[str, Any]]
    aliases: ClassVar[Mapping[str, str]]  # BERT's words where the family has its own
    model_type: ClassVar[str]

    def __init__(self, *positional: Any, **values: Any) -> None:
        values |= self._by_name(positional, values)
        self.name_or_path = str(values.pop("name_or_path", ""))
        labels = _labels(values.pop("id2label", None))
        count = values.pop("num_labels", None)
        numbers = values.pop("label2id", None)
        merged = {**copy.deepcopy({**_COMMON, **self.defaults}), **values}
        merged.pop("model_type", None)
        for key, value in merged.items():
            setattr(self, self.aliases.get(key, key), value)
        if labels is None or (count is not None and count != len(labels)):
            labels, numbers = _numbered(2 if count is None else count), None
        self.id2label: dict[int, str] = labels
        self.label2id = numbers or {name: number for number, name in labels.items()}
        if self.problem_type not in _PROBLEMS:
            known = ", ".join(str(name) for name in _PROBLEMS[1:])
            raise InputError(f"problem_type {self.problem_type!r} is not known; one of {known}")
        self.structure()  # Sizes that cannot be are refused here, not at the first model.

    def _by_name(self, positional: tuple[Any, ...], values: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments by position under their names."""
        names = list(self.defaults)[: _BY_POSITION.get(self.model_type, 10)]
        twice = [name for name in names[: len(positional)] if name in values]
        if len(positional) > len(names) or twice:
            wrong = f"{twice[0]} is given twice" if twice else "give further values by name"
            raise InputError(f"{type(self).__name__}: {wrong}")
        return dict(zip(names, positional, strict=False))

    def __getattr__(self, name: str) -> Any:
        if name in _READ:
            return _READ[name]
        name = {"torch_dtype": "dtype", "_name_or_path": "name_or_path"}.get(name, name)
        if name in ("dtype", "name_or_path"):
            return vars(self).get(name)
        other = type(self).aliases.get(name)
        if other is None or name.startswith("__"):
            raise AttributeError(f"{type(self).__name__} has no {name!r}")
        return getattr(self, other)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("dtype", "torch_dtype"):
            name, value = "dtype", named_dtype(value)
        super().__setattr__(self.aliases.get(name, name), value)

    def structure(self) -> EncoderConfig:
        """What the network is made of. ``InputError`` for values that cannot go together."""
        return self.family.read_config(self.to_dict())

    @property
    def num_labels(self) -> int:
        return len(self.id2label)

    @num_labels.setter
    def num_labels(self, count: int) -> None:
        if count == len(self.id2label):
            return  # Labels keep their names.
        self.id2label = _numbered(count)
        self.label2id = {name: number for number, name in self.id2label.items()}

    @property
    def use_return_dict(self) -> bool:
        return self.return_dict and not self.torchscript

    def update(self, values: dict[str, Any]) -> None:
        for key, value in values.items():
            setattr(self, key, value)

    def to_dict(self) -> dict[str, Any]:
        """All keys of ``config.json``; labels and layers are numbers, which JSON makes strings."""
        values = copy.deepcopy({k: v for k, v in vars(self).items() if k != "name_or_path"})
        values["model_type"] = self.model_type
        if values.get("dtype") is not None:
            values["dtype"] = str(values["dtype"]).removeprefix("torch.")
        return values

    to_diff_dict = to_dict

    def to_json_string(self, use_diff: bool = True) -> str:
        return json.dumps(self.to_dict(), ensure_ascii=False, indent=2, sort_keys=True) + "\n"

    def to_json_file(self, json_file_path: str | Path, use_diff: bool = True) -> None:
        write_text(json_file_path, self.to_json_string(use_diff))

    def save_pretrained(self, save_directory: str | Path, **_: Any) -> None:
        """Write ``config.json``."""
        write_text(make_folder(save_directory) / CONFIG, self.to_json_string())

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **changes: Any) -> "PretrainedConfig":
        kind = str(config_dict.get("model_type", cls.model_type)).removeprefix(OWN)
        if kind != cls.model_type:
            raise InputError(
                f"the config is of a {kind} model; {cls.__name__} reads {cls.model_type}"
            )
        return cls(**{**config_dict, **changes})

    @classmethod
    def from_json_file(cls, json_file: str | Path) -> "PretrainedConfig":
        return cls.from_dict(dict(read_model_json(Path(json_file))))

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: str | Path,
        *,
        return_unused_kwargs: bool = False,
        subfolder: str = "",
        **changes: Any,
    ) -> Any:
        """The config of a model folder, ``changes`` on top.

        With ``return_unused_kwargs`` those of ``changes`` that are no keys come back beside it.
        """
        folder = model_folder(pretrained_model_name_or_path) / subfolder
        values = dict(read_model_json(folder / CONFIG if folder.is_dir() else folder))
        config = cls.from_dict(values)
        unused = {}
        if return_unused_kwargs:
            unused = {k: v for k, v in changes.items() if not config.knows(k)}
        changes = {k: v for k, v in changes.items() if k not in unused}
        if changes:
            config = cls.from_dict(values, **changes)
        config.name_or_path = str(pretrained_model_name_or_path)
        return (config, unused) if return_unused_kwargs else config

    @classmethod
    def get_config_dict(
        cls, pretrained_model_name_or_path: str | Path, **options: Any
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """What stands in the ``config.json`` of a folder, and ``options``."""
        folder = model_folder(pretrained_model_name_or_path)
        return dict(read_model_json(folder / CONFIG if folder.is_dir() else folder)), options

    def knows(self, name: str) -> bool:
        """Whether there is such a key."""
        return name in ("num_labels", "id2label", "label2id") or hasattr(self, name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PretrainedConfig) and self.to_dict() == other.to_dict()

    def __repr__(self) -> str:
        return f"{type(self).__name__} {self.to_json_string()}"


def _numbered(count: int) -> dict[int, str]:
    if not isinstance(count, int) or count < 1:
        raise InputError(f"num_labels is {count!r}; it must be a whole number from 1 on")
    return {number: f"LABEL_{number}" for number in range(count)}


def _labels(given: Any) -> dict[int, str] | None:
    """Names of labels in the order of their numbers, which JSON makes strings."""
    if given is None:
        return None
    try:
        labels = {int(number): str(name) for number, name in sorted(given.items(), key=_number)}
    except (AttributeError, TypeError, ValueError):
        labels = None
    if not labels or list(labels) != list(range(len(labels))):
        raise InputError(f"id2label is {given!r}; it must name the labels: {{0: ..., 1: ...}}")
    return labels


def _number(item: tuple[Any, Any]) -> int:
    return int(item[0])


def named_dtype(value: Any) -> torch.dtype | None:
    """A floating dtype by itself or by its name ("bfloat16"). ``InputError`` for another."""
    found = getattr(torch, value.removeprefix("torch."), None) if isinstance(value, str) else value
    if found is not None and not (isinstance(found, torch.dtype) and found.is_floating_point):
        found = None
    if value is not None and found is None:
        raise InputError(f"dtype {value!r} is none; float32, bfloat16 and float16 are")
    return found


def config_class(family: Family, name: str) -> type[PretrainedConfig]:
    """The configuration class of a family."""
    members = {
        "family": family,
        "model_type": family.model_type,
        "defaults": family.defaults,
        "aliases": family.names,
        "__module__": "ownbert.hf",
        "__doc__": f"Configuration of {family.model_type}; keys and defaults as in Transformers.",
    }
    return type(name, (PretrainedConfig,), members)
