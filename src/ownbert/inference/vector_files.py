"""Embeds the texts of files into a file of vectors."""

import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from ownbert.checkpoint import describe
from ownbert.checkpoint.agreement import VECTORS
from ownbert.checkpoint.model_files import model_checksums
from ownbert.corpus.documents import find_files
from ownbert.exceptions import InputError, in_short
from ownbert.files.encodings import reads_encoding
from ownbert.files.input_files import refuse_same
from ownbert.files.writing import atomic_path
from ownbert.inference.embedder import Embedder, after, in_blocks
from ownbert.inference.engines import TORCH, Compute, Progress, Say, say_each
from ownbert.inference.shards import part_of
from ownbert.nn.default_dtype import in_float32
from ownbert.tables.columns import ColumnNames, read_texts_with_ids
from ownbert.tables.memory import MemoryTable, is_table, table_of
from ownbert.tables.texts_or_files import are_names, table_of_texts, text_or_file

# Files, folders and globs, or a table in memory.
Inputs = str | Path | Sequence[str | Path] | MemoryTable
# An id (None without an id column) and a text.
Record = tuple[Any, str]
# Writes a block of records and their vectors.
Write = Callable[[list[Record], np.ndarray], None]
VECTOR = "embedding"
# Options of ``Embedder.encode`` that change vectors by rounding only.
_NOT_OF_VECTORS = ("precision", "batch_tokens", "batch_size", "progress", "show_progress_bar")
# Options that change float vectors; all others produce outputs that these files cannot hold.
_OF_VECTORS = ("pooling", "normalize", "normalize_embeddings", "prompt", "prompt_name")


@reads_encoding
@in_float32
def embed(
    folder: str | Path,
    inputs: Any,
    output: str | Path | None = None,
    *,
    text_column: str | None = None,
    id_column: str | None = None,
    encoding: str | None = None,
    device: str = "auto",
    precision: str | None = None,
    max_length: int | None = None,
    engine: str | None = None,
    shard: Any = None,
    progress: Progress | None = None,
    say: Say | None = None,
    **options: Any,
) -> Any:
    """Embed texts in memory, or all texts of files, folders or globs, in their order.

    The extension of ``output`` selects the format: .npy is a float32 matrix with one row per text;
    .parquet and .jsonl have one row per text with ``text`` and ``embedding``. Texts are streamed,
    so neither input nor output has to fit in memory, and ``output`` is written completely or not at
    all.

    Args:
        folder: model folder.
        inputs: files, folders or globs, one or several; or rows in memory: a DataFrame, a
            datasets.Dataset, a list or Series of texts, a mapping of columns, a list of mappings.
            Without ``output`` also a single text, which is any string that names no file.
        output: file to write; by default the vectors are returned.
        text_column: column of the text in tables.
        id_column: column of an id in tables, which becomes the first column of ``output``.
        encoding: encoding of text files; by default UTF-8.
        max_length, device, engine: see ``Embedder``.
        precision: float32, bfloat16 or auto; by default the folder decides (``Compute``).
        shard: with ``output``, embed only this share of the texts, (3, 16) or "3/16", and write it
            beside ``output``, for ``ownbert.merge``.
        progress: called with the number of texts so far.
        say: called with warnings.
        options: options of ``Embedder.encode`` that give float vectors of the model's size.

    Returns:
        The number of texts; without ``output`` the vectors: float32 (N, D), or (D) for one
        text.

    Raises:
        InputError: a file cannot be read or written.
    """
    columns = ColumnNames(text=text_column, id=id_column)
    output, dealt = part_of(output, shard)
    single = output is None and isinstance(text_or_file(inputs), str)
    inputs = table_of_texts([inputs]) if single else as_inputs(inputs)
    records = records_of(inputs, columns)
    if output is not None:
        _refuse_output(output, id_column)
        refuse_same([folder, *sources_of(inputs)], output)
    compute = Compute(device, precision, engine)
    rows = RowVectors(folder, columns, compute, max_length, options, say)
    embedded = rows.embedded(records if dealt is None else dealt.take(records, list), progress)
    if output is None:
        vectors = rows.joined([block for _, block in embedded])
        result = vectors[0] if single else vectors
    else:
        with atomic_path(output) as temporary:
            ending, size = output.suffix.lower(), rows.size
            result = write_blocks(temporary, ending, embedded, size, id_column)
        if dealt is not None:
            dealt.write_manifest(output, rows.depends_on())
    say_each(rows.warnings(), say)
    return result


