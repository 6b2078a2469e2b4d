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
from pathlib import Path
from typing import Any

from ownbert.bulk.input_parts import InputFile, InputPart, open_part
from ownbert.bulk.storage import DONE, StoredFolder
from ownbert.checkpoint.agreement import ANSWERS, VECTORS
from ownbert.errors import InputError
from ownbert.inference.compute import AS_FOLDER, Compute
from ownbert.inference.embedding.vector_files import RowVectors
from ownbert.inference.open_folder import settled
from ownbert.inference.predict import RowPredictions
from ownbert.tables.columns import ColumnNames
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
        compute: what computes.
        options: predict: those of ``OutputOptions``; embed: ``max_length`` and those of
            ``Embedder.encode``.
    """

    command: str
    folder: str
    columns: ColumnNames
    compute: Compute = AS_FOLDER
    options: Mapping[str, Any] = field(default_factory=dict)

    def settled(self) -> Compute:
        """What computes here, with the precision that the folder says.

        Raises:
            InputError: the folder cannot be used.
        """
        what = (VECTORS,) if self.command == "embed" else (ANSWERS, VECTORS)
        return settled(self.folder, self.compute, what)

    def open(self) -> RowPredictions | RowVectors:
        """The model, ready to answer.

        Raises:
            InputError: the folder or an option cannot be used.
        """
        options = dict(self.options)
        if self.command == "predict":
            given: Any = {"columns": self.columns, "options": OutputOptions(**options)}
            return RowPredictions(self.folder, None, compute=self.compute, **given)
        most = options.pop("max_length", None)
        rows = RowVectors(self.folder, self.columns, self.compute, most, options)
        rows.embedder.encode([], **options)  # refuses wrong values
        return rows


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
                found.append({"record": record, "warnings": list(self._model.warnings())})
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
                f"{file.address}: a worker died {_TRIES} times at {name}, possibly out of "
                "memory; lower --workers or --part-rows"
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
