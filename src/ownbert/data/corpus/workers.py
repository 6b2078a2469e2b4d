"""Processes that encode parts.

Each is a fresh Python that runs ``serve`` and talks over its standard input and output; so nothing
is forked, the caller's main module is not imported again, and a process whose parent has gone
meets the end of its input and leaves.
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

from ownbert.data.corpus.chunks import Chunk
from ownbert.data.corpus.encoding import ChunkEncoder, EncodedChunk
from ownbert.errors import InputError
from ownbert.text.tokenizer import Tokenizer

# Beyond so many processes memory is what they take most of; the tokenizer's threads do the rest.
MAX_PROCESSES = 5
_START = (
    "import sys; sys.path[:] = sys.argv[1:]; from ownbert.data.corpus.workers import serve; serve()"
)


def cores() -> int:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class WorkerDied(InputError):
    """A process was ended from outside."""


class WorkerPool:
    """``count`` processes that encode parts by the tokenizer in ``folder``; close them."""

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

    def encode(self, parts: Iterable[Chunk]) -> Iterator[EncodedChunk]:
        """What the parts encode to, in their order; a few are under way at a time."""
        under_way: deque[Future[EncodedChunk]] = deque()
        for part in parts:
            under_way.append(self.threads.submit(self._encode, part))
            while under_way and (under_way[0].done() or len(under_way) > self.count + 1):
                yield under_way.popleft().result()
        while under_way:
            yield under_way.popleft().result()

    def _encode(self, part: Chunk) -> EncodedChunk:
        worker = self.idle.get()
        try:
            return worker.ask(part)
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
        # In a session of its own: an interrupt from the keyboard is the parent's to answer.
        self.process = subprocess.Popen(
            [sys.executable, "-c", _START, *sys.path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **environment},
            start_new_session=True,
        )
        self.to = cast(BinaryIO, self.process.stdin)
        self.back = cast(BinaryIO, self.process.stdout)
        self._send(setup)

    def _send(self, value: object) -> None:
        try:
            pickle.dump(value, self.to, pickle.HIGHEST_PROTOCOL)
            self.to.flush()
        except (BrokenPipeError, ValueError):
            raise self._died() from None

    def ask(self, part: Chunk) -> EncodedChunk:
        self._send(part)
        try:
            answer = pickle.load(self.back)
        except (EOFError, pickle.UnpicklingError, ValueError, OSError):
            raise self._died() from None
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _died(self) -> WorkerDied:
        code = self.process.wait()
        how = f"by signal {-code}" if code < 0 else f"with code {code}"
        return WorkerDied(
            f"a process of --processes ended {how} (was memory short?); what is finished is kept: "
            "run the same command again to go on, with fewer --processes if need be"
        )

    def end(self) -> None:
        with contextlib.suppress(OSError):
            self.process.kill()
        self.process.wait()


def serve() -> None:
    """What a worker runs: a setup, then parts, until the input ends."""
    # Whatever prints goes to standard error: standard output is the answers' alone.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    questions = sys.stdin.buffer
    with contextlib.suppress(EOFError, BrokenPipeError, KeyboardInterrupt):
        encode = _prepared(*pickle.load(questions))
        while True:
            answer = encode(pickle.load(questions))
            pickle.dump(answer, answers, pickle.HIGHEST_PROTOCOL)
            answers.flush()
    os._exit(0)  # no flush of a pipe that nobody reads


def _prepared(folder: str, end_ids: np.ndarray, segmenter: str | None) -> Callable[[Chunk], Any]:
    """A function from a part to what it encodes to, or to the error that it ended with."""
    try:
        encoder = ChunkEncoder(Tokenizer.load(folder), end_ids, segmenter)
    except Exception as error:
        failure = _portable(error)
        return lambda part: failure

    def encode(part: Chunk) -> EncodedChunk | Exception:
        try:
            return encoder.encode(part)
        except Exception as error:
            return _portable(error)

    return encode


def _portable(error: Exception) -> Exception:
    if isinstance(error, InputError | MemoryError):
        return type(error)(str(error))
    return RuntimeError("".join(traceback.format_exception(error)))
