"""A process that answers parts of an input, one after the other, with one model in memory."""

import base64
import hashlib
import io
import json
import os
import secrets
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from ownbert.bulk.input_parts import InputFile, InputPart, open_part
from ownbert.bulk.storage import DONE, StoredFolder
from ownbert.checkpoint.agreement import ANSWERS, VECTORS
from ownbert.data.readers.columns import ColumnNames
from ownbert.errors import InputError
from ownbert.inference.default_precision import ChosenPrecision, default_precision
from ownbert.inference.embedder import Embedder, in_blocks
from ownbert.inference.predict import RowPredictions
from ownbert.inference.vector_files import (
    arrow_table,
    records_of,
    refuse_options,
    vectors_depend_on,
)
from ownbert.tasks.rows import OutputOptions

# So often a part may end its worker: Ray itself would start another one for ever.
_TRIES = 3


@dataclass(frozen=True)
class BulkJob:
    """What is made of every row.

    Args:
        command: predict or embed.
        folder: of the model.
        columns: that the user named.
        device, precision: as of the commands.
        options: predict: those of ``OutputOptions`` and ``network``; embed: ``max_length`` and
            those of ``Embedder.encode``.
    """

    command: str
    folder: str
    columns: ColumnNames
    device: str = "auto"
    precision: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def default_precision(self) -> ChosenPrecision:
        """The precision that the folder is used in here.

        Raises:
            InputError: the folder cannot be used.
        """
        vectors = self.command == "embed"
        return default_precision(
            self.precision,
            self.folder,
            device=self.device,
            network=vectors or bool(self.options.get("network")),
            what=(VECTORS,) if vectors else (ANSWERS, VECTORS),
        )

    def open(self) -> "RowAnswers | RowVectors":
        """The model, ready to answer.

        Raises:
            InputError: the folder or an option cannot be used.
        """
        return RowAnswers(self) if self.command == "predict" else RowVectors(self)


class RowAnswers:
    """The answers of a fine-tuned model to parts of an input, as Arrow tables."""

    def __init__(self, job: BulkJob) -> None:
        options = dict(job.options)
        self._columns = job.columns
        self._predictions = RowPredictions(
            job.folder,
            None,
            columns=job.columns,
            device=job.device,
            precision=job.precision,
            network=options.pop("network", False),
            options=OutputOptions(**options),
        )

    def refuse_kind(self, kind: str) -> None:
        """Raise ``InputError`` for files that the task cannot read in parts."""
        self._predictions.refuse_parts_of(kind)

    def depends_on(self) -> dict[str, Any]:
        """What the answers depend on, besides the rows."""
        return self._predictions.depends_on(self._columns)

    def table(self, source: Any, before: int) -> Any:
        """The answers to the rows of a part.

        Args:
            source: a file or a table.
            before: rows at its beginning that are not of the part.

        Returns:
            A pyarrow.Table.
        """
        import pyarrow as pa

        rows = []
        for block in self._predictions.read(source, before):
            rows += self._predictions.predict(block)
        names = list(dict.fromkeys(name for row in rows for name in row))
        try:
            return pa.table({name: pa.array([row.get(name) for row in rows]) for name in names})
        except (pa.ArrowException, OverflowError) as error:
            raise InputError(
                f"{source}: values of a column are not of one kind ({error})"
            ) from None

    def warnings(self) -> list[str]:
        """Of all parts so far."""
        return list(self._predictions.warnings())


class RowVectors:
    """The vectors of the texts of parts of an input, as Arrow tables."""

    def __init__(self, job: BulkJob) -> None:
        self._options = dict(job.options)
        self._columns = job.columns
        self._embedder = Embedder(
            job.folder,
            device=job.device,
            precision=job.precision,
            max_length=self._options.pop("max_length", None),
        )
        refuse_options(self._options)
        self._embedder.encode([], **self._options)  # refuses wrong values

    def refuse_kind(self, kind: str) -> None:
        """Texts of any file can be embedded."""

    def depends_on(self) -> dict[str, Any]:
        """As of ``RowAnswers``."""
        columns = {"text": self._columns.text, "id": self._columns.id}
        return vectors_depend_on(self._embedder, columns, self._options)

    def table(self, source: Any, before: int) -> Any:
        """As of ``RowAnswers``."""
        import numpy as np

        records = islice(records_of(source, self._columns), before, None)
        kept, vectors = [], [np.empty((0, self._embedder.size), np.float32)]
        for block in in_blocks(records, size=lambda each: len(each[1])):
            kept += block
            texts = [text for _, text in block]
            vectors.append(self._embedder.encode(texts, **self._options))
        return arrow_table(kept, np.concatenate(vectors), self._columns.id)

    def warnings(self) -> list[str]:
        """As of ``RowAnswers``."""
        warning = self._embedder.warning()
        return [] if warning is None else [warning]


class PartWorker:
    """Answers parts and writes each to a file of its own, with a record of what it is.

    Args:
        job: what is made of every row.
        files: the whole input.
        output: the folder of the results.
        threads: that the model may use.
        scratch: a folder for temporary files, if it is on this machine.
    """

    def __init__(
        self, job: BulkJob, files: list[InputFile], output: str, threads: int, scratch: str
    ) -> None:
        import torch

        torch.set_num_threads(threads)
        self._files = files
        self._output = StoredFolder(output)
        self._scratch = Path(tempfile.mkdtemp(dir=scratch if os.path.isdir(scratch) else None))
        self._name = secrets.token_hex(8)
        self._refused = ""
        try:
            self._model = job.open()
        except InputError as error:  # of a folder that is not on this machine
            self._refused = str(error)

    def __call__(self, batch: Any) -> Any:
        """Answer parts.

        Args:
            batch: a pyarrow.Table with the ``name`` and the ``part`` (JSON of ``InputPart``) of
                each.

        Returns:
            A pyarrow.Table with what became of each, as JSON: a ``record``, or an ``error``.
        """
        import pyarrow as pa

        found = []
        for row in batch.to_pylist():
            try:
                if self._refused:
                    raise InputError(self._refused)
                record = self.answer(row["name"], InputPart(**json.loads(row["part"])))
                found.append({"record": record, "warnings": self._model.warnings()})
            except InputError as error:
                found.append({"error": str(error)})
            found[-1]["worker"] = self._name
        return pa.table({"json": [json.dumps(each) for each in found]})

    def answer(self, name: str, part: InputPart) -> dict[str, Any]:
        """Write the answers to a part, and then its record, which is returned.

        Raises:
            InputError: a row cannot be read, or the result cannot be written.
        """
        file = self._files[part.file]
        markers = [f"{DONE}/{name}.try-{number}" for number in range(1, _TRIES + 1)]
        free = next((marker for marker in markers if not self._output.holds(marker)), None)
        if free is None:
            raise InputError(
                f"{file.address}: a worker ended {_TRIES} times at {name}, perhaps out of memory; "
                "lower --workers or --part-rows"
            )
        self._output.write(free, b"")
        with open_part(file, part, self._scratch) as (source, before):
            table = self._model.table(source, before)
        record = {"part": name, "rows": table.num_rows, **store_part(self._output, name, table)}
        self._output.write_json(f"{DONE}/{name}.json", record)
        return record


def store_part(output: StoredFolder, name: str, table: Any) -> dict[str, Any]:
    """Write a pyarrow.Table as a part; returns what its record says of the file."""
    import pyarrow.parquet as pq

    sink = io.BytesIO()
    pq.write_table(table, sink)
    data = sink.getvalue()
    output.write(name, data)
    schema = base64.b64encode(table.schema.serialize().to_pybytes()).decode()
    return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest(), "schema": schema}
