"""``predict`` and ``embed`` on Ray Data, with workers on one or more machines.

The driver lists the files and splits them into parts. Each worker, an actor of Ray Data with its
own copy of the model, predicts one part at a time and writes it with a record, so that after a
crash only unfinished parts are predicted again.
"""

import contextlib
import importlib.util
import json
import logging
import os
import secrets
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

from ownbert import limits
from ownbert.bulk.input_parts import InputFile, InputPart, list_input_files, open_part, split_file
from ownbert.bulk.parts_folder import DONE, PartsFolder, StoredFolder
from ownbert.checks import between
from ownbert.corpus.prepare import cores
from ownbert.exceptions import InputError
from ownbert.hub import model_folder
from ownbert.inference.engines import AS_FOLDER, Compute, Progress, Say, say_each
from ownbert.inference.open_folder import open_folder
from ownbert.inference.pipeline import output_options
from ownbert.inference.predict import RowPredictions
from ownbert.inference.vector_files import RowVectors
from ownbert.tables.columns import ColumnNames
from ownbert.tasks.rows import OutputOptions

FORMAT = 1
# Rows per part: a multiple of the blocks that predict and embed sort by length.
PART_ROWS = 8192
# Maximum attempts per part. Ray itself would replace a worker that dies without limit.
_TRIES = 3
# Size of the object store, Ray's minimum: it only transfers descriptions of parts.
_STORE_BYTES = 80 << 20
# Loggers of Ray to silence; its errors are raised.
_LOGGERS = ("ray", "ray.data", "ray.data._internal")


@dataclass(frozen=True)
class BulkJob:
    """The computation for every row: the ``command`` is predict or embed.

    ``options`` are, for predict, fields of ``OutputOptions``; for embed, ``max_length`` and options
    of ``Embedder.encode``.
    """

    command: str
    folder: str
    columns: ColumnNames
    compute: Compute = AS_FOLDER
    options: Mapping[str, Any] = field(default_factory=dict)

    def open(self) -> RowPredictions | RowVectors:
        """Open the model; ``table`` of the result predicts or embeds a part."""
        options = dict(self.options)
        if self.command == "predict":
            opened = open_folder(self.folder, self.compute, columns=self.columns)
            given: Any = {"columns": self.columns, "options": OutputOptions(**options)}
            return RowPredictions(opened, None, **given)
        most = options.pop("max_length", None)
        rows = RowVectors(self.folder, self.columns, self.compute, most, options)
        rows.embedder.encode([], **options)  # rejects invalid options early
        return rows


