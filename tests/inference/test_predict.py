"""Files of predictions: streamed, in every format, whole or not at all, resumed; kept columns."""

import csv
import gzip
import json
import sys
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from ownbert import InputError, evaluate, finetune, learn_vocabulary, merge, predict
from ownbert.checkpoint import load_tokenizer, save
from ownbert.config.encoder import EncoderConfig
from ownbert.finetuning.several_runs import Ensemble
from ownbert.inference.engines import Compute
from ownbert.inference.open_folder import open_folder
from ownbert.inference.row_files import PredictionWriter
from ownbert.nn.model import Model
from ownbert.tables.delimited import open_rows
from ownbert.tasks import row_network as forward
from ownbert.tasks.kinds import KINDS
from ownbert.tasks.packed_network import PackedNetwork
from ownbert.tasks.row_network import forward_rows
from ownbert.tasks.rows import Row
from support.cli import refusal, run_cli
from support.kills import kill_when_written
from support.tiny import contents, made

COMMAND = (sys.executable, "-m", "ownbert")


def texts_of(path: Path) -> list[str]:
    with path.open(newline="") as file:
        return [row["text"] for row in csv.DictReader(file)]


def test_rows_in_memory_replace_no_file_of_their_model(tmp_path: Path):
    made(tmp_path, "classification")
    before = contents(tmp_path)
    with pytest.raises(InputError, match="is read by this command"):
        predict(tmp_path, ["a b"], tmp_path / "tokenizer.json")
    with pytest.raises(InputError, match="is read by this command"):
        evaluate(tmp_path, [("a b", "ant")], output=tmp_path / "config.json")
    assert contents(tmp_path) == before


def many_rows(topics: Path, path: Path, rows: int) -> Path:
    """A file of so many lines, of the test texts over and over."""
    texts = texts_of(topics / "test.csv")
    path.write_text("".join(f"{texts[i % len(texts)]}\n" for i in range(rows)))
    return path


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forward.blocks, "__defaults__", (16, 4_000_000, len))


