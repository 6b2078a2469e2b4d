"""The folder of an encoder-decoder model: Marian's, so that Transformers reads it too."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ownbert.checkpoint.filling import first_of
from ownbert.checkpoint.weights import CONFIG, read_json, read_weights, write_model
from ownbert.errors import InputError
from ownbert.families import marian
from ownbert.families.family import OWN
from ownbert.nn.model import Model


def save_translation(model: Model, folder: str | Path, *, values: Mapping[str, Any] = {}) -> None:
    """Write config.json and model.safetensors; ``values`` are further keys of the config.

    Raises ``InputError`` where Marian's format has no word for what the model is made of.
    """
    assert model.decoder is not None
    encoder, decoder, shared = model.config, model.decoder.config, model.share_embeddings
    config = {**values, **marian.write_config(encoder, decoder, shared=shared)}
    config["architectures"] = [marian.ARCHITECTURE]
    ours = {name: p.detach().cpu() for name, p in model.named_parameters()}
    theirs = marian.to_theirs(ours, encoder, decoder, shared=shared)
    write_model(Path(folder), config, theirs)


def _kind(values: Mapping[str, Any]) -> str:
    return str(values.get("model_type")).removeprefix(OWN)


def load_translation(folder: str | Path) -> tuple[Model, Mapping[str, Any]]:
    """The model of such a folder, in evaluation mode, and its config.json.

    Raises ``InputError`` for a folder of another kind, any tensor that is missing, unexpected or of
    the wrong shape, and a config that asks for what we cannot do.
    """
    path = Path(folder) / CONFIG
    values = read_json(path)
    if _kind(values) != marian.MODEL_TYPE:
        raise InputError(
            f"{folder} holds a {values.get('model_type')} model; an encoder-decoder (marian) is "
            "needed: make one with ownbert translate train"
        )
    try:
        encoder, decoder, shared = marian.read_config(values)
    except (InputError, TypeError) as error:
        raise InputError(f"{path}: {error}") from None
    model = Model(
        encoder,
        ["generator"],
        decoder=decoder,
        share_embeddings=shared,
        model_type=marian.MODEL_TYPE,
    )
    theirs, weights = read_weights(Path(folder))
    ours, problems = marian.to_ours(theirs, encoder, decoder, shared=shared)
    parameters = dict(model.named_parameters())
    for name in sorted(parameters.keys() | ours.keys()):
        if name not in ours:
            problems.append(f"missing tensor {name} (by our name)")
        elif name not in parameters:
            problems.append(f"unexpected tensor {name} (by our name)")
        elif parameters[name].shape != ours[name].shape:
            shapes = tuple(ours[name].shape), tuple(parameters[name].shape)
            problems.append(f"tensor {name} (by our name) has shape {shapes[0]}, not {shapes[1]}")
        else:
            parameters[name].data.copy_(ours[name])
    if problems:
        raise InputError(f"{weights} does not fit its {CONFIG}: {'; '.join(first_of(problems))}")
    return model.eval(), values
