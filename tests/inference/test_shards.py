"""Shards of an input, and the parts joined to what one run gives."""

import csv
import gzip
import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from ownbert import InputError, embed, merge, predict
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
