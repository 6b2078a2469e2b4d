"""Tensors of the familiar face: read out of a folder, and named as Transformers names them."""

import warnings
from pathlib import Path
from typing import Any

from torch import Tensor

from ownbert import checkpoint
from ownbert.checkpoint.weights import read_weights
from ownbert.errors import InputError
from ownbert.hf.names import their_tensors


def fill(face: Any, folder: Path) -> dict[str, list[str]]:
    """Read the folder's tensors into the model; what is new and what was left out."""
    said = checkpoint.describe(folder)
    theirs, path = read_weights(folder)
    filled = checkpoint.fill(face.model, theirs, said, lenient=True)
    if filled.problems:
        shown = "; ".join(filled.problems[:4])
        more = len(filled.problems) - 4
        raise InputError(f"{path} does not fit: {shown}" + (f"; and {more} more" * (more > 0)))
    name = type(face).__name__
    if filled.new:
        warnings.warn(
            f"{name} from {folder}: {', '.join(filled.new)} are not in it and start anew; train "
            "the model before it is used",
            stacklevel=3,
        )
    return {
        "missing_keys": filled.new,
        "unexpected_keys": filled.unused,
        "mismatched_keys": [],
        "error_msgs": [],
    }


def to_theirs(face: Any, state: dict[str, Tensor], prefix: str, metadata: Any) -> None:
    """Turn the names of a state dict into Transformers'."""
    start = prefix + "model."
    ours = {n.removeprefix(start): state.pop(n) for n in list(state) if n.startswith(start)}
    for name, tensor in their_tensors(face.model, face.family, ours).items():
        state[prefix + (name if face.kinds else name.removeprefix(face.family.prefix))] = tensor


def to_ours(
    face: Any,
    state: dict[str, Tensor],
    prefix: str,
    metadata: Any,
    strict: bool,
    missing: list[str],
    unexpected: list[str],
    errors: list[str],
) -> None:
    """Turn the names of a state dict in Transformers' names into ours."""
    own = {n: state.pop(n) for n in list(state) if n.startswith(prefix)}
    theirs = {name.removeprefix(prefix): tensor for name, tensor in own.items()}
    ours, problems = face.family.to_ours(theirs, face.model.config, face.kinds)
    if "mlm" in face.kinds and "encoder.embeddings.word.weight" in ours:
        ours["heads.mlm.decoder.weight"] = ours["encoder.embeddings.word.weight"]
    if strict:
        errors += problems
    state.update({f"{prefix}model.{name}": tensor for name, tensor in ours.items()})