def run_on_ray(
    command: str,
    folder: str | Path,
    inputs: Any,
    output: str | Path,
    *,
    text_column: str | None = None,
    second_column: str | None = None,
    id_column: str | None = None,
    device: str = "auto",
    precision: str | None = None,
    network: bool = False,
    workers: int | None = None,
    threads: int = 1,
    part_rows: int = PART_ROWS,
    resume: bool = False,
    progress: Progress | None = None,
    say: Say | None = None,
    **options: Any,
) -> int:
    """Predict or embed every row of files, and write a folder of parquet files with a manifest.

    Args:
        command: predict or embed.
        folder: model folder.
        inputs: files, folders or globs, one or several; or addresses of files and folders on a file
            system supported by pyarrow, such as s3://bucket/folder.
        output: folder, or its address.
        workers: number of processes, each with a copy of the model; by default one per GPU, or one
            per ``threads`` cores.
        threads: threads per worker.
        part_rows: maximum rows per part.
        resume: whether to keep the finished parts of an interrupted run.
        progress: called with the number of rows so far.
        say: called with notes and warnings.
        options: those of ``output_options`` for predict, of ``BulkJob`` for embed.

    Returns:
        The number of rows.

    Raises:
        InputError: Ray is missing, an input cannot be read, or, with ``resume``, the model, the
            input or an option differs; or a part fails.
    """
    if command == "predict":
        options = vars(output_options(**options))
    columns = ColumnNames(text_column, second_column, id=id_column)
    compute = Compute(device, precision, network=network or command == "embed")
    between(1, limits.PROCESSES, "[]")("threads", threads)
    between(1, limits.COUNT, "[]")("part_rows", part_rows)
    if workers is not None:
        between(1, limits.SHARDS, "[]")("workers", workers)
    files = list_input_files([inputs] if isinstance(inputs, str | os.PathLike) else inputs)
    # Ray's usage statistics and the log of its C++ code, which is not that of Python's streams.
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    if importlib.util.find_spec("ray") is None:
        raise InputError("{--runner} ray needs Ray, which is missing: pip install 'ownbert[ray]'")
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    job = BulkJob(command, str(model_folder(folder).absolute()), columns, compute, options)
    model = job.open()  # so that errors occur before Ray starts
    if isinstance(model, RowPredictions):
        task, conll = model.opened.task, any(file.kind == "txt" for file in files)
        if task.reads_arrays or (conll and task.head == "tokens"):
            raise InputError(
                "{name} reads images or CoNLL files, which cannot be split; use tables, or omit "
                "{--runner}",
                task.name,
            )
    say_each(filter(None, (model.compute.note,)), say)
    job = replace(job, compute=model.compute)  # the same for all workers
    made_for = {
        "format": FORMAT,
        "command": command,
        "input": [asdict(file) for file in files],
        **model.depends_on(),
        "part_rows": part_rows,
    }
    del model
    warnings: dict[Any, list[str]] = {}
    with PartsFolder(output, made_for, resume=resume) as parts:
        if parts.complete is not None:
            return parts.complete
        with parts.kept(), planned_workers(workers, threads, job.compute.device) as planned:
            if parts.plan is None:
                parts.begin(_split(files, part_rows))
            show = progress or (lambda rows: None)
            show(parts.rows)
            for result in _answered(job, files, parts, threads, *planned):
                if "error" in result:
                    raise InputError("{error}", result["error"])
                parts.add(result["record"])
                warnings[result["worker"]] = result["warnings"]
                show(parts.rows)
        rows, lines = parts.rows, parts.finish()
    say_each(dict.fromkeys(chain(lines, *warnings.values())), say)
    return rows


