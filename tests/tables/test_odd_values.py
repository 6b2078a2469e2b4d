"""Values of Python, JSON and Arrow that are no plain text: read, or refused in one line."""

import datetime
import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ownbert import InputError
from ownbert.tables.columns import ColumnNames, read_texts_with_ids
from ownbert.tables.memory import table_of
from ownbert.tables.tables import read_records
from ownbert.tasks.regression import _number
from support.cli import refusal

MOMENT = datetime.datetime(2024, 5, 6, 7, 8, 9)
NANOSECONDS = 1_714_979_289_000_000_001
READ: dict[str, tuple[pa.Array, str]] = {
    "timestamp": (pa.array([MOMENT], pa.timestamp("ms")), "2024-05-06 07:08:09"),
    "timestamp in ns": (pa.array([MOMENT], pa.timestamp("ns")), "2024-05-06 07:08:09"),
    "a nanosecond": (pa.array([NANOSECONDS], pa.timestamp("ns")), "2024-05-06 07:08:09.000000001"),
    "with a zone": (pa.array([MOMENT], pa.timestamp("ns", "UTC")), "2024-05-06 07:08:09+00:00"),
    "date": (pa.array([MOMENT.date()], pa.date32()), "2024-05-06"),
    "time": (pa.array([MOMENT.time()], pa.time64("ns")), "07:08:09"),
    "duration": (pa.array([90 * 10**9], pa.duration("ns")), "0:01:30"),
    "decimal": (pa.array([Decimal("12.50")]), "12.50"),
    "decimal256": (pa.array([Decimal("12.50")], pa.decimal256(60, 2)), "12.50"),
    "dictionary": (pa.array(["a"]).dictionary_encode(), "a"),
    "dictionary of times": (
        pa.array([MOMENT], pa.timestamp("us")).dictionary_encode(),
        "2024-05-06 07:08:09",
    ),
    "binary": (pa.array(["é".encode()]), "é"),
    "large binary": (pa.array(["é".encode()], pa.large_binary()), "é"),
    "large string": (pa.array(["é"], pa.large_string()), "é"),
    "string view": (pa.array(["é"], pa.string_view()), "é"),
    "large list": (pa.array([["a", "b"]], pa.large_list(pa.string())), "a b"),
    "fixed list": (pa.array([["a", "b"]], pa.list_(pa.string(), 2)), "a b"),
    "list of dates": (pa.array([[MOMENT.date()]]), "2024-05-06"),
    "half": (pa.array(np.array([0.5], np.float16)), "0.5"),
    "whole number": (pa.array([5], pa.uint64()), "5"),
}
REFUSED: dict[str, pa.Array] = {
    "bytes": pa.array([b"\xff\xfe"]),
    "map": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())),
    "struct": pa.array([{"a": 1}]),
    "nothing": pa.nulls(1),
    "year 20000": pa.array([10**15 // 1760], pa.timestamp("s")),
    "endless": pa.array([10**18], pa.duration("s")),
    "a nanosecond": pa.array([1], pa.duration("ns")),
}


def written(column: pa.Array, path: Path) -> Path:
    pq.write_table(pa.table({"text": column}), path)
    return path


SOURCES: dict[str, Callable[[pa.Array, Path], Any]] = {
    "parquet": lambda column, path: written(column, path / "a.parquet"),
    "arrow": lambda column, path: table_of(pa.table({"text": column})),
}


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("name", READ)
def test_arrow_types_are_read_as_text(name: str, source: str, tmp_path: Path):
    column, expected = READ[name]
    ((_, (text,)),) = read_records(SOURCES[source](column, tmp_path), ["text"])
    assert text == expected


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("name", REFUSED)
def test_other_arrow_types_are_refused(name: str, source: str, tmp_path: Path):
    with pytest.raises(InputError, match="'text'"):
        list(read_records(SOURCES[source](REFUSED[name], tmp_path), ["text"]))


def test_data_frames_give_the_same_texts():
    frame = pd.DataFrame({"time": [pd.Timestamp(MOMENT)], "price": [Decimal("12.50")]})
    texts = {name: next(read_records(table_of(frame), [name]))[1] for name in frame}
    assert texts == {"time": ("2024-05-06 07:08:09",), "price": ("12.50",)}


def test_ids_may_be_times(tmp_path: Path):
    table = pa.table({"text": ["a"], "id": pa.array([NANOSECONDS], pa.timestamp("ns"))})
    pq.write_table(table, tmp_path / "a.parquet")
    rows = read_texts_with_ids(tmp_path / "a.parquet", ColumnNames(id="id"))
    assert list(rows) == [("2024-05-06 07:08:09.000000001", "a")]


@pytest.mark.parametrize("depth", [101, 500, 900, 100_000])
@pytest.mark.parametrize("key", ["text", "label"])
def test_json_that_is_nested_too_deeply(depth: int, key: str, tmp_path: Path):
    row = {"text": '"a"', "label": '"b"', key: "[" * depth + "]" * depth}
    line = "{" + ", ".join(f'"{name}": {value}' for name, value in row.items()) + "}\n"
    (tmp_path / "a.jsonl").write_text('{"text": "a", "label": "b"}\n' + line)
    with pytest.raises(InputError, match=r"a\.jsonl, line 2.*(nested|not readable)"):
        list(read_records(tmp_path / "a.jsonl", [key]))


def test_text_in_lists_is_still_read(tmp_path: Path):
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": [["a"]] + ["[{"] * 200}) + "\n")
    assert next(read_records(tmp_path / "a.jsonl", ["text"]))[1][0].startswith("a [{ [{")


def test_values_in_memory_that_are_nested_too_deeply():
    deep: list = []
    for _ in range(5000):
        deep = [deep]
    itself: list = ["a"]
    itself += [itself, itself]
    for value in (deep, itself, {"a": itself}, {"a": {"b": deep}}):
        with pytest.raises(InputError, match="row 1 is nested too deeply"):
            list(read_records(table_of([{"text": value}]), ["text"]))


def test_numbers_without_end():
    with pytest.raises(InputError, match="a number of about"):
        list(read_records(table_of([{"text": 10**5000}]), ["text"]))
    with pytest.raises(InputError, match="digits"):
        _number(10**5000, "label", "row 1")


@pytest.mark.parametrize("command", ["vocab", "prepare", "embed", "predict", "evaluate"])
def test_every_command_refuses_nested_texts(command: str, classifier: Path, tmp_path: Path):
    (tmp_path / "a.jsonl").write_text('{"text": %s, "label": "red"}\n' % ("[" * 900 + "]" * 900))
    given: dict[str, tuple[str | Path, ...]] = {
        "vocab": ("a.jsonl", "-o", tmp_path / "vocab"),
        "prepare": ("a.jsonl", "--tokenizer", classifier, "-o", tmp_path / "tokens"),
        "embed": (classifier, "a.jsonl", "-o", tmp_path / "a.npy"),
        "predict": (classifier, "a.jsonl"),
        "evaluate": (classifier, "a.jsonl"),
    }
    line = [tmp_path / each if each == "a.jsonl" else each for each in given[command]]
    assert "nested too deeply" in refusal(command, *line)
    assert [path.name for path in tmp_path.iterdir()] == ["a.jsonl"]
