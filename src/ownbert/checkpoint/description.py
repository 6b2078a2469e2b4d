"""Converts the config.json of a model folder to a description of the model, and back."""

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ownbert.checkpoint.model_files import AGREEMENT_KEY, CONFIG, read_config, weights_checksums
from ownbert.config.encoder import EncoderConfig
from ownbert.config.head_spec import HeadSpec
from ownbert.config.variants import SecondReading
from ownbert.exceptions import InputError
from ownbert.families import ENCODER_DECODERS, encoder_decoder_of, family_of
from ownbert.families.mapping.family import EncoderDecoder, Family, label_keys, label_names
from ownbert.families.mapping.weight_map import WeightMap
from ownbert.files.json_files import read_json
from ownbert.files.writing import atomic_path
from ownbert.hub import model_folder
from ownbert.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from ownbert.nn.model import Model

# OwnBERT's own keys: heads that no architecture of Transformers has, and the pooler if it differs
# from the architecture's.
_HEADS = "ownbert_heads"
_POOLER = "ownbert_pooler"
# Tags of word features learnt in pretraining, by column.
FEATURES = "ownbert_features"


@dataclass(frozen=True)
class Description:
    """The contents of a config.json.

    Args:
        config: structure of the encoder.
        architecture: class in Transformers.
        values: all keys and values.
        decoder: structure of the decoder below the heads, if any.
        second_reading: how the decoder reads the text again.
    """

    config: EncoderConfig
    family: Family
    architecture: str
    specs: tuple[HeadSpec, ...]
    pooler: bool
    labels: tuple[str, ...]
    values: Mapping[str, Any]
    decoder: EncoderConfig | None = None
    second_reading: SecondReading | None = None
    folder: Path | None = None

    def __reduce__(self) -> Any:
        # A family contains functions, which cannot be pickled, so it is looked up by name.
        return _described, ({**vars(self), "family": self.family.model_type},)

    @property
    def weight_map(self) -> WeightMap:
        """The mapping between the tensor names of the folder and ours."""
        if self.decoder is None:
            return self.family.weight_map
        kind = ENCODER_DECODERS[self.family.model_type]
        (head,) = kind.specs(self.architecture, self.values)
        return kind.weight_map(self.config, self.decoder, shared=True, head=head.kind)

    @property
    def has_own_heads(self) -> bool:
        """Whether there are heads that Transformers does not have."""
        return _HEADS in self.values

    def spec_of(self, kind: str) -> HeadSpec:
        """The default head of a kind for such a model."""
        if self.decoder is None:
            return self.family.spec_of(kind, self.values)
        family = ENCODER_DECODERS[self.family.model_type]
        specs = (spec for name in family.answering for spec in family.specs(name, self.values))
        heads = {spec.kind: spec for spec in specs}
        if kind not in heads:
            message = (
                "the decoder of a {architecture} has a head for {heads}, not for {kind}; start "
                "from a model without a decoder"
            )
            raise InputError(message, self.architecture, " or ".join(heads), kind)
        return heads[kind]

    def require_own(self, head: HeadSpec) -> None:
        """Check that a head on the decoder is Transformers' default, which needs no extra keys."""
        standard = self.spec_of(head.kind)
        for f in fields(HeadSpec):
            default, other = getattr(standard, f.name), getattr(head, f.name)
            if f.name != "dropout" and default != other:
                message = (
                    "the decoder of a {architecture} has a head whose {name} is {default}, not "
                    "{value}"
                )
                raise InputError(message, self.architecture, f.name, default, other)


def _described(state: dict[str, Any]) -> Description:
    return Description(**{**state, "family": family_of(state["family"], "a pickle")})


def describe(
    folder: "str | Path | Description",
    *,
    values: Mapping[str, Any] | None = None,
    any_architecture: bool = False,
    with_decoder: bool = False,
) -> Description:
    """Read the description of a model folder from its config.json; a description is returned
    unchanged.

    Args:
        folder: model folder; if config.json names no architecture, it is the base model.
        values: values of config.json, if already read.
        any_architecture: whether an unknown architecture (a custom class) is the base model, too.
        with_decoder: whether models with heads on the decoder are supported.
    """
    if isinstance(folder, Description):
        return folder
    folder = model_folder(folder)
    path = folder / CONFIG
    description = describe_config(
        read_config(path) if values is None else values,
        path,
        any_architecture=any_architecture,
        with_decoder=with_decoder,
    )
    return replace(description, folder=folder)


def generator_in(folder: Path) -> EncoderDecoder | None:
    """The kind of model in a folder that generates text, such as translations; None for other
    folders."""
    if not (folder / CONFIG).exists():
        return None
    values = read_config(folder / CONFIG)
    kind = encoder_decoder_of(values)
    return None if kind is None or kind.other_class(values) else kind


