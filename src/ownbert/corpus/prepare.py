"""Writes a token store: documents are split into chunks, encoded by several processes, and
appended in order.

The parent process reads, finds duplicates and writes; the workers split sentences and tokenise.
Chunks and their order depend only on the corpus and the settings.
"""

import contextlib
import json
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from ownbert.corpus import chunks
from ownbert.corpus.chunks import Chunk, ChunkingOptions, ReadStats, split_into_chunks
from ownbert.corpus.documents import Document
from ownbert.corpus.store_writer import INDEX, StoreWriter, WorkFolder
from ownbert.corpus.text_encoding import ChunkEncoder, EncodedChunk
from ownbert.corpus.workers import MAX_PROCESSES, WorkerDied, WorkerPool, cores
from ownbert.exceptions import InputError
from ownbert.files.text_files import GZIP_MAGIC
from ownbert.files.writing import WriteFailed, explained
from ownbert.tables.tables import kind_of
from ownbert.text.tokenizer import Tokenizer

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
    """How a store is written; see ``prepare`` in ``ownbert.corpus.store``."""

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
    """Write a store, completely or not at all.

    Returns:
        The number of documents that were finished by an interrupted run.

    Raises:
        InputError: text is invalid, or a file cannot be written.
    """
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
                _require_unchanged(files, settings["sources"])
                if not writer.tokens:
                    raise InputError("the corpus is empty: no document has a token")
                _finish(work, writer, read, settings, options.tokenizer)
                keep = False
            except InputError as error:
                # After the user changes invalid text, the finished chunks no longer match.
                keep = isinstance(error, WorkerDied | WriteFailed)
                raise
            except KeyboardInterrupt:
                raise KeyboardInterrupt(_interrupt_message(work, writer.saved)) from None
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


def _interrupt_message(work: WorkFolder, documents: int) -> str:
    if not documents:
        return "interrupted; no incomplete output was left"
    return (
        f"interrupted; {documents:,} finished documents are kept in {work.folder.name} next to "
        "the output: run the same command again to resume"
    )


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
        raise WriteFailed(str(error)) from error


def _total_bytes(files: Sequence[Path]) -> int | None:
    """Total bytes of text, None if unknown before the files are read."""
    total = 0
    for path in files:
        with path.open("rb") as file:
            if kind_of(path) != "txt" or file.read(2) == GZIP_MAGIC:
                return None
        total += path.stat().st_size
    return total


def _require_unchanged(files: Sequence[Path], sources: Sequence[dict[str, Any]]) -> None:
    for path, source in zip(files, sources, strict=True):
        status = path.stat()
        if (status.st_size, status.st_mtime_ns) != (source["size"], source["mtime_ns"]):
            raise InputError("{path} was changed while it was read; prepare it again", path)
