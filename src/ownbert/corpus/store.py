"""The token store: a corpus as token ids in memory-mapped files, written in one pass.

A store is a folder with these files and those of the tokenizer:

- ``tokens.bin``: uint16 or uint32, the ids;
- ``sentences.bin`` and ``documents.bin``: int64, end of each sentence and document, in tokens;
- ``counts.bin``: int64, frequency of each id;
- ``words.bin``, with a segmenter or word features: uint8 per token, 1 at word starts;
- ``features.bin``, with word features: uint16, F per token, feature ids of its word;
- ``store.json``: settings, sources, sizes, checksums.

Neither writing nor reading takes more memory for a larger corpus.
"""

import contextlib
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from ownbert import limits
from ownbert.batches.word_features import Features, feature_names, learn_features
from ownbert.checks import (
    Check,
    between,
    dict_of,
    known,
    list_of,
    maybe,
    one_of,
    record,
    text,
    whole,
)
from ownbert.corpus.chunks import ChunkingOptions
from ownbert.corpus.documents import Document, PathLike, find_files, fingerprint, read_documents
from ownbert.corpus.prepare import FORMAT, Progress, StoreOptions, contents, write_store
from ownbert.corpus.store_writer import INDEX, remove_work
from ownbert.corpus.text_encoding import require_segmenter
from ownbert.exceptions import InputError
from ownbert.files.encodings import UTF8, current_encoding, reads_encoding
from ownbert.files.folders import is_ours
from ownbert.files.input_files import refuse_same
from ownbert.files.json_files import read_json
from ownbert.files.writing import checksum
from ownbert.tables.texts_or_files import corpus_files
from ownbert.text.tokenizer import Tokenizer
from ownbert.text.tokenizer_folder import TOKENIZER_FILES
from ownbert.text.vocabulary_report import proposed_sentence_ends

_SIZE = whole(0, 1 << 50)


def _file(*dtypes: str) -> Check:
    checks = {"dtype": one_of(*dtypes), "bytes": _SIZE, "crc32": whole(0, (1 << 32) - 1)}
    return record(checks, required=tuple(checks))


_FILES = {
    "tokens": _file("<u2", "<u4"),
    "sentences": _file("<i8"),
    "documents": _file("<i8"),
    "counts": _file("<i8"),
}
# The only permitted names, because names become paths.
_OTHER_FILES = {"words": _file("|u1"), "features": _file("<u2")}
_TAGS = dict_of(list_of(text, most=limits.TAGS), most=limits.FEATURES)
_INDEX_KEYS = record(
    {
        "settings": record({"tokenizer": text, "features": _TAGS}, required=("tokenizer",)),
        "files": record({**_FILES, **_OTHER_FILES}, required=tuple(_FILES), closed=True),
        "read": record({"documents": _SIZE, "duplicates": _SIZE}),
    },
    required=("settings", "files"),
)
_INDEX_FORMAT = record({"format": whole(0, 1000)}, required=("format",))