class RowVectors:
    """The texts of an input and their vectors, for all outputs: memory, terminal, files and shards.

    Args:
        folder: model folder.
        columns: columns named by the user.
        compute: device, precision and engine.
        max_length: see ``Embedder``.
        options: options of ``Embedder.encode`` that give float vectors of the model's size.
        say: called with automatic choices: the precision, and the engine if it is auto.

    Raises:
        InputError: the folder or an option cannot be used.
    """

    def __init__(
        self,
        folder: str | Path,
        columns: ColumnNames,
        compute: Compute,
        max_length: int | None = None,
        options: Mapping[str, Any] = {},
        say: Say | None = None,
    ) -> None:
        if others := options.keys() - {*_NOT_OF_VECTORS, *_OF_VECTORS}:
            raise TypeError(f"embed has no option {min(others)!r}; see Embedder.encode")
        description = describe(folder)
        self._columns, self._options = columns, options
        self.compute = compute.settled([description], (VECTORS,))
        self.embedder = Embedder(
            description,
            device=compute.device,
            precision=self.compute.precision,
            max_length=max_length,
            engine=compute.engine,
        )
        say_each(filter(None, (self.compute.note, self.embedder.engine.note)), say)

    def embedded(
        self, records: Iterator[Record], progress: Progress | None = None
    ) -> Iterator[tuple[list[Record], np.ndarray]]:
        """Yield blocks of texts with their vectors."""
        done = 0
        for block in in_blocks(records, size=lambda each: len(each[1])):
            options: Any = {**self._options, "progress": after(done, progress)}
            yield block, self.embedder.encode([text for _, text in block], **options)
            done += len(block)

    @property
    def size(self) -> int:
        """The size of the vectors."""
        return self.embedder.get_sentence_embedding_dimension()

    def joined(self, blocks: Sequence[np.ndarray]) -> np.ndarray:
        """The concatenated vectors (N, D) of all blocks, possibly none."""
        return np.concatenate([np.empty((0, self.size), np.float32), *blocks])

    def refuse_kind(self, kind: str) -> None:
        """Accept every kind of file."""

    def table(self, source: Any, before: int) -> Any:
        """See ``RowPredictions.table``."""
        blocks = [*self.embedded(islice(records_of(source, self._columns), before, None))]
        records = [record for block, _ in blocks for record in block]
        return arrow_table(records, self.joined([each for _, each in blocks]), self._columns.id)

    def depends_on(self) -> dict[str, Any]:
        """Everything but the texts that the vectors depend on."""
        embedder, options, engine = self.embedder, self._options, self.embedder.engine.name
        return {
            **({} if engine == TORCH else {"engine": engine}),
            "model": model_checksums(embedder.folder),
            "columns": {"text": self._columns.text, "id": self._columns.id},
            "precision": options.get("precision") or embedder.precision,
            "max_length": embedder.max_length,
            "options": {k: v for k, v in options.items() if k not in _NOT_OF_VECTORS},
        }

    def warnings(self) -> Iterator[str]:
        """Warnings about the texts so far."""
        return self.embedder.warnings()


def embedded_rows(
    folder: str | Path,
    inputs: Any,
    columns: ColumnNames,
    compute: Compute,
    *,
    max_length: int | None = None,
    say: Say | None = None,
    **options: Any,
) -> Iterator[dict[str, Any]]:
    """Yield the rows of a .jsonl file of ``embed``; for the arguments see ``RowVectors``."""
    records = records_of(as_inputs(inputs), columns)
    _refuse_name(columns.id)
    rows = RowVectors(folder, columns, compute, max_length, options, say)
    for block, vectors in rows.embedded(records):
        yield from _rows(block, vectors, columns.id)
    say_each(rows.warnings(), say)


