"""``predict`` and ``embed`` on Ray Data: workers on one machine or many, one model in each.

The driver lists the files and splits them into parts; an actor of Ray Data for each worker answers
one part at a time, and writes it with a record of its own. So whatever is killed, only parts that
were not finished are computed again.
"""

import contextlib
import importlib.util
import json
import logging
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from ownbert import limits
from ownbert.bulk.input_parts import InputFile, InputPart, list_input_files, split_file
from ownbert.bulk.part_worker import BulkJob, PartWorker
from ownbert.bulk.parts_folder import PartsFolder
from ownbert.checks import between
from ownbert.corpus.workers import cores
from ownbert.errors import InputError
from ownbert.hub import model_folder
from ownbert.inference.compute import Compute, say_each
from ownbert.tables.columns import ColumnNames

Progress = Callable[[int], None]
Say = Callable[[str], None]

FORMAT = 1
# Arguments of ``run_job`` that are no options of a job.
_RUN = ("workers", "threads", "part_rows", "resume", "progress", "say")
# Rows of a part: whole blocks of those that predict and embed sort by length.
PART_ROWS = 8192
# Only descriptions of parts go through it; Ray's least.
_STORE_BYTES = 80 << 20
# What Ray itself logs; its errors are raised.
_LOGGERS = ("ray", "ray.data", "ray.data._internal")


def predict_with_ray(
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
    top_k: int | None = None,
    threshold: float | None = None,
    probabilities: bool = False,
    unknown: float | None = None,
    coverage: float | None = None,
    **run: Any,
) -> int:
    """The answers to every row of files, as a folder of parquet files with a manifest.

    Args:
        folder, text_column, second_column, id_column, device, precision, network, threshold,
            probabilities, unknown, coverage: as of ``ownbert.predict``.
        inputs, output, run: as of ``run_job``.
        top_k: number of labels per row.

    Returns, raises: as ``run_job``.
    """
    job = BulkJob(
        "predict",
        str(folder),
        ColumnNames(text_column, second_column, id=id_column),
        Compute(device, precision, network=network),
        {"top": top_k, "threshold": threshold, "probabilities": probabilities}
        | {k: v for k, v in (("unknown", unknown), ("coverage", coverage)) if v is not None},
    )
    return run_job(job, inputs, output, **run)


def embed_with_ray(
    folder: str | Path,
    inputs: Any,
    output: str | Path,
    *,
    text_column: str | None = None,
    id_column: str | None = None,
    device: str = "auto",
    precision: str | None = None,
    **given: Any,
) -> int:
    """The vectors of every text of files, as a folder of parquet files with a manifest.

    Args:
        folder, text_column, id_column, device, precision: as of ``ownbert.embed``.
        inputs, output: as of ``run_job``.
        given: further arguments of ``run_job``; ``max_length``, and those of ``Embedder.encode``.

    Returns, raises: as ``run_job``.
    """
    columns = ColumnNames(text=text_column, id=id_column)
    compute = Compute(device, precision, network=True)
    run = {name: given.pop(name) for name in _RUN if name in given}
    job = BulkJob("embed", str(folder), columns, compute, given)
    return run_job(job, inputs, output, **run)


def run_job(
    job: BulkJob,
    inputs: Any,
    output: str | Path,
    *,
    workers: int | None = None,
    threads: int = 1,
    part_rows: int = PART_ROWS,
    resume: bool = False,
    progress: Progress | None = None,
    say: Say | None = None,
) -> int:
    """Do a job in every part of files: a folder of parquet files with a manifest.

    Args:
        inputs: files, folders or globs, one or several; or addresses of files and folders on a file
            system that pyarrow reads, as s3://bucket/folder.
        output: a folder, or an address of one.
        workers: processes with a model each; by default one for ``threads`` cores, or for each GPU.
        threads: of each worker.
        part_rows: the most rows of a part.
        resume: keep the parts that a stopped run has finished.
        progress: called with the number of rows so far.
        say: called with warnings.

    Returns:
        The number of rows.

    Raises:
        InputError: Ray is missing, an input cannot be read, or, with ``resume``, the model, the
            input or an option differs.
    """
    between(1, limits.PROCESSES, "[]")("threads", threads)
    between(1, limits.COUNT, "[]")("part_rows", part_rows)
    if workers is not None:
        between(1, limits.SHARDS, "[]")("workers", workers)
    if isinstance(inputs, str | os.PathLike):
        inputs = [inputs]
    files = list_input_files(inputs)
    _require_ray()
    job = replace(job, folder=str(model_folder(job.folder).absolute()))
    compute = job.settled()  # here: all workers take the same
    say_each(filter(None, (compute.note,)), say)
    job = replace(job, compute=compute)
    made_for = _made_for(job, files, part_rows)
    warnings: dict[Any, list[str]] = {}
    with PartsFolder(output, made_for, resume=resume) as parts:
        if parts.complete is not None:
            return parts.complete
        with parts.kept(), crew_of(workers, threads, job.compute.device) as crew:
            if parts.plan is None:
                parts.begin(_split(files, part_rows))
            show = progress or (lambda rows: None)
            show(parts.rows)
            for found in _answered(job, files, parts, crew):
                if "error" in found:
                    raise InputError(found["error"])
                parts.add(found["record"])
                warnings[found["worker"]] = found["warnings"]
                show(parts.rows)
        rows, lines = parts.rows, parts.finish()
    say_each(dict.fromkeys(chain(lines, *warnings.values())), say)
    return rows


