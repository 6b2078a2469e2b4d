"""The token store: a corpus as ids in memory-mapped files, written in one pass.

A store is a folder: ``tokens.bin`` (uint16 or uint32), ``sentences.bin`` and ``documents.bin``
(int64, where each sentence and document ends, counted in tokens), ``counts.bin`` (int64, how
often each id stands in the corpus), ``store.json`` (settings, sources, sizes, checksums) and the
tokenizer's files. Memory does not grow with the corpus, in writing or in reading.
"""

import contextlib
import json
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ownbert.data.corpus import Document, PathLike, find_files, fingerprint, read_documents
from ownbert.errors import InputError
from ownbert.files import atomic_folder
from ownbert.text.report import proposed_sentence_ends
from ownbert.text.sentences import split_sentences
from ownbert.text.tokenizer import Tokenizer

FORMAT = 1
INDEX = "store.json"

_FILES = ("tokens", "sentences", "documents", "counts")

# Characters handed to the tokenizer at once: enough to keep its threads busy.
_BLOCK = 2_000_000


@dataclass(frozen=True)
class Store:
    """A corpus as ids. tokens (N); sentence_ends, document_ends: one past the last token of each,
    ascending, so the last is N; counts (V)."""

    folder: Path
    tokens: np.ndarray
    sentence_ends: np.ndarray
    document_ends: np.ndarray
    counts: np.ndarray
    settings: dict[str, Any]
    reused: bool = False

    @classmethod
    def open(cls, folder: str | Path, *, reused: bool = False) -> "Store":
        """Map a store. Raises ``InputError`` if it is missing, cut off, altered or of another
        format; every byte is checked against its checksum."""
        folder = Path(folder)
        index = _read_index(folder)
        if index["format"] != FORMAT:
            raise InputError(
                f"{folder} has store format {index['format']}, this version reads {FORMAT}; "
                "prepare it again"
            )
        arrays = {}
        for name, entry in index["files"].items():
            path = folder / f"{name}.bin"
            _verify(path, entry)
            dtype = np.dtype(entry["dtype"])
            arrays[name] = (
                np.memmap(path, dtype=dtype, mode="r")
                if entry["bytes"]
                else np.empty(0, dtype=dtype)
            )
        return cls(
            folder,
            arrays["tokens"],
            arrays["sentences"],
            arrays["documents"],
            arrays["counts"],
            index["settings"],
            reused,
        )

    @property
    def documents(self) -> int:
        return len(self.document_ends)

    @property
    def sentences(self) -> int:
        return len(self.sentence_ends)

    def tokenizer(self) -> Tokenizer:
        """The tokenizer that the store was written with; ``InputError`` if it was exchanged."""
        tokenizer = Tokenizer.load(self.folder)
        if tokenizer.fingerprint() != self.settings["tokenizer"]:
            raise InputError(
                f"{self.folder}: the tokenizer files are not those that the store was written "
                "with; prepare it again"
            )
        return tokenizer


def prepare(
    paths: PathLike | Sequence[PathLike],
    output: str | Path,
    *,
    tokenizer: Tokenizer | str | Path,
    text_column: str | None = None,
    layout: str = "auto",
    sentence_end: Sequence[str] | None = None,
    progress: Callable[[int], None] | None = None,
) -> Store:
    """Write the token store of a corpus, or open the one there if nothing has changed.

    tokenizer: itself, or the folder it is in. sentence_end: tokens that end a sentence in text
    that is already tokens, by default those that the vocabulary report beside the tokenizer
    proposes; plain text is split by rule. progress is called with the number of documents so far.
    """
    output = Path(output)
    files = find_files(paths)
    if not isinstance(tokenizer, Tokenizer):
        if sentence_end is None:
            sentence_end = proposed_sentence_ends(tokenizer)
        tokenizer = Tokenizer.load(tokenizer)
    ends = _end_ids(sentence_end or (), tokenizer)
    settings = {
        "tokenizer": tokenizer.fingerprint(),
        "kind": tokenizer.kind,
        "sentence_end": sorted(sentence_end or ()),
        "layout": layout,
        "text_column": text_column,
        "sources": fingerprint(files),
    }
    if _unchanged(output, settings):
        with contextlib.suppress(InputError):  # damaged: written anew
            return Store.open(output, reused=True)
    if output.is_dir() and any(output.iterdir()) and not (output / INDEX).exists():
        raise InputError(f"{output} is not empty and holds no token store; choose another folder")
    documents = read_documents(files, text_column=text_column, layout=layout)
    with atomic_folder(output) as folder:
        with _Writer(folder, tokenizer.vocab_size) as writer:
            for block in _blocks(documents):
                writer.add(*_encode(block, tokenizer, ends))
                if progress is not None:
                    progress(writer.documents)
        if not writer.tokens:
            raise InputError("the corpus is empty: no document has a token")
        tokenizer.save(folder)
        index = {"format": FORMAT, "settings": settings, "files": writer.files}
        (folder / INDEX).write_text(json.dumps(index, indent=1), encoding="utf-8")
    return Store.open(output)


