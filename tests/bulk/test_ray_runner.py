"""predict and embed on a local Ray: what is killed is computed again, and nothing else."""

import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from ownbert import InputError, limits
from ownbert.bulk import ray_runner
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
