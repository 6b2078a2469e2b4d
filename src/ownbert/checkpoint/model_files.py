"""The files of a model folder, by name and content; no tensor is loaded."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from ownbert.checks import dict_of, record, text
from ownbert.exceptions import InputError
from ownbert.files.folders import inside
from ownbert.files.json_files import read_json
from ownbert.files.writing import checksum

CONFIG = "config.json"
# File in a ``fit`` folder, which may have linear models and no network.
BLEND = "blend.json"
WEIGHTS = "model.safetensors"
PICKLED = "pytorch_model.bin"
# In order of preference; an index maps tensors to files.
FORMS = (WEIGHTS, f"{WEIGHTS}.index.json", PICKLED, f"{PICKLED}.index.json")
# Weights of a quantized folder (quantized.py), and the key of its config.json.
QUANTIZED = "ownbert-int8.safetensors"
QUANTIZED_KEY = "ownbert_quantization"
# Key in config.json with the record of agreement in bfloat16 (agreement.py).
AGREEMENT_KEY = "ownbert_precision"
INDEX = record({"weight_map": dict_of(text)}, required=("weight_map",))


def no_network(folder: Path) -> str:
    """The error message for a ``fit`` folder without a network."""
    return (
        f"{folder} has linear models but no network, which is needed here; predict, evaluate, "
        "explain, errors and serve use the linear models, and ownbert fit with more --minutes "
        "trains a network"
    )


def weights_form(folder: Path) -> Path | None:
    """The weight file, or the index of several; None if there is none."""
    return next((folder / name for name in FORMS if (folder / name).is_file()), None)


def weights_checksums(folder: Path) -> dict[str, dict[str, int]]:
    """Sizes and checksums of the weight files, by name; empty if there are none.

    Raises:
        InputError: a file is missing, or an index is damaged.
    """
    form = weights_form(folder)
    if form is None:
        return {}
    names = {form.name}
    if form.suffix == ".json":
        names |= set(read_json(form, check=INDEX)["weight_map"].values())
    return {name: checksum(inside(folder, name, form)) for name in sorted(names)}


def model_checksums(folder: Path) -> list[list[Any]]:
    """The files of a model folder that may affect its output, with their checksums, as JSON."""
    kinds = (".safetensors", ".bin", ".json", ".txt", ".model")
    paths = (*folder.iterdir(), *folder.glob("source/*"))  # the vocabulary of the source language
    # Hidden files are temporary.
    files = sorted(p for p in paths if p.suffix in kinds and not p.name.startswith("."))
    return [[str(path.relative_to(folder)), checksum(path)] for path in files]


def is_quantized(values: Mapping[str, Any]) -> bool:
    """Whether a config.json belongs to a quantized folder."""
    return values.get(QUANTIZED_KEY) is not None


def require_float(values: Mapping[str, Any], folder: str | Path) -> None:
    """Reject a quantized folder where float weights are required.

    Raises:
        InputError: the folder is quantized.
    """
    if is_quantized(values):
        refuse_quantized(folder)


def refuse_quantized(folder: str | Path) -> NoReturn:
    """Raise the ``InputError`` for int8 weights where floats are required."""
    raise InputError(
        f"{folder} is quantized to int8 and cannot be trained, exported or quantized; use the "
        "folder that it was made from"
    )
