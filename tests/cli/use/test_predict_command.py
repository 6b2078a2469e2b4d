"""ownbert predict: texts, files and standard input in; rows that say which they are for out."""

import csv
import json
from datetime import datetime
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest

from ownbert import InputError, predict
from support.cli import printed_rows, refusal, run_cli

rows_of, refused = partial(printed_rows, "predict"), partial(refusal, "predict")


def test_texts_lines_and_files_have_the_same_answers(classifier: Path, tmp_path: Path):
    texts = ["red1 red2 9", "blue1 9"]
    found = rows_of(classifier, *texts)
    assert [row["text"] for row in found] == texts
    assert all(list(row) == ["text", "label", "score"] for row in found)
    lines = "\n".join(texts)
    (tmp_path / "new.txt").write_text(lines)
    assert rows_of(classifier, stdin=lines) == found
    assert rows_of(classifier, "-", stdin=lines + "\n") == found
    assert rows_of(classifier, tmp_path / "new.txt", "-o", "-") == found
    for old in ("--input", "--data"):
        assert rows_of(classifier, old, tmp_path / "new.txt") == found
    run_cli("predict", classifier, *texts, "-o", tmp_path / "p.jsonl")
    assert [json.loads(line) for line in (tmp_path / "p.jsonl").read_text().splitlines()] == found
    assert not list(tmp_path.glob(".*"))


def test_ids_stand_instead_of_texts(classifier: Path, tmp_path: Path):
    (tmp_path / "new.csv").write_text("ID,text\na7,red1 9\nb8,blue1 9\n")
    found = rows_of(classifier, tmp_path / "new.csv")
    assert [row["id"] for row in found] == ["a7", "b8"]
    assert all(list(row) == ["id", "label", "score"] for row in found)
    lines = '{"text": "red1 9", "id": 7}\n{"id": [8], "text": "blue1 9"}\n'
    assert [row["id"] for row in rows_of(classifier, stdin=lines)] == [7, [8]]


