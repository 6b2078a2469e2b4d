"""Loads folders of encoder-decoder models that generate text: Marian and T5."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ownbert.checkpoint import CONFIG, copy_weights
from ownbert.checkpoint.copying import require_blocks, require_fit
from ownbert.checkpoint.model_files import read_config
from ownbert.checkpoint.saved_model import new_encoder_decoder
from ownbert.checkpoint.weights import read_weights
from ownbert.exceptions import InputError
from ownbert.families import encoder_decoder_of
from ownbert.hub import model_folder
from ownbert.nn.model import Model
from ownbert.nn.undrawn import shapes_alone


def load_translation(folder: str | Path) -> tuple[Model, Mapping[str, Any]]:
    """Load the model of such a folder, in evaluation mode, and its config.json.

    Raises:
        InputError: the folder has another kind of model, a tensor is missing, unexpected or of the
            wrong shape, or the config has an unsupported value.
    """
    folder = model_folder(folder)
    path = folder / CONFIG
    values = read_config(path)
    kind = encoder_decoder_of(values)
    if kind is None:
        raise InputError(
            "{folder} contains a {values} model; an encoder-decoder (marian, t5) is needed: "
            "make one with ownbert translate train",
            folder,
            values.get("model_type"),
        )
    if other := kind.other_class(values):
        raise InputError(
            "{folder} contains a {value}; a {generating} is needed", folder, other, kind.generating
        )
    try:
        encoder, decoder, shared = kind.read_config(values)
    except (InputError, TypeError) as error:
        raise InputError("{path}: {error}", path, error) from None
    tensors, weights = read_weights(Path(folder))
    weight_map = kind.weight_map(encoder, decoder, shared=shared, head="generator")
    require_blocks(tensors, weight_map, weights, encoder, decoder)
    with shapes_alone():
        model = new_encoder_decoder(kind, encoder, decoder, shared=shared)
    require_fit(copy_weights(model, tensors, weight_map, our_names=True), weights)
    return model.eval(), values
