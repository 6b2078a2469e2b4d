"""How labelled rows are read and split, also by groups and times; in files and in memory."""

import builtins
import csv
import io
import json
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import ownbert
from ownbert.exceptions import InputError
from ownbert.fitting.fit import preview_fit
from ownbert.fitting.rows.added_rows import with_added
from ownbert.fitting.rows.labelled_rows import LabelledRows, find_task, read_labelled
from ownbert.tables import delimited, memory
from ownbert.tables.columns import ColumnNames
from ownbert.tables.memory import MemoryTable, table_of
from ownbert.tasks.related_rows import SplitColumns
from support.fit_files import json_of, labelled, write_table


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
def test_each_labelled_file_is_opened_and_parsed_once(
    ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Its checksum and its rows are of the same content, also if it changes meanwhile."""
    rows = [{"text": f"word{i % 7} of text {i}", "label": "ab"[i % 2], "who": i} for i in range(40)]
    files = [tmp_path / f"{name}.{ending}" for name in ("train", "dev", "test", "added")]
    for path in files:
        write_table({name: [row[name] for row in rows] for name in rows[0]}, path)
    opened: Counter[str] = Counter()
    original = io.open

    def counting(file: Any, *args: Any, **options: Any) -> Any:
        opened[str(file)] += 1
        return original(file, *args, **options)

    for module in (builtins, io):
        monkeypatch.setattr(module, "open", counting)
    rows_of, object_of = delimited.open_rows, memory.parse_object
    parsed: Counter[str] = Counter()

    def counting_rows(path: Path) -> Any:
        parsed[path.name] += 1
        return rows_of(path)

    def counting_objects(line: str, where: Any) -> Any:
        parsed[str(where)] += 1
        return object_of(line, where)

    monkeypatch.setattr(delimited, "open_rows", counting_rows)
    monkeypatch.setattr(memory, "parse_object", counting_objects)
    train, dev, test, added = files
    opened.clear()
    with pytest.raises(InputError, match="nearly all rows"):
        preview_fit(train, dev=dev, add=added)
    assert [opened[str(path)] for path in (train, dev, added)] == [1, 1, 1]
    opened.clear()
    assert "40 labelled texts" in preview_fit(train, test=test)
    assert [opened[str(path)] for path in (train, test)] == [1, 1]
    # The first calls have parsed train, dev and added rows, each once, too.
    assert all(times <= 1 + ("train" in name) for name, times in parsed.items()), parsed


Rows = list[dict[str, Any]]


def customers(count: int, each: int, first: int = 0) -> Rows:
    """Rows of customers, each with words of its own and one random label."""
    drawn, rows = Random(first), []
    for customer in range(first, first + count):
        label = drawn.choice(["yes", "no"])
        for visit in range(each):
            words = [f"w{drawn.randrange(300)}" for _ in range(6)]
            own = [f"c{customer}x{drawn.randrange(4)}" for _ in range(4)]
            day = f"2024-{1 + visit % 12:02}-{1 + customer % 28:02}"
            text = " ".join([*words, *own, f"n{customer}v{visit}"])
            rows.append({"customer": customer, "text": text, "label": label, "day": day})
    return drawn.sample(rows, len(rows))


def read(rows: Any, dev: Any = None, **split: str) -> LabelledRows:
    task = find_task(rows, ColumnNames())
    return read_labelled(task, rows, dev, seed=0, split=SplitColumns(**split))


def groups(rows: LabelledRows, indices: np.ndarray) -> set[str | None]:
    return {rows.rows[i].group for i in indices}


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "parquet", "frame", "dicts", "arrow"])
def test_groups_are_on_one_side(kind: str, tmp_path: Path):
    rows, path = customers(20, 5), tmp_path / f"rows.{kind}"
    if kind in ("csv", "tsv", "jsonl", "parquet"):
        write_table({name: [row[name] for row in rows] for name in rows[0]}, path)
    memory = {"frame": pd.DataFrame, "dicts": list, "arrow": pa.Table.from_pylist}
    data = table_of(memory[kind](rows), name="rows") if kind in memory else path
    found = read(data, group="customer")
    assert len(found.folds) == 5
    assert sorted(found.held_out) == [*range(100)]
    assert len(set(found.clusters)) == 20
    for learn, held_out in found.folds:
        assert len(held_out) == 20
        assert not groups(found, learn) & groups(found, held_out)
    by_time = read(data, time="day")
    (learn, held_out), days = by_time.folds[0], [row["day"] for row in rows]
    assert max(days[i] for i in learn) < min(days[i] for i in held_out)
    assert by_time.source == f"the {len(held_out)} latest training rows"
    assert len(by_time.learnt) == 100  # final models learn from all rows


def test_a_group_of_many_rows_is_not_held_out_alone():
    rows = [*customers(1, 900), *customers(40, 30, first=1)]
    found = read(table_of(rows), group="customer")
    (learn, held_out), *others = found.folds
    assert not others
    assert "0" not in groups(found, held_out)
    assert len(groups(found, held_out)) > 3
    assert not groups(found, learn) & groups(found, held_out)


def test_shared_texts_connect_groups_and_rows_without_one_do_not():
    rows = customers(20, 3)
    for row in rows:
        row["customer"] = None if row["customer"] >= 10 else row["customer"]
    other = next(row for row in rows if row["customer"] == 1)
    rows.append({**other, "text": f"{other['text'].upper()}!", "customer": 2})
    found = read(table_of(rows), group="customer")
    own = {row.group: cluster for row, cluster in zip(found.rows, found.clusters, strict=True)}
    assert own["1"] == own["2"] != own["3"]
    assert len(set(found.clusters)) == 9 + 30
    one = table_of([{**row, "customer": 7} for row in rows])
    with pytest.raises(InputError, match="share a text or a group are held out together, and sha"):
        read(one, group="customer")


def test_training_rows_of_dev_groups_are_left_out_and_counted():
    train, dev = table_of(customers(12, 4), name="train"), customers(4, 5, first=10)
    found = read(train, table_of(dev), group="customer")
    assert found.left_out == 8
    assert groups(found, found.folds[0][0]).isdisjoint(groups(found, found.held_out))
    given: Any = {"dev": dev, "group": "customer"}
    assert "8 training rows share a text or a group with a dev row" in preview_fit(train, **given)
    without = [{"text": row["text"], "label": row["label"]} for row in dev]
    with pytest.raises(InputError, match="no column 'customer'"):
        preview_fit(train, dev=without, group="customer")
    with pytest.raises(InputError, match="nearly all rows of train share a text or a group"):
        read(train, table_of(customers(12, 5)), group="customer")


def test_rows_of_groups_that_are_held_out_as_later_are_not_trained_on():
    rows = customers(20, 10)
    for row in rows:
        if row["customer"] < 15:
            row["day"] = "2024-01-01" if row["customer"] else "2024-06-01"
    found = read(table_of(rows), group="customer", time="day")
    learn, held_out = found.folds[0]
    assert found.left_out == 200 - len(learn) - len(held_out) > 0
    assert groups(found, learn).isdisjoint(groups(found, held_out))
    lines = preview_fit(table_of(rows), group="customer", time_column="day")
    assert f"{found.left_out} earlier rows share a text or a group with one of the latest" in lines
    assert f"times: {found.period}" in lines
    assert found.period.startswith("trained on rows up to ")


def test_a_preview_counts_groups_and_warns_of_columns_that_seem_to_be_some():
    rows, test = customers(20, 5), customers(4, 5, first=18)
    shown = preview_fit(rows, test=test)
    assert "several rows have the same 'customer'" in shown
    assert "group='customer'" in shown
    assert "belong to groups" not in shown
    shown = preview_fit(rows, test=test, group="customer")
    assert "several rows have the same" not in shown
    assert "groups: 20 in column 'customer'; the largest has 5 rows" in shown
    assert "(not used: day)" in shown
    assert "10 of the 20 test rows belong to groups of the training data, so the test" in shown
    # Other customers in the dev rows: nothing is shared.
    assert "several rows" not in preview_fit(rows, dev=customers(4, 5, first=20))
    assert "several rows have the same" in preview_fit(rows, dev=customers(4, 5, first=19))
    no_groups = [{"text": row["text"], "label": row["label"]} for row in test]
    assert "belong to groups" not in preview_fit(rows, test=no_groups, group="customer")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"group": "label"}, "group is 'label', the column of the labels"),
        ({"group": "client"}, "no column 'client'; the columns are: customer, text, label, day"),
        ({"time_column": "text"}, "which is not a time"),
        ({"time_column": "day", "dev": customers(2, 4, first=90)}, "both choose the held-out rows"),
    ],
)
def test_what_cannot_be_split_is_one_line(given: dict[str, Any], message: str):
    with pytest.raises(InputError, match=message):
        preview_fit(customers(10, 4), **given)


def test_added_rows_keep_the_group_and_time_of_the_row_that_they_replace():
    train = table_of(customers(6, 3))
    rows = customers(6, 3)
    added = [{"text": rows[0]["text"], "label": "maybe"}, {"text": "new", "label": "no"}]
    split = SplitColumns("customer", "day")
    merged, _ = with_added(train, added, ColumnNames(), None, split)
    found = {
        values[0]: values[1:] for _, values in merged.read(["text", "label", "customer", "day"])
    }
    assert found[rows[0]["text"]] == ("maybe", rows[0]["customer"], rows[0]["day"])
    assert found["new"] == ("no", None, None)
    with pytest.raises(InputError, match="column 'day' is empty; each row needs a time"):
        preview_fit(rows, add=added, time_column="day")
    added[1] |= {"day": "2025-01-01", "customer": 2}
    merged, _ = with_added(train, added, ColumnNames(), None, split)
    assert "groups: 6 in" in preview_fit(rows, add=added, time_column="day", group="customer")


@pytest.mark.slow
def test_random_labels_of_customers_are_not_predicted_for_others(tmp_path: Path):
    """The report had .996, new customers .572, and good news only."""
    rows, test = customers(40, 8), customers(40, 5, first=40)
    given: Any = {"test": test, "minutes": 0.1, "quiet": True}
    ownbert.fit(rows, output=tmp_path / "rows", **given)
    report = json_of(tmp_path / "rows")
    first, *others = report["advice"]
    assert first["sentence"].startswith("Expect the score of the test set on new texts")
    assert "group" in first["sentence"]
    assert all(one["kind"] != "fine" for one in others)
    ownbert.fit(rows, output=tmp_path / "groups", group="customer", **given)
    by_groups = json_of(tmp_path / "groups")
    scores = [max(row["score"] for row in each["leaderboard"]) for each in (report, by_groups)]
    assert scores[0] > 0.9 > 0.75 > scores[1]
    recipe = (tmp_path / "groups" / "recipe.yaml").read_text()
    assert "group: customer" in recipe
    with pytest.raises(InputError):
        ownbert.fit(rows, output=tmp_path / "groups", resume=True, **given)
    ownbert.fit(rows, output=tmp_path / "groups", group="customer", resume=True, **given)


def test_an_added_label_that_no_row_has_gets_a_warning():
    rows = {"text": ["a b", "c d", "e f"], "label": ["Rechnung", "Mahnung", "Rechnung"]}
    added = {"text": ["g h", "i j"], "label": ["Rechnungx", "Mahnung"]}
    _, notes = with_added(table_of(rows), added, ColumnNames(), None)
    (warning,) = (note for note in notes if note.startswith("warning"))
    assert "such as 'Rechnungx' (rows: 1) (did you mean 'Rechnung'?)" in warning
    numbers = {"text": ["a b", "c d"], "label": [1.5, 2.5]}
    _, notes = with_added(table_of(numbers), {"text": ["e"], "label": [3.5]}, ColumnNames(), None)
    assert not any(note.startswith("warning") for note in notes)
