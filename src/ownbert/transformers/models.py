"""``load`` and ``save``, and models and configs by the names of Transformers: ``BertForMaskedLM``,
``BertConfig``, ..."""

import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ownbert.checkpoint.description import CONFIG, architecture_of, describe
from ownbert.checkpoint.model_files import FURTHER_KEYS, read_config
from ownbert.checkpoint.saved_model import load as load_packed
from ownbert.checkpoint.saved_model import load_with_report
from ownbert.checkpoint.saved_model import save as save_packed
from ownbert.checks import maybe, truth, whole
from ownbert.config.encoder import EncoderConfig
from ownbert.config.head_spec import MOST_LABELS, HeadSpec
from ownbert.exceptions import InputError, in_short
from ownbert.families import all_families, encoder_decoder_of
from ownbert.families.mapping.family import OWN, ArchitectureSpec, Family, label_keys, label_names
from ownbert.hub import HUB_OPTIONS, model_folder, pretrained_folder
from ownbert.nn.default_dtype import in_float32
from ownbert.nn.model import Model
from ownbert.text.tokenizer import Tokenizer
from ownbert.transformers.padded_call import Config, PaddedCall, check_problem, refuse
from ownbert.transformers.pretrained_tokenizer import PreTrainedTokenizer

_LABELS = ("num_labels", "id2label", "label2id")
# Keys of a config.json that do not change the model.
_UNUSED = ("transformers_version", "_name_or_path")
_CHECKS = {
    **dict.fromkeys(Config.COMMON, maybe(truth)),
    "problem_type": check_problem,
    "num_labels": maybe(whole(1, MOST_LABELS)),
}


@dataclass(frozen=True)
class ConfigName:
    """``ownbert.BertConfig`` and others: the values of a config.json, by their names."""

    family: Family

    def __call__(self, **values: Any) -> Config:
        """The config with the given values, and the defaults of its family.

        Raises:
            InputError: a value is not supported.
        """
        family = self.family
        known = _known(family)
        refuse(self.__name__, values.keys() - known, known)
        sizes = {k: v for k, v in family.defaults.items() if k == "vocab_size"}
        config = Config(family.model_type, sizes | _named(values, family))
        family.read_config(vars(config))
        return config

    def from_pretrained(self, folder: str | Path, **changes: Any) -> Config:
        """The config of a folder or of a model on the hub, with changes."""
        return Config(self.family.model_type, _read(self.family, self.__name__, folder, changes)[1])

    @property
    def __name__(self) -> str:
        return _start(self.family) + "Config"

    def __instancecheck__(self, instance: Any) -> bool:
        return isinstance(instance, Config) and instance.model_type == self.family.model_type

    def __repr__(self) -> str:
        return f"ownbert.{self.__name__}"


