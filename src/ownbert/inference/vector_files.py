"""Embeds the texts of files into a file of vectors."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from ownbert.checkpoint import describe
from ownbert.checkpoint.description import VECTORS
from ownbert.checkpoint.model_files import model_checksums
from ownbert.corpus.documents import find_files
from ownbert.exceptions import InputError
from ownbert.files.encodings import reads_encoding
from ownbert.files.input_files import refuse_same
from ownbert.files.writing import atomic_path
from ownbert.inference.embedder import Embedder, after, in_blocks
from ownbert.inference.engines import TORCH, Compute, Progress, Say, say_each
from ownbert.inference.row_files import (
    VECTOR,
    VECTOR_WRITERS,
    Record,
    vector_rows,
    vector_table,
    write_blocks,
)
from ownbert.inference.shards import part_of
from ownbert.nn.default_dtype import in_float32
from ownbert.tables.columns import ColumnNames, read_texts_with_ids
from ownbert.tables.memory import MemoryTable, is_table, table_of
from ownbert.tables.texts_or_files import are_names, table_of_texts, text_or_file

# Files, folders and globs, or a table in memory.
Inputs = str | Path | Sequence[str | Path] | MemoryTable
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
        if (ending := output.suffix.lower()) not in VECTOR_WRITERS:
            raise InputError(
                "cannot tell the file type of {path!r}; its name must end with one of {options}",
                str(output),
                ", ".join(VECTOR_WRITERS),
            )
        if ending == ".npy" and id_column is not None:
            raise InputError(
                "{path} is a matrix, which cannot store ids; write to a .parquet or .jsonl file",
                output,
            )
        _refuse_name(id_column)
        refuse_same([folder, *sources_of(inputs)], output)
    compute = Compute(device, precision, engine)
    rows = RowVectors(folder, columns, compute, max_length, options, say)
    embedded = rows.embedded(dealt.take(records, list), progress)
    if output is None:
        vectors = rows.joined([block for _, block in embedded])
        result = vectors[0] if single else vectors
    else:
        with atomic_path(output) as temporary:
            ending, size = output.suffix.lower(), rows.size
            result = write_blocks(temporary, ending, embedded, size, id_column)
        dealt.write_manifest(output, rows.depends_on)
    say_each(rows.warnings(), say)
    return result


class RowVectors:
    """The texts of an input and their vectors, for all outputs: memory, terminal, files and
    shards.

    ``options`` are those of ``Embedder.encode`` that give float vectors of the model's size;
    ``say`` is called with automatic choices.
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

    def table(self, source: Any, before: int) -> Any:
        """See ``RowPredictions.table``."""
        blocks = [*self.embedded(islice(records_of(source, self._columns), before, None))]
        records = [record for block, _ in blocks for record in block]
        vectors = self.joined([vectors for _, vectors in blocks])
        return vector_table(records, vectors, self._columns.id)

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
        yield from vector_rows(block, vectors, columns.id)
    say_each(rows.warnings(), say)


def as_inputs(inputs: Any) -> Inputs:
    """File names unchanged, rows in memory as a table."""
    rows = inputs if isinstance(inputs, list) else [inputs]
    if is_table(inputs) or any(isinstance(row, Mapping) for row in rows):
        return table_of(inputs, name="the input")
    return inputs if are_names(inputs) else table_of_texts(inputs)


def sources_of(inputs: Inputs) -> list[Any]:
    """The matching files, or the table; ``InputError`` for a name without files."""
    return [inputs] if isinstance(inputs, MemoryTable) else find_files(inputs)


def records_of(inputs: Inputs, columns: ColumnNames) -> Iterator[Record]:
    """Yield all texts with their ids, including empty texts: cells of columns, or lines."""
    return (
        record for source in sources_of(inputs) for record in read_texts_with_ids(source, columns)
    )


def count_texts(inputs: Inputs, columns: ColumnNames) -> int | None:
    """The number of texts; None for inputs that can only be read once, such as pipes."""
    if isinstance(inputs, MemoryTable) or not all(path.is_file() for path in find_files(inputs)):
        return None
    return sum(1 for _ in records_of(inputs, columns))


def _refuse_name(id_column: str | None) -> None:
    if id_column in ("text", VECTOR):
        raise InputError(
            "the id column {id_column!r} has the same name as a column of the output", id_column
        )
