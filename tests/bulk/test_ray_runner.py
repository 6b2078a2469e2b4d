"""predict and embed on Ray, whose killed workers are replaced, and the parts without Ray."""

import csv
import hashlib
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ownbert import InputError, embed, limits, predict
from ownbert.bulk import ray_runner
from ownbert.bulk.input_parts import list_input_files, split_file
from ownbert.bulk.parts_folder import DONE, PartsFolder
from ownbert.bulk.ray_runner import BulkJob, PartWorker
from ownbert.tables.columns import ColumnNames
from support.cli import refusal, run_cli


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("lines") / "new.jsonl"
    rows = [{"id": i, "text": f"red{i % 12} w{i % 31} " * (i % 10 + 1)} for i in range(1500)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_mistakes_are_one_line(classifier: Path, topics: Path, tmp_path: Path):
    file, out = topics / "test.csv", tmp_path / "out"
    for command in ("predict", "embed"):

        def line(*arguments: object, command: str = command) -> str:
            return refusal(command, classifier, *arguments)

        ray = ("--runner", "ray")
        assert "--runner 'spark' is not known; use one of local, ray" in line(
            file, "--runner", "spark"
        )
        for option in ("--workers", "--threads", "--part-rows"):
            assert f"{option} requires --runner ray" in line(file, "-o", out, option, 2)
        assert "writes a folder; name it with -o FOLDER" in line(file, *ray)
        assert "reads files; name files or folders" in line("-", "-o", out, *ray)
        assert "reads files; name files or folders" in line("-o", out, *ray)
        assert "no such file" in line("red1 red2", "-o", out, *ray)
        assert "cannot be combined; use" in line(file, "-o", out, *ray, "--shard", "1/2")
        assert "at most 10,000" in line(file, "-o", out, *ray, "--workers", 10**6)
    assert "embed can resume only with --runner ray" in refusal(
        "embed", classifier, file, "-o", tmp_path / "x.npy", "--resume"
    )
    assert not list(tmp_path.iterdir())


def test_options_are_those_of_predict(
    monkeypatch: pytest.MonkeyPatch, topics: Path, tmp_path: Path
):
    jobs = []

    def stop(job: ray_runner.BulkJob) -> None:
        jobs.append(job)
        raise KeyboardInterrupt

    monkeypatch.setattr(ray_runner.BulkJob, "open", stop)
    for given in ({}, {"top_k": None}, {"top_k": 2}):
        with pytest.raises(KeyboardInterrupt):
            ray_runner.run_on_ray("predict", tmp_path, topics / "test.csv", "out", **given)
    assert [job.options["top"] for job in jobs] == [None, limits.VOCABULARY, 2]
    with pytest.raises(InputError, match="threshold is 2"):
        ray_runner.run_on_ray("predict", "model", "a.csv", "out", threshold=2)


def test_ray_is_missing(
    classifier: Path, topics: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(sys.modules, "ray", None)
    given = ("predict", classifier, topics / "test.csv", "-o", tmp_path / "out")
    assert "pip install 'ownbert[ray]'" in refusal(*given, "--runner", "ray")
    assert not (tmp_path / "out").exists()


def test_what_is_not_split(topics: Path, tmp_path: Path, classifier: Path):
    with pytest.raises(InputError, match="threads is 0"):
        ray_runner.run_on_ray("embed", classifier, topics / "test.csv", tmp_path / "out", threads=0)


@pytest.fixture(scope="module")
def local_ray() -> Iterator[None]:
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    import ray

    # Ray only counts the GPU: workers of the device auto find none, and compute on the CPU.
    ray.init(num_cpus=2, num_gpus=1, include_dashboard=False, log_to_driver=False, address="local")
    yield
    ray.shutdown()


def descendants(pid: int) -> Iterator[tuple[int, str]]:
    """The processes below one, with their command lines."""
    parents = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                stat = (folder / "stat").read_text()
                line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            parents[int(folder.name)] = (int(stat.rpartition(")")[2].split()[1]), line)
    below = {pid}
    for _ in range(len(parents)):
        more = {child for child, (parent, _) in parents.items() if parent in below} - below
        if not more:
            break
        below |= more
    yield from ((child, parents[child][1]) for child in below - {pid})


def workers_of(pid: int) -> list[int]:
    return [child for child, line in descendants(pid) if "PartWorker" in line]


def kill_one_worker(out: Path, killed: list[int]) -> None:
    """Kill a worker once there are parts, and many are left."""
    until = time.monotonic() + 300
    while time.monotonic() < until and len(list(out.glob("*.parquet"))) < 3:
        time.sleep(0.01)
    for pid in workers_of(os.getpid())[:1]:
        os.kill(pid, signal.SIGKILL)
        killed.append(pid)


def rows_of(out: Path) -> list[tuple]:
    return [(row["id"], row["label"]) for row in pq.read_table(out).to_pylist()]


def whole(classifier: Path, lines: Path, folder: Path) -> list[tuple]:
    done = run_cli("predict", classifier, lines, "-o", folder / "whole.jsonl")
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in (folder / "whole.jsonl").open()]
    return [(row["id"], row["label"]) for row in found]


@pytest.mark.slow
def test_a_worker_is_killed(classifier: Path, lines: Path, tmp_path: Path, local_ray: None):
    out, killed = tmp_path / "out", []
    watch = threading.Thread(target=kill_one_worker, args=(out, killed))
    watch.start()
    count = ray_runner.run_on_ray("predict", classifier, lines, out, workers=2, part_rows=20)
    watch.join()
    assert killed
    assert count == 1500
    assert rows_of(out) == whole(classifier, lines, tmp_path)
    manifest = json.loads((out / "_manifest.json").read_text())
    assert [part["first_row"] for part in manifest["parts"]] == [*range(0, 1500, 20)]


@pytest.mark.slow
def test_vectors_and_mistakes_on_ray(
    classifier: Path, lines: Path, tmp_path: Path, local_ray: None, capfd: pytest.CaptureFixture
):
    out = tmp_path / "out"
    folder = lines.parent.as_uri()
    assert (
        ray_runner.run_on_ray("embed", classifier, folder, out, workers=1, id_column="id") == 1500
    )
    assert pq.read_table(out)["id"].to_pylist() == [*range(1500)]
    bad = tmp_path / "bad.jsonl"
    bad.write_text(lines.read_text() + '{"id": 1}\n')
    with pytest.raises(InputError, match=r"bad\.jsonl, line 1501: 'text' is missing.*are kept in"):
        ray_runner.run_on_ray("predict", classifier, bad, tmp_path / "p", workers=1, part_rows=1000)
    with pytest.raises(InputError, match="need 50 cores, but Ray has 2"):
        ray_runner.run_on_ray("predict", classifier, lines, tmp_path / "q", workers=50)
    assert not (tmp_path / "q").exists()


@pytest.mark.slow
def test_workers_share_the_gpus_of_a_cluster(
    classifier: Path, lines: Path, tmp_path: Path, local_ray: None
):
    import ray

    free = []

    def watch(rows: int) -> None:
        free.append(ray.available_resources().get("GPU", 0))

    loggers = [logging.getLogger(name) for name in ray_runner._LOGGERS]
    levels = [logger.level for logger in loggers]
    given = {"device": "auto", "part_rows": 20, "progress": watch}
    assert ray_runner.run_on_ray("predict", classifier, lines, tmp_path / "out", **given) == 1500
    assert min(free) == 0
    assert [logger.level for logger in loggers] == levels
    for device, asked, crew in (
        ("auto", None, (1, 1)),
        ("cuda", 2, (2, 0.5)),
        ("cpu", None, (2, 0)),
    ):
        with ray_runner.planned_workers(asked, 1, device) as found:
            assert found == crew


@pytest.mark.slow
def test_the_driver_is_killed(classifier: Path, lines: Path, tmp_path: Path):
    out = tmp_path / "out"
    command = [sys.executable, "-m", "ownbert", "predict", str(classifier), str(lines)]
    command += ["-o", str(out), "--runner", "ray", "--part-rows", "20", "--workers", "1"]
    driver = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    while driver.poll() is None and len(list(out.glob("*.parquet"))) < 5:
        time.sleep(0.01)
    below = workers_of(driver.pid)
    assert len(below) == 1
    driver.send_signal(signal.SIGKILL)
    assert driver.wait() == -signal.SIGKILL
    assert not (out / "_manifest.json").exists()
    until = time.monotonic() + 60
    while time.monotonic() < until and any(_runs(pid) for pid in below):
        time.sleep(0.1)
    assert not any(_runs(pid) for pid in below)  # workers end with their driver
    times = {path: path.stat().st_mtime_ns for path in out.glob("*.parquet")}
    assert 5 <= len(times) < 75
    done = subprocess.run([*command, "--resume"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert done.stdout == f"1,500 rows predicted; saved {out}\n"
    again = [path for path, time in times.items() if path.stat().st_mtime_ns != time]
    assert len(again) <= 1  # a part whose record was not written yet
    assert rows_of(out) == whole(classifier, lines, tmp_path)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def run(
    job: BulkJob, inputs: list[Path], out: Path, *, most: int = 10**6, resume: bool = False
) -> int:
    """What ``--runner ray`` does, with one worker in this process; returns how many parts it made.

    Args:
        most: parts after which the run is stopped.
    """
    files = list_input_files([str(path) for path in inputs])
    made_for = {"input": [asdict(file) for file in files], **job.open().depends_on()}
    made = 0
    with PartsFolder(out, made_for, resume=resume) as parts:
        if parts.complete is not None:
            return 0
        if parts.plan is None:
            parts.begin([p for i, file in enumerate(files) for p in split_file(i, file, 10)])
        worker = PartWorker(job, files, str(out), 1, "")
        for name, part in parts.waiting().items():
            if made == most:
                return made
            batch = pa.table({"name": [name], "part": [json.dumps(vars(part))]})
            (found,) = worker(batch)["json"].to_pylist()
            if "error" in json.loads(found):
                raise InputError(json.loads(found)["error"])
            parts.add(json.loads(found)["record"])
            made += 1
        assert parts.finish() == []
    return made


@pytest.fixture(scope="module")
def inputs(topics: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("inputs")
    texts = [row["text"] for row in csv.DictReader((topics / "test.csv").open(newline=""))]
    pq.write_table(pa.table({"id": range(25), "text": texts[:25]}), folder / "a.parquet")
    lines = [json.dumps({"id": i, "text": t}) for i, t in enumerate(texts[25:], start=25)]
    (folder / "b.jsonl").write_text("\n".join(lines) + "\n")
    return [folder / "a.parquet", folder / "b.jsonl"]


@pytest.fixture(scope="module")
def job(classifier: Path) -> BulkJob:
    return BulkJob("predict", str(classifier), ColumnNames(), options={"probabilities": True})


@pytest.mark.slow
def test_predictions_are_those_of_one_process(job: BulkJob, inputs: list[Path], tmp_path: Path):
    assert run(job, inputs, tmp_path / "out") == 5
    found = pq.read_table(tmp_path / "out").to_pylist()
    whole = []
    for path in inputs:
        predict(job.folder, path, tmp_path / "p.jsonl", probabilities=True)
        whole += [json.loads(line) for line in (tmp_path / "p.jsonl").open()]
    assert [(row["id"], row["label"]) for row in found] == [(r["id"], r["label"]) for r in whole]
    for one, two in zip(found, whole, strict=True):
        assert list(one) == list(two)
        assert one["probabilities"].keys() == two["probabilities"].keys()
        assert abs(one["score"] - two["score"]) < 1e-5
    manifest = json.loads((tmp_path / "out" / "_manifest.json").read_text())
    assert manifest["rows"] == 45
    assert [(p["input"], p["first_row"], p["rows"]) for p in manifest["parts"]] == [
        *((str(inputs[0]), start, min(10, 25 - start)) for start in (0, 10, 20)),
        *((str(inputs[1]), start, 10) for start in (0, 10)),
    ]
    for part in manifest["parts"]:
        data = (tmp_path / "out" / part["part"]).read_bytes()
        assert (len(data), hashlib.sha256(data).hexdigest()) == (part["bytes"], part["sha256"])
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "_manifest.json",
        *(f"part-{number:05}.parquet" for number in range(5)),
    ]


def test_vectors_are_those_of_one_process(classifier: Path, inputs: list[Path], tmp_path: Path):
    job = BulkJob("embed", str(classifier), ColumnNames(id="id"), options={"normalize": True})
    assert run(job, inputs, tmp_path / "out") == 5
    embed(classifier, inputs, tmp_path / "whole.parquet", id_column="id", normalize=True)
    one, two = pq.read_table(tmp_path / "out"), pq.read_table(tmp_path / "whole.parquet")
    assert one.schema == two.schema
    assert one.drop(["embedding"]) == two.drop(["embedding"])
    vectors = [np.array(table["embedding"].to_pylist()) for table in (one, two)]
    assert np.allclose(*vectors, rtol=1e-4, atol=1e-5)


def test_finished_parts_are_kept(job: BulkJob, inputs: list[Path], tmp_path: Path):
    out = tmp_path / "out"
    assert run(job, inputs, out, most=3) == 3
    with pytest.raises(InputError, match="is not empty; continue a stopped run"):
        run(job, inputs, out)
    times = {path.name: path.stat().st_mtime_ns for path in out.glob("*.parquet")}
    (out / "part-00001.parquet").write_bytes(b"damaged")
    assert run(job, inputs, out, resume=True) == 3  # two of five are there
    same = [n for n, time in times.items() if (out / n).stat().st_mtime_ns == time]
    assert sorted(same) == ["part-00000.parquet", "part-00002.parquet"]
    assert pq.read_table(out)["id"].to_pylist() == [*range(45)]
    assert run(job, inputs, out, resume=True) == 0
    assert run(job, inputs, tmp_path / "none", most=0) == 0
    assert not (tmp_path / "none").exists()


def test_what_cannot_be_resumed(job: BulkJob, inputs: list[Path], tmp_path: Path):
    out = tmp_path / "out"
    run(job, inputs, out, most=2)
    kept = sorted(path.name for path in out.rglob("*"))
    other = BulkJob("predict", job.folder, ColumnNames(), options={"top": 2})
    with pytest.raises(InputError, match="the stopped run differs in its options"):
        run(other, inputs, out, resume=True)
    with pytest.raises(InputError, match="the stopped run differs in its input"):
        run(job, inputs[:1], out, resume=True)
    assert sorted(path.name for path in out.rglob("*")) == kept
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("mine")
    with pytest.raises(InputError, match="is not empty"):
        run(job, inputs, mine, resume=True)
    with pytest.raises(InputError, match="is a file; the output is a folder"):
        run(job, inputs, mine / "thesis.txt")
    assert [path.name for path in mine.iterdir()] == ["thesis.txt"]
    with PartsFolder(tmp_path / "two", {}, resume=False) as parts:
        parts.begin([])
        with pytest.raises(InputError, match="another process is writing"):
            PartsFolder(tmp_path / "two", {}, resume=True).__enter__()


def test_a_part_that_ends_its_workers(job: BulkJob, inputs: list[Path], tmp_path: Path):
    """Workers that were killed leave a marker each."""
    files = list_input_files([str(path) for path in inputs])
    (part, *_) = split_file(0, files[0], 10)
    (tmp_path / "out" / DONE).mkdir(parents=True)
    for number in (1, 2, 3):
        (tmp_path / "out" / DONE / f"part-0.parquet.try-{number}").touch()
    worker = PartWorker(job, files, str(tmp_path / "out"), 1, "")
    with pytest.raises(InputError, match=r"a worker died 3 times at part-0\.parquet"):
        worker.answer("part-0.parquet", part)


def test_empty_columns_get_the_kind_of_other_parts(inputs: list[Path], tmp_path: Path):
    tables = {
        "part-00000.parquet": pa.table({"id": [1], "tags": pa.array([[]])}),
        "part-00001.parquet": pa.table({"id": [2], "tags": pa.array([[{"tag": "A", "n": 1}]])}),
        "part-00002.parquet": pa.table({"id": [None], "tags": pa.array([[{"tag": "B"}]])}),
    }
    made_for = {"input": [{"address": "x.csv"}]}
    with PartsFolder(tmp_path / "out", made_for, resume=False) as parts:
        file = list_input_files([str(inputs[1])])[0]
        parts.begin(split_file(0, file, 10) + split_file(0, file, 100))
        for name, table in tables.items():
            parts.add({"part": name, "rows": 1, **parts.folder.write_part(name, table)})
        assert parts.finish() == []
    found = pq.read_table(tmp_path / "out").to_pylist()
    assert [row["id"] for row in found] == [1, 2, None]
    assert [row["tags"] for row in found] == [[], [{"tag": "A", "n": 1}], [{"tag": "B", "n": None}]]
    manifest = json.loads((tmp_path / "out" / "_manifest.json").read_text())
    for part in manifest["parts"]:
        assert (
            hashlib.sha256((tmp_path / "out" / part["part"]).read_bytes()).hexdigest()
            == (part["sha256"])
        )


@pytest.mark.parametrize(
    ("name", "content"),
    [
        *(("_manifest.json", text) for text in ("{}", '{"rows": "a"}', '{"rows": null}')),
        *(("_plan.json", text) for text in ("{}", '{"plan": 3}', '{"plan": {"a": {}}}')),
        *(
            ("_plan.json", text)
            for text in ('{"plan": {"a": {"file": "0", "start": 0, "end": 1}}}',)
        ),
        ("_plan.json", "[" * 100_000),
    ],
)
def test_damaged_plans_and_manifests_are_refused(name: str, content: str, tmp_path: Path):
    (tmp_path / name).write_text(content)
    with (
        pytest.raises(InputError, match=f"{name} is damaged"),
        PartsFolder(tmp_path, {}, resume=True),
    ):
        pass
    assert (tmp_path / name).read_text() == content