def _require_ray() -> None:
    """Raise ``InputError`` where Ray is missing; without this Ray would send statistics."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    if importlib.util.find_spec("ray") is None:
        raise InputError("--runner ray needs Ray, which is missing: pip install 'ownbert[ray]'")
    # What its C++ writes past Python's streams, as of workers that have ended and are started anew.
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")


def _made_for(job: BulkJob, files: list[InputFile], part_rows: int) -> dict[str, Any]:
    """What the parts depend on; loads the model once, so that mistakes show before Ray starts."""
    model = job.open()
    for file in files:
        model.refuse_kind(file.kind)
    return {
        "format": FORMAT,
        "command": job.command,
        "input": [asdict(file) for file in files],
        **model.depends_on(),
        "part_rows": part_rows,
    }


@dataclass(frozen=True)
class Crew:
    """The workers of a job.

    Args:
        count: of workers.
        threads: of each.
        gpus: of each; several may share one.
    """

    count: int
    threads: int
    gpus: float


@contextlib.contextmanager
def crew_of(workers: int | None, threads: int, device: str) -> Iterator[Crew]:
    """Ray, started on this machine unless it is already connected or RAY_ADDRESS names a cluster.

    Yields the workers. Unless the device is cpu they share the GPUs of the cluster: Ray hides those
    that it was not asked for. By default there is a worker for each.

    Raises:
        InputError: the cluster cannot be reached, or has too few cores.
    """
    import ray

    for name in _LOGGERS:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    ours = not ray.is_initialized()
    if ours:
        _start()
    try:
        resources = ray.cluster_resources()
        known = int(resources.get("CPU", 0))
        gpus = 0 if device == "cpu" else int(resources.get("GPU", 0))
        if not gpus and device.startswith("cuda"):
            raise InputError("--device cuda: Ray has no GPU; use cpu")
        count = workers or max(1, min(known // threads, gpus or known))
        if count * threads > known:
            raise InputError(
                f"{count:,} workers with {threads:,} threads need {count * threads:,} cores, but "
                f"Ray has {known:,}; lower --workers or --threads"
            )
        # Ray gives a worker a whole share of one GPU, never parts of two.
        yield Crew(count, threads, 1 / -(-count // gpus) if gpus else 0)
    finally:
        if ours:
            ray.shutdown()


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
        raise InputError(f"Ray failed to start: {reason}") from error
    finally:
        # Ray has one of its own, which ends the process without a word.
        if threading.current_thread() is threading.main_thread() and before is not None:
            signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def _without_stderr() -> Iterator[None]:
    """Drop what C++ writes to standard error: that the level of its log is set."""
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
    """The parts of all files, which the whole cluster reads for that."""
    import ray
    from ray.exceptions import RayTaskError

    split = ray.remote(num_cpus=1)(split_file)
    try:
        found = ray.get([split.remote(number, file, rows) for number, file in enumerate(files)])
    except RayTaskError as error:
        if isinstance(error.cause, InputError):
            raise InputError(str(error.cause)) from None
        raise
    return list(chain.from_iterable(found))


def _answered(
    job: BulkJob, files: list[InputFile], parts: PartsFolder, crew: Crew
) -> Iterator[dict[str, Any]]:
    """What became of each part that waits, as it comes."""
    import ray.data

    waiting = parts.waiting()
    if not waiting:
        return
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    # A block for each part: what a worker that ends has not finished is all that is done again.
    rows = [{"name": n, "part": json.dumps(part.as_json())} for n, part in waiting.items()]
    planned = ray.data.from_items(rows, override_num_blocks=len(rows))
    with tempfile.TemporaryDirectory(prefix="ownbert-parts-") as scratch:
        answered = planned.map_batches(
            PartWorker,
            fn_constructor_args=(job, files, parts.folder.address, crew.threads, scratch),
            batch_size=1,
            batch_format="pyarrow",
            compute=ray.data.ActorPoolStrategy(size=min(crew.count, len(waiting))),
            num_cpus=crew.threads,
            num_gpus=crew.gpus,
        )
        for row in answered.iter_rows():
            yield json.loads(row["json"])
