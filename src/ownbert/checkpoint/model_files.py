"""The files of a model folder, by their names and contents; no tensor is loaded."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from ownbert.checks import Check, dict_of, record, text
from ownbert.errors import InputError, MissingError
from ownbert.files import checksum, inside, read_json

CONFIG = "config.json"
# Of a folder of ``fit``, which may have linear models and no network.
_BLEND = "blend.json"
WEIGHTS = "model.safetensors"
PICKLED = "pytorch_model.bin"
# In the order of preference; an index maps tensors to the files that hold them.
FORMS = (WEIGHTS, f"{WEIGHTS}.index.json", PICKLED, f"{PICKLED}.index.json")
# Of a quantized folder (quantized.py), and the key of its config.json.
QUANTIZED = "ownbert-int8.safetensors"
QUANTIZED_KEY = "ownbert_quantization"
# Of the config.json of a folder that agrees in bfloat16 (agreement.py).
AGREEMENT_KEY = "ownbert_precision"
INDEX = record({"weight_map": dict_of(text)}, required=("weight_map",))


def no_network(folder: Path) -> str:
    """What to tell of a folder of ``fit`` that has no network."""
    return (
        f"{folder} has linear models but no network, which this needs; predict, evaluate, explain, "
        "errors and serve use the linear models, and ownbert fit with more --minutes trains a "
        "network"
    )


def weights_form(folder: Path) -> Path | None:
    """The file of weights, or the index of several; None where there is none."""
    return next((folder / name for name in FORMS if (folder / name).is_file()), None)


def weights_checksums(folder: Path) -> dict[str, dict[str, int]]:
    """The sizes and checksums of the files with the weights, by name; empty where there are none.

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


def model_checksums(folder: Path) -> list[tuple[str, dict[str, int]]]:
    """The files of a model folder that its output may depend on, with their checksums."""
    kinds = (".safetensors", ".bin", ".json", ".txt", ".model")
    paths = (*folder.iterdir(), *folder.glob("source/*"))  # the vocabulary of the source language
    # Files that are being written are hidden.
    files = sorted(p for p in paths if p.suffix in kinds and not p.name.startswith("."))
    return [(str(path.relative_to(folder)), checksum(path)) for path in files]


def is_quantized(values: Mapping[str, Any]) -> bool:
    """Whether a config.json is that of a quantized folder."""
    return values.get(QUANTIZED_KEY) is not None


def require_float(values: Mapping[str, Any], folder: str | Path) -> None:
    """Refuse a quantized folder where weights must be floats.

    Args:
        values: of its config.json.
        folder: of the model.

    Raises:
        InputError: it is quantized.
    """
    if is_quantized(values):
        refuse_quantized(folder)


def refuse_quantized(folder: str | Path) -> NoReturn:
    """Raises the ``InputError`` of a folder of int8 weights where floats are needed."""
    raise InputError(
        f"{folder} is quantized to int8, for use only; to train, export or quantize, take the "
        "folder that it was made from"
    )


def read_model_json(path: Path, *, check: Check | None = None) -> Mapping[str, Any]:
    """The object of a JSON file in a model folder; ``InputError`` if there is none.

    Args:
        path: the file.
        check: what its keys must hold.
    """
    if not path.parent.exists():
        raise MissingError(
            f"no such folder: {path.parent}; a model of the hub is written hf:org/name"
        )
    if not path.exists():
        if (path.parent / _BLEND).is_file():
            raise InputError(no_network(path.parent))
        raise MissingError(f"no such file: {path}; is {path.parent} a model folder?")
    return read_json(path, check=check)
