"""Parts whose content does not fit their manifest, though its checksum is that of the file."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ownbert import merge
from ownbert.files.input_files import sha256_of
from ownbert.inference.row_files import PredictionWriter
from ownbert.inference.shards import DealtRows, Shard, manifest_path
from support.cli import refusal

ROWS, SIZE = 5, 3
VECTORS = np.arange(ROWS * SIZE, dtype=np.float32).reshape(ROWS, SIZE)


def vectors(rows: np.ndarray) -> pa.Array:
    return pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), SIZE)


def table(rows: np.ndarray, **columns: Any) -> pa.Table:
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
        pq.write_table(table(rows), path)
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
    "no ids": written(lambda rows: table(rows).drop(["id"])),
    "no texts": written(lambda rows: table(rows).drop(["text"])),
    "no vectors": written(lambda rows: table(rows).drop(["embedding"])),
    "one column more": written(lambda rows: table(rows, more=[1] * len(rows))),
    "ids of another name": written(
        lambda rows: table(rows).rename_columns(["k", "text", "embedding"])
    ),
    "a column twice": written(
        lambda rows: table(rows).rename_columns(["text", "text", "embedding"])
    ),
    "texts are numbers": written(lambda rows: table(rows, text=[1] * len(rows))),
    "no text": written(lambda rows: table(rows, text=pa.array([None] * len(rows), pa.string()))),
    "vectors are lists": written(lambda rows: table(rows, embedding=rows.tolist())),
    "vectors are texts": written(lambda rows: table(rows, embedding=["a"] * len(rows))),
    "vectors of float64": written(
        lambda rows: table(rows, embedding=pa.array(rows.tolist(), pa.list_(pa.float64(), SIZE)))
    ),
    "narrower": written(
        lambda rows: table(
            rows, embedding=pa.array(rows[:, :2].tolist(), pa.list_(pa.float32(), 2))
        )
    ),
    "vectors missing": written(
        lambda rows: table(
            rows, embedding=pa.array([None] * len(rows), pa.list_(pa.float32(), SIZE))
        )
    ),
    "numbers missing": written(
        lambda rows: table(
            rows, embedding=pa.array([[None] * SIZE] * len(rows), pa.list_(pa.float32(), SIZE))
        )
    ),
    "not a number": written(lambda rows: table(holed(rows, np.nan))),
    "ids are texts": written(lambda rows: table(rows, id=["a"] * len(rows))),
    "fewer rows": written(lambda rows: table(rows[:-1])),
    "more rows": written(lambda rows: table(np.concatenate([rows, rows]))),
    "no rows": written(lambda rows: table(rows[:0])),
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