@dataclass(frozen=True)
class Store:
    """A corpus as token ids.

    Args:
        tokens: (T) ids of the corpus.
        sentence_ends: one past the last token of each sentence, ascending, so the last is T.
        document_ends: one past the last token of each document, ascending.
        counts: (V) frequency of each id.
        reused: whether ``prepare`` found an existing store.
        words: (T) 1 at word starts, with a segmenter or word features, else None.
        identity: equal for stores with the same tokens, ends, words and vocabulary, independent of
            where and when they were written.
        read_documents: number of documents in the corpus.
        duplicates: number of documents that repeat an earlier one.
        resumed: number of documents that were finished by an interrupted run.
        features: (T, F) feature ids of each token's word; None without features.
    """

    folder: Path
    tokens: np.ndarray
    sentence_ends: np.ndarray
    document_ends: np.ndarray
    counts: np.ndarray
    settings: dict[str, Any]
    reused: bool = False
    words: np.ndarray | None = None
    identity: str = ""
    read_documents: int = 0
    duplicates: int = 0
    resumed: int = 0
    features: np.ndarray | None = None

    @classmethod
    def open(cls, folder: str | Path, *, reused: bool = False) -> "Store":
        """Map the files of a store, after verifying their checksums.

        Raises:
            InputError: a file is missing, truncated, altered or of another format.
        """
        folder = Path(folder)
        index = _read_index(folder)
        if index["format"] != FORMAT:
            raise InputError(
                "{folder} has store format {index}, this version reads {format}; prepare it again",
                folder,
                index["format"],
                FORMAT,
            )
        arrays = {}
        for name, entry in index["files"].items():
            path = folder / f"{name}.bin"
            size = path.stat().st_size if path.exists() else 0
            if size != entry["bytes"]:
                raise InputError(
                    "{path} has {size} bytes, expected {entry}; it was cut off or altered: prepare "
                    "the store again",
                    path,
                    size,
                    entry["bytes"],
                )
            if checksum(path)["crc32"] != entry["crc32"]:
                raise InputError(
                    "{path} was altered (its checksum differs): prepare the store again", path
                )
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
            arrays.get("words"),
            _identity(index),
            index.get("read", {}).get("documents", len(arrays["documents"])),
            index.get("read", {}).get("duplicates", 0),
            features=_features(folder, index, arrays),
        )

    @property
    def tags(self) -> Features:
        """The tags of each column of word features; empty without features."""
        return self.settings.get("features", {})

    @property
    def documents(self) -> int:
        return len(self.document_ends)

    @property
    def sentences(self) -> int:
        return len(self.sentence_ends)

    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the store; raises ``InputError`` if it was replaced."""
        tokenizer = Tokenizer.load(self.folder)
        if tokenizer.fingerprint() != self.settings["tokenizer"]:
            raise InputError(
                "{folder}: the tokenizer files differ from those that the store was written "
                "with; prepare it again",
                self.folder,
            )
        return tokenizer


@reads_encoding
def prepare(
    paths: Any,
    output: str | Path,
    *,
    tokenizer: Tokenizer | str | Path,
    text_column: str | None = None,
    layout: str = "auto",
    encoding: str | None = None,
    sentence_end: Sequence[str] | None = None,
    duplicates: str = "keep",
    segmenter: str | None = None,
    feature_columns: str | None = None,
    processes: int | None = None,
    progress: Progress | None = None,
) -> Store:
    """Write the token store of a corpus, or open the existing one if nothing has changed.

    Chunks finished by an interrupted run are reused with the same settings and sources.

    Args:
        paths: files, folders and globs, or texts in memory (see ``corpus_files``).
        output: folder of the store.
        tokenizer: tokenizer, or its folder.
        text_column, layout: see ``read_documents``.
        encoding: encoding of text files; by default UTF-8.
        sentence_end: tokens that end a sentence in pre-tokenised text, by default those proposed by
            the vocabulary report beside the tokenizer; plain text is split by rule.
        duplicates: ``keep`` or ``drop`` documents whose text occurred before.
        segmenter: ``jieba`` segments Chinese words for whole-word masking.
        feature_columns: names of columns with a tag for each word, separated by commas, which a
            model reads besides the text; for CoNLL files their numbers from 1.
        processes: number of worker processes (by default one per core, at most 5); the store does
            not depend on it.
        progress: called with (documents, bytes of text, bytes of the corpus or None) so far.

    Raises:
        InputError: text cannot be read, a value is invalid, or a file cannot be written.
    """
    output = Path(output)
    known("keep", "drop")("duplicates", duplicates)
    maybe(between(1, limits.PROCESSES, "[]"))("processes", processes)
    with corpus_files(paths) as names:
        files = _files(names)
        refuse_same([*names, *files, tokenizer], output)
        if not isinstance(tokenizer, Tokenizer):
            if sentence_end is None:
                sentence_end = proposed_sentence_ends(tokenizer)
            tokenizer = Tokenizer.load(tokenizer)
        if segmenter is not None:
            require_segmenter(segmenter, tokenizer)
            if feature_columns is not None:
                raise InputError("feature columns require given words; omit the segmenter")
        documents = partial(
            read_documents,
            files,
            text_column=text_column,
            layout=layout,
            feature_columns=feature_columns,
        )
        features = {}
        if feature_columns is not None:
            features = _learn_features(documents(), feature_columns)
        by_rule, ends = tokenizer.kind != "blank", frozenset(sentence_end or ())
        end_ids = [tokenizer.id_of(token) for token in sentence_end or ()]
        if sentence_end and None in end_ids:
            raise InputError(
                "sentence end {unknown!r} is not in the vocabulary; name tokens that are",
                sentence_end[end_ids.index(None)],
            )
        chunking = ChunkingOptions(by_rule, ends, duplicates == "drop", features)
        options = StoreOptions(
            tokenizer=tokenizer,
            end_ids=np.asarray(end_ids, dtype=np.int64),
            chunking=chunking,
            segmenter=segmenter,
            processes=processes,
            progress=progress or (lambda documents, done, total: None),
        )
        settings = {
            "tokenizer": tokenizer.fingerprint(),
            "kind": tokenizer.kind,
            "sentence_end": sorted(ends),
            "layout": layout,
            "text_column": text_column,
            "duplicates": duplicates,
            "segmenter": segmenter,
            "sources": fingerprint(files),
            **({"features": features} if features else {}),
            **({"encoding": current_encoding()} if current_encoding() != UTF8 else {}),
        }
        if (store := _reusable(output, settings)) is not None:
            return store
        resumed = write_store(files, documents(), output, settings, options)
        return replace(Store.open(output), resumed=resumed)


def _learn_features(documents: Iterator[Document], columns: str) -> dict[str, list[str]]:
    """The tags of all documents, for the columns named by the user."""
    first = next(documents)
    names = feature_names(columns, len(first.tags))
    if len(names) > limits.FEATURES:
        raise InputError(
            "{count} feature columns are too many; at most {features}", len(names), limits.FEATURES
        )
    features = learn_features((document.tags for document in chain([first], documents)), names)
    for name, tags in features.items():
        if len(tags) > limits.TAGS:
            raise InputError(
                "the feature column {name!r} has {count:,} different tags; at most {tags:,} are "
                "allowed: group numbers into bins",
                name,
                len(tags),
                limits.TAGS,
            )
    return features


def _files(paths: PathLike | Sequence[PathLike]) -> list[Path]:
    files = find_files(paths)
    for path in files:
        if path.exists() and not path.is_file():  # a pipe would be consumed by the checksum
            raise InputError(
                "{path} is not a file that can be read twice; write it to a file", path
            )
    return files


def _reusable(output: Path, settings: dict[str, Any]) -> Store | None:
    """The existing store if it has the same content and settings; ``InputError`` if the folder
    contains anything else, because it would be replaced."""
    with contextlib.suppress(InputError, KeyError, TypeError):  # a damaged store is rewritten
        index = _read_index(output)
        if index["format"] == FORMAT and contents(index["settings"]) == contents(settings):
            store = Store.open(output, reused=True)
            remove_work(output)
            return store
    # A damaged index is recognised by the store's other files.
    data = (output / "tokens.bin").exists() or is_ours(output / INDEX) is not False
    known = (output / INDEX).exists() and data
    if output.is_dir() and any(output.iterdir()) and not known:
        raise InputError(
            "{output} is not empty and contains no token store; choose another folder", output
        )
    ours = {INDEX, *TOKENIZER_FILES, *(f"{name}.bin" for name in {**_FILES, **_OTHER_FILES})}
    for path in sorted(output.iterdir()) if output.is_dir() else ():
        if path.name not in ours or path.is_dir():
            raise InputError("{path} is not a file of a token store; choose another folder", path)
    return None


def _read_index(folder: Path) -> dict[str, Any]:
    if not (folder / INDEX).is_file():
        raise InputError("{folder} contains no token store; make one with: ownbert prepare", folder)
    path = folder / INDEX
    try:
        index = read_json(path, check=_INDEX_FORMAT)
        if index["format"] == FORMAT:
            _INDEX_KEYS(str(path), index)
    except InputError as error:
        raise InputError(
            "{path} is damaged; prepare the store again: {error}", path, error
        ) from None
    return index


def _features(
    folder: Path, index: dict[str, Any], arrays: Mapping[str, np.ndarray]
) -> np.ndarray | None:
    """(T, F) if the index has features; ``InputError`` if they do not match the tokens."""
    tags, ids = index["settings"].get("features"), arrays.get("features")
    if not tags and ids is None:
        return None
    misfit = InputError(
        "{folder} is damaged: its word features do not fit its tokens; prepare the store again",
        folder / INDEX,
    )
    tokens = len(arrays["tokens"])
    if not tags or ids is None or "words" not in arrays or len(ids) != tokens * len(tags):
        raise misfit
    ids = ids.reshape(tokens, len(tags))
    if (ids.max(0, initial=0) > [len(column_tags) for column_tags in tags.values()]).any():
        raise misfit
    return ids


def _identity(index: dict[str, Any]) -> str:
    content = [index["settings"]["tokenizer"]]
    if features := index["settings"].get("features"):
        content.append(features)
    for name, entry in sorted(index["files"].items()):
        content.append([name, entry["dtype"], entry["bytes"], entry["crc32"]])
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]
