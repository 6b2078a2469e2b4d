"""Unlabelled text for vocabularies and pretraining: streams documents from files.

Plain text has one of these layouts: ``line``, one document per line (blank lines are skipped);
``blank``, one sentence per line with blank lines between documents (the input of
google-research/bert ``create_pretraining_data.py``); ``conll``, one word per line in columns, where
each sentence is a document. Tables have one document per row, or two if rows are pairs of texts in
columns with usual names. Files are plain or gzip, in the encoding of
``ownbert.files.encodings.reading_as``, by default UTF-8.
"""

import glob
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from ownbert.checks import known
from ownbert.exceptions import InputError
from ownbert.files.input_files import sha256_of
from ownbert.files.text_files import open_text, refuse_unreadable
from ownbert.language.messages import Message
from ownbert.tables.columns import CORPUS_FEATURES, CORPUS_SECOND, TEXT, ColumnNames, find_columns
from ownbert.tables.conll import read_conll
from ownbert.tables.feature_cells import Cells, read_features, split_cell
from ownbert.tables.tables import (
    ending_of,
    is_known,
    kind_of,
    not_empty,
    place,
    read_records,
    read_values,
)

LAYOUTS = ("auto", "line", "blank", "conll")
PathLike = str | os.PathLike[str]

LOOK_LINES = 2_000
LOOK_CHARACTERS = 1_000_000
# Blank lines that are rarer than one per this many lines are accidents, not document ends.
LONGEST_DOCUMENT_LINES = 500
# Approximate characters per byte of a compressed file.
UNPACKED = 4


@dataclass(slots=True)
class Document:
    """A text. ``presplit``: whether each piece is a sentence. ``tags``: for each column of word
    features, one tag per piece; each piece is then a word."""

    pieces: list[str]
    presplit: bool
    tags: Cells = ()


def find_files(paths: PathLike | Sequence[PathLike]) -> list[Path]:
    """Resolve files, folders and globs to distinct files, in this order.

    A folder stands for all files in it and its subfolders with a known extension (.txt, .csv, .tsv,
    .jsonl, .ndjson, .json, .parquet, each also with .gz), sorted; hidden files and folders are
    skipped. A glob matches files with any extension. Each name must match a file.
    """
    names = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    if not names:
        raise InputError("no input files given: name files, folders or globs")
    files: dict[Path, None] = {}
    for name in names:
        files.update(dict.fromkeys(_files_of(os.fspath(name))))
    return list(files)


def _files_of(name: str) -> list[Path]:
    path = Path(name)
    if path.is_dir():
        if (path / "store.json").is_file():
            raise InputError(
                "{path} is a folder of tokens from ownbert prepare, not a folder of texts", path
            )
        if any((path / name).is_file() for name in ("config.json", "blend.json")):
            raise InputError("{path} is a model folder, not a folder of texts", path)
        files: list[Path] = []
        for parent, folders, names in os.walk(path):
            folders[:] = [name for name in folders if not name.startswith(".")]
            visible = (Path(parent, name) for name in names if not name.startswith("."))
            files += [file for file in visible if is_known(file) and file.is_file()]
        if not files:
            raise InputError(
                "no .txt, .csv, .tsv, .jsonl or .parquet files in the folder {path}", path
            )
        return sorted(files)
    if path.exists():
        return [path]
    if not glob.has_magic(name):
        raise InputError("no such file: {path}", path)
    files = [Path(match) for match in sorted(glob.glob(name, recursive=True))]
    files = [match for match in files if match.is_file()]
    if not files:
        raise InputError("no file matches {name}", name)
    return files


def read_documents(
    paths: PathLike | Sequence[PathLike],
    *,
    text_column: str | None = None,
    layout: str = "auto",
    feature_columns: str | None = None,
    characters: int | None = None,
) -> Iterator[Document]:
    """Stream the documents of files; empty ones are skipped.

    Args:
        paths: see ``find_files``.
        text_column: column of the text in tables, by default found by its usual names, or both
            columns of a pair; a text with line breaks stays one piece.
        layout: layout of plain text; ``auto`` detects it from the ending .conll or .conllu, else
            from the first 2,000 lines of each file (see ``guess_layout``). In ``conll`` columns are
            given by number, from 1.
        feature_columns: names of columns of word features, separated by commas; plain text is then
            ``conll``.
        characters: approximate maximum of characters. If the files are larger, small files are read
            whole, and large files give the first documents, equal shares of the rest.

    Raises:
        InputError: at the call, a name matches no file or the layout is unknown; while reading, a
            file cannot be read, or there are no documents.
    """
    known(*LAYOUTS)("layout", layout)
    if feature_columns is not None and layout not in ("auto", "conll"):
        raise InputError(
            "layout {layout} has no columns of word features; plain text needs layout conll, "
            "one word per line",
            layout,
        )
    files = find_files(paths)
    for path in files:
        refuse_unreadable(path)
    columns = ColumnNames(text=text_column, features=feature_columns)
    names = ", ".join(str(path) for path in files[:3]) + (", ..." if len(files) > 3 else "")
    documents = _documents(files, layout, columns, _shares(files, characters))
    return not_empty(documents, Message("the corpus is empty: no text in {names}", names))


