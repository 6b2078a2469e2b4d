"""Folders of encoder-decoder models, in Transformers' formats of Marian and T5."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ownbert.checkpoint.copying import copy_weights, named_tensors, require_blocks, require_fit
from ownbert.checkpoint.model_files import read_config
from ownbert.checkpoint.weights import CONFIG, read_weights, write_model
from ownbert.config.encoder import EncoderConfig
from ownbert.config.head_spec import HeadSpec
from ownbert.config.variants import SecondReading
from ownbert.exceptions import InputError
from ownbert.families import ENCODER_DECODERS, FAMILIES
from ownbert.families.mapping.encoder_decoder import EncoderDecoder
from ownbert.families.mapping.family import OWN
from ownbert.families.mapping.weight_map import WeightMap
from ownbert.hub import model_folder
from ownbert.nn.model import Model
from ownbert.nn.undrawn import shapes_alone
from ownbert.text.tokenizer import Tokenizer

# Classes of earlier versions of Transformers.
_OLD_NAMES = ("T5WithLMHeadModel",)


def save_translation(
    model: Model,
    folder: str | Path,
    *,
    values: Mapping[str, Any] = {},
    tokenizer: Tokenizer | None = None,
) -> None:
    """Write config.json, model.safetensors, and the tokenizer's files if given.

    Raises:
        InputError: the format cannot express the structure.
    """
    assert model.decoder is not None
    kind = ENCODER_DECODERS[model.model_type]
    encoder, decoder, shared = model.config, model.decoder.config, head_is_shared(model)
    config = {**values, **kind.write_config(encoder, decoder, shared=shared)}
    head = next(iter(model.specs), None)
    if head != "generator":  # nothing to tie
        config["tie_word_embeddings"] = values.get("tie_word_embeddings", True)
    for kind_of_head, spec in model.specs.items():
        if (key := kind.dropouts.get(kind_of_head)) is not None:
            rate = encoder.hidden_dropout_prob if spec.dropout is None else spec.dropout
            config[key] = rate
    if model.second_reading is not None:
        config["decoder_start_token_id"] = model.second_reading.start_id
        config["eos_token_id"] = model.second_reading.end_id
    if model.labels:
        config["id2label"] = {str(i): label for i, label in enumerate(model.labels)}
        config["label2id"] = {label: i for i, label in enumerate(model.labels)}
    config["architectures"] = [kind.architecture_of(head)]
    write_model(Path(folder), config, named_tensors(model, map_of(model)), tokenizer=tokenizer)


def head_is_shared(model: Model) -> bool:
    """Whether the head's matrix is the word table of both stacks."""
    generator = model.specs.get("generator")
    return model.share_embeddings and (generator is None or generator.tied)


def map_of(model: Model) -> WeightMap:
    """The weight map of an encoder-decoder model."""
    assert model.decoder is not None
    return ENCODER_DECODERS[model.model_type].weight_map(
        model.config,
        model.decoder.config,
        shared=head_is_shared(model),
        head=next(iter(model.specs), None),
    )


def new_translation(
    kind: EncoderDecoder | str,
    encoder: EncoderConfig,
    decoder: EncoderConfig,
    *,
    shared: bool,
    heads: Sequence[HeadSpec] | None = None,
    labels: Sequence[str] = (),
    second_reading: SecondReading | None = None,
) -> Model:
    """Create a randomly initialised model.

    Args:
        kind: kind of model, which determines the saved format, or its model_type.
        shared: whether the head shares the word table.
        heads: heads; by default the one for generation.
        second_reading: for a decoder that reads the encoder's input again.
    """
    kind = ENCODER_DECODERS[kind] if isinstance(kind, str) else kind
    return Model(
        encoder,
        kind.specs(kind.generating, {}, shared=shared) if heads is None else heads,
        pooler=False,
        labels=labels,
        decoder=decoder,
        second_reading=second_reading,
        share_embeddings=shared or kind.one_table,
        model_type=kind.model_type,
    )


def kind_of(values: Mapping[str, Any]) -> EncoderDecoder | None:
    """The kind of encoder-decoder model in a config.json; None for other models."""
    kind = ENCODER_DECODERS.get(str(values.get("model_type")).removeprefix(OWN))
    if kind is None or kind.model_type not in FAMILIES:
        return kind
    (named, *_) = values.get("architectures") or [None]
    return kind if named in (*kind.architectures, *_OLD_NAMES) else None


def is_translation(folder: Path) -> bool:
    """Whether ``load_translation`` supports a folder: it has two stacks, and the generation
    head."""
    if not (folder / CONFIG).exists():
        return False
    values = read_config(folder / CONFIG)
    kind = kind_of(values)
    return kind is not None and _other_class(kind, values) is None


def _other_class(kind: EncoderDecoder, values: Mapping[str, Any]) -> str | None:
    """The class named in a config.json, if it lacks the generation head."""
    (named, *_) = values.get("architectures") or [None]
    return named if named in kind.architectures and named != kind.generating else None


def load_translation(folder: str | Path) -> tuple[Model, Mapping[str, Any]]:
    """Load the model of such a folder, in evaluation mode, and its config.json.

    Raises:
        InputError: the folder has another kind of model, a tensor is missing, unexpected or of the
            wrong shape, or the config has an unsupported value.
    """
    folder = model_folder(folder)
    path = folder / CONFIG
    values = read_config(path)
    kind = kind_of(values)
    if kind is None:
        raise InputError(
            f"{folder} contains a {values.get('model_type')} model; an encoder-decoder (marian, "
            "t5) is needed: make one with ownbert translate train"
        )
    if other := _other_class(kind, values):
        raise InputError(f"{folder} contains a {other}; a {kind.generating} is needed")
    try:
        encoder, decoder, shared = kind.read_config(values)
    except (InputError, TypeError) as error:
        raise InputError(f"{path}: {error}") from None
    tensors, weights = read_weights(Path(folder))
    weight_map = kind.weight_map(encoder, decoder, shared=shared, head="generator")
    require_blocks(tensors, weight_map, weights, encoder, decoder)
    with shapes_alone():
        model = new_translation(kind, encoder, decoder, shared=shared)
    require_fit(copy_weights(model, tensors, weight_map, our_names=True), weights)
    return model.eval(), values