def _end_ids(sentence_end: Sequence[str], tokenizer: Tokenizer) -> np.ndarray:
    ids = [tokenizer.id_of(token) for token in sentence_end]
    if None in ids:
        lost = sentence_end[ids.index(None)]
        raise InputError(f"sentence end {lost!r} is not in the vocabulary; name tokens that are")
    return np.asarray(ids, dtype=np.int64)


def _blocks(documents: Iterable[Document]) -> Iterator[list[Document]]:
    """Documents by the block of about ``_BLOCK`` characters."""
    block, size = [], 0
    for document in documents:
        block.append(document)
        size += sum(map(len, document.pieces))
        if size >= _BLOCK:
            yield block
            block, size = [], 0
    if block:
        yield block


def _encode(
    block: Sequence[Document], tokenizer: Tokenizer, end_ids: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Ids of a block, and where its sentences and its documents end."""
    by_rule = tokenizer.kind != "blank"
    pieces, pieces_of = [], []
    for document in block:
        found = document.pieces
        if by_rule and not document.presplit:
            found = [s for piece in found for s in split_sentences(piece)]
        pieces += found
        pieces_of.append(len(found))
    encoded = tokenizer.encode_batch(pieces)
    ends = np.cumsum([len(ids) for ids in encoded], dtype=np.int64)
    ids = np.fromiter((i for piece in encoded for i in piece), dtype=np.int64, count=int(ends[-1]))
    document_ends = ends[np.cumsum(pieces_of) - 1]
    if len(end_ids):
        last = np.isin(ids, end_ids)
        last[:-1] &= ~last[1:]  # a run of ends is one end
        ends = np.concatenate([ends, np.flatnonzero(last) + 1])
    # Pieces and documents of no tokens vanish: an end counts once, and never at 0.
    sentence_ends = np.unique(ends[ends > 0])
    return ids, sentence_ends, np.unique(document_ends[document_ends > 0])


class _Writer:
    """Appends to the files of a store, keeping sizes, checksums and counts."""

    def __init__(self, folder: Path, vocab_size: int) -> None:
        self.folder, self.files = folder, {}
        self.tokens = self.documents = 0
        self.counts = np.zeros(vocab_size, dtype=np.int64)
        self.dtypes = {
            "tokens": "<u2" if vocab_size <= 1 << 16 else "<u4",
            "sentences": "<i8",
            "documents": "<i8",
            "counts": "<i8",
        }
        self.open: dict[str, BinaryIO] = {}
        self.stack = contextlib.ExitStack()

    def __enter__(self) -> "_Writer":
        for name, dtype in self.dtypes.items():
            file = open(self.folder / f"{name}.bin", "wb")
            self.open[name] = self.stack.enter_context(file)
            self.files[name] = {"dtype": dtype, "bytes": 0, "crc32": 0}
        return self

    def __exit__(self, *failure) -> None:
        with self.stack:
            if failure[0] is None:
                self._append("counts", self.counts)
                for file in self.open.values():  # some file systems report a full disk only here
                    file.flush()
                    os.fsync(file.fileno())

    def add(self, ids: np.ndarray, sentence_ends: np.ndarray, document_ends: np.ndarray) -> None:
        self._append("tokens", ids)
        self._append("sentences", sentence_ends + self.tokens)
        self._append("documents", document_ends + self.tokens)
        self.counts += np.bincount(ids, minlength=len(self.counts))
        self.tokens += len(ids)
        self.documents += len(document_ends)

    def _append(self, name: str, values: np.ndarray) -> None:
        entry = self.files[name]
        data = values.astype(entry["dtype"]).tobytes()
        self.open[name].write(data)
        entry["bytes"] += len(data)
        entry["crc32"] = zlib.crc32(data, entry["crc32"])


def _read_index(folder: Path) -> dict[str, Any]:
    try:
        index = json.loads((folder / INDEX).read_text(encoding="utf-8"))
        if index["format"] == FORMAT:
            _ = index["settings"]["tokenizer"]
            _ = [index["files"][n][key] for n in _FILES for key in ("dtype", "bytes", "crc32")]
        return index
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(f"{folder} holds no token store; make one with: ownbert prepare") from None
    except (ValueError, KeyError, TypeError):
        raise InputError(f"{folder / INDEX} is damaged; prepare the store again") from None


def _verify(path: Path, entry: dict[str, Any]) -> None:
    size = path.stat().st_size if path.exists() else 0
    if size != entry["bytes"]:
        raise InputError(
            f"{path} has {size} bytes, expected {entry['bytes']}; it was cut off or altered: "
            "prepare the store again"
        )
    crc = 0
    with open(path, "rb") as file:
        while data := file.read(1 << 24):
            crc = zlib.crc32(data, crc)
    if crc != entry["crc32"]:
        raise InputError(f"{path} was altered (its checksum differs): prepare the store again")


def _unchanged(output: Path, settings: dict[str, Any]) -> bool:
    """Whether the store there was written from the same contents by the same settings."""
    try:
        index = _read_index(output)
        return index["format"] == FORMAT and _contents(index["settings"]) == _contents(settings)
    except (InputError, KeyError, TypeError):
        return False


def _contents(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings with the sources by what they hold, not by when they were touched."""
    sources = [(source["size"], source["sha256"]) for source in settings["sources"]]
    return settings | {"sources": [list(s) for s in sources]}