def read(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_table_says_what_json_lines_say(classifier: Path, topics: Path, tmp_path: Path):
    for name in ("a.jsonl", "a.csv", "a.tsv", "a.csv.gz"):
        predict(classifier, topics / "test.csv", tmp_path / name, probabilities=True)
    rows = read(tmp_path / "a.jsonl")
    for name, separator in (("a.csv", ","), ("a.tsv", "\t")):
        with (tmp_path / name).open(newline="") as file:
            found = list(csv.DictReader(file, delimiter=separator))
        assert list(found[0]) == [
            *("text", "label", "score"),
            *(f"probabilities.{n}" for n in rows[0]["probabilities"]),
        ]
        for one, other in zip(found, rows, strict=True):
            assert one["label"] == other["label"]
            for label, p in other["probabilities"].items():
                assert float(one[f"probabilities.{label}"]) == p
    assert (
        gzip.decompress((tmp_path / "a.csv.gz").read_bytes()) == (tmp_path / "a.csv").read_bytes()
    )
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(
        ("a.jsonl", "a.csv", "a.tsv", "a.csv.gz")
    )


ODD = {
    "text": 'a "quoted", one',
    "lines": "two\nlines\twith a tab",
    "list": [1, "é"],
    "none": None,
    "in": {"x": True, "y": {"z": 0.5}},
}


@pytest.mark.parametrize("name", ["a.csv", "a.tsv"])
def test_values_of_any_kind_stand_in_a_table(tmp_path: Path, name: str):
    file = PredictionWriter(tmp_path / name, {}, resume=False)
    file.write([ODD, ODD])
    file.finish()
    with (tmp_path / name).open(newline="") as opened:
        rows = list(csv.DictReader(opened, delimiter="," if name == "a.csv" else "\t"))
    assert len(rows) == 2
    assert rows[0]["text"] == ODD["text"]
    assert rows[1]["lines"] == ODD["lines"]
    assert json.loads(rows[0]["list"]) == ODD["list"]
    assert (rows[0]["none"], rows[0]["in.x"], rows[0]["in.y.z"]) == ("", "true", "0.5")


@pytest.mark.parametrize("name", ["a.csv", "a.tsv"])
def test_a_table_is_read_as_it_was_written(tmp_path: Path, name: str):
    texts = ["a\tb", 'a "b"\tc', "two\nlines", 'a \\" b', '"all"', "\\t", " x "]
    # Parts of these would be rows by themselves.
    texts += ["a\tb\nc", "a\nb\tc", '"a\t\n\n"b\tx', "\t\\\n\n"]
    file = PredictionWriter(tmp_path / name, {}, resume=False)
    file.write([{"text": text, "label": "x"} for text in texts])
    file.finish()
    assert [cells[0] for _, cells in open_rows(tmp_path / name)[1]] == texts
    frame = pytest.importorskip("pandas").read_csv(
        tmp_path / name, sep="," if name == "a.csv" else "\t"
    )
    assert frame.text.tolist() == texts


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.jsonl"])
@pytest.mark.parametrize("left", [1, 30, 150, 199, -1])
def test_a_cut_file_is_gone_on_with_after_its_last_whole_row(tmp_path: Path, name: str, left: int):
    rows = [ODD | {"text": f'"{i}"\n\n"'} for i in range(9)]
    whole = PredictionWriter(tmp_path / name, {"of": "it"}, resume=False)
    whole.write(rows)
    whole.finish()
    expected = (tmp_path / name).read_bytes()
    stopped = PredictionWriter(tmp_path / name, {"of": "it"}, resume=False)
    stopped.write(rows[:4])
    stopped.close()
    stopped.part.write_bytes(stopped.part.read_bytes()[:left])
    again = PredictionWriter(tmp_path / name, {"of": "it"}, resume=True)
    assert again.done < 4
    again.write(rows[again.done :])
    again.finish()
    assert (tmp_path / name).read_bytes() == expected


def test_a_column_that_the_first_row_lacks_is_refused(tmp_path: Path):
    file = PredictionWriter(tmp_path / "a.csv", {}, resume=False)
    with pytest.raises(InputError, match=r"a.csv: prediction 2 has 'b', which is not a column"):
        file.write([{"a": 1}, {"a": 1, "b": 2}])
    file.close()
    assert not list(tmp_path.iterdir())


def test_two_processes_do_not_write_one_file(tmp_path: Path):
    file = PredictionWriter(tmp_path / "a.csv", {}, resume=False)
    with pytest.raises(InputError, match="another process is writing"):
        PredictionWriter(tmp_path / "a.csv", {}, resume=False)
    file.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["out.csv"])
def test_a_killed_run_is_gone_on_with(classifier: Path, topics: Path, tmp_path: Path, name: str):
    rows = many_rows(topics, tmp_path / "new.txt", 5_000)
    predict(classifier, rows, tmp_path / f"whole-{name}")
    output = tmp_path / name
    command = [*COMMAND, "predict", str(classifier), "--input", str(rows), "-o", str(output)]
    part = kill_when_written(command, output)
    before = len(part.read_bytes().splitlines())
    assert 0 < before < 5_000
    counts: list[int] = []
    assert predict(classifier, rows, output, resume=True, progress=counts.append) == 5_000
    assert counts[0] > 0
    assert counts[-1] == 5_000
    assert output.read_bytes() == (tmp_path / f"whole-{name}").read_bytes()
    assert not part.exists()


def test_an_interrupted_run_says_how_to_go_on(
    classifier: Path, topics: Path, tmp_path: Path, small_blocks: None
):
    rows, output = topics / "test.csv", tmp_path / "out.jsonl"

    def stop(count: int) -> None:
        if count == 32:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt, match=r"32 predictions are kept in .*--resume"):
        predict(classifier, rows, output, progress=stop)
    assert not output.exists()
    kept = (tmp_path / ".out.jsonl.part").read_bytes()
    predict(classifier, rows, output, resume=True)
    assert output.read_bytes().startswith(kept)
    assert len(read(output)) == 45


