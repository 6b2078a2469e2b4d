"""A family: the weight map, heads and config keys of a kind of checkpoint."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pkgutil import resolve_name
from typing import Any

from ownbert.checks import known
from ownbert.config import ACTIVATIONS
from ownbert.config.encoder import EncoderConfig
from ownbert.config.head_spec import MOST_LABELS, HeadSpec
from ownbert.config.variants import SecondReading
from ownbert.exceptions import InputError, in_short
from ownbert.families.mapping.weight_map import WeightMap

# Key for position types that Transformers does not have.
POSITIONS = "ownbert_position_embedding_type"
# Prefix of the model_type of models that Transformers cannot compute, so that it rejects them.
OWN = "ownbert-"
# OwnBERT's keys for fields that no family has a key for. Transformers cannot compute such models.
OWN_FIELDS = {"layer_gate": "ownbert_layer_gate", "attention_blur": "ownbert_attention_blur"}
# Kinds of the heads of a class.
Kinds = tuple[str, ...]
LAST = ("output_attentions", "output_hidden_states", "return_dict")
# Classes that accept an encoder's output although they are not decoders.
CROSSING: tuple[Kinds, ...] = ((), ("mlm",))
_LABELS: dict[Kinds, tuple[str, ...]] = {
    (): (),
    ("mlm", "nsp"): ("labels", "next_sentence_label"),
    ("mlm", "sop"): ("labels", "sentence_order_label"),
    ("span",): ("start_positions", "end_positions"),
}


def label_count(values: Mapping[str, Any]) -> int:
    """The number of labels in a ``config.json``; ``InputError`` if it is invalid."""
    count = len(values.get("id2label") or ()) or values.get("num_labels") or 2
    if type(count) is not int or not 1 <= count <= MOST_LABELS:
        raise InputError(
            "num_labels is {count}; it must be a whole number, at least 1 and at most "
            "{most_labels:,}",
            in_short(count),
            MOST_LABELS,
        )
    return count


def label_names(values: Mapping[str, Any]) -> tuple[str, ...]:
    """The labels in a ``config.json`` in order; Transformers' default names if there are none."""
    if not values.get("id2label"):
        return tuple(f"LABEL_{i}" for i in range(label_count(values)))
    labels = {str(index): str(label) for index, label in values["id2label"].items()}
    if labels.keys() != {str(i) for i in range(len(labels))}:
        raise InputError("id2label must name the labels 0, 1, 2, ...")
    return tuple(labels[str(i)] for i in range(len(labels)))


def label_keys(labels: Sequence[str]) -> dict[str, Any]:
    """The keys of a ``config.json`` for labels."""
    return {
        "id2label": {str(i): label for i, label in enumerate(labels)},
        "label2id": {label: i for i, label in enumerate(labels)},
    }


def activation_of(values: Mapping[str, Any], key: str) -> str:
    """The activation under a key of a ``config.json``; ``InputError`` if it is unknown."""
    name = values.get(key) or "linear"
    known(*ACTIVATIONS)(key, name)
    return name


def require_expressed(
    model_type: str, stacks: Sequence[EncoderConfig], again: Sequence[EncoderConfig]
) -> None:
    """Check that an encoder, or two stacks, are the same ``again``, after writing and reading."""
    for old, new in zip(stacks, again, strict=True):
        for f in fields(EncoderConfig):
            if getattr(old, f.name) != getattr(new, f.name):
                message = "{model_type} has no key for {name} {getattr}"
                raise InputError(message, model_type, f.name, getattr(old, f.name))


@dataclass(frozen=True)
class ArchitectureSpec:
    """The parts that a class of Transformers adds to the encoder. A class with heads has a pooler
    if one of them needs it; a ``decoder`` generates text."""

    heads: tuple[HeadSpec, ...] = ()
    pooler: bool = True
    decoder: bool = False

    def __post_init__(self) -> None:
        if self.heads:
            object.__setattr__(self, "pooler", any(head.needs_pooler for head in self.heads))

    @property
    def kinds(self) -> tuple[str, ...]:
        return tuple(head.kind for head in self.heads)


# Endings of the names of classes with one head, by its kind.
_CLASS_OF = {
    "mlm": "ForMaskedLM",
    "nsp": "ForNextSentencePrediction",
    "classification": "ForSequenceClassification",
    "choice": "ForMultipleChoice",
    "tokens": "ForTokenClassification",
    "span": "ForQuestionAnswering",
}


def architectures(name: str, *heads: HeadSpec, pooler: bool = True) -> dict[str, ArchitectureSpec]:
    """The base class of a family, which may have a pooler, and its classes with one head."""
    classes = {f"{name}{_CLASS_OF[head.kind]}": ArchitectureSpec((head,)) for head in heads}
    return {f"{name}Model": ArchitectureSpec(pooler=pooler), **classes}


