"""Processes that embed texts in parallel, each with a copy of the model."""

import math
import os
import pickle
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import numpy as np

from ownbert import limits
from ownbert.checks import between

# Number of chunks per process, and the maximum texts per chunk.
_SHARES, _MOST_TEXTS = 10, 5000


def usual_devices() -> list[str]:
    """Devices of the processes: all GPUs, or four times the CPU."""
    import torch

    return [f"cuda:{i}" for i in range(torch.cuda.device_count())] or ["cpu"] * 4


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
        """The results of ``Embedder.outputs``.

        Args:
            ids: ids of texts with special tokens.
            chunk_size: sequences per chunk; by default derived from their number.
            options: options of ``outputs``.
            progress: called with the number of sequences so far.
        """
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


# The embedder of a worker process.
_embedder: Any = None


def _start_worker(embedder: bytes, devices: Any, threads: int) -> None:
    global _embedder
    import torch

    torch.set_num_threads(threads)
    _embedder = pickle.loads(embedder).to(devices.get())


def _outputs(ids: Sequence[np.ndarray], options: dict[str, Any]) -> Any:
    return _embedder.outputs(ids, **options)
