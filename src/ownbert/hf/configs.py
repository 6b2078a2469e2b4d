"""Configurations with Transformers' API: BertConfig and those of its relatives.

A single class, derived for each family with its keys and defaults in ``families``.
"""

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch

from ownbert.checkpoint.model_files import read_config as read_config_file
from ownbert.checkpoint.weights import CONFIG
from ownbert.checks import known, maybe
from ownbert.config.encoder import EncoderConfig
from ownbert.exceptions import InputError, in_short
from ownbert.families.mapping.encoder_decoder import EncoderDecoder
from ownbert.families.mapping.family import OWN, Family, require_label_count
from ownbert.files.writing import make_folder, write_text
from ownbert.hub import HUB_OPTIONS, pretrained_folder

# Keys of every Transformers configuration that models or scripts may read.
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
# Further keys that scripts read; they have no effect here and are only written if set.
_WITHOUT_EFFECT: dict[str, Any] = {
    # Read by pipelines, for folders on the hub.
    "_commit_hash": None,
    "torchscript": False,
    "max_length": 20,
    "tie_encoder_decoder": False,
    # Read by ``Trainer``, which collects all other outputs as predictions.
    "keys_to_ignore_at_inference": ["past_key_values", "mems"],
    **dict.fromkeys(
        (
            *("cross_attention_hidden_size", "decoder_start_token_id", "dtype", "finetuning_task"),
            *("prefix", "task_specific_params", "tokenizer_class", "transformers_version"),
        )
    ),
}
# Maximum number of positional constructor arguments: all of BERT's, ten for other families.
_BY_POSITION = {"bert": 16, "marian": 25}
REGRESSION, ONE_LABEL = "regression", "single_label_classification"
MANY_LABELS = "multi_label_classification"
check_problem = maybe(known(REGRESSION, ONE_LABEL, MANY_LABELS))
# Names of Transformers, all of which select the same implementation here.
_attention = maybe(
    known("eager", "sdpa", "flash_attention_2", "flash_attention_3", "flex_attention")
)


def check_attention(name: str, value: Any) -> None:
    """Check for an ``attn_implementation``, or a mapping of several by name of the part."""
    for each in value.values() if isinstance(value, Mapping) else (value,):
        _attention(name, each)