def encoder_arguments(
    kinds: Kinds,
    decoder: bool,
    *,
    inputs: Sequence[str] = ("token_type_ids", "position_ids", "head_mask", "inputs_embeds"),
    crossing: Collection[Kinds] = (),
) -> Sequence[str]:
    """The arguments of the forward pass of a class, in most families: ``inputs`` besides the ids
    and their mask; ``crossing`` are classes that accept an encoder's output, besides decoders."""
    names = ["input_ids", "attention_mask", *inputs]
    if decoder or kinds in crossing:
        names += ["encoder_hidden_states", "encoder_attention_mask"]
    names += labels_of(kinds)
    if decoder or (crossing and not kinds):
        names += ["past_key_values", "use_cache"]
    return [*names, *LAST]


@dataclass(frozen=True)
class Calls:
    """Arguments and outputs of the classes of a family.

    Args:
        arguments: function from the kinds of the heads of a class, and whether it generates text,
            to the arguments of its forward pass.
        unsupported: arguments that only Transformers supports.
        loss_by_shape: whether the shape of the labels determines the classification loss.
        normed_states: whether the last of the hidden states is after the final norm.
        memory: whether Transformers returns hidden states of earlier tokens (XLNet).
    """

    arguments: Callable[[Kinds, bool], Sequence[str]] = encoder_arguments
    unsupported: tuple[str, ...] = ()
    loss_by_shape: bool = False
    normed_states: bool = False
    memory: bool = False


@dataclass(frozen=True)
class Family:
    """A kind of checkpoint.

    Args:
        model_type: value in its ``config.json``.
        weight_map: mapping between the tensors of its checkpoints and OwnBERT's.
        architectures: Transformers' classes by name.
        defaults: keys of the ``config.json`` with their defaults.
        names: keys by field of ``EncoderConfig``, if they differ.
        fixed: fields of ``EncoderConfig`` without a key, with their only values.
        reads: function from the values of a ``config.json`` to further fields.
        writes: function from an ``EncoderConfig`` to further values of a ``config.json``.
        required: keys that affect the result, with the supported values.
        dropouts: keys of the dropout rates of heads, by kind.
        activations: keys of the activations of the dense layers of heads, by kind.
        labelled: further kinds of heads whose width is the number of labels.
        with_decoder: Transformers' classes with a decoder; only their encoder is read.
        own_heads: heads that no class of Transformers has on this encoder.
        reads_head: function that applies further values of a ``config.json`` to a head.
        writes_head: function from a head to further values of a ``config.json``.
        calls: arguments and outputs of its classes in Transformers.
    """

    model_type: str
    weight_map: WeightMap
    architectures: Mapping[str, ArchitectureSpec]
    defaults: Mapping[str, Any]
    names: Mapping[str, str] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    reads: Callable[[Mapping[str, Any]], dict[str, Any]] = lambda values: {}
    writes: Callable[[EncoderConfig], dict[str, Any]] = lambda config: {}
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
        """Read the structure of an encoder."""
        if "vocab_size" in self.defaults and "vocab_size" not in theirs:
            raise InputError("vocab_size is missing")
        values = {**self.defaults, **theirs}
        for key, allowed in self.required.items():
            if key in values and values[key] not in allowed:
                names = " or ".join(map(repr, allowed))
                raise InputError(
                    "{key} is {values}; it must be {names}", key, in_short(values[key]), names
                )
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
        """The values of a ``config.json`` for an encoder, including model_type."""
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
                raise InputError("{model_type} needs {key}", self.model_type, key)
        kind = config.position_embedding_type
        if self.fixed.get("position_embedding_type") is None:
            if config.positions.own or config.positions.waves == "interleaved":
                theirs["position_embedding_type"] = "absolute"
                theirs[POSITIONS] = kind
            if config.positions.own:
                theirs["model_type"] = OWN + self.model_type
        for name, key in OWN_FIELDS.items():
            if (value := getattr(config, name)) is not None:
                theirs |= {key: value, "model_type": OWN + self.model_type}
        require_expressed(self.model_type, [config], [self.read_config(theirs)])
        return theirs

    def require_pruning(self) -> None:
        """Raise ``InputError`` if the format has no key for pruned heads."""
        if "pruned_heads" not in self.defaults:
            message = "{model_type} cannot be pruned: its format has no key for the heads"
            raise InputError(message, self.model_type)

    def specs(self, architecture: str, values: Mapping[str, Any]) -> tuple[HeadSpec, ...]:
        """The heads of an architecture with the options in a ``config.json``; see ``adapted``."""
        return tuple(self.adapted(spec, values) for spec in self.architectures[architecture].heads)

    def spec_of(self, kind: str, values: Mapping[str, Any]) -> HeadSpec:
        """The head of a kind as in this family, else as in BERT; see ``adapted``."""
        heads = [head for spec in self.architectures.values() for head in spec.heads]
        heads += self.own_heads
        default_spec = next((head for head in heads if head.kind == kind), HeadSpec(kind))
        return self.adapted(default_spec, values)

    def adapted(self, spec: HeadSpec, values: Mapping[str, Any]) -> HeadSpec:
        """A head with its options in a ``config.json``, such as dropout rate and activation."""
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


