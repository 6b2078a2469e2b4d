"""What ``fit`` sees in labelled rows: their task, and which of them select."""

import builtins
import csv
import io
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pyarrow as pa
import pytest

from ownbert.exceptions import InputError
from ownbert.fitting.fit import preview_fit
from ownbert.fitting.rows.labelled_rows import find_task, read_labelled
from ownbert.tables.columns import ColumnNames
from ownbert.tables.memory import MemoryTable, table_of
from support.fit_files import labelled


def table(path: Path, labels: list, texts: list[str] | None = None) -> Path:
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "label"])
        for i, label in enumerate(labels):
            writer.writerow([texts[i] if texts else f"text {i} of many", label])
    return path


@pytest.mark.parametrize(
    ("labels", "task"),
    [
        (["a", "b", "a", "c"] * 5, "classify"),
        (["1", "2", "3"] * 5, "classify"),
        (["1.0", "2.0"] * 5, "classify"),
        (["0.5", "1.25", "7"] * 5, "regress"),
        ([str(i) for i in range(80)], "regress"),
        (["a|b", "a", "b|c", "c"] * 5, "multilabel"),
        (['["a", "b"]', "[]"] * 5, "multilabel"),
        (["New York, NY", "Paris, FR", "Rome, IT"] * 9, "classify"),
    ],
)
def test_the_task_is_seen_from_the_labels(labels: list[str], task: str, tmp_path: Path):
    assert find_task(table(tmp_path / "t.csv", labels), ColumnNames()).name == task


def test_other_tasks_get_the_name_of_their_command(tmp_path: Path):
    path = table(tmp_path / "t.csv", ["a", "b"])
    with pytest.raises(InputError, match="ownbert finetune tag"):
        find_task(path, ColumnNames(), "tag")
    choices = {"prompt": ["one", "two"], "choices": [["a", "b"], ["c", "d"]], "label": [1, 0]}
    text = ColumnNames(text="prompt")
    with pytest.raises(InputError, match="ownbert finetune choose"):
        find_task(table_of(choices), text)
    assert find_task(table_of(choices), text, "classify").name == "classify"
    plain = tmp_path / "plain.txt"
    plain.write_text("one\ntwo\n")
    with pytest.raises(InputError, match="is plain text; fit needs a table"):
        find_task(plain, ColumnNames())


def test_few_rows_are_held_out_once_each_in_folds(tmp_path: Path):
    labels = ["a", "b"] * 20
    texts = [f"text {i // 4}" for i in range(40)]  # each text four times
    path = table(tmp_path / "t.csv", labels, texts)
    rows = labelled(path)
    assert sorted(rows.held_out.tolist()) == list(range(40))
    assert rows.refit
    for learn, held in rows.folds:
        assert not {texts[i] for i in learn} & {texts[i] for i in held}
        assert len(learn) + len(held) == 40


