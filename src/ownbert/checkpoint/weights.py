"""The tensors of a model folder: one safetensors file, several, or PyTorch's pickled ones.

A quantized folder is a float folder whose block matrices are stored in 8 bits in a file of another
name, so that Transformers reports missing weights instead of starting from random ones. A matrix
keeps its name and is int8 (I, D), each row divided by its scale; the divisors of its inputs are
stored under our name of the layer.
"""

import json
import pickle
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from safetensors.torch import save as to_bytes
from torch import Tensor

from ownbert.checkpoint.description import Description
from ownbert.checkpoint.model_files import (
    CONFIG,
    INDEX,
    PICKLED,
    QUANTIZED,
    QUANTIZED_KEY,
    WEIGHTS,
    refuse_quantized,
    weights_form,
    without_agreement,
)
from ownbert.checkpoint.model_files import FORMS as FORMS
from ownbert.exceptions import InputError, MissingError
from ownbert.files.json_files import read_json
from ownbert.files.text_files import refuse_unreadable
from ownbert.files.writing import atomic_path, make_folder
from ownbert.nn.encoder_stack import Encoder
from ownbert.nn.model import Model
from ownbert.nn.prepack import quantizable, quantize_linears, quantize_weight
from ownbert.text.tokenizer import Tokenizer


def read_weights(folder: Path) -> tuple[dict[str, Tensor], Path]:
    """Read all tensors by name, and the file that they come from (for several, their index)."""
    tensors, path = _read(folder)
    require_finite(tensors, path)
    return tensors, path


def _read(folder: Path) -> tuple[dict[str, Tensor], Path]:
    path = weights_form(folder)
    if path is None:
        if (folder / QUANTIZED).is_file():
            refuse_quantized(folder)
        raise MissingError("no such file: {folder}; train a model there first", folder / WEIGHTS)
    if path.name in (WEIGHTS, PICKLED):
        return read_file(path), path
    index = read_json(path, check=INDEX)["weight_map"]
    names = sorted(set(index.values()))
    for name in names:
        if Path(name).name != name:
            raise InputError(
                "{path} names {name!r}; the files must be in the same folder", path, name
            )
        if not (path.parent / name).is_file():
            raise InputError("{path} names {name}, which is missing", path, name)
    tensors: dict[str, Tensor] = {}
    for name in names:
        tensors.update(read_file(path.parent / name))
    if index.keys() != tensors.keys():
        name = sorted(index.keys() ^ tensors.keys())[0]
        where = "is not in its files" if name in index else "is in its files only"
        raise InputError(
            "{path} does not match its files: tensor {value} {where}", path, name, where
        )
    return tensors, path


def write_model(
    folder: Path,
    config: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    *,
    tokenizer: Tokenizer | None = None,
    name: str = WEIGHTS,
) -> None:
    """Write config.json, the file ``name`` of the weights, and the tokenizer's files. Old files are
    replaced only after all files were written."""
    folder, config = make_folder(folder), without_agreement(config)
    with atomic_path(folder / CONFIG) as config_path, atomic_path(folder / name) as path:
        path.write_bytes(to_bytes(dict(tensors), metadata={"format": "pt"}))
        config_path.write_bytes(json.dumps(config, ensure_ascii=False, indent=2).encode())
        if tokenizer is not None:
            tokenizer.save(folder)


def require_finite(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Reject weights that are not finite (from a diverged training), which would affect all
    outputs."""
    for name, tensor in tensors.items():
        if not tensor.is_floating_point() or tensor.sum(dtype=torch.float32).isfinite():
            continue  # fast path: a finite sum implies finite weights
        if not tensor.isfinite().all():
            raise InputError(
                "{path}: tensor {name} contains values that are not finite numbers; the "
                "training diverged or the file is damaged",
                path,
                name,
            )


def read_file(path: Path) -> dict[str, Tensor]:
    """Read all tensors of a file by name."""
    refuse_unreadable(path)
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        tensors = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise InputError(
            "{path} contains more than tensors, or is damaged; no code in it was run. Save the "
            "model as safetensors",
            path,
        ) from None
    except Exception as error:  # a damaged pickle can raise anything
        why = str(error).split("\n")[0] or type(error).__name__
        raise InputError(
            "{path} cannot be read: {why}; it is damaged or cut off", path, why
        ) from None
    if not isinstance(tensors, dict) or not all(
        isinstance(name, str) and isinstance(tensor, Tensor) for name, tensor in tensors.items()
    ):
        raise InputError("{path} must contain tensors by name, as returned by state_dict", path)
    return dict(tensors)


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
    """Write config.json and the weights of a quantized folder; return the names of the quantized
    matrices.

    Args:
        description, tensors, encoder: of the float folder; its tensors by its names.
        smooth: (D) smoothing factors by layer name in the encoder, of a ``strength``.
    """
    config, weight_map = description.config, description.family.weight_map
    named = {weight_map.full_name(name): name for name in tensors}
    written = dict(tensors)
    for name, module, _ in quantizable(encoder):
        theirs = weight_map.their_name(f"encoder.{name}.weight", config).split(", ")
        parts = [named.get(name, name) for name in theirs]
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
    """The tensors of a quantized folder by the names of the float folder, dequantized, with
    matrices multiplied by the smoothing factors; these factors by layer name in the encoder; and
    the file."""
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
    """Quantize the layers of a model that are quantized in its folder, with the factors of
    ``read_quantized``; it cannot be trained then."""
    sizes = {name: module.in_features for name, module, _ in quantizable(model.encoder)}
    for name, vector in smooth.items():
        if sizes.get(name) != len(vector):
            raise InputError(
                "{path}: tensor {smooth}{name} does not match the model", path, _SMOOTH, name
            )
    quantize_linears(model.encoder, smooth)
    model.requires_grad_(False)
