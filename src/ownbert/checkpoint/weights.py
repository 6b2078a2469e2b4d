"""The tensors of a model folder: one safetensors file, several, or PyTorch's pickled ones."""

import json
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from safetensors.torch import save as to_bytes
from torch import Tensor

from ownbert.checkpoint.model_files import (
    CONFIG,
    INDEX,
    PICKLED,
    QUANTIZED,
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
        one = sorted(index.keys() ^ tensors.keys())[0]
        where = "is not in its files" if one in index else "is in its files only"
        raise InputError(f"{path} does not match its files: tensor {one} {where}")
    return tensors, path


def write_model(
    folder: Path,
    config: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    *,
    tokenizer: Tokenizer | None = None,
    name: str = WEIGHTS,
) -> None:
    """Write config.json, the file ``name`` of the weights, and the tokenizer's files.

    Old files are replaced only after all files were written.
    """
    folder, config = make_folder(folder), without_agreement(config)
    with atomic_path(folder / CONFIG) as config_path, atomic_path(folder / name) as path:
        path.write_bytes(to_bytes(dict(tensors), metadata={"format": "pt"}))
        config_path.write_bytes(json.dumps(config, ensure_ascii=False, indent=2).encode())
        if tokenizer is not None:
            tokenizer.save(folder)


def require_finite(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Reject weights that are not finite (from a diverged training), which would affect all
    outputs.
    """
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