def as_inputs(inputs: Any) -> Inputs:
    """File names unchanged, rows in memory as a table."""
    if is_table(inputs) or isinstance(inputs, Mapping):
        return table_of(inputs, name="the input")
    if isinstance(inputs, list) and any(isinstance(each, Mapping) for each in inputs):
        return table_of(inputs, name="the input")
    return inputs if are_names(inputs) else table_of_texts(inputs)


def sources_of(inputs: Inputs) -> list[Any]:
    """The matching files, or the table; ``InputError`` for a name without files."""
    return [inputs] if isinstance(inputs, MemoryTable) else find_files(inputs)


def records_of(inputs: Inputs, columns: ColumnNames) -> Iterator[Record]:
    """Yield all texts with their ids, including empty texts: cells of columns, or lines.

    Raises:
        InputError: immediately for a name without files, while reading for other problems.
    """
    return (
        record for source in sources_of(inputs) for record in read_texts_with_ids(source, columns)
    )


def count_texts(inputs: Inputs, columns: ColumnNames) -> int | None:
    """The number of texts; None for inputs that can only be read once, such as pipes."""
    if isinstance(inputs, MemoryTable) or not all(path.is_file() for path in find_files(inputs)):
        return None
    return sum(1 for _ in records_of(inputs, columns))


@contextmanager
def _npy(path: Path, id_column: str | None, size: int) -> Iterator[Write]:
    count = 0
    with path.open("wb") as file:
        file.write(_header(0, size))

        def write(records: list[Record], vectors: np.ndarray) -> None:
            nonlocal count
            count += len(vectors)
            file.write(vectors.tobytes())

        yield write
        file.seek(0)
        file.write(_header(count, size))


def _header(count: int, size: int) -> bytes:
    """The header of a .npy file, with a length that does not depend on the count."""
    array = {"descr": "<f4", "fortran_order": False, "shape": (count, size)}
    header = io.BytesIO()
    # NumPy pads the header, so that the first dimension can grow.
    np.lib.format.write_array_header_1_0(header, array)
    return header.getvalue()


@contextmanager
def _jsonl(path: Path, id_column: str | None, size: int) -> Iterator[Write]:
    with path.open("w", encoding="utf-8") as file:

        def write(records: list[Record], vectors: np.ndarray) -> None:
            for row in _rows(records, vectors, id_column):
                file.write(json.dumps(row, ensure_ascii=False) + "\n")

        yield write


def _rows(
    records: list[Record], vectors: np.ndarray, id_column: str | None
) -> Iterator[dict[str, Any]]:
    for (id, text), vector in zip(records, vectors, strict=True):
        id_cell = {} if id_column is None else {id_column: id}
        # Nine digits represent a float32 exactly.
        yield {**id_cell, "text": text, VECTOR: [float(f"{x:.9g}") for x in vector.tolist()]}


@contextmanager
def _parquet(path: Path, id_column: str | None, size: int) -> Iterator[Write]:
    import pyarrow.parquet as pq

    with ExitStack() as stack:
        file: pq.ParquetWriter | None = None

        def write(records: list[Record], vectors: np.ndarray) -> None:
            nonlocal file
            # The first block decides whether ids are numbers or texts.
            kind = None
            if file is not None and id_column is not None:
                kind = file.schema.field(id_column).type
            try:
                table = arrow_table(records, vectors, id_column, kind)
            except InputError as error:
                raise InputError(f"{error}; write to a .jsonl file") from None
            if file is None:
                file = stack.enter_context(pq.ParquetWriter(path, table.schema))
            file.write_table(table)

        yield write
        if file is None:  # a shard may have no rows
            write([], np.empty((0, size), np.float32))