@dataclass(frozen=True)
class ModelName:
    """``ownbert.BertForMaskedLM`` and others: makes or loads a ``Model`` with the heads of this
    class of Transformers."""

    family: Family
    architecture: str

    @property
    def __name__(self) -> str:
        return self.architecture

    @property
    def spec(self) -> ArchitectureSpec:
        return self.family.architectures[self.architecture]

    @in_float32
    def __call__(self, config: Any = None, *, add_pooling_layer: bool = True) -> Model:
        """Create a randomly initialised model, in training mode.

        Args:
            config: a config of the same family, an ``EncoderConfig``, or a config of Transformers.
            add_pooling_layer: whether a model without heads has a pooler, if the class has one.

        Raises:
            InputError: the config is of another family, or a value is not supported.
        """
        values = self._values(config)
        model = Model(
            self.family.read_config(values),
            self.family.specs(self.architecture, values),
            pooler=self.spec.pooler and (add_pooling_layer or bool(self.spec.kinds)),
            labels=label_names(values),
            model_type=self.family.model_type,
        )
        return self._callable(model, values)

    @in_float32
    def from_pretrained(self, folder: str | Path, **changes: Any) -> Model:
        """Load the model of a folder or of the hub, in evaluation mode.

        Missing heads are newly initialised, with a warning; other heads are left out.

        Args:
            folder: the folder, or the name of a model on the hub.
            changes: keys of the config with other values (``num_labels=3``), ``dtype``,
                ``ignore_mismatched_sizes`` (all heads are newly initialised), and
                ``subfolder``, ``revision``, ``cache_dir``, ``local_files_only``, ``token`` and
                ``force_download``, which find the folder.

        Raises:
            InputError: the folder has a model of another family, tensors do not fit, or an argument
                is not supported.
        """
        older, dtype = changes.pop("torch_dtype", None), changes.pop("dtype", None)
        dtype = older if dtype is None else dtype
        if dtype is not None and dtype != "auto":
            dtype = parse_dtype(dtype)
        new_heads = self.spec.kinds if changes.pop("ignore_mismatched_sizes", False) else ()
        path, values, stored = _read(self.family, self.architecture, folder, changes)
        described = describe(path, values=values, any_architecture=True)
        same = described.architecture == self.architecture and not new_heads
        heads = None if same else self.family.specs(self.architecture, values)
        pooler = None if same or self.spec.kinds else self.spec.pooler
        try:
            model, report = load_with_report(
                described, heads=heads, pooler=pooler, new_heads=new_heads
            )
        except InputError as error:
            if " has shape " not in str(error) or label_names(values) == label_names(stored):
                raise
            advice = "ignore_mismatched_sizes=True initialises the heads for other labels"
            raise InputError("{error}; {advice}", error, advice) from None
        if report.new:
            warnings.warn(
                f"{self.architecture} from {path}: {', '.join(report.new)} are not in it, and are "
                "newly initialised; train the model before using it",
                stacklevel=3,
            )
        if isinstance(dtype, torch.dtype):
            model.to(dtype)
        return self._callable(model, values)

    def __instancecheck__(self, instance: Any) -> bool:
        call = instance.padded_call if isinstance(instance, Model) else None
        return call is not None and call.architecture == self.architecture

    def __mro_entries__(self, bases: Any) -> Any:
        raise InputError(
            "{self!r} is no class to derive from: derive from the class of Transformers and use "
            "ownbert.speed_up(model), or put the model into a torch.nn.Module",
            self,
        )

    def _values(self, config: Any) -> dict[str, Any]:
        if isinstance(config, EncoderConfig):
            return self.family.write_config(config)
        read = getattr(config, "to_diff_dict", None)
        if isinstance(config, Config) or read is not None:
            values = dict(vars(config) if read is None else read())
            if values.get("model_type") == self.family.model_type:
                count = values.pop("num_labels", None)  # set as an attribute, perhaps
                if count not in (None, len(values.get("id2label") or ())):
                    values |= _named({"num_labels": count}, self.family)
                return values
        wanted, given = ConfigName(self.family).__name__, type(config).__name__
        message = (
            "{architecture} takes a {wanted}, not a {value}; for a folder: "
            "{architecture}.from_pretrained"
        )
        raise InputError(message, self.architecture, wanted, given)

    def _callable(self, model: Model, values: Mapping[str, Any]) -> Model:
        config = Config(self.family.model_type, values)
        model.padded_call = PaddedCall(self.architecture, config)
        return model

    def __repr__(self) -> str:
        return f"ownbert.{self.architecture}"


@in_float32
def load(
    folder: str | Path,
    *,
    heads: Sequence[str | HeadSpec] | None = None,
    pooler: bool | None = None,
    labels: Sequence[str] = (),
    dropout: float | None = None,
) -> Model:
    """Load the model of a folder, in evaluation mode.

    It is called with ``input_ids``, ``attention_mask`` etc. (``pixel_values`` for images), as the
    class of Transformers that its config.json names, or with a packed ``Batch``. A model with an
    encoder and a decoder (Marian, T5) is called with a ``Batch`` only.

    Args:
        folder: a model folder in Hugging Face's format.
        heads: heads instead of the folder's; missing ones are newly initialised.
        pooler: whether there is a pooler; by default as in the folder.
        labels: names of the classes, instead of the folder's.
        dropout: dropout rate of all layers, instead of the folder's.

    Raises:
        InputError: a file is missing, a tensor is missing, unexpected or of the wrong shape, or
            the config has an unsupported value.
    """
    for name, names in (("heads", heads or ()), ("labels", labels)):
        if isinstance(names, str) or not isinstance(names, Sequence):
            raise InputError("{name} is {names}; it must be a list", name, in_short(names))
    folder = model_folder(folder)
    values = dict(read_config(folder / CONFIG))
    kind = encoder_decoder_of(values)
    if kind is not None:
        if heads is not None or pooler is not None or labels or dropout is not None:
            raise InputError(
                "{folder} contains an encoder-decoder model, which has no other heads", folder
            )
        (name, *_) = values.get("architectures") or [kind.generating]
        if name in kind.answering:
            return load_packed(describe(folder, values=values, with_decoder=True))
        return kind.door("load")(folder)[0]
    description = describe(folder, values=values)
    model = load_packed(description, heads=heads, pooler=pooler, labels=labels, dropout=dropout)
    architecture = description.architecture if heads is None else architecture_of(model)
    if model.labels:
        keys = label_keys(model.labels)
        values |= keys if labels else {"id2label": keys["id2label"]}
    model.padded_call = PaddedCall(architecture, Config(description.family.model_type, values))
    return model


