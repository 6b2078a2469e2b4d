"""Parts of ``Embedder``: output formats of ``encode`` (arrays or tensors, quantized vectors, ids),
and processes that embed texts in parallel.

N and M texts or vectors, S tokens of the longest text, D vector size.
"""

import math
import os
import pickle
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import numpy as np

from ownbert import limits
from ownbert.batches.example import padded
from ownbert.checks import between
from ownbert.exceptions import warn_of_input
from ownbert.tasks.text_input import TextInputBuilder

# Outputs of ``encode``: the text's vector, its token vectors, or both (None).
SENTENCES, TOKENS = "sentence_embedding", "token_embeddings"
# Quantized formats.
FORMS = ("int8", "uint8", "binary", "ubinary")
# Fewer vectors do not determine the range of each dimension well.
_FEW = 100
COSINE = "cosine"
SIMILARITIES = (COSINE, "dot", "euclidean", "manhattan")
# Number of chunks per process, and the maximum texts per chunk.
_SHARES, _MOST_TEXTS = 10, 5000
# The embedder of a worker process.
_embedder: Any = None


def shortened(vectors: np.ndarray, size: int | None, *, unit: bool) -> np.ndarray:
    """The first dimensions of vectors (N, D): (N, size), scaled to unit length if ``unit``."""
    if size is None or size >= vectors.shape[1]:
        return vectors
    return of_length_one(vectors[:, :size]) if unit else vectors[:, :size]


def of_length_one(vectors: np.ndarray) -> np.ndarray:
    """Vectors (N, D) scaled to unit length."""
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)


def stored(vectors: np.ndarray, form: str) -> np.ndarray:
    """Quantize vectors (N, D), N at least 1, to int8 or uint8 (N, D), or to bits (N, D / 8).

    Bits are the signs of the values, eight per byte; ``binary`` stores them as int8, ``ubinary`` as
    uint8. Bytes are steps of equal size between the minimum and maximum of each dimension in these
    vectors.
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


class EmbeddingPool:
    """One process per device. Processes are spawned, because a fork hangs once torch has computed.

    A script that uses a pool needs ``if __name__ == "__main__":``.
    """

    def __init__(self, embedder: Any, devices: Sequence[Any]) -> None:
        self.size = len(devices)
        context = get_context("spawn")
        left = context.SimpleQueue()
        for device in devices:
            left.put(str(device))
        threads = max(1, len(os.sched_getaffinity(0)) // self.size)
        # Pickled: torch would move the argument's tensors, also in this process, to shared memory.
        given = (pickle.dumps(embedder), left, threads)
        self._executor = ProcessPoolExecutor(
            self.size, mp_context=context, initializer=_start_worker, initargs=given
        )

    def __enter__(self) -> "EmbeddingPool":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the processes."""
        self._executor.shutdown()

    def outputs(
        self,
        ids: Sequence[np.ndarray],
        chunk_size: int | None,
        options: dict[str, Any],
        progress: Callable[[int], None] | None,
    ) -> Any:
        """The results of ``Embedder.outputs``; by default ``chunk_size`` sequences are derived
        from their number."""
        if chunk_size is not None:
            between(1, limits.COUNT, "[]")("chunk_size", chunk_size)
        share = math.ceil(len(ids) / self.size / _SHARES)
        size = chunk_size or min(share, _MOST_TEXTS)
        chunks = [ids[start : start + size] for start in range(0, len(ids), size)]
        results, done = [], 0
        for outputs in self._executor.map(_outputs, chunks, [options] * len(chunks)):
            results.append(outputs)
            done += size
            if progress is not None:
                progress(min(done, len(ids)))
        if isinstance(results[0], np.ndarray):
            return np.concatenate(results)
        return [each for part in results for each in part]


def _start_worker(embedder: bytes, devices: Any, threads: int) -> None:
    global _embedder
    import torch

    torch.set_num_threads(threads)
    _embedder = pickle.loads(embedder).to(devices.get())


def _outputs(ids: Sequence[np.ndarray], options: dict[str, Any]) -> Any:
    return _embedder.outputs(ids, **options)