def arrow_table(
    records: Sequence[Record], vectors: np.ndarray, id_column: str | None, kind: Any = None
) -> Any:
    """Records and their vectors (records, D) as a pyarrow.Table.

    Args:
        records: ids and texts.
        vectors: (records, D).
        id_column: name of the column of ids; None: no such column.
        kind: Arrow type of the ids; by default inferred.

    Raises:
        InputError: ids are both numbers and texts.
    """
    import pyarrow as pa

    ids, texts = [id for id, _ in records], [text for _, text in records]
    flat = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), vectors.shape[1])
    cells = {"text": pa.array(texts, pa.string()), VECTOR: flat}
    if id_column is not None:
        try:
            cells = {id_column: pa.array(ids, kind), **cells}
        except (pa.ArrowException, OverflowError) as error:
            raise InputError(
                "the ids in {id_column!r} have different types ({error})", id_column, error
            ) from None
    return pa.table(cells)


_WRITERS: dict[str, Callable[[Path, str | None, int], AbstractContextManager[Write]]] = {
    ".npy": _npy,
    ".parquet": _parquet,
    ".jsonl": _jsonl,
}


def write_blocks(
    path: Path,
    ending: str,
    blocks: Iterable[tuple[list[Record], np.ndarray]],
    size: int,
    id_column: str | None,
    progress: Progress = lambda count: None,
) -> int:
    """Write records and their vectors in the format of ``ending``; return their number.

    Args:
        path: file to write.
        ending: .npy, .parquet or .jsonl.
        blocks: records and their vectors (records, D).
        size: vector size D.
        id_column: name of the id column, if any.
        progress: called with the number of records so far.
    """
    done = 0
    with _WRITERS[ending](path, id_column, size) as write:
        for records, vectors in blocks:
            write(records, vectors)
            progress(done := done + len(vectors))
    return done


def parquet_layout(path: Path) -> tuple[str | None, int]:
    """The id column (or None) and the vector size of a file written by ``embed``.

    Raises:
        InputError: the file was not written by ``embed``.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        schema = pq.read_schema(path)
    except (pa.ArrowException, OSError) as error:
        raise InputError("it is not a readable parquet file") from error
    ids = [name for name in schema.names if name not in ("text", VECTOR)]
    if sorted(schema.names) != sorted([*ids[:1], "text", VECTOR]):
        raise InputError("its columns are {names}, not those of embed", in_short(schema.names))
    text, vectors = (schema.field(name).type for name in ("text", VECTOR))
    fixed = pa.types.is_fixed_size_list(vectors) and vectors.value_type == pa.float32()
    if text != pa.string() or not fixed:
        raise InputError(
            "its texts are of type {text} and its vectors {vectors}", text, in_short(str(vectors))
        )
    return (ids[0] if ids else None), vectors.list_size


def parquet_rows(
    path: Path, id_column: str | None, rows: int
) -> Iterator[tuple[Record, np.ndarray]]:
    """Yield the records and vectors of a file written by ``embed``, reading ``rows`` at a time.

    Missing values in a vector are NaN.
    """
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(batch_size=rows):
            texts = batch.column("text").to_pylist()
            ids = [None] * len(texts) if id_column is None else batch.column(id_column).to_pylist()
            column = batch.column(VECTOR)
            if column.null_count:
                raise InputError("{path}: a vector is missing", path)
            vectors = column.flatten().to_numpy(zero_copy_only=False)
            yield from zip(
                zip(ids, texts, strict=True), vectors.reshape(len(texts), -1), strict=True
            )


def _refuse_output(path: Path, id_column: str | None) -> None:
    """Raise ``InputError`` for a file that cannot be written, or not with ids."""
    ending = path.suffix.lower()
    if ending not in _WRITERS:
        known = ", ".join(_WRITERS)
        raise InputError(
            "cannot tell the file type of {path!r}; its name must end with one of {options}",
            str(path),
            known,
        )
    if ending == ".npy" and id_column is not None:
        raise InputError(
            "{path} is a matrix, which cannot store ids; write to a .parquet or .jsonl file", path
        )
    _refuse_name(id_column)


def _refuse_name(id_column: str | None) -> None:
    if id_column in ("text", VECTOR):
        raise InputError(
            "the id column {id_column!r} has the same name as a column of the output", id_column
        )