def save(
    model: Model, folder: str | Path, *, tokenizer: Tokenizer | PreTrainedTokenizer | None = None
) -> None:
    """Write a folder that Transformers can load.

    Args:
        model: a model.
        folder: folder to write, created if necessary; files of the same names are replaced.
        tokenizer: tokenizer to save with the model, if any.

    Raises:
        InputError: the arguments are not a model, a folder and a tokenizer.
    """
    if not isinstance(model, Model):
        raise InputError("save needs a model of OwnBERT, not a {kind}", type(model).__name__)
    if not isinstance(tokenizer, Tokenizer | PreTrainedTokenizer | None):
        raise InputError(
            "save needs a tokenizer of OwnBERT, not a {kind}", type(tokenizer).__name__
        )
    if isinstance(tokenizer, PreTrainedTokenizer):
        tokenizer = tokenizer.current()
    if model.padded_call is None:
        save_packed(model, folder, tokenizer=tokenizer)
    else:
        model.padded_call.save(model, folder, tokenizer)


def named(name: str) -> ModelName | ConfigName | None:
    """The model or config with a name of Transformers; None if there is none."""
    for family in all_families().values():
        if name in family.architectures:
            return ModelName(family, name)
        if name == ConfigName(family).__name__:
            return ConfigName(family)
    return None


def _start(family: Family) -> str:
    """The prefix of the class names of a family: Bert for bert, T5 for t5."""
    return re.sub("((Encoder)?Model|For.*)$", "", next(iter(family.architectures)))


def _read(
    family: Family, name: str, folder: Any, changes: Mapping[str, Any]
) -> tuple[Path, dict[str, Any], dict[str, Any]]:
    """A model folder, and the values of its config.json with and without changes."""
    path = pretrained_folder(folder, changes)
    changes = {k: v for k, v in changes.items() if k not in (*HUB_OPTIONS, "subfolder")}
    stored = dict(read_config(path / CONFIG))
    values = dict(stored)
    kind = str(values.get("model_type")).removeprefix(OWN)
    if kind != family.model_type:
        message = "{path} contains a {kind} model; {name} reads {model_type}"
        raise InputError(message, path, kind, name, family.model_type)
    count, names = changes.get("num_labels"), changes.get("id2label")
    if names is None and count == len(values.get("id2label") or ()):  # labels keep their names
        changes.pop("num_labels", None)
    elif names is not None or count is not None:
        for key in _LABELS:
            values.pop(key, None)
    known = {*values, *_known(family)}
    refuse(f"{name}.from_pretrained", changes.keys() - known, known)
    return path, values | _named(changes, family), stored


def _known(family: Family) -> set[str]:
    """The keys of a config of a family."""
    own = (family.defaults, family.required, family.names)
    return {key for keys in (*own, FURTHER_KEYS, Config.COMMON, _LABELS, _UNUSED) for key in keys}


def _named(values: Mapping[str, Any], family: Family) -> dict[str, Any]:
    """Values of a config by their keys in the family, with labels numbered as in a config.json."""
    for key in values.keys() & _CHECKS.keys():
        _CHECKS[key](key, values[key])
    found = {family.names.get(key, key): value for key, value in values.items()}
    count, labels, numbers = (found.pop(key, None) for key in _LABELS)
    if labels is None and numbers is not None:
        pairs = numbers.items() if isinstance(numbers, Mapping) else ()
        labels = {number: label for label, number in pairs} or numbers
    if count is not None and labels is not None and len(labels) != count:
        raise InputError(
            "num_labels is {count}, but id2label has {count2} labels", count, len(labels)
        )
    if labels is None and count is not None:
        labels = {i: f"LABEL_{i}" for i in range(count)}
    if labels is not None:
        if not isinstance(labels, Mapping) or {*map(str, labels)} != {
            *map(str, range(len(labels)))
        }:
            raise InputError(
                "id2label is {labels!r}; it must name the labels: {{0: ..., 1: ...}}", labels
            )
        found["id2label"] = {str(number): str(label) for number, label in labels.items()}
        found["label2id"] = {label: i for i, label in enumerate(label_names(found))}
        if len(found["label2id"]) < len(labels) or (numbers and numbers != found["label2id"]):
            raise InputError("id2label names a label twice, or label2id does not match it")
    return found


def parse_dtype(value: Any) -> torch.dtype:
    """Parse a floating point dtype or its name ("bfloat16")."""
    dtype = getattr(torch, value.removeprefix("torch."), None) if isinstance(value, str) else value
    if not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise InputError(
            "dtype {value!r} is not known; use one of float32, bfloat16, float16", value
        )
    return dtype
