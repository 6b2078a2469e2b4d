"""Quantized folders: a float folder whose block matrices are stored in 8 bits in a separate file.

The name of the file differs from Transformers' names, so that Transformers reports missing weights
instead of starting from random ones. A matrix keeps its name in the float folder and is int8
(I, D), each row divided by its scale; the divisors of its inputs are stored under our name of the
layer.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor

from ownbert.checkpoint.description import Description
from ownbert.checkpoint.model_files import QUANTIZED, QUANTIZED_KEY
from ownbert.checkpoint.weights import read_file, require_finite, write_model
from ownbert.exceptions import InputError
from ownbert.nn.encoder import Encoder
from ownbert.nn.model import Model
from ownbert.nn.packed.int8 import quantizable, quantize_linears, quantize_weight

# Value in config.json that describes the quantization.
_INT8 = {"weights": "int8", "scales": "channel", "activations": "token"}
_SCALE, _SMOOTH = "int8.scale.", "int8.smooth."


def write_quantized(
    folder: Path,
    description: Description,
    tensors: Mapping[str, Tensor],
    encoder: Encoder,
    smooth: Mapping[str, Tensor],
    strength: float,
) -> list[str]:
    """Write config.json and the weights of a quantized folder.

    Args:
        folder: a new folder.
        description, tensors, encoder: of the float folder; its tensors by its names.
        smooth: (D) smoothing factors by layer name in the encoder.
        strength: strength of the smoothing.

    Returns:
        The names of the quantized matrices in the float folder.
    """
    config, weight_map = description.config, description.family.weight_map
    named = {weight_map.full_name(name): name for name in tensors}
    written = dict(tensors)
    for name, module, _ in quantizable(encoder):
        theirs = weight_map.their_name(f"encoder.{name}.weight", config).split(", ")
        parts = [named.get(one, one) for one in theirs]
        # Matrices that the family stores in another form are not quantized.
        if not all(p in tensors and tensors[p].shape[1:] == (module.in_features,) for p in parts):
            continue
        for part in parts:
            weight = tensors[part].float() * smooth[name]
            written[part], written[_SCALE + part] = quantize_weight(weight)
        written[_SMOOTH + name] = smooth[name].float()
    values = {**description.values, QUANTIZED_KEY: {**_INT8, "smoothing": strength}}
    contiguous = {name: tensor.contiguous() for name, tensor in written.items()}
    write_model(folder, values, contiguous, name=QUANTIZED)
    return [name.removeprefix(_SCALE) for name in written if name.startswith(_SCALE)]


def read_quantized(folder: Path) -> tuple[dict[str, Tensor], dict[str, Tensor], Path]:
    """Read the tensors of a quantized folder.

    Returns:
        Its tensors by the names of the float folder, dequantized, with matrices multiplied by the
        smoothing factors; the smoothing factors by layer name in the encoder; and the file.
    """
    path = folder / QUANTIZED
    if not path.is_file():
        raise InputError("no such file: {path}; quantize the model again", path)
    read = read_file(path)
    smooth = dict(_pop_vectors(read, _SMOOTH, path))
    for name, scale in dict(_pop_vectors(read, _SCALE, path)).items():
        weight = read.get(name)
        if weight is None or weight.dtype != torch.int8 or weight.shape[:1] != scale.shape:
            raise InputError(
                "{path}: tensor {name} is not the int8 matrix of its scales", path, name
            )
        read[name] = weight.float() * scale[:, None]
    require_finite(read, path)
    return read, smooth, path


def _pop_vectors(read: dict[str, Tensor], prefix: str, path: Path) -> Iterator[tuple[str, Tensor]]:
    """Remove the vectors with a prefix from ``read``, and yield them without the prefix."""
    for name in [name for name in read if name.startswith(prefix)]:
        vector = read.pop(name)
        good = vector.ndim == 1 and vector.dtype == torch.float32
        if not good or not bool((vector.isfinite() & (vector > 0)).all()):
            raise InputError(
                "{path}: tensor {name} must contain positive float32 numbers", path, name
            )
        yield name.removeprefix(prefix), vector


def quantize_model(model: Model, smooth: Mapping[str, Tensor], path: Path) -> None:
    """Quantize the layers of a model that are quantized in its folder; it cannot be trained then.

    Weights and smoothing factors are those of ``read_quantized``.
    """
    sizes = {name: module.in_features for name, module, _ in quantizable(model.encoder)}
    for name, vector in smooth.items():
        if sizes.get(name) != len(vector):
            raise InputError(
                "{path}: tensor {smooth}{name} does not match the model", path, _SMOOTH, name
            )
    quantize_linears(model.encoder, smooth)
    model.requires_grad_(False)
