"""Embedding the texts of files into a file of vectors."""

import io
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ownbert.data.corpus.documents import find_files
from ownbert.data.readers.columns import read_texts
from ownbert.errors import InputError
from ownbert.files import atomic_path, refuse_same
from ownbert.inference.embedder import Embedder, Progress, after, in_blocks

Say = Callable[[str], None]
Inputs = str | Path | Sequence[str | Path]
# Writes the texts of a block and their vectors, one row each.
Write = Callable[[list[str], np.ndarray], None]


def embed(
    folder: str | Path,
    inputs: Inputs,
    output: str | Path,
    *,
    text_column: str | None = None,
    device: str = "auto",
    precision: str = "float32",
    max_length: int | None = None,
    progress: Progress | None = None,
    say: Say | None = None,
    **options: Any,
) -> int:
    """Embed all texts of files, folders or globs into one file, in their order.

    The extension of ``output`` decides its format: .npy is a float32 matrix with one row per text;
    .parquet and .jsonl have one row per text with ``text`` and ``embedding``. Texts are streamed,
    so neither side need fit in memory, and ``output`` appears complete or not at all.

    Args:
        folder, device, precision, max_length: as for ``Embedder``.
        text_column: the column of tables that holds the texts.
        progress: called with the number of texts so far.
        say: called with warnings.
        options: those of ``Embedder.encode``.

    Returns:
        The number of texts.

    Raises:
        InputError: a file cannot be read or written.
    """
    writer = _writer(Path(output))
    refuse_same([folder, *find_files(inputs)], output)
    texts = texts_of(inputs, text_column=text_column)
    embedder = Embedder(folder, device=device, precision=precision, max_length=max_length)
    done = 0
    with atomic_path(output) as temporary, writer(temporary, embedder.size) as write:
        for block in in_blocks(texts):
            shown = None if progress is None else after(done, progress)
            write(block, embedder.encode(block, progress=shown, **options))
            done += len(block)
    if say is not None and (warning := embedder.warning()):
        say(warning)
    return done


def texts_of(inputs: Inputs, *, text_column: str | None = None) -> Iterator[str]:
    """All texts of files, folders or globs, empty ones too: the cells of a column, or lines.

    Raises:
        InputError: at once for a name without files, and while reading for other problems.
    """
    files = find_files(inputs)
    return (text for path in files for text in read_texts(path, text_column=text_column))


def count_texts(inputs: Inputs, *, text_column: str | None = None) -> int | None:
    """The number of texts; None if one of the files is a pipe, which can be read only once."""
    if not all(path.is_file() for path in find_files(inputs)):
        return None
    return sum(1 for _ in texts_of(inputs, text_column=text_column))


@contextmanager
def _npy(path: Path, size: int) -> Iterator[Write]:
    count = 0
    with path.open("wb") as file:
        file.write(_header(0, size))

        def write(texts: list[str], vectors: np.ndarray) -> None:
            nonlocal count
            count += len(vectors)
            file.write(vectors.tobytes())

        yield write
        file.seek(0)
        file.write(_header(count, size))


def _header(count: int, size: int) -> bytes:
    """The header of a .npy file, of the same length for every count."""
    array = {"descr": "<f4", "fortran_order": False, "shape": (count, size)}
    header = io.BytesIO()
    # NumPy leaves room for the first dimension to grow.
    np.lib.format.write_array_header_1_0(header, array)
    return header.getvalue()


@contextmanager
def _jsonl(path: Path, size: int) -> Iterator[Write]:
    with path.open("w", encoding="utf-8") as file:

        def write(texts: list[str], vectors: np.ndarray) -> None:
            for text, vector in zip(texts, vectors, strict=True):
                # Nine digits are enough for a float32.
                row = {"text": text, "embedding": [float(f"{x:.9g}") for x in vector.tolist()]}
                file.write(json.dumps(row, ensure_ascii=False) + "\n")

        yield write


@contextmanager
def _parquet(path: Path, size: int) -> Iterator[Write]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    vector = pa.list_(pa.float32(), size)
    schema = pa.schema([("text", pa.string()), ("embedding", vector)])
    with pq.ParquetWriter(path, schema) as file:

        def write(texts: list[str], vectors: np.ndarray) -> None:
            flat = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), size)
            file.write_table(pa.table([pa.array(texts, pa.string()), flat], schema=schema))

        yield write


_WRITERS: dict[str, Callable[[Path, int], AbstractContextManager[Write]]] = {
    ".npy": _npy,
    ".parquet": _parquet,
    ".jsonl": _jsonl,
}


def _writer(path: Path) -> Callable[[Path, int], AbstractContextManager[Write]]:
    if path.suffix.lower() not in _WRITERS:
        known = ", ".join(_WRITERS)
        raise InputError(f"cannot tell the kind of {path}; its name must end with one of {known}")
    return _WRITERS[path.suffix.lower()]
