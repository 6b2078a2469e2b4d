"""Worker processes that encode chunks.

Each is a new Python interpreter that runs ``serve`` and communicates over its standard input and
output; so nothing is forked, the caller's main module is not imported again, and a worker whose
parent has terminated reaches the end of its input and exits.
"""

import contextlib
import os
import pickle
import queue
import subprocess
import sys
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np

from ownbert.corpus.chunks import Chunk
from ownbert.corpus.text_encoding import ChunkEncoder, EncodedChunk
from ownbert.exceptions import InputError
from ownbert.text.tokenizer import Tokenizer

# More processes mostly take more memory; the tokenizer's threads use the other cores.
MAX_PROCESSES = 5
_START = "import sys; sys.path[:] = sys.argv[1:]; from ownbert.corpus.workers import serve; serve()"


def cores() -> int:
    """Number of cores available to this process."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class WorkerDied(InputError):
    """A worker process was killed."""


class WorkerPool:
    """Worker processes that encode chunks; close them."""

    def __init__(
        self, count: int, folder: Path, end_ids: np.ndarray, segmenter: str | None
    ) -> None:
        self.count = count
        self.idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
        self.threads = ThreadPoolExecutor(count)
        self.all: list[_Worker] = []
        setup = (os.fspath(folder), end_ids, segmenter)
        try:
            for _ in range(count):
                worker = _Worker(setup, threads=max(1, cores() // count))
                self.all.append(worker)
                self.idle.put(worker)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "WorkerPool":
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    def close(self) -> None:
        for worker in self.all:
            worker.end()
        self.threads.shutdown(wait=True, cancel_futures=True)

    def encode(self, chunks: Iterable[Chunk]) -> Iterator[EncodedChunk]:
        """Yield the encoded chunks in order; a few are in progress at a time."""
        pending: deque[Future[EncodedChunk]] = deque()
        for chunk in chunks:
            pending.append(self.threads.submit(self._encode, chunk))
            while pending and (pending[0].done() or len(pending) > self.count + 1):
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()

    def _encode(self, chunk: Chunk) -> EncodedChunk:
        worker = self.idle.get()
        try:
            return worker.encode(chunk)
        finally:
            self.idle.put(worker)


class _Worker:
    def __init__(self, setup: object, *, threads: int) -> None:
        environment = {
            "TOKENIZERS_PARALLELISM": "true" if threads > 1 else "false",
            "RAYON_NUM_THREADS": str(threads),
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
        }
        # In its own session, because keyboard interrupts are handled by the parent.
        self.process = subprocess.Popen(
            [sys.executable, "-c", _START, *sys.path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **environment},
            start_new_session=True,
        )
        self.requests = cast(BinaryIO, self.process.stdin)
        self.replies = cast(BinaryIO, self.process.stdout)
        self._send(setup)

    def _send(self, value: object) -> None:
        try:
            pickle.dump(value, self.requests, pickle.HIGHEST_PROTOCOL)
            self.requests.flush()
        except (BrokenPipeError, ValueError):
            raise self._worker_died() from None

    def encode(self, chunk: Chunk) -> EncodedChunk:
        self._send(chunk)
        try:
            reply = pickle.load(self.replies)
        except (EOFError, pickle.UnpicklingError, ValueError, OSError):
            raise self._worker_died() from None
        if isinstance(reply, Exception):
            raise reply
        return reply

    def _worker_died(self) -> WorkerDied:
        code = self.process.wait()
        how = f"by signal {-code}" if code < 0 else f"with code {code}"
        return WorkerDied(
            f"a process of --processes ended {how} (out of memory?); finished work is kept: "
            "run the same command again to resume, with fewer --processes if necessary"
        )

    def end(self) -> None:
        with contextlib.suppress(OSError):
            self.process.kill()
        self.process.wait()


def serve() -> None:
    """The main function of a worker: read a setup, then chunks, until the input ends."""
    # Other output goes to standard error: standard output is reserved for replies.
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    requests = sys.stdin.buffer
    with contextlib.suppress(EOFError, BrokenPipeError, KeyboardInterrupt):
        encode = _encoder(*pickle.load(requests))
        while True:
            reply = encode(pickle.load(requests))
            pickle.dump(reply, replies, pickle.HIGHEST_PROTOCOL)
            replies.flush()
    os._exit(0)  # no flush of a closed pipe


def _encoder(folder: str, end_ids: np.ndarray, segmenter: str | None) -> Callable[[Chunk], Any]:
    """A function that encodes a chunk, or returns the exception."""
    try:
        encoder = ChunkEncoder(Tokenizer.load(folder), end_ids, segmenter)
    except Exception as error:
        failure = _portable(error)
        return lambda chunk: failure

    def encode(chunk: Chunk) -> EncodedChunk | Exception:
        try:
            return encoder.encode(chunk)
        except Exception as error:
            return _portable(error)

    return encode


def _portable(error: Exception) -> Exception:
    if isinstance(error, InputError | MemoryError):
        return type(error)(str(error))
    return RuntimeError("".join(traceback.format_exception(error)))