def labels_of(kinds: Kinds) -> tuple[str, ...]:
    """The arguments of a class that are labels."""
    return _LABELS.get(kinds, ("labels",))


Stacks = tuple[EncoderConfig, EncoderConfig, bool]
# The code for folders whose decoder generates text. Other parts of OwnBERT find it here, by name,
# and import nothing of it.
GENERATION = {
    "load": "ownbert.translation.translation_folder:load_translation",
    "translate": "ownbert.translation.decode:Translator",
    "explain": "ownbert.translation.explained_translations:ExplainedTranslator",
}


@dataclass(frozen=True)
class EncoderDecoder:
    """A kind of checkpoint with an encoder and a decoder.

    Args:
        model_type: value in its ``config.json``.
        architectures: Transformers' classes by name; the first one generates text. The decoder of a
            class with another head reads the encoder's input again.
        read_config: function from a ``config.json`` to the encoder, the decoder, and whether the
            generator shares the word embeddings.
        write_config: function from (encoder, decoder, shared=) to the keys of a ``config.json``.
        weight_map: function from these and ``head=``, its kind, to the weight map.
        one_table: whether encoder and decoder share the word embeddings even if the generator does
            not.
        defaults: keys of the ``config.json`` with their defaults.
        names: keys that are also known by a name of ``EncoderConfig``.
        dropouts: keys of the dropout rates of heads, by kind.
        generation: functions and classes for folders of the generating class, see ``door``.
    """

    model_type: str
    architectures: Mapping[str, ArchitectureSpec]
    read_config: Callable[[Mapping[str, Any]], Stacks]
    write_config: Callable[..., dict[str, Any]]
    weight_map: Callable[..., WeightMap]
    one_table: bool = False
    defaults: Mapping[str, Any] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    dropouts: Mapping[str, str] = field(default_factory=dict)
    generation: Mapping[str, str] = field(default_factory=lambda: GENERATION)

    def door(self, name: str) -> Any:
        """The function or class in ``generation`` that loads, translates or explains."""
        return resolve_name(self.generation[name])

    @property
    def generating(self) -> str:
        """The class that generates text."""
        return next(iter(self.architectures))

    @property
    def answering(self) -> tuple[str, ...]:
        """The classes whose decoder reads the encoder's input again."""
        own = (name for name, spec in self.architectures.items() if spec.heads)
        return tuple(name for name in own if name != self.generating)

    def specs(
        self, architecture: str, values: Mapping[str, Any], *, shared: bool = True
    ) -> tuple[HeadSpec, ...]:
        """The heads of a class: one, or none."""
        values, found = {**self.defaults, **values}, []
        for spec in self.architectures[architecture].heads:
            if spec.kind in self.dropouts:
                spec = replace(spec, dropout=values[self.dropouts[spec.kind]])
            if spec.kind == "generator" and not shared:
                spec = replace(spec, tied=False, scaled=False)
            found.append(spec)
        return tuple(found)

    def second_reading(self, values: Mapping[str, Any]) -> SecondReading:
        """How the decoder of a class in ``answering`` reads the encoder's input."""
        values = {**self.defaults, **values}
        start, end = values.get("decoder_start_token_id"), values["eos_token_id"]
        start = values["pad_token_id"] if start is None else start
        for name, token in (("decoder_start_token_id", start), ("eos_token_id", end)):
            if not isinstance(token, int) or token not in range(values["vocab_size"]):
                message = "{name} is {token}; one token of the vocabulary is needed"
                raise InputError(message, name, in_short(token))
        return SecondReading(start, end)

    def architecture_of(self, head: str | None) -> str:
        """The class with a kind of head; None: without one."""
        kinds = () if head is None else (head,)
        names = (name for name, spec in self.architectures.items() if spec.kinds == kinds)
        return next(names, self.generating)

    def other_class(self, values: Mapping[str, Any]) -> str | None:
        """The class that a config.json names, if it does not generate text."""
        (named, *_) = values.get("architectures") or [None]
        return named if named in self.architectures and named != self.generating else None