@pytest.mark.parametrize("count", [40, 1600])
def test_copies_with_other_spaces_case_or_punctuation_are_on_one_side(count: int):
    """They were split: a model of random labels had a score of 1.000 for having seen the texts."""
    texts = [f"Refund of order {i}" for i in range(count // 4)]
    copies = [copy for t in texts for copy in (t, f"{t} ", t.upper(), f"{t}, now!"[: len(t) + 1])]
    data = table_of({"text": copies, "label": ["a", "b"] * (count // 2)})
    rows = labelled(data)
    assert rows.clusters.tolist() == [i // 4 for i in range(count)]
    for learn, held in rows.folds:
        assert not {*rows.clusters[learn]} & {*rows.clusters[held]}
    dev = table_of({"text": ["REFUND of order 0...", "another text"], "label": ["a", "b"]})
    rows = labelled(data, dev)
    assert rows.left_out == 4
    assert rows.clusters[[0, 3, count, count + 1]].tolist() == [0, 0, 0, count // 4]


def test_of_many_rows_a_part_is_held_out(tmp_path: Path):
    path = table(tmp_path / "t.csv", ["a", "b", "c"] * 600)
    rows = labelled(path)
    assert len(rows.folds) == 1
    assert 200 < len(rows.held_out) < 500
    assert len(rows.learnt) == 1800  # the final models learn from all


def test_rows_of_the_dev_file_are_not_learnt_from(tmp_path: Path):
    train = table(tmp_path / "t.csv", ["a", "b"] * 10)
    dev = table(tmp_path / "d.csv", ["a", "b"] * 3, [f"text {i} of many" for i in range(6)])
    rows = labelled(train, dev)
    assert len(rows.held_out) == 6
    assert not rows.refit
    learnt = {rows.rows[i].texts for i in rows.learnt}
    assert not learnt & {rows.rows[i].texts for i in rows.held_out}
    assert len(learnt) == 14


def test_a_dev_label_that_training_rows_lack_is_one_line(tmp_path: Path):
    train = table(tmp_path / "t.csv", ["a", "b"] * 10)
    dev = table(tmp_path / "d.csv", ["a", "z"], ["one", "two"])
    with pytest.raises(InputError, match=r"line 3: label 'z' is not in the training data"):
        labelled(train, dev)


@pytest.mark.parametrize(
    ("labels", "texts", "message"),
    [
        (["a"] * 6, None, "all rows have the label 'a'"),
        (["a", "b"] * 3, ["", " ", "", "", "", "x"], "5 of 6 texts are empty"),
        (
            ["a", "b"] * 3,
            ["same"] * 6,
            "connect all 6 rows, so none can be held out; give other rows with dev",
        ),
    ],
)
def test_rows_that_cannot_be_used_are_one_line(labels, texts, message, tmp_path: Path):
    path = table(tmp_path / "t.csv", labels, texts)
    with pytest.raises(InputError, match=message):
        labelled(path)


def test_texts_that_connect_all_pairs_are_named_as_the_cause(tmp_path: Path):
    texts = [f"text {i}" for i in range(41)]
    pairs = {"text1": texts[:-1], "text2": texts[1:], "label": ["a", "b"] * 20}
    data = table_of(pairs, name="pairs")
    task = find_task(data, ColumnNames())
    with pytest.raises(InputError, match=r"pairs: rows that share a text .* connect all 40 rows"):
        read_labelled(task, data, None, seed=0)
    dev = table_of({"text1": ["one", "two"], "text2": ["three", "four"], "label": ["a", "b"]})
    assert len(read_labelled(task, data, dev, seed=0).held_out) == 2


def test_missing_second_texts_do_not_connect_rows():
    """They had filled a fold of their own, and dropped all such rows beside a dev file with one."""

    def pairs(start: int, count: int) -> MemoryTable:
        titles = [f"title {start + i}" for i in range(count)]
        bodies = ["" if i % 2 else f"body {start + i}" for i in range(count)]
        return table_of({"text1": titles, "text2": bodies, "label": ["a", "b", "b", "a"] * 10})

    train, dev = pairs(0, 40), pairs(100, 40)
    rows = labelled(train)
    assert [len(held_out) for _, held_out in rows.folds] == [8] * 5
    rows = labelled(train, dev)
    assert (len(rows.learnt), rows.left_out) == (40, 0)


@pytest.mark.parametrize(
    "data",
    [
        (["one", "two"], ["a", "b"]),
        (np.asarray(["one", "two"]), np.asarray(["a", "b"])),
        [("one", "a"), ("two", "b")],
        [{"text": "one", "label": "a"}, {"text": "two", "label": "b"}],
        {"text": ["one", "two"], "label": ["a", "b"]},
        pa.table({"text": ["one", "two"], "label": ["a", "b"]}),
    ],
)
def test_rows_in_memory_become_lines(data):
    rows = [json.loads(line) for line in table_of(data).lines()]
    assert rows == [{"text": "one", "label": "a"}, {"text": "two", "label": "b"}]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            {"text": ["a"], "label": ["a", "b"]},
            "differ in length: text 1, label 2",
        ),
        ([], "rows must be given as"),
        (7, "rows must be given as"),
        (["only a text"], "a row must be a text and its label, not 'only a text'"),
    ],
)
def test_what_is_no_rows_is_one_line(data, message: str):
    with pytest.raises(InputError, match=message):
        table_of(data)


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_each_labelled_file_is_opened_once(
    ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Its checksum and its rows are of the same content, also if it changes meanwhile."""
    rows = [{"text": f"word{i % 7} of text {i}", "label": "ab"[i % 2], "who": i} for i in range(40)]
    files = [tmp_path / f"{name}.{ending}" for name in ("train", "dev", "test", "added")]
    for path in files:
        frame = pandas.DataFrame(rows)
        if ending == "csv":
            frame.to_csv(path, index=False)
        elif ending == "jsonl":
            frame.to_json(path, orient="records", lines=True)
        else:
            frame.to_parquet(path)
    opened: Counter[str] = Counter()
    original = io.open

    def counting(file: Any, *args: Any, **options: Any) -> Any:
        opened[str(file)] += 1
        return original(file, *args, **options)

    for module in (builtins, io):
        monkeypatch.setattr(module, "open", counting)
    train, dev, test, added = files
    opened.clear()
    with pytest.raises(InputError, match="nearly all rows"):
        preview_fit(train, dev=dev, add=added)
    assert [opened[str(path)] for path in (train, dev, added)] == [1, 1, 1]
    opened.clear()
    assert "40 labelled texts" in preview_fit(train, test=test)
    assert [opened[str(path)] for path in (train, test)] == [1, 1]