@contextlib.contextmanager
def planned_workers(workers: int | None, threads: int, device: str) -> Iterator[tuple[int, float]]:
    """Connect to Ray; the context has the number of workers, and the GPUs of each.

    Ray is started on this machine unless it is already connected or RAY_ADDRESS names a cluster.
    Unless the device is cpu, the workers share the GPUs of the cluster, and must request them,
    because Ray hides others. By default there is one worker per GPU, or one per ``threads`` cores.
    """
    import ray

    loggers = [logging.getLogger(name) for name in _LOGGERS]
    levels = [logger.level for logger in loggers]
    ours = not ray.is_initialized()
    try:
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        if ours:
            _start()
        resources = ray.cluster_resources()
        known = int(resources.get("CPU", 0))
        gpus = 0 if device == "cpu" else int(resources.get("GPU", 0))
        if not gpus and device.startswith("cuda"):
            raise InputError("{--device cuda}: Ray has no GPU; use cpu")
        count = workers or max(1, min(known // threads, gpus or known))
        if count * threads > known:
            raise InputError(
                "{count:,} workers with {threads:,} threads need {count2:,} cores, but Ray has "
                "{options:,}; lower {--workers} or {--threads}",
                count,
                threads,
                count * threads,
                known,
            )
        # Rounded so that each share fits on one GPU: Ray does not combine shares of several.
        yield count, 1 / -(-count // gpus) if gpus else 0
    finally:
        if ours:
            ray.shutdown()
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _start() -> None:
    import ray

    options: dict[str, Any] = {"address": "local", "include_dashboard": False}
    options |= {"num_cpus": cores(), "object_store_memory": _STORE_BYTES}
    if address := os.environ.get("RAY_ADDRESS"):
        options = {"address": address}
    before = signal.getsignal(signal.SIGTERM)
    try:
        with _without_stderr():
            ray.init(logging_level=logging.CRITICAL, log_to_driver=False, **options)
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        reason = " ".join(str(error).split())
        raise InputError("Ray failed to start: {reason}", reason) from error
    finally:
        # Ray installs its own handler, which ends the process without a message.
        if threading.current_thread() is threading.main_thread() and before is not None:
            signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def _without_stderr() -> Iterator[None]:
    """Discard what C++ code writes to standard error, such as a note on its log level."""
    sys.stderr.flush()
    before, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)
        os.close(nowhere)


def _split(files: list[InputFile], rows: int) -> list[InputPart]:
    """Split all files into parts, in parallel on the cluster."""
    import ray
    from ray.exceptions import RayTaskError

    split = ray.remote(num_cpus=1)(split_file)
    try:
        parts = ray.get([split.remote(number, file, rows) for number, file in enumerate(files)])
    except RayTaskError as error:
        if isinstance(error.cause, InputError):
            raise error.cause from None
        raise
    return list(chain.from_iterable(parts))


def _answered(
    job: BulkJob,
    files: list[InputFile],
    parts: PartsFolder,
    threads: int,
    workers: int,
    gpus: float,
) -> Iterator[dict[str, Any]]:
    """The results of the unfinished parts, in the order of completion."""
    import ray.data

    waiting = parts.waiting()
    if not waiting:
        return
    ray.data.DataContext.get_current().enable_progress_bars = False
    # One block per part: if a worker dies, only its current part is repeated.
    rows = [{"name": n, "part": json.dumps(asdict(part))} for n, part in waiting.items()]
    planned = ray.data.from_items(rows, override_num_blocks=len(rows))
    with tempfile.TemporaryDirectory(prefix="ownbert-parts-") as scratch:
        records = planned.map_batches(
            PartWorker,
            fn_constructor_args=(job, files, parts.folder.address, threads, scratch),
            batch_size=1,
            batch_format="pyarrow",
            compute=ray.data.ActorPoolStrategy(size=min(workers, len(waiting))),
            num_cpus=threads,
            num_gpus=gpus,
        )
        for row in records.iter_rows():
            yield json.loads(row["json"])


class PartWorker:
    """Predicts parts one by one, with one model in memory, and writes each with a record.

    ``scratch`` is a folder for temporary files, used if it exists on this machine.
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
        self._name = secrets.token_hex(8)
        self._refused = ""
        try:
            self._model = job.open()
        except InputError as error:  # the folder may be missing on this machine
            self._refused = str(error)

    def __call__(self, batch: Any) -> Any:
        """Predict parts: the rows of a pyarrow.Table with the columns ``name`` and ``part`` (an
        ``InputPart`` as JSON).

        Returns a pyarrow.Table with one JSON object per part: the id of the ``worker``, and either
        a ``record`` and ``warnings`` or an ``error``.
        """
        import pyarrow as pa

        results = []
        for row in batch.to_pylist():
            try:
                if self._refused:
                    raise InputError("{error}", self._refused)
                record = self.answer(row["name"], InputPart(**json.loads(row["part"])))
                results.append({"record": record, "warnings": list(self._model.warnings())})
            except InputError as error:
                results.append({"error": str(error)})
            results[-1]["worker"] = self._name
        return pa.table({"json": [json.dumps(each) for each in results]})

    def answer(self, name: str, part: InputPart) -> dict[str, Any]:
        """Predict a part, and write the predictions and then the record."""
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
        with open_part(file, part, Path(self._temporary.name)) as (source, before):
            table = self._model.table(source, before)
        record = {"part": name, "rows": table.num_rows, **self._output.write_part(name, table)}
        self._output.write_json(f"{DONE}/{name}.json", record)
        return record