def test_another_model_input_or_precision_is_refused(
    classifier: Path, topics: Path, pretrained: Path, tmp_path: Path, small_blocks: None
):
    rows, output = tmp_path / "rows.csv", tmp_path / "out.jsonl"
    rows.write_bytes((topics / "test.csv").read_bytes())

    def stop(count: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        predict(classifier, rows, output, progress=stop)
    given = {"model": pretrained, "train": topics / "train.csv", "quiet": True, "max_steps": 1}
    finetune(output=tmp_path / "other", **given)
    with pytest.raises(InputError, match="the stopped run differs in its model; start over"):
        predict(tmp_path / "other", rows, output, resume=True)
    with pytest.raises(InputError, match="the precision differs from that"):
        predict(classifier, rows, output, precision="bfloat16", resume=True)
    with rows.open("a") as file:
        file.write("red,red1 red2 9\n")
    with pytest.raises(InputError, match="the stopped run differs in its input"):
        predict(classifier, rows, output, resume=True)
    assert predict(classifier, rows, output) == 46


def test_a_broken_line_is_named_and_what_was_done_is_kept(
    classifier: Path, topics: Path, tmp_path: Path
):
    lines = ['{"text": "red1 9"}'] * 5400
    lines[4999] = '{"text": "red1'
    (tmp_path / "new.jsonl").write_text("\n".join(lines) + "\n")
    output = tmp_path / "out.jsonl"
    with pytest.raises(InputError, match=r"new.jsonl, line 5000: not JSON") as caught:
        predict(classifier, tmp_path / "new.jsonl", output)
    assert "4,096 predictions are kept in" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not output.exists()
    assert len(read(tmp_path / ".out.jsonl.part")) == 4096


def test_an_earlier_file_stays_until_the_new_one_is_whole(
    classifier: Path, topics: Path, tmp_path: Path, small_blocks: None
):
    output = tmp_path / "out.jsonl"
    output.write_text("before\n")
    (tmp_path / "new.jsonl").write_text('{"text": "red1"}\n' * 40 + "broken\n")
    with pytest.raises(InputError):
        predict(classifier, tmp_path / "new.jsonl", output)
    assert output.read_text() == "before\n"
    predict(classifier, topics / "test.csv", output)
    assert len(read(output)) == 45


EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "tasks"


@pytest.fixture(scope="module")
def blank(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model without training that reads the files of the examples."""
    folder = tmp_path_factory.mktemp("blank") / "model"
    learn_vocabulary(EXAMPLES / "letters.txt", folder, kind="blank")
    tokenizer = load_tokenizer(folder)
    config = EncoderConfig.of_size(
        "tiny", vocab_size=tokenizer.vocab_size, max_position_embeddings=64
    )
    torch.manual_seed(0)
    save(Model(config, ["mlm", "nsp"]), folder, tokenizer=tokenizer)
    return folder


def rows_of(task: str, part: str) -> Path:
    return next(EXAMPLES.glob(f"{task}.{part}.*"))


def scores(predictor: Any, rows: Sequence[Row], size: int) -> list[np.ndarray]:
    """The scores of rows that are answered so many at a time."""
    task, found = predictor.task, []
    for start in range(0, len(rows), size):
        data = task.encode(rows[start : start + size], predictor.builder, training=False)
        model = predictor.models[-1]
        found += forward_rows(PackedNetwork(model), task, data.examples)
    return found


# Tasks that answer a row with one list of numbers all do it in one way.
ALIKE = ("classify", "multilabel", "regress", "choose")


@pytest.mark.parametrize(
    "task",
    [
        pytest.param(name, marks=pytest.mark.slow) if name in ALIKE else name
        for name in KINDS
        if name not in ("embed", "image")
    ],
)
def test_no_task_depends_on_the_company(task: str, blank: Path, tmp_path: Path):
    given = {"model": blank, "train": rows_of(task, "train"), "quiet": True, "max_steps": 3}
    finetune(task, output=tmp_path / "it", seeds=2, **given)
    predictor = open_folder(tmp_path / "it")
    rows = list(predictor.task.stream(rows_of(task, "test")))[:40]
    together = scores(predictor, rows, len(rows))
    for size in (1, 7):
        for one, other in zip(together, scores(predictor, rows, size), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
    rough = scores(open_folder(tmp_path / "it", Compute(precision="bfloat16")), rows, len(rows))
    for one, other in zip(together, rough, strict=True):
        np.testing.assert_allclose(one, other, rtol=0.05, atol=0.05)
    # And several models of any task are averaged.
    count = predict(tmp_path / "it", rows_of(task, "test"), tmp_path / "out.csv")
    with (tmp_path / "out.csv").open(newline="") as file:
        assert len(list(csv.reader(file))) == count + 1


def test_vectors_of_several_models_are_not_averaged(blank: Path, tmp_path: Path):
    files = {part: rows_of("embed", part) for part in ("train", "dev")}
    given: dict[str, Any] = {"model": blank, "quiet": True, **files}
    found = finetune("embed", output=tmp_path / "it", seeds=2, max_steps=2, **given)
    assert isinstance(found, Ensemble)
    assert found.mean
    with pytest.raises(InputError, match="cannot be averaged for embed"):
        predict(tmp_path / "it", rows_of("embed", "test"), tmp_path / "out.jsonl")
    with pytest.raises(InputError, match=r"run.folds averages predictions"):
        finetune("embed", output=tmp_path / "no", folds=2, **given)


@pytest.mark.parametrize("long", ["cut", "windows", "segments"])
def test_numbers_do_not_depend_on_the_company(
    pretrained: Path, topics: Path, tmp_path: Path, long: str
):
    given = {"model": pretrained, "train": topics / "train.csv", "quiet": True, "max_steps": 4}
    finetune(output=tmp_path / "it", long=long, stride=None if long == "cut" else 8, **given)
    predictor = open_folder(tmp_path / "it")
    rows = [Row(i, (t,)) for i, t in enumerate(texts_of(topics / "test.csv"))]
    rows.append(Row(45, ("red1 blue2 9 " * 60,)))
    together = predictor(rows)
    alone = [predictor([row])[0] for row in rows]
    thirds = [d for i in range(0, len(rows), 3) for d in predictor(rows[i : i + 3])]
    assert np.abs(np.stack(together) - np.stack(alone)).max() < 1e-5
    assert np.abs(np.stack(together) - np.stack(thirds)).max() < 1e-5


@pytest.mark.parametrize("source", ["csv", "tsv"])
@pytest.mark.parametrize("output", ["csv", "tsv", "jsonl", "parquet"])
def test_offsets_count_the_returns_in_quoted_cells(tmp_path: Path, source: str, output: str):
    made(tmp_path / "m", "tokens", labels=("B-x", "I-x", "O"), max_position_embeddings=30)
    texts = ["a b\r\n\r\nc d\re", "\r\nf\r\n", "a"]
    separators = {"csv": ",", "tsv": "\t"}
    with (tmp_path / f"a.{source}").open("w", newline="") as file:
        csv.writer(file, delimiter=separators[source]).writerows([("n", "text"), *enumerate(texts)])
    path = tmp_path / f"b.{output}"
    predict(tmp_path / "m", tmp_path / f"a.{source}", path, text_column="text")
    if output == "parquet":
        rows: Any = pq.read_table(path).to_pylist()
    elif output == "jsonl":
        rows = [json.loads(line) for line in path.read_text().splitlines()]
    else:
        with path.open(newline="") as file:
            rows = list(csv.DictReader(file, delimiter=separators[output]))
            rows = [{**row, "entities": json.loads(row["entities"])} for row in rows]
    assert [row["text"] for row in rows] == texts
    entities = [(row["text"], entity) for row in rows for entity in row["entities"]]
    assert entities
    assert all(text[one["start"] : one["end"]] == one["text"] for text, one in entities)


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