def describe_config(
    values: Mapping[str, Any],
    path: str | Path,
    *,
    any_architecture: bool = False,
    with_decoder: bool = False,
) -> Description:
    """Like ``describe``, from the values of a config.json; ``path`` is used in messages."""
    family = family_of(values.get("model_type", ""), str(path))
    architecture = (values.get("architectures") or [next(iter(family.architectures))])[0]
    if architecture in family.with_decoder:  # only the encoder is read
        architecture = next(iter(family.architectures))
    kind = ENCODER_DECODERS.get(family.model_type)
    if kind is not None and architecture in kind.answering and not any_architecture:
        if not with_decoder:
            raise InputError(
                "{path}: a {architecture} predicts with its decoder, which is not supported "
                "here; use it with ownbert predict, evaluate, serve or finetune",
                path,
                architecture,
            )
        return _describe_answering(kind, values, path, architecture)
    if architecture not in family.architectures and any_architecture:
        architecture = next(iter(family.architectures))
    if architecture not in family.architectures:
        raise InputError(
            "{path}: architecture {architecture!r} is not supported; it must be one of {names}",
            *(path, architecture, list(family.architectures)),
        )
    try:
        labels = label_names(values)
        config = family.read_config(values)
        specs = family.specs(architecture, values)
        if values.get(_HEADS) is not None:
            specs = tuple(HeadSpec(**spec) for spec in values[_HEADS])
        if features := values.get(FEATURES):
            require_tables(features, "mlm", specs)
    except (InputError, TypeError, ValueError) as error:
        raise InputError("{path}: {error}", path, error) from None
    pooler = values.get(_POOLER, family.architectures[architecture].pooler)
    return Description(config, family, architecture, specs, pooler, labels, values)


def _describe_answering(
    kind: EncoderDecoder, values: Mapping[str, Any], path: str | Path, architecture: str
) -> Description:
    """The description of a model with heads on a decoder that reads the text again."""
    try:
        labels = label_names(values)
        encoder, decoder, shared = kind.read_config(values)
        second_reading = kind.second_reading(values)
    except (InputError, TypeError, ValueError) as error:
        raise InputError("{path}: {error}", path, error) from None
    specs = kind.specs(architecture, values, shared=shared)
    family = family_of(kind.model_type, str(path))
    return Description(
        encoder, family, architecture, specs, False, labels, values, decoder, second_reading
    )


def require_tables(
    features: Mapping[str, Sequence[str]], head: str, specs: Sequence[HeadSpec]
) -> None:
    """Check that the tables of word features in a head have a row for each tag."""
    tables = next((spec.features for spec in specs if spec.kind == head), None)
    if (tables or ()) != tuple(len(tags) + 1 for tags in features.values()):
        raise InputError("the tags of word features and the tables of the head do not agree")


