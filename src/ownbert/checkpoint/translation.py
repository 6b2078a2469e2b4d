"""Folders of encoder-decoder models, in Marian's format, which Transformers reads too."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ownbert.checkpoint.config_file import read_config
from ownbert.checkpoint.copying import copy_weights, named_tensors, require_fit
from ownbert.checkpoint.sizes import require_stacks
from ownbert.checkpoint.weights import CONFIG, read_weights, require_finite, write_model
from ownbert.config import EncoderConfig
from ownbert.errors import InputError
from ownbert.families import marian
from ownbert.families.family import OWN
from ownbert.hub import model_folder
from ownbert.nn.model import Model
from ownbert.text.tokenizer import Tokenizer


def save_translation(
    model: Model,
    folder: str | Path,
    *,
    values: Mapping[str, Any] = {},
    tokenizer: Tokenizer | None = None,
) -> None:
    """Write config.json and model.safetensors, and a tokenizer's files if it is given.

    Args:
        model: an encoder-decoder model.
        folder: is made if it does not exist.
        values: further keys of config.json.
        tokenizer: of source and target.

    Raises:
        InputError: Marian's format cannot express the structure.
    """
    assert model.decoder is not None
    encoder, decoder, shared = model.config, model.decoder.config, model.share_embeddings
    config = {**values, **marian.write_config(encoder, decoder, shared=shared)}
    config["architectures"] = [marian.ARCHITECTURE]
    weight_map = marian.weight_map(encoder, decoder, shared=shared)
    write_model(Path(folder), config, named_tensors(model, weight_map), tokenizer=tokenizer)


def new_translation(encoder: EncoderConfig, decoder: EncoderConfig, *, shared: bool) -> Model:
    """A randomly initialised model; ``shared``: encoder and decoder share their embeddings."""
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

    Raises:
        InputError: the folder holds another kind of model, a tensor is missing, unexpected or of
            the wrong shape, or the config has a value that is not supported.
    """
    folder = model_folder(folder)
    path = folder / CONFIG
    values = read_config(path)
    if not is_translation(values):
        raise InputError(
            f"{folder} holds a {values.get('model_type')} model; an encoder-decoder (marian) is "
            "needed: make one with ownbert translate train"
        )
    try:
        encoder, decoder, shared = marian.read_config(values)
    except (InputError, TypeError) as error:
        raise InputError(f"{path}: {error}") from None
    tensors, weights = read_weights(Path(folder))
    require_finite(tensors, weights)
    weight_map = marian.weight_map(encoder, decoder, shared=shared)
    require_stacks(tensors, weight_map, encoder, decoder, weights)
    model = new_translation(encoder, decoder, shared=shared)
    require_fit(copy_weights(model, tensors, weight_map, our_names=True), weights)
    return model.eval(), values