class PretrainedConfig:
    """Keys of a ``config.json`` as attributes, with their family's defaults.

    Positional arguments are supported as in Transformers: ``BertConfig(vocab_size, hidden_size,
    ...)``.
    """

    # Not a key: the structure by the constructor's arguments, whatever is changed later.
    __slots__ = ("__dict__", "first_structure")
    family: ClassVar[Family | EncoderDecoder]
    defaults: ClassVar[Mapping[str, Any]]
    aliases: ClassVar[Mapping[str, str]]  # BERT's key to the family's own
    # Keys whose default is the value of another key.
    follows: ClassVar[Mapping[str, str]] = {}
    model_type: ClassVar[str]
    sub_configs: ClassVar[Mapping[str, Any]] = {}

    def __init__(self, *positional: Any, **values: Any) -> None:
        values |= self._by_name(positional, values)
        self.name_or_path = str(values.pop("name_or_path", ""))
        labels = _labels(values.pop("id2label", None))
        count = values.pop("num_labels", None)
        numbers = values.pop("label2id", None)
        common = dict(_COMMON)
        if "use_mems_eval" in self.defaults:  # the current name of XLNet's setting
            del common["use_cache"]
            if "use_cache" in values:
                values["use_mems_eval"] = values.pop("use_cache")
        merged = {**copy.deepcopy({**common, **self.defaults}), **values}
        merged.pop("model_type", None)
        for key, value in merged.items():
            if not callable(getattr(type(self), key, None)):  # TinyBERT has a key "structure"
                setattr(self, self.aliases.get(key, key), value)
        for key, other in self.follows.items():
            if values.get(key) is None:
                setattr(self, key, getattr(self, other))
        if labels is None or (count is not None and count != len(labels)):
            labels, numbers = _numbered(2 if count is None else count), None
        self.id2label: dict[int, str] = labels
        self.label2id = numbers or {name: number for number, name in labels.items()}
        check_problem("problem_type", self.problem_type)
        # Impossible sizes are refused here, not when a model is made.
        self.first_structure = self.structure()

    def _by_name(self, positional: tuple[Any, ...], values: Mapping[str, Any]) -> dict[str, Any]:
        """Assign positional arguments to their names."""
        names = list(self.defaults)[: _BY_POSITION.get(self.model_type, 10)]
        twice = [name for name in names[: len(positional)] if name in values]
        if len(positional) > len(names) or twice:
            wrong = f"{twice[0]} is given twice" if twice else "pass further values by name"
            raise InputError(f"{type(self).__name__}: {wrong}")
        return dict(zip(names, positional, strict=False))

    def __getattr__(self, name: str) -> Any:
        if name in _WITHOUT_EFFECT:
            return _WITHOUT_EFFECT[name]
        name = {"torch_dtype": "dtype", "_name_or_path": "name_or_path"}.get(name, name)
        if name in ("dtype", "name_or_path"):
            return vars(self).get(name)
        other = type(self).aliases.get(name)
        if other is None or name.startswith("__"):
            raise AttributeError(f"{type(self).__name__} has no {name!r}")
        return getattr(self, other)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("dtype", "torch_dtype"):
            name, value = "dtype", parse_dtype(value)
        super().__setattr__(self.aliases.get(name, name), value)

    def structure(self) -> EncoderConfig:
        """The structure of the network.

        Raises:
            InputError: values are inconsistent.
        """
        found = self.family.read_config(self.to_dict())
        return found[0] if isinstance(found, tuple) else found  # the encoder of two stacks

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

    def get_text_config(self, *_: Any, **__: Any) -> "PretrainedConfig":
        """The config of the text model: this one."""
        return self

    def update(self, values: dict[str, Any]) -> None:
        for key, value in values.items():
            setattr(self, key, value)

    def to_dict(self) -> dict[str, Any]:
        """All keys of ``config.json``, with integers where JSON has strings (labels, layers)."""
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
    def from_dict(
        cls, config_dict: dict[str, Any], *, return_unused_kwargs: bool = False, **changes: Any
    ) -> Any:
        if return_unused_kwargs:
            return cls.from_dict(config_dict).changed(config_dict, changes)
        kind = str(config_dict.get("model_type", cls.model_type)).removeprefix(OWN)
        if kind != cls.model_type:
            raise InputError(
                f"the config is of a {kind} model; {cls.__name__} reads {cls.model_type}"
            )
        return cls(**{**config_dict, **changes})

    @classmethod
    def of(cls, config: Any, user: str) -> Any:
        """Return ``config``, or convert one of Transformers to this class, for the caller ``user``.

        Raises:
            InputError: ``config`` is something else.
        """
        if getattr(config, "model_type", None) != cls.model_type:
            raise InputError(
                f"{user} takes a {cls.__name__}, not a {type(config).__name__}; for a folder: "
                f"{user}.from_pretrained"
            )
        if isinstance(config, PretrainedConfig):
            return config
        return cls.from_dict(config.to_diff_dict())

    @classmethod
    def from_json_file(cls, json_file: str | Path) -> "PretrainedConfig":
        return cls.from_dict(dict(read_config_file(Path(json_file))))

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: str | Path,
        *,
        return_unused_kwargs: bool = False,
        subfolder: str = "",
        **changes: Any,
    ) -> Any:
        """Load the config of a model folder.

        Args:
            pretrained_model_name_or_path: the folder, or the name of a model on the hub.
            return_unused_kwargs: whether to return changes that are not keys beside the config;
                otherwise they become further keys.
            subfolder: subfolder of the folder.
            changes: values of keys that override the folder's.
        """
        check_attention("attn_implementation", changes.get("attn_implementation"))
        options = {**changes, "subfolder": subfolder}
        folder = pretrained_folder(pretrained_model_name_or_path, options, or_file=True)
        values = read_config(folder)
        changes = {key: value for key, value in changes.items() if key not in HUB_OPTIONS}
        config, unused = cls.from_dict(values).changed(values, changes)
        if unused and not return_unused_kwargs:
            config = cls.from_dict(values, **changes)
        config.name_or_path = str(pretrained_model_name_or_path)
        return (config, unused) if return_unused_kwargs else config

    def changed(
        self, values: dict[str, Any], changes: Mapping[str, Any]
    ) -> "tuple[PretrainedConfig, dict[str, Any]]":
        """The config, made from ``values``, with ``changes``; and those that are not keys."""
        named, count = changes.get("id2label"), changes.get("num_labels")
        if named is not None and count not in (None, len(named)):
            raise InputError(f"num_labels is {count}, but id2label has {len(named)} labels")
        labels = ("num_labels", "id2label", "label2id")
        keys = {k: v for k, v in changes.items() if k in labels or hasattr(self, k)}
        config = self.from_dict(values, **keys) if keys else self
        return config, {k: v for k, v in changes.items() if k not in keys}

    @classmethod
    def get_config_dict(
        cls, pretrained_model_name_or_path: str | Path, **options: Any
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """The values in the ``config.json`` of a folder, and ``options`` unchanged."""
        folder = pretrained_folder(pretrained_model_name_or_path, options, or_file=True)
        return read_config(folder), options

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PretrainedConfig) and self.to_dict() == other.to_dict()

    def __repr__(self) -> str:
        return f"{type(self).__name__} {self.to_json_string()}"


def read_config(path: Path) -> dict[str, Any]:
    """The values of a folder's config.json, or of the file itself."""
    return dict(read_config_file(path / CONFIG if path.is_dir() else path))


def _numbered(count: int) -> dict[int, str]:
    return {number: f"LABEL_{number}" for number in range(require_label_count(count))}


def _labels(given: Any) -> dict[int, str] | None:
    """Label names ordered by index; indices are strings in JSON."""
    if given is None:
        return None
    try:
        pairs = [(int(number), str(name)) for number, name in given.items()]
        labels = dict(sorted(pairs, key=lambda pair: pair[0]))
    except (AttributeError, TypeError, ValueError):
        labels = None
    if not labels or list(labels) != list(range(len(labels))):
        raise InputError(
            f"id2label is {in_short(given)}; it must name the labels: {{0: ..., 1: ...}}"
        )
    return labels


def parse_dtype(value: Any) -> torch.dtype | None:
    """Parse a floating point dtype or its name ("bfloat16"); None stays None.

    Raises:
        InputError: the value is something else.
    """
    dtype = getattr(torch, value.removeprefix("torch."), None) if isinstance(value, str) else value
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        dtype = None
    if value is not None and dtype is None:
        raise InputError(f"dtype {value!r} is not known; use one of float32, bfloat16, float16")
    return dtype
