"""Writes a token store: documents are split into chunks, encoded by several processes, and
appended in order.

The parent process reads, finds duplicates and writes; the workers split sentences and tokenise.
Chunks and their order depend only on the corpus and the settings. Each worker is a new Python
interpreter that runs ``serve`` and communicates over its standard input and output; so nothing is
forked, the caller's main module is not imported again, and a worker whose parent has terminated
reaches the end of its input and exits.
"""

import contextlib
import json
import os
import pickle
import queue
import subprocess
import sys
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np

from ownbert.corpus import chunks
from ownbert.corpus.chunks import Chunk, ChunkingOptions, ReadStats, split_into_chunks
from ownbert.corpus.documents import Document
from ownbert.corpus.store_writer import INDEX, StoreWriter, WorkFolder
from ownbert.corpus.text_encoding import ChunkEncoder, EncodedChunk
from ownbert.exceptions import InputError
from ownbert.files.text_files import GZIP_MAGIC
from ownbert.files.writing import WriteFailed, explained
from ownbert.language.messages import Message
from ownbert.tables.tables import kind_of
from ownbert.text.tokenizer import Tokenizer

# More processes mostly take more memory; the tokenizer's threads use the other cores.
MAX_PROCESSES = 5
_START = "import sys; sys.path[:] = sys.argv[1:]; from ownbert.corpus.prepare import serve; serve()"


def cores() -> int:
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
        how = "by signal {code}" if code < 0 else "with code {code}"
        return WorkerDied(
            "a process of {--processes} ended {how} (out of memory?); finished work is kept: run "
            "the same command again to resume, with fewer {--processes} if necessary",
            Message(how, abs(code)),
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


FORMAT = 1
# Incremented when the same text and settings give another store, so that an interrupted run of an
# older version is not resumed.
WRITER = 1
# Called with (documents, bytes of text, bytes of the corpus or None) so far.
Progress = Callable[[int, int, int | None], None]

# Fewer chunks are encoded sooner than worker processes start.
_FEW_CHUNKS = 4


@dataclass(frozen=True)
class StoreOptions:
    tokenizer: Tokenizer
    end_ids: np.ndarray
    chunking: ChunkingOptions
    segmenter: str | None
    processes: int | None
    progress: Progress


def write_store(
    files: Sequence[Path],
    documents: Iterable[Document],
    output: Path,
    settings: dict[str, Any],
    options: StoreOptions,
) -> int:
    """Write a store, completely or not at all; return the number of documents that were finished by
    an interrupted run."""
    work = WorkFolder(output, _made_for(settings))
    keep = False
    try:
        features = bool(options.chunking.features)
        words = features or options.segmenter is not None
        size = options.tokenizer.vocab_size
        with StoreWriter(work, size, words=words, features=features) as writer:
            resumed = writer.documents
            try:
                keep = True
                # The files have columns besides the words.
                columns = features or settings["layout"] == "conll"
                total = None if columns else _total_bytes(files)
                read = _append_all(documents, work, writer, options, total)
                for path, source in zip(files, settings["sources"], strict=True):
                    status = (path.stat().st_size, path.stat().st_mtime_ns)
                    if status != (source["size"], source["mtime_ns"]):
                        raise InputError(
                            "{path} was changed while it was read; prepare it again", path
                        )
                if not writer.tokens:
                    raise InputError("the corpus is empty: no document has a token")
                _finish(work, writer, read, settings, options.tokenizer)
                keep = False
            except InputError as error:
                # After the user changes invalid text, the finished chunks no longer match.
                keep = isinstance(error, WorkerDied | WriteFailed)
                raise
            except KeyboardInterrupt:
                message = "interrupted; no incomplete output was left"
                if writer.saved:
                    message = Message(
                        "interrupted; {documents:,} finished documents are kept in {name} next to "
                        "the output: run the same command again to resume",
                        *(writer.saved, work.folder.name),
                    )
                raise KeyboardInterrupt(message) from None
            finally:
                keep = keep and writer.saved > 0
    finally:
        work.close(keep=keep)
    return resumed


def _made_for(settings: dict[str, Any]) -> dict[str, Any]:
    """Everything that the content of a chunk depends on."""
    import tokenizers

    return {
        "writer": WRITER,
        "tokenizers": tokenizers.__version__,
        "part": [chunks.CHUNK_SIZE, chunks.LONGEST_PIECE],
        "settings": contents(settings),
    }


def contents(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings with sources identified by content instead of modification time."""
    sources = [[source["size"], source["sha256"]] for source in settings["sources"]]
    return settings | {"sources": sources}


def _append_all(
    documents: Iterable[Document],
    work: WorkFolder,
    writer: StoreWriter,
    options: StoreOptions,
    total: int | None,
) -> ReadStats:
    """Encode the chunks that an interrupted run did not; return the statistics of all input."""
    if writer.read is not None:
        return ReadStats(**writer.read)
    read = ReadStats()
    pending = split_into_chunks(documents, options.chunking, read)
    if writer.chunks:
        options.progress(writer.documents, 0, total)
        for _ in islice(pending, writer.chunks):
            options.progress(writer.documents, read.bytes, total)
    bytes_read: deque[int] = deque()

    def recorded() -> Iterator[Chunk]:
        for chunk in pending:
            bytes_read.append(read.bytes)  # reading is ahead of encoding
            yield chunk

    with _encoding(recorded(), work, options) as encoded:
        for chunk in encoded:
            writer.add(chunk)
            options.progress(writer.documents, bytes_read.popleft(), total)
    return read


@contextlib.contextmanager
def _encoding(
    pending: Iterator[Chunk], work: WorkFolder, options: StoreOptions
) -> Iterator[Iterator[EncodedChunk]]:
    """Yield the encoded chunks in order, encoded in this process if they are few."""
    count = options.processes or min(cores(), MAX_PROCESSES)
    worth_it = _FEW_CHUNKS if options.processes is None else 2
    first = list(islice(pending, worth_it))

    def all_chunks() -> Iterator[Chunk]:
        while first:
            yield first.pop(0)
        yield from pending

    if len(first) < worth_it or count == 1 or not sys.executable:
        encoder = ChunkEncoder(options.tokenizer, options.end_ids, options.segmenter)
        yield (encoder.encode(chunk) for chunk in all_chunks())
        return
    folder = work.folder / "tokenizer"
    _save(options.tokenizer, folder)
    with WorkerPool(count, folder, options.end_ids, options.segmenter) as workers:
        yield workers.encode(all_chunks())


def _finish(
    work: WorkFolder,
    writer: StoreWriter,
    read: ReadStats,
    settings: dict[str, Any],
    tokenizer: Tokenizer,
) -> None:
    files = writer.finish(asdict(read))
    index = {
        "format": FORMAT,
        "settings": settings,
        "read": {"documents": read.documents, "duplicates": read.duplicates},
        "files": files,
    }
    _save(tokenizer, work.store)
    with explained(work.output):
        (work.store / INDEX).write_text(json.dumps(index, indent=1), encoding="utf-8")
        work.finish()


def _save(tokenizer: Tokenizer, folder: Path) -> None:
    try:
        tokenizer.save(folder)
    except InputError as error:
        raise WriteFailed(error.message) from error


def _total_bytes(files: Sequence[Path]) -> int | None:
    """Total bytes of text, None if unknown before the files are read."""
    total = 0
    for path in files:
        with path.open("rb") as file:
            if kind_of(path) != "txt" or file.read(2) == GZIP_MAGIC:
                return None
        total += path.stat().st_size
    return total
