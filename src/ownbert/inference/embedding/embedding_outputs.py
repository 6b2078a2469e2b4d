"""Output formats of ``Embedder.encode``: arrays or tensors, quantized vectors, and ids.

N texts, S tokens of the longest one, D vector size.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ownbert.batches.example import padded
from ownbert.exceptions import warn_of_input
from ownbert.tasks.text_input import TextInputBuilder

# Outputs of ``encode``: the text's vector, its token vectors, or both (None).
SENTENCES, TOKENS = "sentence_embedding", "token_embeddings"
# Quantized formats.
FORMS = ("int8", "uint8", "binary", "ubinary")
# Fewer vectors do not determine the range of each dimension well.
_FEW = 100


def shortened(vectors: np.ndarray, size: int | None, *, unit: bool) -> np.ndarray:
    """The first dimensions of vectors (N, D): (N, size), scaled to unit length if ``unit``."""
    if size is None or size >= vectors.shape[1]:
        return vectors
    return of_length_one(vectors[:, :size]) if unit else vectors[:, :size]


def of_length_one(vectors: np.ndarray) -> np.ndarray:
    """Vectors (N, D) scaled to unit length."""
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)


def stored(vectors: np.ndarray, form: str) -> np.ndarray:
    """Quantize vectors to int8 or uint8 (N, D), or to bits (N, D / 8).

    Bits are the signs of the values, eight per byte; ``binary`` stores them as int8, ``ubinary`` as
    uint8. Bytes are steps of equal size between the minimum and maximum of each dimension in these
    vectors.

    Args:
        vectors: float32 (N, D), N at least 1.
        form: one of ``FORMS``.
    """
    if form.endswith("binary"):
        bits = np.packbits(vectors > 0, axis=-1)
        return bits if form == "ubinary" else (bits.astype(np.int16) - 128).astype(np.int8)
    if len(vectors) < _FEW:
        warn_of_input(
            "{form}: the range of each dimension is estimated from {count} vectors; encode "
            "{few} or more at once, and compare only vectors of the same call",
            form,
            len(vectors),
            _FEW,
        )
    low, high = vectors.min(0), vectors.max(0)
    # A constant dimension has an empty range.
    steps = np.floor((vectors - low) / np.where(high > low, (high - low) / 255, 1)).clip(0, 255)
    return steps.astype(np.uint8) if form == "uint8" else (steps - 128).astype(np.int8)


def in_requested_form(
    vectors: np.ndarray, form: str | None, device: Any, *, tensor: bool, arrays: bool
) -> Any:
    """Vectors (N, D) as an array, a tensor or a list of tensors, quantized to one of ``FORMS`` if
    given; (0) if there are no texts."""
    if not len(vectors):
        vectors = np.zeros(0, np.float32)
    elif form is not None:
        vectors = stored(vectors, form)
    if arrays and not tensor:
        return vectors
    converted = as_tensor(vectors, device)
    return converted if tensor else list(converted)


def as_tensor(values: np.ndarray, device: Any) -> Any:
    """An array as a tensor on a device."""
    import torch

    return torch.from_numpy(np.ascontiguousarray(values)).to(device)


def model_inputs(ids: Sequence[np.ndarray], builder: TextInputBuilder) -> dict[str, Any]:
    """Sequences of ids as inputs of a Transformers model: int64 tensors (N, S)."""
    import torch

    types = map(builder.types_of, ids) if builder.types else None
    inputs = padded(ids, builder.tokenizer.pad_id, types)
    return {name: torch.from_numpy(values) for name, values in inputs.items()}
