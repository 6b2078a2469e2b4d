"""A family: weight map, heads and config keys of one kind of checkpoint."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from ownbert.checks import known
from ownbert.config.encoder import EncoderConfig
from ownbert.config.fields import ACTIVATIONS
from ownbert.config.heads import MOST_LABELS, HeadSpec
from ownbert.errors import InputError, in_short
from ownbert.families.mapping.calls import Calls
from ownbert.families.mapping.weight_map import WeightMap

# A position kind that Transformers does not know is kept under this key.
POSITIONS = "ownbert_position_embedding_type"
# A prefix of model_type: Transformers refuses these models, which it cannot compute.
OWN = "ownbert-"
_OWN_POSITIONS = ("rotary", "alibi", "relative_buckets")
# Fields that no family has a key for, and ours. A model with one of them is not in Transformers.
OWN_FIELDS = {"layer_gate": "ownbert_layer_gate", "attention_blur": "ownbert_attention_blur"}


def label_count(values: Mapping[str, Any]) -> int:
    """The number of labels in a ``config.json``; ``InputError`` if it is none."""
    return require_label_count(len(values.get("id2label") or ()) or values.get("num_labels") or 2)


def require_label_count(count: Any) -> int:
    """A number of labels as it is; ``InputError`` if it cannot be one."""
    if type(count) is not int or not 1 <= count <= MOST_LABELS:
        raise InputError(
            f"num_labels is {in_short(count)}; it must be a whole number, at least 1 and at most "
            f"{MOST_LABELS:,}"
        )
    return count


def activation_of(values: Mapping[str, Any], key: str) -> str:
    """The activation under a key of a ``config.json``; ``InputError`` if it is not known."""
    name = values.get(key) or "linear"
    known(*ACTIVATIONS)(key, name)
    return name


@dataclass(frozen=True)
class ArchitectureSpec:
    """What a class of Transformers adds to the encoder.

    Args:
        heads: its heads.
        pooler: whether there is one.
        decoder: whether the class generates text.
    """

    heads: tuple[HeadSpec, ...] = ()
    pooler: bool = True
    decoder: bool = False


@dataclass(frozen=True)
class Family:
    """A kind of checkpoint.

    Args:
        model_type: in its ``config.json``.
        weight_map: its tensors by our names and back.
        architectures: Transformers' classes by name.
        defaults: the keys of its ``config.json`` and their defaults.
        names: its keys for our fields where they differ.
        fixed: our fields that its format has no key for, and their only values.
        reads, writes: further fields of ours from its values, and its values from ours.
        follows: keys that have another key's value where they are not given.
        required: keys that change the result, with the values that are supported.
        dropouts: by kind of head, the key of its dropout rate.
        activations: by kind of head, the key of the activation of its dense layer.
        labelled: further heads whose width is the number of labels.
        with_decoder: Transformers' classes that have a decoder besides; their encoder can be read.
        own_heads: heads that no class of Transformers has on this encoder.
        reads_head, writes_head: a head with what further keys say of it, and these keys from a
            head.
        calls: how its classes in ``ownbert.hf`` are called.
    """

    model_type: str
    weight_map: WeightMap
    architectures: Mapping[str, ArchitectureSpec]
    defaults: Mapping[str, Any]
    names: Mapping[str, str] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    reads: Callable[[Mapping[str, Any]], dict[str, Any]] = lambda values: {}
    writes: Callable[[EncoderConfig], dict[str, Any]] = lambda config: {}
    follows: Mapping[str, str] = field(default_factory=dict)
    required: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    dropouts: Mapping[str, str] = field(default_factory=dict)
    activations: Mapping[str, str] = field(default_factory=dict)
    labelled: tuple[str, ...] = ()
    with_decoder: tuple[str, ...] = ()
    own_heads: tuple[HeadSpec, ...] = ()
    reads_head: Callable[[HeadSpec, Mapping[str, Any]], HeadSpec] = lambda spec, values: spec
    writes_head: Callable[[HeadSpec], dict[str, Any]] = lambda spec: {}
    calls: Calls = field(default_factory=Calls)

    def read_config(self, theirs: Mapping[str, Any]) -> EncoderConfig:
        """The structure in a ``config.json``.

        Raises:
            InputError: a value is not supported.
        """
        if "vocab_size" in self.defaults and "vocab_size" not in theirs:
            raise InputError("vocab_size is missing")
        values = {**self.defaults, **theirs}
        for key, allowed in self.required.items():
            if key in values and values[key] not in allowed:
                names = " or ".join(map(repr, allowed))
                raise InputError(f"{key} is {in_short(values[key])}; it must be {names}")
        ours = {}
        for f in fields(EncoderConfig):
            key = self.names.get(f.name, f.name)
            # Transformers ignores keys of other families.
            if key in self.defaults and values.get(key) is not None:
                ours[f.name] = values[key]
        ours |= self.fixed
        ours |= self.reads(values)
        if theirs.get(POSITIONS) is not None:
            ours["position_embedding_type"] = theirs[POSITIONS]
        ours |= {name: theirs.get(key) for name, key in OWN_FIELDS.items()}
        return EncoderConfig(**ours)

    def write_config(self, config: EncoderConfig) -> dict[str, Any]:
        """The keys of a ``config.json`` for this structure, with model_type.

        Raises:
            InputError: Transformers' format cannot express the structure.
        """
        theirs: dict[str, Any] = {"model_type": self.model_type}
        if config.pruned_heads:
            self.require_pruning()
        for name, value in asdict(config).items():
            key = self.names.get(name, name)
            if key in self.defaults and name not in self.fixed:
                theirs[key] = value
        theirs["pruned_heads"] = {str(i): list(h) for i, h in config.pruned_heads.items()}
        theirs |= self.writes(config)
        for key, value in theirs.items():
            if value is None and self.defaults[key] is not None:
                raise InputError(f"{self.model_type} needs {key}")
        kind = config.position_embedding_type
        if self.fixed.get("position_embedding_type") is None:
            if kind == "sinusoidal" or kind in _OWN_POSITIONS:
                theirs["position_embedding_type"] = "absolute"
                theirs[POSITIONS] = kind
            if kind in _OWN_POSITIONS:
                theirs["model_type"] = OWN + self.model_type
        for name, key in OWN_FIELDS.items():
            if (value := getattr(config, name)) is not None:
                theirs |= {key: value, "model_type": OWN + self.model_type}
        again = self.read_config(theirs)
        if again != config:
            name = next(n for n, v in asdict(config).items() if v != asdict(again)[n])
            raise InputError(f"{self.model_type} has no key for {name} {getattr(config, name)}")
        return theirs

    def require_pruning(self) -> None:
        """``InputError`` if the format has no key for heads that are gone."""
        if "pruned_heads" not in self.defaults:
            raise InputError(
                f"{self.model_type} cannot be pruned: its format has no key for the heads"
            )

    def specs(self, architecture: str, values: Mapping[str, Any]) -> tuple[HeadSpec, ...]:
        """The heads of an architecture, with a ``config.json``'s dropout rates and activations."""
        return tuple(self.adapted(spec, values) for spec in self.architectures[architecture].heads)

    def spec_of(self, kind: str, values: Mapping[str, Any]) -> HeadSpec:
        """The head of a kind as this family has it, else as BERT has it."""
        heads = [head for spec in self.architectures.values() for head in spec.heads]
        heads += self.own_heads
        found = next((head for head in heads if head.kind == kind), HeadSpec(kind))
        return self.adapted(found, values)

    def adapted(self, spec: HeadSpec, values: Mapping[str, Any]) -> HeadSpec:
        """The head with the dropout rate and activation of a ``config.json``."""
        values = {**self.defaults, **values}
        rate = values.get(self.dropouts.get(spec.kind, ""))
        if rate is not None:
            spec = replace(spec, dropout=rate)
        if spec.kind in self.activations:
            spec = replace(spec, dense=activation_of(values, self.activations[spec.kind]))
        if spec.kind in self.labelled:
            count = label_count(values)
            spec = replace(spec, output=None if count == 2 else count)
        return self.reads_head(spec, values)
