"""A worker process that predicts parts of an input one by one, with one model in memory."""

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
from ownbert.exceptions import InputError
from ownbert.inference.engines import AS_FOLDER, Compute
from ownbert.inference.open_folder import open_folder
from ownbert.inference.predict import RowPredictions
from ownbert.inference.vector_files import RowVectors
from ownbert.tables.columns import ColumnNames
from ownbert.tasks.rows import OutputOptions

# Maximum attempts per part. Ray itself would replace a worker that dies without limit.
_TRIES = 3


@dataclass(frozen=True)
class BulkJob:
    """The computation for every row.

    Args:
        command: predict or embed.
        folder: model folder.
        columns: column names given by the user.
        compute: device and precision.
        options: for predict, fields of ``OutputOptions``; for embed, ``max_length`` and options of
            ``Embedder.encode``.
    """

    command: str
    folder: str
    columns: ColumnNames
    compute: Compute = AS_FOLDER
    options: Mapping[str, Any] = field(default_factory=dict)

    def open(self) -> RowPredictions | RowVectors:
        """Open the model.

        Returns:
            An object whose ``table`` method predicts or embeds a part.

        Raises:
            InputError: the folder or an option cannot be used.
        """
        options = dict(self.options)
        if self.command == "predict":
            opened = open_folder(self.folder, self.compute, columns=self.columns)
            given: Any = {"columns": self.columns, "options": OutputOptions(**options)}
            return RowPredictions(opened, None, **given)
        most = options.pop("max_length", None)
        rows = RowVectors(self.folder, self.columns, self.compute, most, options)
        rows.embedder.encode([], **options)  # rejects invalid options early
        return rows


class PartWorker:
    """Predicts parts and writes each to a separate file, with a record.

    Args:
        job: the computation for every row.
        files: all input files.
        output: output folder.
        threads: threads for the model.
        scratch: folder for temporary files, used if it exists on this machine.
    """

    def __init__(
        self, job: BulkJob, files: list[InputFile], output: str, threads: int, scratch: str
    ) -> None:
        import torch

        torch.set_num_threads(threads)
        self._files = files
        self._output = StoredFolder(output)
        # Removed when the worker ends; other machines do not have the folder of the job.
        self._temporary = tempfile.TemporaryDirectory(
            prefix="ownbert-part-", dir=scratch if os.path.isdir(scratch) else None
        )
        self._scratch = Path(self._temporary.name)
        self._name = secrets.token_hex(8)
        self._refused = ""
        try:
            self._model = job.open()
        except InputError as error:  # the folder may be missing on this machine
            self._refused = str(error)

    def __call__(self, batch: Any) -> Any:
        """Predict parts.

        Args:
            batch: pyarrow.Table with the columns ``name`` and ``part`` (an ``InputPart`` as JSON).

        Returns:
            A pyarrow.Table with one JSON object per part: the id of the ``worker``, and either a
            ``record`` and ``warnings`` or an ``error``.
        """
        import pyarrow as pa

        results = []
        for row in batch.to_pylist():
            try:
                if self._refused:
                    raise InputError(self._refused)
                record = self.answer(row["name"], InputPart(**json.loads(row["part"])))
                results.append({"record": record, "warnings": list(self._model.warnings())})
            except InputError as error:
                results.append({"error": str(error)})
            results[-1]["worker"] = self._name
        return pa.table({"json": [json.dumps(each) for each in results]})

    def answer(self, name: str, part: InputPart) -> dict[str, Any]:
        """Predict a part, and write the predictions and then the record.

        Raises:
            InputError: a row cannot be read, the output cannot be written, or all attempts at this
                part ended with a dead worker.
        """
        file = self._files[part.file]
        markers = [f"{DONE}/{name}.try-{number}" for number in range(1, _TRIES + 1)]
        free = next((marker for marker in markers if not self._output.holds(marker)), None)
        if free is None:
            raise InputError(
                "{address}: a worker died {tries} times at {name}, possibly out of memory; "
                "lower {--workers} or {--part-rows}",
                file.address,
                _TRIES,
                name,
            )
        self._output.write(free, b"")
        with open_part(file, part, self._scratch) as (source, before):
            table = self._model.table(source, before)
        record = {"part": name, "rows": table.num_rows, **store_part(self._output, name, table)}
        self._output.write_json(f"{DONE}/{name}.json", record)
        return record


def store_part(output: StoredFolder, name: str, table: Any) -> dict[str, Any]:
    """Write a part.

    Args:
        output: output folder.
        name: file name of the part.
        table: pyarrow.Table with the predictions.

    Returns:
        The size, checksum and schema for the record.
    """
    import pyarrow.parquet as pq

    sink = io.BytesIO()
    pq.write_table(table, sink)
    data = sink.getvalue()
    output.write(name, data)
    schema = base64.b64encode(table.schema.serialize().to_pybytes()).decode()
    return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest(), "schema": schema}
