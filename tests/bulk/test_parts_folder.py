"""Parts that a worker writes, without Ray: their manifest, what is kept, what differs."""

import csv
import hashlib
import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ownbert import InputError, embed, predict
from ownbert.bulk.input_parts import list_input_files, split_file
from ownbert.bulk.parts_folder import DONE, PartsFolder
from ownbert.bulk.ray_runner import BulkJob, PartWorker
from ownbert.tables.columns import ColumnNames


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
