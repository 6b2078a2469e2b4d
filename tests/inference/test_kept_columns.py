"""Columns of the input that are copied to the output, and output in parquet."""

import csv
import json
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ownbert import InputError, merge, predict
from ownbert.inference.row_files import PredictionWriter
from support.cli import refusal, run_cli


@pytest.fixture(scope="module")
def table(topics: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows with ids, dates, and cells with quotes and line breaks."""
    path = tmp_path_factory.mktemp("kept") / "new.csv"
    texts = [row["text"] for row in csv.DictReader((topics / "test.csv").open(newline=""))][:11]
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["id", "date", "text", "note, long"])
        rows.writerows([i, f"2024-01-{i + 1:02}", t, f'a "{i}"\nb'] for i, t in enumerate(texts))
    return path


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.tsv.gz", "a.parquet"])
def test_every_format_has_them_in_order(classifier: Path, table: Path, tmp_path: Path, name: str):
    kept = ["date", "note, long"]
    predict(classifier, table, tmp_path / name, keep=kept)
    given = list(csv.DictReader(table.open(newline="")))
    found = pa_rows(tmp_path / name)
    assert list(found[0])[:4] == ["id", "date", "note, long", "label"]
    assert [[row[n] for n in kept] for row in found] == [[row[n] for n in kept] for row in given]


def pa_rows(path: Path) -> list[dict[str, Any]]:
    from ownbert.tables.tables import columns, read_values

    names = columns(path)
    return [dict(zip(names, values, strict=True)) for _, values in read_values(path, names)]


def test_parts_joined_are_one_run(classifier: Path, table: Path, tmp_path: Path):
    how: Any = {"keep": "all", "probabilities": True}
    predict(classifier, table, tmp_path / "one.parquet", **how)
    one = pq.read_table(tmp_path / "one.parquet")
    for number in range(1, 13):  # the twelfth part has no rows
        predict(classifier, table, tmp_path / "a.parquet", shard=(number, 12), **how)
    assert merge(tmp_path / "a.parquet") == 11
    joined = pq.read_table(tmp_path / "a.parquet")
    assert joined.schema == one.schema
    names = ["id", "date", "text", "note, long", "label"]
    assert joined.select(names).equals(one.select(names))


def test_values_keep_their_types(classifier: Path, tmp_path: Path):
    rows = pa.table(
        {
            "text": ["red1", "blue2", "red3"],
            "day": [date(2024, 1, 2), None, date(2024, 1, 3)],
            "count": [1, None, 3],
            "amount": [0.5, float("nan"), 2.0],
            "list": [[1], [], [2, 3]],
        }
    )
    pq.write_table(rows, tmp_path / "in.parquet")
    for data in (tmp_path / "in.parquet", rows):
        predict(classifier, data, tmp_path / "out.parquet", keep="all")
        found = pq.read_table(tmp_path / "out.parquet").to_pydict()
        assert found["day"] == ["2024-01-02", None, "2024-01-03"]
        assert found["count"] == [1, None, 3]
        assert found["amount"] == [0.5, None, 2.0]
        assert found["list"] == [[1], [], [2, 3]]


def test_parquet_is_resumed(classifier: Path, table: Path, tmp_path: Path):
    path = tmp_path / "a.parquet"
    writer = PredictionWriter(path, {"a": 1}, resume=False)
    writer.write([{"id": 1, "p": {"x": 1}}])
    writer.close()
    writer = PredictionWriter(path, {"a": 1}, resume=True)
    assert writer.fill([[0], [1]], lambda block: [{"id": n, "p": {"x": 0.5}} for n in block]) == 2
    assert pq.read_table(path).to_pylist() == [{"id": 1, "p": {"x": 1}}, {"id": 1, "p": {"x": 0.5}}]
    assert [each.name for each in tmp_path.iterdir()] == ["a.parquet"]


@pytest.mark.parametrize("keep", ["all", "label,label_input"])
def test_columns_named_like_those_of_the_predictions_get_other_names(
    classifier: Path, tmp_path: Path, keep: str
):
    """A table with the labels could not be kept, to compare them with the predictions."""
    labelled, output = tmp_path / "labelled.csv", tmp_path / "a.csv"
    labelled.write_text("text,label,label_input\nred1,good,1\nred2,bad,2\n")
    notes: list[str] = []
    predict(classifier, labelled, output, keep=keep, say=notes.append)
    rows = list(csv.DictReader(output.open(newline="")))
    assert [row["label_input_input"] for row in rows] == ["good", "bad"]
    assert [row["label_input"] for row in rows] == ["1", "2"]
    assert all(row["label"] not in ("good", "bad") for row in rows)
    assert notes == ["note: the column 'label' of the input is 'label_input_input' in the output"]


def test_what_cannot_be_kept(classifier: Path, table: Path, tmp_path: Path):
    output = tmp_path / "a.jsonl"
    with pytest.raises(InputError, match=r"no column 'dat'; the columns are: .*; choose with keep"):
        predict(classifier, table, output, keep="id,dat")
    plain = tmp_path / "plain.txt"
    plain.write_text("red1\n")
    with pytest.raises(InputError, match="keep needs a table"):
        predict(classifier, plain, output, keep="all")
    with pytest.raises(InputError, match="keep needs an output file"):
        predict(classifier, table, keep="all")
    with pytest.raises(InputError, match=r"compressed inside; omit \.gz"):
        predict(classifier, table, tmp_path / "a.parquet.gz")
    mixed = tmp_path / "mixed.jsonl"
    mixed.write_text('{"text": "red1", "x": 1}\n{"text": "red1", "x": "a"}\n')
    with pytest.raises(InputError, match="have different types"):
        predict(classifier, mixed, tmp_path / "a.parquet", keep="x")
    assert not output.exists()
    assert not [*tmp_path.glob("a.*")]


def test_the_command(classifier: Path, table: Path, tmp_path: Path):
    output = tmp_path / "a.jsonl"
    run_cli("predict", str(classifier), str(table), "--keep", "date", "-o", str(output), "--quiet")
    assert [*lines(output)[0]] == ["id", "date", "label", "score"]
    assert "no column 'nix'" in refusal("predict", str(classifier), str(table), "--keep", "nix")