def config_json(model: "Model", architecture: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """The config.json of a model; ``values`` are further keys, overridden by the model's own."""
    family = family_of(model.model_type, "the model")
    theirs = {**labels_json(model, family), **values, **_heads_json(model, family)}
    theirs |= {**family.write_config(model.config), "architectures": [architecture]}
    standard = {spec.kind: spec for spec in family.specs(architecture, theirs)}
    for key in (_HEADS, _POOLER):
        theirs.pop(key, None)
    if not any(spec.features for spec in model.specs.values()):
        theirs.pop(FEATURES, None)
    if _effective(standard, model.config) != _effective(model.specs, model.config):
        theirs[_HEADS] = [_changed(spec) for spec in model.specs.values()]
    if family.architectures[architecture].pooler != (model.pooler is not None):
        theirs[_POOLER] = model.pooler is not None
    return theirs


def architecture_of(model: "Model") -> str:
    """The architecture with most of the model's heads, and none that the model lacks.

    Text generation architectures are only chosen for decoders.
    """
    family, fitting = family_of(model.model_type, "the model"), []
    for number, (name, spec) in enumerate(family.architectures.items()):
        shared = kinds_of(model, name)
        if spec.decoder <= model.config.is_decoder and len(shared) == len(spec.heads):
            fitting.append((len(shared), spec.decoder, -number, name))
    return max(fitting)[-1]


def kinds_of(model: "Model", architecture: str) -> list[str]:
    """Kinds of the heads that an architecture has exactly as the model has them."""
    family = family_of(model.model_type, "the model")
    values = {**labels_json(model, family), **_heads_json(model, family)}
    theirs = {spec.kind: spec for spec in family.specs(architecture, values)}
    ours = _effective(model.specs, model.config)
    known = _effective(theirs, model.config)
    return [kind for kind, spec in known.items() if ours.get(kind) == spec]


def _effective(specs: Mapping[str, HeadSpec], config: EncoderConfig) -> dict[str, HeadSpec]:
    """Heads normalised to what affects the result: without dropout, with defaults filled in."""
    return {kind: _plain(spec, config) for kind, spec in specs.items()}


def _plain(spec: HeadSpec, config: EncoderConfig) -> HeadSpec:
    acts = spec.kind in ("mlm", "discriminator")
    pools = spec.kind in ("classification", "choice")
    dense = spec.dense if pools or spec.kind in ("tokens", "span") else None
    return HeadSpec(
        spec.kind,
        pooling=spec.pooling if pools else "pooler",
        dense=dense,
        activation=(spec.activation or config.hidden_act) if acts and spec.transform else None,
        output=spec.output,
        segments=spec.segments if pools else None,
        crf=spec.crf,
        ngrams=spec.ngrams if pools else None,
        dense_bias=spec.dense_bias or not (dense or acts),
        dense_norm=spec.dense_norm and dense is not None,
        output_bias=spec.output_bias or spec.kind != "mlm",
        features=spec.features,
        feature_size=spec.feature_size if spec.features else HeadSpec.feature_size,
        transform=spec.transform or spec.kind != "mlm",
    )


def _changed(spec: HeadSpec) -> dict[str, Any]:
    """The fields of a head that differ from their defaults."""
    defaults = {f.name: f.default for f in fields(HeadSpec)}
    return {name: value for name, value in asdict(spec).items() if value != defaults[name]}


def labels_json(model: "Model", family: Family) -> dict[str, Any]:
    """The labels; without any, default labels for a head whose width depends on them."""
    widths = [s.output for s in model.specs.values() if s.kind in family.labelled and s.output]
    labels = model.labels or [f"LABEL_{i}" for i in range(max(widths, default=0))]
    if not labels:
        return {}
    values = label_keys(labels)
    if "classification" in model.specs:
        values["problem_type"] = "single_label_classification"
    return values


def _heads_json(model: "Model", family: Family) -> dict[str, Any]:
    """Dropout rates and activations of the heads."""
    values: dict[str, Any] = {}
    for kind, spec in model.specs.items():
        key = family.dropouts.get(kind)
        if key is not None:
            rate = spec.dropout
            if rate is None and family.defaults.get(key) is not None:
                # The encoder's rate, which the family's default would override.
                rate = 0.0 if kind == "span" else model.config.hidden_dropout_prob
            values[key] = rate
        if kind in family.activations:
            values[family.activations[kind]] = None if spec.dense == "linear" else spec.dense
        values |= family.writes_head(spec)
    return values


ANSWERS, VECTORS = "answers", "vectors"


def record_agreement(folder: Path, what: str) -> None:
    """Record in the config.json of a finished folder that bfloat16 may be used: ``ANSWERS`` or
    ``VECTORS`` agree with float32."""
    value = {"bfloat16": what, "weights": weights_checksums(folder)}
    values = {**read_json(folder / CONFIG), AGREEMENT_KEY: value}
    with atomic_path(folder / CONFIG) as path:
        path.write_bytes(json.dumps(values, ensure_ascii=False, indent=2).encode())


def claims(values: Mapping[str, Any], what: Collection[str] = (ANSWERS, VECTORS)) -> bool:
    """Whether a config.json records agreement of one of ``what``, possibly for other weights."""
    return (values.get(AGREEMENT_KEY) or {}).get("bfloat16") in what


def agrees(description: Description, what: Collection[str] = (ANSWERS, VECTORS)) -> bool:
    """Whether a model folder records agreement of one of ``what`` for its own weights."""
    if not claims(description.values, what):
        return False
    assert description.folder is not None
    return description.values[AGREEMENT_KEY]["weights"] == weights_checksums(description.folder)


# Key in config.json for detecting a replaced tokenizer: the number of tokens and their hash. Tokens
# may be appended later.
VOCABULARY = "ownbert_vocabulary"


def load_tokenizer(
    folder: str | Path | Description, *, config: EncoderConfig | None = None
) -> Tokenizer:
    """Load the tokenizer of a model folder.

    Args:
        folder: model folder, or its description, to avoid reading config.json again.
        config: configuration of the model; by default the description's.

    Raises:
        InputError: it has more tokens than ``config``, or is not the one that was saved.
    """
    values: Mapping[str, Any] = {}
    if isinstance(folder, Description):
        assert folder.folder is not None
        values, config, folder = folder.values, config or folder.config, folder.folder
    elif ((folder := model_folder(folder)) / CONFIG).exists():
        values = read_config(folder / CONFIG)
    tokenizer = Tokenizer.load(folder, values)
    if config is not None and tokenizer.vocab_size > config.vocab_size:
        message = (
            "{folder}: the tokenizer has {vocab_size} tokens, but the model only "
            "{config_vocab_size}; they do not belong together"
        )
        raise InputError(message, folder, tokenizer.vocab_size, config.vocab_size)
    saved = values.get(VOCABULARY)
    if isinstance(saved, str):
        # The number before the hash; folders of version 0.1 only have the hash.
        count, sign, _ = saved.partition(":")
        if saved != _fingerprint(tokenizer, int(count) if sign and count.isdecimal() else None):
            raise InputError(
                "{folder}: the vocabulary is not the one that the model was trained with; put the "
                "original tokenizer files back",
                folder,
            )
    return tokenizer


def vocabulary_fingerprint(tokenizer: Tokenizer) -> str:
    """The number of tokens, and a hash of the tokens in the order of their ids."""
    return _fingerprint(tokenizer, tokenizer.vocab_size)


def _fingerprint(tokenizer: Tokenizer, count: int | None) -> str:
    size = tokenizer.vocab_size if count is None else min(count, tokenizer.vocab_size)
    tokens = "\n".join(tokenizer.tokens(range(size)))
    digest = hashlib.sha256(tokens.encode()).hexdigest()[:32]
    return digest if count is None else f"{size}:{digest}"
