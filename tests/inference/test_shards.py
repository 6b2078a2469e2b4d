"""Shards of an input, the parts joined to what one run gives, and damaged parts."""

import csv
import gzip
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ownbert import InputError, embed, merge, predict
from ownbert.files.input_files import sha256_of
from ownbert.inference.row_files import PredictionWriter
from ownbert.inference.shards import DealtRows, Shard, as_shard, manifest_path
from support.cli import refusal, run_cli


def sharded(run, count: int, output: Path) -> list[Path]:
    """The parts of a run for each shard."""
    for number in range(1, count + 1):
        run(output, (number, count))
    return [Shard(number, count).path(output) for number in range(1, count + 1)]


@pytest.fixture(scope="module")
def table(topics: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows with ids, some texts with line breaks, quotes and separators."""
    path = tmp_path_factory.mktemp("table") / "new.csv"
    texts = [row["text"] for row in csv.DictReader((topics / "test.csv").open(newline=""))][:25]
    odd = ['red1 "9"\nred2', "blue1, 9", "green1\t9", "", "red2\u2028é"]
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["id", "text"])
        rows.writerows(enumerate([*texts, *odd], start=100))
    return path


def without_scores(rows: list[dict]) -> list[dict]:
    return [{name: row[name] for name in row if "score" not in name} for row in rows]


def scores(rows: list[dict]) -> list[float]:
    return [float(row["score"]) for row in rows]


@pytest.mark.parametrize("ending", [".jsonl", ".csv", ".tsv.gz"])
def test_joined_predictions_are_those_of_one_run(
    classifier: Path, table: Path, tmp_path: Path, ending: str
):
    whole, out = tmp_path / f"whole{ending}", tmp_path / f"out{ending}"
    # Texts instead of ids, with all that a table must quote.
    lines = [{"text": row["text"]} for row in csv.DictReader(table.open(newline=""))]
    predict(classifier, lines, whole)
    parts = sharded(lambda o, shard: predict(classifier, lines, o, shard=shard), 4, out)
    assert [part.name for part in parts][2] == f"out.3-of-4{ending}"
    assert merge(out) == 30
    assert len(list(tmp_path.iterdir())) == 10  # with parts and their manifests
    opened = gzip.open if ending.endswith("gz") else open
    read = [opened(path, "rt", newline="") for path in (whole, out)]
    if ending == ".jsonl":
        one, two = ([json.loads(line) for line in file] for file in read)
    else:
        mark = "\t" if "tsv" in ending else ","
        one, two = (list(csv.DictReader(file, delimiter=mark)) for file in read)
    assert without_scores(one) == without_scores(two)
    assert np.allclose(scores(two), scores(one), atol=2e-6)
    if scores(one) == scores(two):
        assert whole.read_bytes() == out.read_bytes()


@pytest.mark.parametrize("ending", [".npy", ".parquet", ".jsonl"])
def test_joined_vectors_are_those_of_one_run(
    classifier: Path, table: Path, tmp_path: Path, ending: str
):
    whole, out = tmp_path / f"whole{ending}", tmp_path / f"out{ending}"
    few = tmp_path / "few.csv"
    few.write_text("id,text\n7,red1 9\n8,blue1 blue2 9\n9,\n")
    given = {} if ending == ".npy" else {"id_column": "id"}
    embed(classifier, [few, table], whole, **given)
    for inputs, shards, rows in ([few], 4, 3), ([few, table], 3, 33):
        sharded(
            lambda o, shard, i=inputs: embed(classifier, i, o, shard=shard, **given), shards, out
        )
        assert merge(out) == rows  # the fourth part of the few is empty
        for part in tmp_path.glob("out.*-of-*"):
            part.unlink()
    if ending == ".npy":
        one, two = np.load(whole), np.load(out)
    elif ending == ".parquet":
        tables = [pq.read_table(path) for path in (whole, out)]
        assert tables[0].schema == tables[1].schema
        assert tables[0].drop(["embedding"]) == tables[1].drop(["embedding"])
        one, two = (np.array(each["embedding"].to_pylist()) for each in tables)
    else:
        rows = [[json.loads(line) for line in path.open()] for path in (whole, out)]
        one, two = (np.array([row.pop("embedding") for row in each]) for each in rows)
        assert rows[0] == rows[1]
    assert np.allclose(two, one, rtol=1e-4, atol=1e-5)


def test_columns_that_a_part_lacks_are_empty(tmp_path: Path):
    rows = [{"a": "1", "b": "2"}, {"a": "3"}, {"a": "4", "b": "5"}, {"a": "6"}]
    for number in (1, 2):
        dealt = DealtRows(Shard(number, 2))
        part = dealt.shard.path(tmp_path / "out.csv")
        writer = PredictionWriter(part, None, resume=False)
        writer.fill([list(dealt.take(rows, lambda row: row))], lambda block: block)
        dealt.write_manifest(part, dict)
    merge(tmp_path / "out.csv")
    assert (tmp_path / "out.csv").read_text() == "a,b\n1,2\n3,\n4,5\n6,\n"


def test_a_stopped_shard_is_resumed(classifier: Path, table: Path, tmp_path: Path):
    out = tmp_path / "out.jsonl"
    (first, second) = sharded(lambda o, s: predict(classifier, table, o, shard=s), 2, out)
    before = second.read_bytes()
    lines = before.splitlines(keepends=True)
    # As a stopped run leaves it: half of the rows, and what they are made for.
    about = json.loads(manifest_path(second).read_text())
    made_for = {k: about[k] for k in ("format", "model", "columns", "precision", "options")}
    status = table.stat()
    made_for["input"] = [str(table.resolve()), status.st_size, status.st_mtime_ns]
    second.unlink()
    manifest_path(second).unlink()
    part = tmp_path / f".{second.name}.part"
    part.write_bytes(b"".join(lines[:7]) + lines[7][:5])
    part.with_name(f"{part.name}.json").write_text(json.dumps(made_for))
    assert "the shards 2/2 are unfinished" in refusal("merge", out)
    assert predict(classifier, table, out, shard="2/2", resume=True) == 15
    assert second.read_bytes() == before
    assert merge(out) == 30
    assert first.exists()


def test_what_cannot_be_joined(classifier: Path, table: Path, tmp_path: Path, topics: Path):
    out = tmp_path / "out.jsonl"
    message = refusal("merge", out)
    assert "no parts of out.jsonl in" in message
    assert "out.1-of-2.jsonl" in message
    parts = sharded(lambda o, shard: predict(classifier, table, o, shard=shard), 3, out)
    kept = {path: path.read_bytes() for path in tmp_path.iterdir()}

    def restored() -> None:
        for path, content in kept.items():
            path.write_bytes(content)

    parts[1].unlink()
    assert "the shards 2/3 are missing; run them with --shard" in refusal("merge", out)
    restored()
    manifest_path(parts[2]).unlink()
    assert "the shards 3/3 are missing" in refusal("merge", out)
    restored()
    parts[0].write_bytes(kept[parts[0]][:-20])
    assert f"{parts[0]} differs from what was written" in refusal("merge", out)
    restored()
    predict(classifier, topics / "test.csv", out, shard=(2, 3))
    assert "cannot be joined because they differ in: input" in refusal("merge", out)
    restored()
    predict(classifier, table, out, shard=(3, 3), probabilities=True)
    assert "cannot be joined because they differ in: options" in refusal("merge", out)
    restored()
    other = Path(shutil.copytree(classifier, tmp_path / "other"))
    about = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps({**about, "layer_norm_eps": 1e-6}))
    predict(other, table, out, shard=(1, 3))
    assert "they differ in: model" in refusal("merge", out)
    restored()
    manifest_path(parts[0]).write_text("{}")
    assert "is not the manifest of a part" in refusal("merge", out)
    restored()
    shutil.copy(manifest_path(parts[0]), manifest_path(parts[1]))
    assert "is not the manifest of this part" in refusal("merge", out)
    restored()
    predict(classifier, table, out, shard=(1, 2))
    assert "for 2 and for 3 shards" in refusal("merge", out)
    assert not out.exists()
    assert not list(tmp_path.glob(".*"))


def test_the_command_line(classifier: Path, table: Path, tmp_path: Path):
    for number in (1, 2):
        done = run_cli(
            *("predict", classifier, table, "--shard", f"{number}/2"),
            *("-o", tmp_path / "parts" / "out.csv"),
        )
        assert f"15 rows predicted; saved {tmp_path}/parts/out.{number}-of-2.csv" in done.stdout
    done = run_cli("merge", tmp_path / "out.csv", "--parts", tmp_path / "parts")
    assert (done.returncode, done.stdout) == (0, f"30 rows joined; saved {tmp_path}/out.csv\n")
    ids = [row["id"] for row in csv.DictReader((tmp_path / "out.csv").open(newline=""))]
    assert ids == [str(number) for number in range(100, 130)]
    for command in ("predict", "embed"):
        given = (command, classifier, table)
        assert "name the file with -o FILE" in refusal(*given, "--shard", "1/2")
        wrong = refusal(*given, "-o", tmp_path / "x.jsonl", "--shard", "3/2")
        assert "shard 3/2 does not exist" in wrong


@pytest.mark.parametrize("given", ["0/3", "4/3", "1/0", (0, 1), "1/999999"])
def test_shards_that_do_not_exist(given: object):
    with pytest.raises(InputError, match="does not exist"):
        as_shard(given)


def test_the_shards_that_exist_are_named():
    with pytest.raises(InputError, match="shard 0/3 does not exist; the shards are 1/3 to 3/3"):
        as_shard("0/3")
    with pytest.raises(InputError, match="shard 1/0 does not exist; there can be from 1 to "):
        as_shard("1/0")


@pytest.mark.parametrize("given", ["3", "a/b", 3, (1, 2, 3), (1.0, 2), "1/2/3", "-1/2"])
def test_what_is_no_shard(given: object):
    with pytest.raises(InputError, match="as 3/16"):
        as_shard(given)


def test_a_shard_needs_an_output(classifier: Path):
    for run in (predict, embed):
        with pytest.raises(InputError, match="name the file with output"):
            run(classifier, ["red1 red2", "blue1"], shard=(1, 2))


ROWS, SIZE = 5, 3
VECTORS = np.arange(ROWS * SIZE, dtype=np.float32).reshape(ROWS, SIZE)


def vectors(rows: np.ndarray) -> pa.Array:
    return pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), SIZE)


def vector_table(rows: np.ndarray, **columns: Any) -> pa.Table:
    own = {
        "id": pa.array([int(row[0]) for row in rows], pa.int64()),
        "text": pa.array([f"text {row[0]}" for row in rows], pa.string()),
        "embedding": vectors(rows),
    }
    return pa.table({**own, **columns})


def lines(rows: np.ndarray, separator: str = ",") -> str:
    return "".join(
        f"{separator.join(row)}\n" for row in [("id", "label"), *((str(r[0]), "a") for r in rows)]
    )


def objects(rows: np.ndarray) -> str:
    return "".join(json.dumps({"text": f"text {r[0]}", "label": "a"}) + "\n" for r in rows)


def good(path: Path, rows: np.ndarray) -> None:
    """A part as predict or embed writes it."""
    if path.suffix == ".npy":
        np.save(path, rows)
    elif path.suffix == ".parquet":
        pq.write_table(vector_table(rows), path)
    else:
        text = objects(rows) if ".jsonl" in path.name else lines(rows, "\t,"[".csv" in path.name])
        path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())


Damage = Callable[[Path, np.ndarray], object]


def saved(change: Callable[[np.ndarray], Any]) -> Damage:
    return lambda path, rows: np.save(path, change(rows))


def written(change: Callable[[np.ndarray], pa.Table]) -> Damage:
    return lambda path, rows: pq.write_table(change(rows), path)


def edited(change: Callable[[bytes], bytes]) -> Damage:
    return lambda path, rows: path.write_bytes(change(path.read_bytes()))


def packed(path: Path, rows: np.ndarray) -> None:
    with path.open("wb") as file:
        np.savez(file, rows)


def header(text: str) -> Damage:
    """A .npy file with a header of one's own."""
    line = text.encode().ljust(117) + b"\n"
    start = b"\x93NUMPY\x01\x00" + len(line).to_bytes(2, "little") + line
    return lambda path, rows: path.write_bytes(start + rows.tobytes())


def holed(rows: np.ndarray, value: float) -> np.ndarray:
    return np.where(np.arange(rows.size).reshape(rows.shape) == 4, np.float32(value), rows)


def pickled(path: Path, rows: np.ndarray) -> None:
    np.save(path, np.array([{"a": 1}] * len(rows), object), allow_pickle=True)


NPY: dict[str, Damage] = {
    "float64": saved(lambda rows: rows.astype(np.float64)),
    "float16": saved(lambda rows: rows.astype(np.float16)),
    "whole numbers": saved(lambda rows: rows.astype(np.int32)),
    "big-endian": saved(lambda rows: rows.astype(">f4")),
    "texts": saved(lambda rows: rows.astype("U8")),
    "complex": saved(lambda rows: rows.astype(np.complex64)),
    "records": saved(lambda rows: np.zeros(len(rows), [("a", "f4"), ("b", "f4")])),
    "objects": pickled,
    "one dimension": saved(lambda rows: rows[:, 0]),
    "three dimensions": saved(lambda rows: rows[:, :, None]),
    "a number": saved(lambda rows: rows[0, 0]),
    "fewer rows": saved(lambda rows: rows[:-1]),
    "more rows": saved(lambda rows: np.concatenate([rows, rows])),
    "no rows": saved(lambda rows: rows[:0]),
    "narrower": saved(lambda rows: rows[:, :2]),
    "wider": saved(lambda rows: np.concatenate([rows, rows], 1)),
    "not a number": saved(lambda rows: holed(rows, np.nan)),
    "infinite": saved(lambda rows: holed(rows, np.inf)),
    "header cut": edited(lambda data: data[:20]),
    "magic alone": edited(lambda data: data[:6]),
    "empty": edited(lambda data: b""),
    "rows cut": edited(lambda data: data[:-5]),
    "bytes after the end": edited(lambda data: data + b"12345678"),
    "zeros": edited(lambda data: bytes(len(data))),
    "another version": edited(lambda data: data[:6] + b"\x09\x09" + data[8:]),
    "npz": packed,
    "text": edited(lambda data: b"hello\n"),
    "header is no mapping": header("[1, 2]"),
    "header is no Python": header("{'descr': '<f4', 'fortran_order'"),
    "nested header": header("(" * 110),
    "rows below zero": header("{'descr':'<f4','fortran_order':False,'shape':(-2, 3), }"),
    "huge": header("{'descr':'<f4','fortran_order':False,'shape':(9999999999999999,3), }"),
    "shape of floats": header("{'descr':'<f4','fortran_order':False,'shape':(2., 3.), }"),
    "unknown dtype": header("{'descr':'<z9','fortran_order':False,'shape':(2, 3), }"),
}
PARQUET: dict[str, Damage] = {
    "no ids": written(lambda rows: vector_table(rows).drop(["id"])),
    "no texts": written(lambda rows: vector_table(rows).drop(["text"])),
    "no vectors": written(lambda rows: vector_table(rows).drop(["embedding"])),
    "one column more": written(lambda rows: vector_table(rows, more=[1] * len(rows))),
    "ids of another name": written(
        lambda rows: vector_table(rows).rename_columns(["k", "text", "embedding"])
    ),
    "a column twice": written(
        lambda rows: vector_table(rows).rename_columns(["text", "text", "embedding"])
    ),
    "texts are numbers": written(lambda rows: vector_table(rows, text=[1] * len(rows))),
    "no text": written(
        lambda rows: vector_table(rows, text=pa.array([None] * len(rows), pa.string()))
    ),
    "vectors are lists": written(lambda rows: vector_table(rows, embedding=rows.tolist())),
    "vectors are texts": written(lambda rows: vector_table(rows, embedding=["a"] * len(rows))),
    "vectors of float64": written(
        lambda rows: vector_table(
            rows, embedding=pa.array(rows.tolist(), pa.list_(pa.float64(), SIZE))
        )
    ),
    "narrower": written(
        lambda rows: vector_table(
            rows, embedding=pa.array(rows[:, :2].tolist(), pa.list_(pa.float32(), 2))
        )
    ),
    "vectors missing": written(
        lambda rows: vector_table(
            rows, embedding=pa.array([None] * len(rows), pa.list_(pa.float32(), SIZE))
        )
    ),
    "numbers missing": written(
        lambda rows: vector_table(
            rows, embedding=pa.array([[None] * SIZE] * len(rows), pa.list_(pa.float32(), SIZE))
        )
    ),
    "not a number": written(lambda rows: vector_table(holed(rows, np.nan))),
    "ids are texts": written(lambda rows: vector_table(rows, id=["a"] * len(rows))),
    "fewer rows": written(lambda rows: vector_table(rows[:-1])),
    "more rows": written(lambda rows: vector_table(np.concatenate([rows, rows]))),
    "no rows": written(lambda rows: vector_table(rows[:0])),
    "empty": edited(lambda data: b""),
    "cut": edited(lambda data: data[:-9]),
    "pages damaged": edited(
        lambda data: data[:4] + bytes(len(data) // 2) + data[4 + len(data) // 2 :]
    ),
    "text": edited(lambda data: b"id,text\n1,a\n"),
}
CSV: dict[str, Damage] = {
    "row too long": edited(lambda data: data.replace(b",a\n", b",a,b\n")),
    "row too short": edited(lambda data: data.replace(b",a\n", b"\n")),
    "blank line": edited(lambda data: data + b"\n"),
    "no header": edited(lambda data: b"".join(data.splitlines(keepends=True)[1:])),
    "other columns": edited(lambda data: data.replace(b"label", b"other")),
    "a column twice": edited(lambda data: data.replace(b"id,label", b"id,id")),
    "a column without a name": edited(lambda data: data.replace(b"id,label", b",label")),
    "other separator": edited(lambda data: data.replace(b",", b";")),
    "fewer rows": lambda path, rows: path.write_text(lines(rows[:-1])),
    "more rows": lambda path, rows: path.write_text(lines(np.concatenate([rows, rows]))),
    "no rows": lambda path, rows: path.write_text("id,label\n"),
    "empty": edited(lambda data: b""),
    "quote never closed": edited(lambda data: data.replace(b",a\n", b',"a\n')),
    "text after a quote": edited(lambda data: data.replace(b",a\n", b',"a"b\n')),
    "carriage return": edited(lambda data: data.replace(b",a\n", b",a\rb\n")),
    "not UTF-8": edited(lambda data: data.replace(b",a\n", b",\xff\n")),
    "header is not UTF-8": edited(lambda data: b"\xff" + data),
    "UTF-16": edited(lambda data: data.decode().encode("utf-16")),
    "gzip": edited(gzip.compress),
}
GZ: dict[str, Damage] = {
    "not gzip": edited(gzip.decompress),
    "cut": edited(lambda data: data[:-12]),
    "damaged": edited(lambda data: data[:12] + b"\xff\xff\xff" + data[15:]),
    "fewer rows": lambda path, rows: path.write_bytes(
        gzip.compress(lines(rows[:-1], "\t").encode())
    ),
}
JSONL: dict[str, Damage] = {
    "no object": edited(lambda data: data.replace(b'{"text"', b'["text"')),
    "a list": edited(lambda data: b"[1]\n" * len(data.splitlines())),
    "blank line": edited(lambda data: data + b"\n"),
    "nested": edited(lambda data: (b"[" * 100_000 + b"\n") * len(data.splitlines())),
    "fewer rows": lambda path, rows: path.write_text(objects(rows[:-1])),
    "more rows": lambda path, rows: path.write_text(objects(np.concatenate([rows, rows]))),
    "not UTF-8": edited(lambda data: data.replace(b'"a"', b'"\xff"')),
}
KINDS = {".npy": NPY, ".parquet": PARQUET, ".csv": CSV, ".tsv.gz": GZ, ".jsonl": JSONL}


def parts_of(output: Path) -> list[DealtRows]:
    """Two good parts of ``output``, with manifests."""
    shards = [DealtRows(Shard(number, 2)) for number in (1, 2)]
    for dealt in shards:
        mine = np.stack(list(dealt.take(VECTORS, lambda row: row.tolist())))
        good(dealt.shard.path(output), mine)
        dealt.write_manifest(dealt.shard.path(output), dict)
    return shards


@pytest.mark.parametrize("ending", KINDS)
def test_good_parts(ending: str, tmp_path: Path):
    parts_of(tmp_path / f"out{ending}")
    assert merge(tmp_path / f"out{ending}") == ROWS


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize(
    ("ending", "damage"), [(ending, name) for ending, of in KINDS.items() for name in of]
)
def test_damaged_parts_are_refused(ending: str, damage: str, number: int, tmp_path: Path):
    output = tmp_path / f"out{ending}"
    parts_of(output)
    part = Shard(number, 2).path(output)
    KINDS[ending][damage](part, VECTORS[number - 1 :: 2])
    about = json.loads(manifest_path(part).read_text())
    about |= {"sha256": sha256_of(part), "bytes": part.stat().st_size}
    manifest_path(part).write_text(json.dumps(about))
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    message = refusal("merge", output)
    # Ids of two kinds are no fault of either part.
    assert "-of-2." in message or "have different types" in message
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize(
    "change", [{"rows": -1}, {"input_rows": -5}, {"rows": 2.0}, {"shards": "2"}, {"rows": True}]
)
def test_damaged_manifests_are_refused(change: dict[str, object], tmp_path: Path):
    parts_of(tmp_path / "out.npy")
    path = manifest_path(Shard(1, 2).path(tmp_path / "out.npy"))
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    assert "is not the manifest of" in refusal("merge", tmp_path / "out.npy")


def test_a_carriage_return_in_an_answer_stays_in_its_row(tmp_path: Path):
    """Python before 3.13 does not quote it where lines end with a line feed."""
    output, dealt = tmp_path / "out.csv", DealtRows(Shard(1, 1))
    part = dealt.shard.path(output)
    rows = [{"text": "a\rb", "label": "c"}]
    writer = PredictionWriter(part, None, resume=False)
    writer.fill([list(dealt.take(rows, lambda row: row))], lambda block: block)
    dealt.write_manifest(part, dict)
    merge(output)
    assert output.read_bytes() == b'text,label\n"a\rb",c\n'


def test_a_folder_named_like_a_part_is_none(tmp_path: Path):
    output = tmp_path / "out.npy"
    parts_of(output)
    Shard(2, 2).path(output).unlink()
    Shard(2, 2).path(output).mkdir()
    assert "the shards 2/2 are missing" in refusal("merge", output)