def approximate_characters(path: PathLike) -> int:
    """Approximate number of characters of a file, from its size."""
    return os.path.getsize(path) * (UNPACKED if str(path).endswith((".gz", ".parquet")) else 1)


def _shares(files: list[Path], characters: int | None) -> list[float]:
    """Characters to read from each file."""
    sizes, shares = list(map(approximate_characters, files)), [math.inf] * len(files)
    if characters is None or sum(sizes) <= characters:
        return shares
    left = float(characters)
    for rank, i in enumerate(sorted(range(len(files)), key=sizes.__getitem__)):
        shares[i] = min(sizes[i], left / (len(files) - rank))
        left -= shares[i]
    return shares


def _documents(
    files: list[Path], layout: str, columns: ColumnNames, shares: list[float]
) -> Iterator[Document]:
    for path, share in zip(files, shares, strict=True):
        conll = layout == "conll" or columns.features is not None
        conll = conll or (layout == "auto" and ending_of(path) in (".conll", ".conllu"))
        if kind_of(path) != "txt":
            documents = _table_documents(path, columns)
        elif conll:
            documents = _conll_documents(path, columns)
        else:
            documents = _plain_documents(path, layout)
        for document in documents:
            if share <= 0:
                break
            yield document
            share -= sum(map(len, document.pieces))


def _table_documents(path: Path, columns: ColumnNames) -> Iterator[Document]:
    pair = None if columns.features is None else False
    columns_by_role = find_columns(path, [TEXT, CORPUS_SECOND, CORPUS_FEATURES], columns, pair=pair)
    (column,), names = columns_by_role["text"], columns_by_role.get("features", ())
    if not names:
        for _, texts in read_records(path, [column, *columns_by_role.get("second", ())]):
            for text in map(str.strip, texts):
                if text:
                    yield Document(pieces=[text], presplit=False)
        return
    for line, (value, *cells) in read_values(path, [column, *names]):
        where = place(path, line)
        words = split_cell(value, column, where)
        tags = read_features(cells, names, len(words), where)
        if words:
            yield Document(pieces=list(words), presplit=True, tags=tags)


def _conll_documents(path: Path, columns: ColumnNames) -> Iterator[Document]:
    """Yield each sentence: its words with their tags, or one piece without tags."""
    sentences = read_conll(
        path, tags=False, word_column=columns.text, feature_columns=columns.features
    )
    for sentence in sentences:
        pieces = [*sentence.words] if sentence.features else [" ".join(sentence.words)]
        yield Document(pieces=pieces, presplit=True, tags=sentence.features)


def _plain_documents(path: Path, layout: str) -> Iterator[Document]:
    lines = (line.strip() for _, line in open_text(path))
    if layout == "auto":
        start, characters = [], 0
        for line in lines:
            start.append(line)
            characters += len(line)
            if len(start) >= LOOK_LINES or characters >= LOOK_CHARACTERS:
                break
        layout = guess_layout(start)
        lines = chain(start, lines)
    if layout == "line":
        for line in lines:
            if line:
                yield Document(pieces=[line], presplit=False)
        return
    for block in _blocks(lines):
        yield Document(pieces=block, presplit=True)


def guess_layout(lines: Iterable[str]) -> Literal["line", "blank"]:
    """``blank`` if blank lines separate blocks of text lines, else ``line``: also if every block is
    a single line, and if blank lines are rarer than one per 500 lines."""
    sizes = [len(block) for block in _blocks(lines)]
    if len(sizes) < 2 or max(sizes) == 1:
        return "line"
    return "blank" if sum(sizes) <= (len(sizes) - 1) * LONGEST_DOCUMENT_LINES else "line"


def _blocks(lines: Iterable[str]) -> Iterator[list[str]]:
    block: list[str] = []
    for line in lines:
        if line:
            block.append(line)
        elif block:
            yield block
            block = []
    if block:
        yield block


def fingerprint(paths: PathLike | Sequence[PathLike]) -> list[dict[str, Any]]:
    """The identity of a corpus: name, size, mtime_ns and sha256 of every file."""
    entries = []
    for path in find_files(paths):
        refuse_unreadable(path)
        status = path.stat()
        identity = {"name": path.name, "size": status.st_size, "mtime_ns": status.st_mtime_ns}
        entries.append({**identity, "sha256": sha256_of(path)})
    return entries