def test_top_threshold_and_probabilities(classifier: Path, topics: Path, tmp_path: Path):
    plain = rows_of(classifier, topics / "test.csv", "--probabilities")
    run_cli("predict", classifier, topics / "test.csv", "--top", 2, "-o", tmp_path / "p.csv")
    with (tmp_path / "p.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    assert list(table[0]) == ["text", "label", "score", "label_2", "score_2"]
    for row, other in zip(table, plain, strict=True):
        ranked = sorted(other["probabilities"].items(), key=lambda each: -each[1])
        assert [float(row["score"]), float(row["score_2"])] == [p for _, p in ranked[:2]]
        assert (row["label"], row["text"]) == (other["label"], other["text"])
    least = sorted(row["score"] for row in plain)[20] + 1e-6
    found = rows_of(classifier, topics / "test.csv", "--threshold", least)
    assert [row["label"] for row in found] == [
        row["label"] if row["score"] >= least else None for row in plain
    ]
    assert any(row["label"] is None for row in found)


def test_the_options_of_python(classifier: Path, tmp_path: Path):
    rows = [{"text": "red1 9"}, {"text": "blue1 9"}]
    assert predict(classifier, rows, tmp_path / "p.jsonl", top_k=None, threshold=0.0) == 2
    first = json.loads((tmp_path / "p.jsonl").read_text().splitlines()[0])
    assert [name for name in first if name.startswith("label")] == ["label", "label_2", "label_3"]
    with pytest.raises(InputError, match="threshold is 2"):
        predict(classifier, rows, tmp_path / "p.jsonl", threshold=2)
    with pytest.raises(InputError, match="only rows of a file can be resumed"):
        predict(classifier, rows, tmp_path / "p.jsonl", resume=True)


def test_mistakes_in_what_is_given(classifier: Path, tmp_path: Path):
    (tmp_path / "new.txt").write_text("red1\n")
    assert "no such file: nix.csv" in refused(classifier, "nix.csv")
    assert "is a file among 2 arguments" in refused(classifier, tmp_path / "new.txt", "red1")
    assert "are both given" in refused(classifier, "red1", "--data", tmp_path / "new.txt")
    assert "the input is empty" in refused(classifier)
    assert "--resume continues an output file" in refused(classifier, "red1", "--resume")
    lines = '{"text": "red1"}\nblue1\n'
    assert "the input, row 2: not JSON" in refused(classifier, stdin=lines)
    assert "the input, row 2: not JSON" in refused(classifier, stdin=f"\ufeff{lines}")
    assert "standard input, line 1: not UTF-8" in refused(classifier, stdin=b"\xff\n")  # type: ignore
    assert "--threshold" in refused(classifier, "red1", "--threshold", 2)


def test_options_that_a_task_has_no_use_for(tmp_path: Path, classifier: Path):
    from ownbert.tasks.kinds import KINDS
    from ownbert.tasks.rows import OutputOptions
    from ownbert.tasks.task import task_class

    known = {name: task_class(name).output_options for name in KINDS}
    assert (known["regress"], known["embed"]) == ({"coverage"}, frozenset())
    of_labels = {"top", "threshold", "probabilities", "unknown", "coverage"}
    assert known["classify"] == known["image"] == of_labels
    with pytest.raises(InputError, match=r"top does not apply to regress; it supports coverage$"):
        task_class("regress")().refuse_output_options(OutputOptions(top=2))


def test_a_named_column_of_ids(classifier: Path, tmp_path: Path):
    lines = "order,text,id\n7,red1 9,x\n8,blue1 9,y\n"
    (tmp_path / "new.csv").write_text(lines)
    pq.write_table(pa_csv.read_csv(tmp_path / "new.csv"), tmp_path / "new.parquet")
    found = rows_of(classifier, tmp_path / "new.csv", "--id-column", "order")
    assert [list(row) for row in found] == [["order", "label", "score"]] * 2
    assert [row["order"] for row in found] == ["7", "8"]
    found = rows_of(classifier, tmp_path / "new.parquet", "--id-column", "order")
    assert [row["order"] for row in found] == [7, 8]
    line = '{"text": "red1 9", "order": null}'
    assert rows_of(classifier, "--id-column", "order", stdin=line)[0]["order"] is None
    done = run_cli(
        "predict", classifier, tmp_path / "new.csv", "--id-column=order", "-o", tmp_path / "p.csv"
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "p.csv").read_text().splitlines()[0] == "order,label,score"


def test_ids_of_every_type_are_written(classifier: Path, tmp_path: Path):
    times = [datetime(2026, 1, 2), None]
    pq.write_table(pa.table({"text": ["red1", "blue1"], "at": times}), tmp_path / "new.parquet")
    found = rows_of(classifier, tmp_path / "new.parquet", "--id-column", "at")
    assert [row["at"] for row in found] == ["2026-01-02 00:00:00", None]


@pytest.mark.parametrize("name", ["p.txt", "p.xlsx", "p"])
def test_the_name_of_the_output_is_checked_first(name: str, tmp_path: Path):
    """Before the model, which need not exist here, is opened."""
    (tmp_path / "new.csv").write_text("text\na\n")
    output = tmp_path / "of mt" / name
    line = refusal("predict", tmp_path / "none", tmp_path / "new.csv", "-o", output)
    assert f"cannot tell the file type of {str(output)!r}; its name must end with one" in line
    assert "also followed by .gz" in line


def test_mistakes_in_the_column_of_ids(classifier: Path, tmp_path: Path):
    (tmp_path / "new.csv").write_text("text,label\nred1 9,7\n")
    (tmp_path / "new.txt").write_text("red1 9\n")
    for name, file, message in (
        ("x", "new.csv", "has no column 'x'; the columns are: text, label; choose with --id-col"),
        ("text", "new.csv", "the column 'text' cannot be used twice"),
        (
            "label",
            "new.csv",
            "the id column 'label' has the same name as a column of the predictions",
        ),
        ("id", "new.txt", "is plain text and has no columns"),
    ):
        assert message in refused(classifier, tmp_path / file, "--id-column", name)
    with pytest.raises(InputError, match="id_column needs an output file"):
        predict(classifier, tmp_path / "new.csv", id_column="label")
