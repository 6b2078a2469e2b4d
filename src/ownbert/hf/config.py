"""Configurations of the familiar face: BertConfig and those of its relatives.

One class, made for each family from the keys and defaults in ``families``.
"""

import copy
import json
from pathlib import Path
from typing import Any, ClassVar

from ownbert.checkpoint.weights import read_json
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


class PretrainedConfig:
    """Keys of a ``config.json`` as attributes; those not given have their family's defaults."""

    family: ClassVar[Family]
    model_type: ClassVar[str]

    def __init__(self, **values: Any) -> None:
        self.name_or_path = str(values.pop("name_or_path", ""))
        labels = values.pop("id2label", None)
        count = values.pop("num_labels", None)
        values.pop("label2id", None)
        merged = {**copy.deepcopy({**_COMMON, **self.family.defaults}), **values}
        merged.pop("model_type", None)
        aliases = self._aliases()
        for key, value in merged.items():
            setattr(self, aliases.get(key, key), value)
        if labels is not None:
            labels = {int(number): str(name) for number, name in labels.items()}
        if labels is None or (count is not None and count != len(labels)):
            labels = _numbered(2 if count is None else count)
        self.id2label: dict[int, str] = labels
        self.label2id = {name: number for number, name in labels.items()}
        self.structure()  # Sizes that cannot be are refused here, not at the first model.

    @classmethod
    def _aliases(cls) -> dict[str, str]:
        """BERT's words where the family has its own (DistilBERT's ``dim`` is hidden_size)."""
        return dict(cls.family.names)

    def __getattr__(self, name: str) -> Any:
        other = type(self)._aliases().get(name)
        if other is None or name.startswith("__"):
            raise AttributeError(f"{type(self).__name__} has no {name!r}")
        return getattr(self, other)

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(self._aliases().get(name, name), value)

    def structure(self) -> EncoderConfig:
        """What the network is made of. ``InputError`` for values that cannot go together."""
        return self.family.read_config(self.to_dict())

    @property
    def num_labels(self) -> int:
        return len(self.id2label)

    @num_labels.setter
    def num_labels(self, count: int) -> None:
        self.id2label = _numbered(count)
        self.label2id = {name: number for number, name in self.id2label.items()}

    @property
    def use_return_dict(self) -> bool:
        return self.return_dict

    def update(self, values: dict[str, Any]) -> None:
        for key, value in values.items():
            setattr(self, key, value)

    def to_dict(self) -> dict[str, Any]:
        """All keys, as they stand in ``config.json``."""
        values = copy.deepcopy({k: v for k, v in vars(self).items() if k != "name_or_path"})
        values["model_type"] = self.model_type
        values["id2label"] = {str(number): name for number, name in self.id2label.items()}
        return values

    to_diff_dict = to_dict

    def to_json_string(self, use_diff: bool = True) -> str:
        return json.dumps(self.to_dict(), ensure_ascii=False, indent=2, sort_keys=True) + "\n"

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
        return cls.from_dict(dict(read_json(Path(json_file))))

    @classmethod
    def from_pretrained(
        cls, pretrained_model_name_or_path: str | Path, **changes: Any
    ) -> "PretrainedConfig":
        """The config of a model folder, ``changes`` on top."""
        folder = model_folder(pretrained_model_name_or_path)
        values = dict(read_json(folder / CONFIG if folder.is_dir() else folder))
        config = cls.from_dict(values, **changes)
        config.name_or_path = str(pretrained_model_name_or_path)
        return config

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PretrainedConfig) and self.to_dict() == other.to_dict()

    def __repr__(self) -> str:
        return f"{type(self).__name__} {self.to_json_string()}"


def _numbered(count: int) -> dict[int, str]:
    if not isinstance(count, int) or count < 1:
        raise InputError(f"num_labels is {count!r}; it must be a whole number from 1 on")
    return {number: f"LABEL_{number}" for number in range(count)}


def config_class(family: Family, name: str) -> type[PretrainedConfig]:
    """The configuration class of a family."""
    members = {
        "family": family,
        "model_type": family.model_type,
        "__module__": "ownbert.hf",
        "__doc__": f"Configuration of {family.model_type}; keys and defaults as in Transformers.",
    }
    return type(name, (PretrainedConfig,), members)
