"""Loads and saves model folders."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ownbert.checkpoint.copying import (
    LoadReport,
    copy_weights,
    named_tensors,
    require_blocks,
    require_fit,
)
from ownbert.checkpoint.description import (
    VOCABULARY,
    Description,
    architecture_of,
    config_json,
    describe,
    kinds_of,
    labels_json,
    vocabulary_fingerprint,
)
from ownbert.checkpoint.model_files import is_quantized
from ownbert.checkpoint.weights import quantize_model, read_quantized, read_weights, write_model
from ownbert.config.encoder import EncoderConfig
from ownbert.config.head_spec import HeadSpec
from ownbert.config.variants import SecondReading
from ownbert.families import ENCODER_DECODERS, family_of
from ownbert.families.mapping.family import EncoderDecoder, label_keys
from ownbert.nn.model import Model
from ownbert.nn.undrawn import shapes_alone
from ownbert.text.tokenizer import Tokenizer


def save(
    model: Model,
    folder: str | Path,
    *,
    tokenizer: Tokenizer | None = None,
    architecture: str | None = None,
    values: Mapping[str, Any] | None = None,
) -> None:
    """Write a model folder that Transformers can load: config.json and model.safetensors.

    Heads that Transformers does not support are stored under our own names, beside an encoder that
    it can load. If writing fails, old files are unchanged.

    Args:
        model: a packed encoder or decoder, or both.
        folder: folder to write, created if necessary.
        tokenizer: tokenizer to save, if any.
        architecture: class in Transformers; by default the one with the model's heads.
        values: further keys of config.json.

    Raises:
        InputError: the folder cannot be written, or the family's format cannot express the model.
    """
    if model.decoder is not None:
        known = dict(values or {})
        if model.second_reading is not None:
            known = labels_json(model, family_of(model.model_type, "the model")) | known
            if tokenizer is not None:
                known[VOCABULARY] = vocabulary_fingerprint(tokenizer)
        weight_map = ENCODER_DECODERS[model.model_type].weight_map(
            model.config,
            model.decoder.config,
            shared=_shares_table(model),
            head=next(iter(model.specs), None),
        )
        tensors = named_tensors(model, weight_map)
        config = _encoder_decoder_json(model, known)
        write_model(Path(folder), config, tensors, tokenizer=tokenizer)
        return
    family = family_of(model.model_type, "the model")
    name = architecture or architecture_of(model)
    config = config_json(model, name, values or {})
    if tokenizer is not None:
        config[VOCABULARY] = vocabulary_fingerprint(tokenizer)
    kinds = kinds_of(model, name)
    bare = not family.architectures[name].heads
    tensors = named_tensors(model, family.weight_map, bare=bare, kinds=kinds)
    write_model(Path(folder), config, tensors, tokenizer=tokenizer)


def load(
    folder: str | Path | Description,
    *,
    heads: Sequence[str | HeadSpec] | None = None,
    pooler: bool | None = None,
    labels: Sequence[str] = (),
    dropout: float | None = None,
    new_heads: Collection[str] = (),
) -> Model:
    """Load the packed model of a Hugging Face folder, in evaluation mode.

    A quantized folder gives a model with ``QuantizedLinear`` in its blocks, which cannot be
    trained.

    Args:
        folder: folder with config.json and weights, or its description; required for a model with
            heads on the decoder (``with_decoder``).
        heads: heads instead of the folder's. Heads (and a pooler) that it lacks are newly
            initialised; its other heads are left out.
        pooler: whether there is a pooler; by default as the folder or the heads require.
        labels, dropout: names of the classes, and dropout rate of all layers, instead of the
            folder's.
        new_heads: kinds of ``heads`` that are newly initialised even if the folder has them.

    Raises:
        InputError: a file is missing, a tensor is missing, unexpected or of the wrong shape, or the
        config has an unsupported value.
    """
    return load_with_report(
        folder, heads=heads, pooler=pooler, labels=labels, dropout=dropout, new_heads=new_heads
    )[0]


def load_with_report(
    folder: str | Path | Description,
    *,
    heads: Sequence[str | HeadSpec] | None = None,
    pooler: bool | None = None,
    labels: Sequence[str] = (),
    dropout: float | None = None,
    new_heads: Collection[str] = (),
) -> tuple[Model, LoadReport]:
    """Like ``load``, and the tensors that were newly initialised or left out."""
    description = describe(folder)
    assert description.folder is not None
    specs = None
    if heads is not None:
        specs = [description.spec_of(head) if isinstance(head, str) else head for head in heads]
    smooth = None
    if is_quantized(description.values):
        tensors, smooth, path = read_quantized(description.folder)
    else:
        tensors, path = read_weights(description.folder)
    require_blocks(tensors, description.weight_map, path, description.config, description.decoder)
    other = heads is not None or pooler is not None
    if pooler is None and not heads:  # as in the folder, or in the class without heads
        base = next(iter(description.family.architectures.values()))
        pooler = description.pooler if heads is None else base.pooler
    with shapes_alone():
        model = new_model(description, specs, pooler=pooler, labels=labels, dropout=dropout)
    report = copy_weights(
        model,
        tensors,
        description.weight_map,
        description=description,
        lenient=other,
        new_heads=new_heads,
    )
    require_fit(report, path, None if other or description.decoder is not None else description)
    if smooth is not None:
        quantize_model(model, smooth, path)
    return model.eval(), report


def new_model(
    description: Description,
    heads: Sequence[HeadSpec] | None = None,
    *,
    pooler: bool | None = None,
    labels: Sequence[str] = (),
    dropout: float | None = None,
) -> Model:
    """Create a randomly initialised model with the structure of a folder; see ``load``. There is a
    pooler by default if the heads need it."""
    config, decoder = description.config, description.decoder
    specs = description.specs if heads is None else heads
    if dropout is not None:
        rates: Any = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), dropout)
        if config.activation_dropout:  # most formats have no key for it
            rates["activation_dropout"] = dropout
        config, decoder = replace(config, **rates), decoder and replace(decoder, **rates)
        specs = [replace(s, dropout=None, dense_dropout=s.dense_dropout and dropout) for s in specs]
    labels = labels or description.labels
    if decoder is None:
        family = description.family.model_type
        return Model(config, specs, pooler=pooler, labels=labels, model_type=family)
    for spec in specs:
        description.require_own(spec)
    return new_encoder_decoder(
        description.family.model_type,
        config,
        decoder,
        shared=True,
        heads=specs,
        labels=labels,
        second_reading=description.second_reading,
    )


def new_encoder_decoder(
    kind: EncoderDecoder | str,
    encoder: EncoderConfig,
    decoder: EncoderConfig,
    *,
    shared: bool,
    heads: Sequence[HeadSpec] | None = None,
    labels: Sequence[str] = (),
    second_reading: SecondReading | None = None,
) -> Model:
    """Create a randomly initialised model of a kind (or its model_type), which determines the saved
    format; by default with the head for generation. ``shared``: whether the head shares the word
    table."""
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


def _encoder_decoder_json(model: Model, values: Mapping[str, Any]) -> dict[str, Any]:
    """The config.json of a model of two stacks; ``values`` are further keys."""
    assert model.decoder is not None
    kind = ENCODER_DECODERS[model.model_type]
    encoder, decoder, shared = model.config, model.decoder.config, _shares_table(model)
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
    config |= label_keys(model.labels) if model.labels else {}
    config["architectures"] = [kind.architecture_of(head)]
    return config


def _shares_table(model: Model) -> bool:
    """Whether the head's matrix is the word table of both stacks."""
    generator = model.specs.get("generator")
    return model.share_embeddings and (generator is None or generator.tied)
