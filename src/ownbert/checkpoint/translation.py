"""The folder of an encoder-decoder model: Marian's, so that Transformers reads it too."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ownbert.checkpoint.copying import copy_weights, first_of, named_tensors
from ownbert.checkpoint.weights import CONFIG, read_model_json, read_weights, write_model
from ownbert.config import EncoderConfig
from ownbert.errors import InputError
from ownbert.families import marian
from ownbert.families.family import OWN
from ownbert.nn.model import Model
from ownbert.text.tokenizer import Tokenizer


def save_translation(
    model: Model,
    folder: str | Path,
    *,
    values: Mapping[str, Any] = {},
    tokenizer: Tokenizer | None = None,
) -> None:
    """Write config.json, model.safetensors (and a tokenizer's files); ``values`` are further keys
    of the config.

    Raises ``InputError`` where Marian's format has no word for what the model is made of.
    """
    assert model.decoder is not None
    encoder, decoder, shared = model.config, model.decoder.config, model.share_embeddings
    config = {**values, **marian.write_config(encoder, decoder, shared=shared)}
    config["architectures"] = [marian.ARCHITECTURE]
    weight_map = marian.weight_map(encoder, decoder, shared=shared)
    write_model(Path(folder), config, named_tensors(model, weight_map), tokenizer=tokenizer)


def new_translation(encoder: EncoderConfig, decoder: EncoderConfig, *, shared: bool) -> Model:
    """A model with random weights, in Marian's format; ``shared``: one table of words."""
    return Model(
        encoder,
        ["generator"],
        decoder=decoder,
        share_embeddings=shared,
        model_type=marian.MODEL_TYPE,
    )


def is_translation(values: Mapping[str, Any]) -> bool:
    """Whether a config.json is of an encoder-decoder model."""
    return str(values.get("model_type")).removeprefix(OWN) == marian.MODEL_TYPE


def load_translation(folder: str | Path) -> tuple[Model, Mapping[str, Any]]:
    """The model of such a folder, in evaluation mode, and its config.json.

    Raises ``InputError`` for a folder of another kind, any tensor that is missing, unexpected or of
    the wrong shape, and a config that asks for what we cannot do.
    """
    path = Path(folder) / CONFIG
    values = read_model_json(path)
    if not is_translation(values):
        raise InputError(
            f"{folder} holds a {values.get('model_type')} model; an encoder-decoder (marian) is "
            "needed: make one with ownbert translate train"
        )
    try:
        encoder, decoder, shared = marian.read_config(values)
    except (InputError, TypeError) as error:
        raise InputError(f"{path}: {error}") from None
    model = new_translation(encoder, decoder, shared=shared)
    tensors, weights = read_weights(Path(folder))
    weight_map = marian.weight_map(encoder, decoder, shared=shared)
    problems = copy_weights(model, tensors, weight_map, our_names=True).problems
    if problems:
        raise InputError(f"{weights} does not fit its {CONFIG}: {'; '.join(first_of(problems))}")
    return model.eval(), values
