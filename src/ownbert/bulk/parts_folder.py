"""The output folder of a bulk prediction: parquet parts and, when all are finished, a manifest.

Until then, ``_plan.json`` contains the rows of each part and the model, inputs and options, and
``_done`` contains a record of each finished part. pyarrow, pandas and Spark ignore names that begin
with _.
"""

import base64
import contextlib
import hashlib
import io
import json
import secrets
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO

from ownbert.bulk.input_parts import InputPart, as_address, file_errors, open_file_system
from ownbert.exceptions import InputError
from ownbert.files.resumable_file import refuse_other_run, saying_what_is_kept
from ownbert.files.writing import lock_file, missing_folders, remove_empty
from ownbert.language.messages import Message

# Subfolder for records of finished parts and for files being written.
DONE = "_done"
MANIFEST, PLAN, LOCK = "_manifest.json", "_plan.json", "_lock"
# The entries of a record and their types.
_RECORD = {"part": str, "rows": int, "bytes": int, "sha256": str, "schema": str}


class StoredFolder:
    """An output folder on any file system, named by a path or an address with ``://``."""

    def __init__(self, name: str | Path) -> None:
        self.address = as_address(name)
        self._files, self._path = open_file_system(self.address)
        self.local = Path(self.address) if "://" not in self.address else None

    def __str__(self) -> str:
        return self.address

    def _info(self, below: str = "", *, inside: bool = False) -> Any:
        """The pyarrow.fs.FileInfo of a file or subfolder, or of all files and folders in it."""
        from pyarrow import fs

        path: Any = f"{self._path}/{below}" if below else self._path
        if inside:
            path = fs.FileSelector(path, allow_not_found=True)
        with file_errors(self.address):
            return self._files.get_file_info(path)

    def sizes(self, below: str = "") -> dict[str, int]:
        """Sizes in bytes, by name, of the files in the folder or in its subfolder ``below``."""
        return {
            each.base_name: each.size for each in self._info(below, inside=True) if each.is_file
        }

    def names(self) -> list[str]:
        """The names of all files and subfolders, none if the folder does not exist.

        Raises:
            InputError: it is a file.
        """
        if self._info().is_file:
            raise InputError("{folder} is a file; the output is a folder", self)
        return [each.base_name for each in self._info(inside=True)]

    def holds(self, name: str) -> bool:
        """Whether the folder contains a file with this name."""
        return self._info(name).is_file

    def make(self, below: str) -> None:
        """Create the folder and its subfolder ``below``."""
        with file_errors(self.address, "write"):
            self._files.create_dir(f"{self._path}/{below}", recursive=True)

    def write(self, name: str, data: bytes) -> None:
        """Write a file completely or not at all."""
        temporary = f"{self._path}/{DONE}/{secrets.token_hex(4)}.tmp"
        with file_errors(f"{self.address}/{name}", "write"):
            try:
                with self._files.open_output_stream(temporary) as file:
                    file.write(data)
                self._files.move(temporary, f"{self._path}/{name}")
            except BaseException:
                with contextlib.suppress(OSError):
                    self._files.delete_file(temporary)
                raise

    def write_json(self, name: str, value: Any) -> None:
        """Write a JSON file."""
        text = json.dumps(value, ensure_ascii=False, indent=1) + "\n"
        self.write(name, text.encode())

    def write_part(self, name: str, table: Any) -> dict[str, Any]:
        """Write a pyarrow.Table to a parquet file; return its size, checksum and schema for the
        record of the part."""
        import pyarrow.parquet as pq

        sink = io.BytesIO()
        pq.write_table(table, sink)
        data = sink.getvalue()
        self.write(name, data)
        schema = base64.b64encode(table.schema.serialize().to_pybytes()).decode()
        return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest(), "schema": schema}

    def read(self, name: str) -> bytes:
        """The content of a file."""
        with (
            file_errors(f"{self.address}/{name}"),
            self._files.open_input_stream(f"{self._path}/{name}", compression=None) as file,
        ):
            return file.read()

    def read_json(self, name: str) -> dict[str, Any]:
        """The object in a JSON file; empty if the file is damaged or contains no object."""
        try:
            value = json.loads(self.read(name))
        except (ValueError, RecursionError):
            return {}
        return value if isinstance(value, dict) else {}

    def remove(self, name: str) -> None:
        """Remove a file or folder, if it exists."""
        from pyarrow import fs

        kind, path = self._info(name).type, f"{self._path}/{name}"
        with file_errors(f"{self.address}/{name}", "write"):
            if kind == fs.FileType.Directory:
                self._files.delete_dir(path)
            elif kind != fs.FileType.NotFound:
                self._files.delete_file(path)


class PartsFolder:
    """An output folder as a context; after an error or interrupt it keeps the finished parts.

    ``made_for`` is everything that the parts depend on, which must not change with ``resume``.

    Attributes:
        complete: number of rows if the folder is complete, else None.
        plan: parts by file name; None before planning.
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
        names = self.folder.names()
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
        if (local := self.folder.local) is not None:
            self._new = missing_folders(local)
        self.folder.make(DONE)
        if local is not None:
            self._lock = (local / LOCK).open("ab")
            lock_file(self._lock, local)
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
        return Message(
            "{folder}/{name} is damaged; remove it, or choose another folder", self.folder, name
        )

    def begin(self, parts: Sequence[InputPart]) -> None:
        """Name the parts and write the plan."""
        width = max(5, len(str(len(parts))))
        self.plan = {f"part-{i:0{width}}.parquet": part for i, part in enumerate(parts)}
        plan = {name: asdict(part) for name, part in self.plan.items()}
        self.folder.write_json(PLAN, {**self._made_for, "plan": plan})

    @property
    def rows(self) -> int:
        """The number of rows in finished parts."""
        return sum(record["rows"] for record in self._records.values())

    def waiting(self) -> dict[str, InputPart]:
        """The unfinished parts by file name."""
        return {n: part for n, part in (self.plan or {}).items() if n not in self._records}

    def add(self, record: dict[str, Any]) -> None:
        """Add the record of a part that a worker has finished."""
        self._records[record["part"]] = record

    def kept(self) -> AbstractContextManager[None]:
        """Context that adds the number of parts kept to the messages of errors and interrupts."""

        def kept() -> str:
            done, total = self._finished(), len(self.plan or {})
            return (
                Message(
                    "; {done:,} of {total:,} parts are kept in {folder}", done, total, self.folder
                )
                if done
                else ""
            )

        return saying_what_is_kept(kept)

    def _finished(self) -> int:
        """The number of parts with a record in the folder, including ones not yet added."""
        return sum(name.endswith(".json") for name in self.folder.sizes(DONE))

    def finish(self) -> list[str]:
        """Write the manifest of a complete folder, and return warnings."""
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
        """Rewrite parts so that all have the same schema and are one table; return warnings.

        A column that is empty throughout a part has no type; it gets its type in the other parts.
        """
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
            return [
                Message(
                    "warning: the parts of {folder} differ in their columns: {reason}",
                    self.folder,
                    reason,
                )
            ]
        for each, names in by_schema.items():
            if schemas[each].equals(schema):
                continue
            for name in names:
                table = pq.read_table(pa.BufferReader(self.folder.read(name)))
                table = pa.Table.from_pylist(table.to_pylist(), schema=schema)
                self._records[name].update(self.folder.write_part(name, table))
        return []
