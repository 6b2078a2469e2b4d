"""The output folder of a bulk prediction: parquet parts and, when all are finished, a manifest.

Until then, ``_plan.json`` contains the rows of each part and the model, inputs and options, and
``_done`` contains a record of each finished part. pyarrow, pandas and Spark ignore names that begin
with _.
"""

import base64
import contextlib
import json
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO

from ownbert.bulk.input_parts import InputPart
from ownbert.bulk.part_worker import store_part
from ownbert.bulk.storage import DONE, StoredFolder
from ownbert.exceptions import InputError
from ownbert.files.resumable_file import refuse_other_run, saying_what_is_kept
from ownbert.files.writing import lock_file, missing_folders, remove_empty

MANIFEST, PLAN, LOCK = "_manifest.json", "_plan.json", "_lock"
# The entries of a record and their types.
_RECORD = {"part": str, "rows": int, "bytes": int, "sha256": str, "schema": str}


class PartsFolder:
    """An output folder as a context; after an error or interrupt it keeps the finished parts.

    Args:
        output: path, or address with ``://``.
        made_for: everything that the parts depend on; it must not change with ``resume``.
        resume: whether to keep the finished parts of an interrupted run.

    Attributes:
        complete: number of rows if the folder is complete, else None.
        plan: parts by file name; None before planning.
        rows: number of rows in finished parts.

    Raises:
        InputError: the folder contains other files, or parts of a different job.
    """

    def __init__(self, output: str | Path, made_for: Mapping[str, Any], *, resume: bool) -> None:
        self.folder = StoredFolder(output)
        self._made_for = json.loads(json.dumps(made_for))
        self._resume = resume
        self._records: dict[str, dict[str, Any]] = {}
        self._lock: BinaryIO | None = None
        self._new: list[Path] = []
        self.plan: dict[str, InputPart] | None = None
        self.complete: int | None = None

    def __enter__(self) -> "PartsFolder":
        kind = self.folder.is_folder()
        if kind is False:
            raise InputError("{folder} is a file; the output is a folder", self.folder)
        names = self.folder.names() if kind else []
        known = [name for name in (MANIFEST, PLAN) if self._resume and name in names]
        if not known and {*names} - {LOCK}:
            raise InputError(
                "{folder} is not empty; continue a stopped run of the same command with "
                "{--resume}, or choose another folder",
                self.folder,
            )
        saved = self.folder.read_json(known[0]) if known else {}
        if known:
            refuse_other_run(self.folder, saved, self._made_for, "choose another folder")
        if MANIFEST in known:
            if type(saved.get("rows")) is not int:
                raise InputError(self._damaged(MANIFEST))
            self.complete = saved["rows"]
            return self
        self._reserve()
        if known:
            self._read(saved)
        return self

    def __exit__(self, *error: object) -> None:
        if self._lock is not None:
            self._lock.close()
        if self.complete is None and not self._finished():
            with contextlib.suppress(InputError):
                for name in (PLAN, DONE, LOCK):
                    self.folder.remove(name)
            remove_empty(self._new)

    def _reserve(self) -> None:
        if (local := self.folder.local) is not None:
            self._new = missing_folders(local)
        self.folder.make(DONE)
        if local is not None:
            self._lock = (local / LOCK).open("ab")
            lock_file(self._lock, local)

    def _read(self, plan: Mapping[str, Any]) -> None:
        """Read the plan and the records of finished parts whose files exist."""
        try:
            self.plan = {name: InputPart(**part) for name, part in plan["plan"].items()}
            if {int} != {type(n) for part in self.plan.values() for n in vars(part).values()}:
                raise TypeError
        except (KeyError, TypeError, AttributeError):
            raise InputError(self._damaged(PLAN)) from None
        sizes = self.folder.sizes()
        for name in self.folder.sizes(DONE):
            if not name.endswith(".json"):
                self.folder.remove(f"{DONE}/{name}")  # of an unfinished attempt
                continue
            record = self.folder.read_json(f"{DONE}/{name}")
            part = record.get("part")
            # A part with a damaged record is predicted again.
            fits = all(type(record.get(key)) is kind for key, kind in _RECORD.items())
            if fits and part in self.plan and sizes.get(part) == record["bytes"]:
                self._records[record["part"]] = record

    def _damaged(self, name: str) -> str:
        return f"{self.folder}/{name} is damaged; remove it, or choose another folder"

    def begin(self, parts: Sequence[InputPart]) -> None:
        """Name the parts and write the plan."""
        width = max(5, len(str(len(parts))))
        self.plan = {f"part-{i:0{width}}.parquet": part for i, part in enumerate(parts)}
        plan = {name: asdict(part) for name, part in self.plan.items()}
        self.folder.write_json(PLAN, {**self._made_for, "plan": plan})

    @property
    def rows(self) -> int:
        return sum(record["rows"] for record in self._records.values())

    def waiting(self) -> dict[str, InputPart]:
        """The unfinished parts by file name."""
        return {n: part for n, part in (self.plan or {}).items() if n not in self._records}

    def add(self, record: dict[str, Any]) -> None:
        """Add the record of a part that a worker has finished."""
        self._records[record["part"]] = record

    def kept(self) -> AbstractContextManager[None]:
        """Context that adds the number of parts kept to the messages of errors and interrupts."""
        return saying_what_is_kept(self._kept)

    def _finished(self) -> int:
        """The number of parts with a record in the folder, including ones not yet added."""
        return sum(name.endswith(".json") for name in self.folder.sizes(DONE))

    def _kept(self) -> str:
        done, total = self._finished(), len(self.plan or {})
        if not done:
            return ""
        return f"; {done:,} of {total:,} parts are kept in {self.folder}"

    def finish(self) -> list[str]:
        """Write the manifest of a complete folder.

        A column that is empty throughout a part has no type; it gets its type in the other parts.

        Returns:
            Warnings.
        """
        assert self.plan is not None
        warnings = self._unify_schemas()
        parts, first = [], dict.fromkeys((part.file for part in self.plan.values()), 0)
        files = [each["address"] for each in self._made_for["input"]]
        for name, part in self.plan.items():
            place = {"part": name, "input": files[part.file], "first_row": first[part.file]}
            record = self._records[name]
            parts.append(place | {key: record[key] for key in ("rows", "bytes", "sha256")})
            first[part.file] += record["rows"]
        self.complete = self.rows
        manifest = {**self._made_for, "rows": self.complete, "parts": parts}
        self.folder.write_json(MANIFEST, manifest)
        for name in (PLAN, DONE, LOCK):
            self.folder.remove(name)
        return warnings

    def _unify_schemas(self) -> list[str]:
        """Rewrite parts so that all have the same schema and are one table; return warnings."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        by_schema: dict[str, list[str]] = {}
        for name, record in sorted(self._records.items()):
            by_schema.setdefault(record["schema"], []).append(name)
        if len(by_schema) < 2:
            return []
        schemas = {
            each: pa.ipc.read_schema(pa.BufferReader(base64.b64decode(each))) for each in by_schema
        }
        try:
            schema = pa.unify_schemas(list(schemas.values()), promote_options="permissive")
        except pa.ArrowException as error:
            reason = " ".join(str(error).split())
            return [f"warning: the parts of {self.folder} differ in their columns: {reason}"]
        for each, names in by_schema.items():
            if schemas[each].equals(schema):
                continue
            for name in names:
                table = pq.read_table(pa.BufferReader(self.folder.read(name)))
                table = pa.Table.from_pylist(table.to_pylist(), schema=schema)
                self._records[name].update(store_part(self.folder, name, table))
        return []
