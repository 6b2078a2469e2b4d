"""One reading of label values, whatever they come in."""

import csv
import json
import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix

from ownbert.exceptions import InputError
from ownbert.finetuning.arrays import labels_of
from ownbert.finetuning.estimator import OwnBertClassifier
from ownbert.fitting.fit import preview_fit
from ownbert.fitting.rows.labelled_rows import find_task
from ownbert.tables import label_task
from ownbert.tables.columns import ColumnNames, with_label_columns
from ownbert.tables.label_task import task_of_cells
from ownbert.tables.labels import text_list
from ownbert.tables.memory import table_of
from ownbert.tasks.classification import label_weights, sort_labels
from ownbert.tasks.rows import Row
from ownbert.tasks.task import Task, task_class
from support.cli import run_cli

Columns = Mapping[str, Sequence[Any]]


def texts(count: int) -> list[str]:
    return [f"word{i % 7} word{i % 5} of text {i}" for i in range(count)]


def as_csv(columns: Columns, path: Path, delimiter: str = ",") -> Path:
    """As pandas and csv.writer write a table: everything becomes text."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter=delimiter)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
    return path


def as_jsonl(columns: Columns, path: Path) -> Path:
    rows = (dict(zip(columns, own, strict=True)) for own in zip(*columns.values(), strict=True))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def as_parquet(columns: Columns, path: Path) -> Path:
    pq.write_table(pa.table(dict(columns)), path)
    return path


class IterableData:
    """What an iterable data set of ``datasets`` is: rows, names of columns, features."""

    def __init__(self, columns: Columns, features: Mapping[str, Any] | None = None) -> None:
        self.columns, self.features = columns, features or {}
        self.column_names = list(columns)

    def __iter__(self) -> Any:
        for own in zip(*self.columns.values(), strict=True):
            yield dict(zip(self.columns, own, strict=True))


def frame(columns: Columns) -> Any:
    return pytest.importorskip("pandas").DataFrame(dict(columns))


FORMS: Mapping[str, Callable[[Columns, Path], Any]] = {
    "csv": lambda c, p: as_csv(c, p / "t.csv"),
    "tsv": lambda c, p: as_csv(c, p / "t.tsv", "\t"),
    "jsonl": lambda c, p: as_jsonl(c, p / "t.jsonl"),
    "parquet": lambda c, p: (pq.write_table(pa.table(dict(c)), p / "t.parquet"), p / "t.parquet")[
        1
    ],
    "frame": lambda c, p: frame(c),
    "mapping": lambda c, p: dict(c),
    "arrow": lambda c, p: pa.table(dict(c)),
    "iterable": lambda c, p: IterableData(c),
    "records": lambda c, p: [
        dict(zip(c, own, strict=True)) for own in zip(*c.values(), strict=True)
    ],
    "arrays": lambda c, p: tuple(map(np.asarray, c.values())),
}


def read(data: Any, label: str | None = None, **options: str) -> tuple[Task, list[Row]]:
    source = data if isinstance(data, Path) else table_of(data, name="rows")
    task = find_task(source, ColumnNames(label=label), None, options)
    return task, list(task.read(source))


# Name: the labels of rows, the task, what is read of the first rows.
READINGS: Sequence[tuple[str, Sequence[Any], str, Sequence[Any]]] = (
    ("names", ["a", "b"] * 15, "classify", ["a", "b"]),
    ("one in brackets", ["[other]", "b"] * 15, "classify", ["[other]", "b"]),
    ("a comma inside", ["Smith, J", "Doe, A"] * 15, "classify", ["Smith, J", "Doe, A"]),
    ("truth values", [True, False] * 15, "classify", ["true", "false"]),
    ("dates", [f"{y}-01-01 00:00:00" for y in (20, 21)] * 15, "classify", ["20-01-01", "21-01-01"]),
    ("numbers", [0, 1, 2] * 10, "classify", ["0", "1", "2"]),
    ("whole floats", [0.0, 1.0, 2.0] * 10, "classify", ["0", "1", "2"]),
    ("dashes", ["--1", "-", "-2"] * 10, "classify", ["--1", "-", "-2"]),
    ("fractions", [0.5, 1.25, 2.0] * 10, "regress", [(0.5,), (1.25,), (2.0,)]),
    ("two fractions", [0.5, 3.8] * 10, "regress", [(0.5,), (3.8,)]),
    ("thousands", ["2,000.50", "7,000", "0.50"] * 10, "regress", [(2000.5,), (7000.0,), (0.5,)]),
    ("points at thousands", ["2.000,50", "7,5"] * 10, "regress", [(2000.5,), (7.5,)]),
    ("whole thousands", ["1,045", "798", "2,310"] * 10, "classify", ["1,045", "798", "2,310"]),
    ("many thousands", [f"{i * 355:,}" for i in range(60)], "regress", [(0.0,), (355.0,)]),
    ("millions", [f"{2_040_310 + i * 355:,}" for i in range(60)], "regress", [(2040310.0,)]),
    ("sets of codes", ["101,102", "101", "102,103,104"] * 10, "multilabel", [("101", "102")]),
    ("two whole floats", [0.0, 1.0] * 10, "classify", ["0", "1"]),
    ("many classes", [i % 60 for i in range(600)], "classify", ["0", "1", "2"]),
    ("many numbers", [i * 7 for i in range(80)], "regress", [(0.0,), (7.0,), (14.0,)]),
    ("decimal commas", [f"{2000 + i},{i % 7}4" for i in range(40)], "regress", [(2000.04,)]),
    ("pairs of numbers", ["1,2", "2,3", "1", "3", "1,3"] * 8, "multilabel", [("1", "2")]),
)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("reading", READINGS, ids=lambda each: each[0])
def test_values_are_read_alike_whatever_they_come_in(reading: Any, form: str, tmp_path: Path):
    _, labels, name, first = reading
    data = FORMS[form]({"text": texts(len(labels)), "label": labels}, tmp_path)
    task, rows = read(data)
    assert task.name == name
    assert [row.target for row in rows[: len(first)]] == list(first)


LISTS: Sequence[tuple[str, Sequence[Any], str, Sequence[Any]]] = (
    ("lists", [["b", "a"], ["a"], []] * 10, "multilabel", [("b", "a"), ("a",), ()]),
    ("multi-hot", [[1, 0, 1], [0, 0, 0]] * 15, "multilabel", [("label_0", "label_2"), ()]),
    ("multi-hot floats", [[1.0, 0.0], [1.0, 1.0]] * 15, "multilabel", [("label_0",)]),
    ("multi-hot truth", [[True, False], [False, False]] * 15, "multilabel", [("label_0",), ()]),
    ("one-hot", [[0, 1, 0], [1, 0, 0]] * 15, "classify", ["label_1", "label_0"]),
    ("lists of one", [["a"], ["b"]] * 15, "classify", ["a", "b"]),
    ("numbers of labels", [[3, 1], [2], [1]] * 10, "multilabel", [("3", "1"), ("2",), ("1",)]),
)


@pytest.mark.parametrize("form", [*(f for f in FORMS if f != "arrays"), "json text", "numpy text"])
@pytest.mark.parametrize("reading", LISTS, ids=lambda each: each[0])
def test_lists_are_read_alike_as_lists_and_as_text(reading: Any, form: str, tmp_path: Path):
    _, labels, name, first = reading
    columns: dict[str, Any] = {"text": texts(len(labels)), "label": labels}
    if form == "json text":
        data: Any = as_csv(
            {**columns, "label": [json.dumps(v) for v in labels]}, tmp_path / "t.csv"
        )
    elif form == "numpy text":  # as a DataFrame of arrays is written
        shown = [str(np.asarray(v)) for v in labels]
        data = as_csv({**columns, "label": shown}, tmp_path / "t.csv")
    else:
        data = FORMS[form](columns, tmp_path)
    task, rows = read(data)
    assert task.name == name
    assert [row.target for row in rows[: len(first)]] == list(first)


def test_every_decision_matters(monkeypatch: pytest.MonkeyPatch):
    """Without any line of the table, some column is read for another task or without its note."""
    columns = [labels for _, labels, *_ in (*READINGS, *LISTS)]
    columns += [[*(f"{i / 8}" for i in range(60)), "1e999"], [*map(str, range(1, 716)), "unknown"]]
    columns += [[f"{i}" for i in range(12)], [f"{i:03}" for i in range(30)]]
    decisions = label_task._DECISIONS
    whole = list(map(task_of_cells, columns))
    for i in range(len(decisions) - 1):
        monkeypatch.setattr(label_task, "_DECISIONS", decisions[:i] + decisions[i + 1 :])
        assert list(map(task_of_cells, columns)) != whole, i


@pytest.mark.parametrize("form", ["csv", "jsonl", "frame", "mapping"])
def test_a_column_for_each_label(form: str, tmp_path: Path):
    columns = {"text": texts(20), "toxic": [1, 0] * 10, "insult": [1, 1] * 10}
    task, rows = read(FORMS[form](columns, tmp_path), "toxic,insult")
    assert task.name == "multilabel"
    assert [row.target for row in rows[:2]] == [("toxic", "insult"), ("insult",)]
    numbers = {**columns, "insult": [i / 3 for i in range(20)]}
    task, _ = read(FORMS[form](numbers, tmp_path), "toxic,insult")
    assert task.name == "regress"


def test_several_columns_are_named_on_the_command_line_and_in_python(tmp_path: Path):
    columns = {"text": texts(20), "toxic": [1, 0] * 10, "insult": [1, 1] * 10}
    path = as_csv(columns, tmp_path / "t.csv")
    done = run_cli("fit", path, "--label-columns", "toxic,insult", "--dry-run")
    assert (done.returncode, done.stderr) == (0, "")
    assert "multilabel: 20 labelled texts" in done.stdout
    assert preview_fit(columns, label_columns=["toxic", "insult"]).startswith("multilabel: 20")


def test_a_column_that_has_more_than_0_and_1_is_refused(tmp_path: Path):
    path = as_csv({"text": texts(4), "a": [1, 0, 2, 1], "b": [1, 0, 0, 1]}, tmp_path / "t.csv")
    task = task_class("multilabel")(columns=ColumnNames(label="a,b"))
    with pytest.raises(InputError, match=r"line 4: column 'a' has '2'; the column of a label"):
        task.read(path)


def test_vectors_get_the_names_that_are_given(tmp_path: Path):
    path = as_jsonl({"text": texts(20), "label": [[1, 0], [1, 1]] * 10}, tmp_path / "t.jsonl")
    _, rows = read(path, label_names="red, green")
    assert [row.target for row in rows[:2]] == [("red",), ("red", "green")]
    with pytest.raises(InputError, match="label_names has 3 names, but the label vectors"):
        read(path, label_names="a,b,c")
    for labels in ([1, 0] * 10, [["x", "y"], ["x"]] * 10):
        path = as_jsonl({"text": texts(20), "label": labels}, tmp_path / "t.jsonl")
        task, _ = read(path, label_names="a,b")
        assert task.notes() == ["label_names is not used: 'label' has no vectors of 0 and 1"]


@pytest.mark.parametrize(
    ("labels", "task", "message"),
    [
        (["a", "", "b", ""] * 5, "classify", "line 3: the label .* is empty; 10 of 20 rows"),
        ([f"id{i}" for i in range(30)], None, "occurs once, so it looks like an id"),
        ([i + 0.5 for i in range(30)], "classify", "looks like an id, .*task='regress'"),
        ([["a", "b"], ["c", "d"]] * 10, "classify", "a list of 2 labels where one is needed"),
        ([[1, 1, 0], [0, 1, 0]] * 10, "classify", "the vector has 2 labels where one is needed"),
    ],
)
def test_what_is_no_label_is_refused(labels: Any, task: str | None, message: str, tmp_path: Path):
    columns = {"text": texts(len(labels)), "label": labels}
    lists = isinstance(labels[0], list)
    path = as_jsonl(columns, tmp_path / "t.jsonl") if lists else as_csv(columns, tmp_path / "t.csv")
    found = find_task(path, ColumnNames(), task)
    with pytest.raises(InputError, match=message):
        found.read(path)


@pytest.mark.parametrize("mark", ["NA", "nan", "NaN", "null", "n/a", "?", "-", r"\N"])
def test_numbers_with_missing_values_are_numbers(mark: str):
    with pytest.raises(
        InputError, match=f"is missing: {re.escape(repr(mark))}; 10 of 30 rows have no"
    ):
        read_labels(["0.5", "1.25", mark] * 10)


@pytest.mark.parametrize(
    ("labels", "warnings"),
    [
        (["a", "b", "NA"] * 5, ["the label 'NA' (rows: 5) looks like a missing value"]),
        (["1", "2", "-"] * 5, ["the label '-' (rows: 5) looks like a missing value"]),
        (["a", "None", "nan"] * 5, ["the label 'None' (rows: 5)", "the label 'nan' (rows: 5)"]),
        (["none", "some", "-", "+"] * 5, []),
        (["yes", "no", "-"] * 5, ["the label '-' (rows: 5) looks like a missing value"]),
        (["-1", "0", "1", "2"] * 5, ["the label '-1' (rows: 5) looks like a missing label"]),
        (["-1", "0", "1"] * 5, []),
        (["Yes", "no", "yes"] * 5, ["the labels 'Yes' (rows: 5) and 'yes' (rows: 5) differ only"]),
        (["1.10", "1.1", "v"] * 5, ["the labels '1.10' (rows: 5) and '1.1' (rows: 5) differ on"]),
        ([f"{i}.50 €" for i in range(12)] * 2, ["labels such as '0.50 €' look like numbers with"]),
        ([f"${i}.50" for i in range(12)] * 2, ["labels such as '$0.50' look like numbers with"]),
        ([f"{i} %" for i in range(12)] * 2, ["labels such as '0 %' look like numbers with"]),
        ([f"{i}岁" for i in range(12)] * 2, ["labels such as '0岁' look like numbers with"]),
        ([f"{i} stars" for i in range(5)] * 5, []),
        ([f"E{i}.9" for i in range(30)] * 2, []),
        ([f"{i} {unit}" for i in range(9) for unit in ("km", "kg", "m")] * 2, []),
    ],
)
def test_labels_that_look_like_something_else_get_a_warning(labels: list[str], warnings: list[str]):
    task = task_class("classify")()
    task.read(table_of({"text": texts(len(labels)), "label": labels}))
    assert len(task.warnings()) == len(warnings)
    assert all(map(str.startswith, task.warnings(), warnings))


def test_a_stray_text_among_many_numbers_is_refused_with_its_place():
    labels = [f"{i % 358}" for i in range(1, 716)] + ["unknown"]
    assert task_of_cells(labels)[0] == "regress"
    data = table_of({"text": texts(len(labels)), "label": labels}, name="train")
    with pytest.raises(InputError, match=r"row 716: column 'label' has 'unknown'; .* classify if"):
        find_task(data, ColumnNames()).read(data)
    task = task_class("classify")()
    task.read(data)
    assert "the labels are numbers except 'unknown'" in task.warnings()[0]


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([1.5, 2.5, 4.0] * 8 + ["inf"] * 3, "row 25: column 'label' has inf; a number from"),
        ([f"{i / 8}" for i in range(60)] + ["1e999"], "row 61: column 'label' has 1e999; a number"),
        ([1.5, 2.5, 4.0] * 8 + ["#DIV/0!"] * 3, "row 25: .* is missing: '#DIV/0!'; 3 of 27 rows"),
        ([f"{1_000 + i * 355:,}" for i in range(30)], "row 1: .* write numbers without commas"),
    ],
)
def test_numbers_with_cells_that_are_none_are_refused_with_their_place(
    labels: list[Any], message: str
):
    data = table_of({"text": texts(len(labels)), "label": labels}, name="train")
    with pytest.raises(InputError, match=message):
        find_task(data, ColumnNames()).read(data)


def test_errors_of_spreadsheets_and_equal_numbers_among_names_get_a_warning():
    task = task_class("classify")()
    task.read(table_of({"text": texts(12), "label": ["1", "1.0", "#DIV/0!", "x"] * 3}))
    first, second = task.warnings()
    assert "'#DIV/0!' (rows: 3) looks like a missing value" in first
    assert "'1' (rows: 3) and '1.0' (rows: 3) differ only in" in second


@pytest.mark.parametrize("labels", [["a", "", "b"] * 8, [0.5, None, 1.25] * 8])
def test_rows_without_a_label_are_left_out_on_request(labels: list[Any], tmp_path: Path):
    columns = {"text": texts(24), "label": labels, "who": [f"p{i % 9}" for i in range(24)]}
    path = as_csv(columns, tmp_path / "t.csv")
    with pytest.raises(InputError, match=r"8 of 24 rows have none: .*skip_unlabelled"):
        preview_fit(path)
    with pytest.warns(UserWarning, match="rows without a label, left out: 8 of 24"):
        shown = preview_fit(path, skip_unlabelled=True, group="who")
    assert "16 labelled texts" in shown
    empty = as_csv({"text": texts(2), "label": ["", ""]}, tmp_path / "e.csv")
    with pytest.raises(InputError, match="no row has a label"):
        preview_fit(empty, skip_unlabelled=True, task="classify")


def test_decimals_that_are_equal_get_a_warning():
    task = task_class("classify")()
    task.read(table_of({"text": texts(9), "label": [Decimal("1.10"), Decimal("1.1"), "x"] * 3}))
    assert "'1.10' (rows: 3) and '1.1' (rows: 3)" in task.warnings()[0]


@pytest.mark.parametrize("several", [["joy", "fear, mild"], ["fear, mild", "joy"]])
def test_names_of_label_columns_may_have_commas(several: list[str]):
    data = {"text": texts(4), "joy": [0, 1, 1, 0], "fear, mild": [1, 0, 1, 0]}
    given = with_label_columns({"label_columns": several})["label_column"]
    task = find_task(table_of(data), ColumnNames(label=given))
    assert task.name == "multilabel"
    assert {*task.read(table_of(data))[2].target} == {*several}
    one = with_label_columns({"label_columns": ["fear, mild"]})["label_column"]
    assert one == "fear, mild"
    assert find_task(table_of(data), ColumnNames(label=one)).name == "classify"


def test_only_training_rows_can_become_unlabelled_texts(tmp_path: Path):
    task = task_class("classify")()
    path = as_csv({"text": texts(4), "label": ["a", "b", "", ""]}, tmp_path / "t.csv")
    with pytest.raises(InputError, match=r"2 of 4 rows have none: .* with unlabelled$"):
        task.read(path)
    task = task_class("classify")(labels=("a", "b"))
    with pytest.raises(InputError, match=r"2 of 4 rows have none: .* leaves them out\)$"):
        task.read(path)


def test_other_files_are_read_by_the_labels_that_are_known(tmp_path: Path):
    """csv has 1.0 and True where a DataFrame has 1 and true; older folders learnt such names."""
    task = task_class("classify")()
    task.read(as_csv({"text": texts(4), "label": ["0", "1"] * 2}, tmp_path / "train.csv"))
    rows = task.read(as_jsonl({"text": texts(2), "label": [1.0, 0.0]}, tmp_path / "dev.jsonl"))
    assert [row.target for row in rows] == ["1", "0"]
    old = task_class("classify")(labels=("0.0", "1.0"))
    assert [r.target for r in old.read(tmp_path / "train.csv")][:2] == ["0.0", "1.0"]
    truth = task_class("classify")(labels=("False", "True"))
    path = as_jsonl({"text": texts(2), "label": [True, False]}, tmp_path / "truth.jsonl")
    assert [row.target for row in truth.read(path)] == ["True", "False"]


@pytest.mark.parametrize("name", ["classify", "multilabel"])
def test_labels_whose_accents_are_written_apart_are_no_others(name: str):
    """The first spelling (NFC or NFD) is the label; texts of another keyboard have the same one."""
    one, other = "a\u0301ra", "ára"
    task = task_class(name)()

    def targets(*labels: str) -> list[str]:
        cells = labels if name == "classify" else [[label] for label in labels]
        rows = task.read(table_of({"text": texts(len(cells)), "label": cells}))
        return [row.target if name == "classify" else row.target[0] for row in rows]

    assert targets(one, "óga", other, "o\u0301ga") == [one, "óga", one, "óga"]
    assert targets(other, "o\u0301ga") == [one, "óga"]


def test_names_of_a_class_label_are_read_from_iterable_data_too():
    class Feature:
        names = ("neg", "pos")

    data = IterableData({"text": texts(4), "label": [0, 1, 1, 0]}, {"label": Feature()})
    assert [row.target for row in read(data)[1]] == ["neg", "pos", "pos", "neg"]
    data = IterableData({"text": texts(4), "label": [0, 1, -1, -1]}, {"label": Feature()})
    with pytest.raises(InputError, match="'label' is missing or null; 2 of 4 rows have none"):
        read(data)


@pytest.mark.parametrize(
    ("text", "items"),
    [
        ('["b", "a"]', ["b", "a"]),
        ("['b', 'a']", ["b", "a"]),
        ("['b' 'a']", ["b", "a"]),
        ("['b'\n 'a']", ["b", "a"]),
        ("[]", []),
        ("[0 1 0]", [0, 1, 0]),
        ("[0. 1.]", [0, 1]),
        ("[ True False]", [True, False]),
        ("['it\\'s', \"a, b\"]", ["it's", "a, b"]),
        ("('a', 'b')", ["a", "b"]),
        ("{'a', 'b'}", ["a", "b"]),
        ("frozenset({'a'})", ["a"]),
        ("set()", []),
        ("{1, 2}", [1, 2]),
        ('{"a": 1}', None),
        ("{a,b}", None),
        ("[other]", None),
        ("[a, b]", None),
        ("['a', 'b'", None),
        ("['a'b]", None),
        ("[" * 5000 + "]" * 5000, None),
    ],
)
def test_lists_in_text(text: str, items: list[Any] | None):
    assert text_list(text) == items


@pytest.mark.parametrize(
    ("words", "tags"),
    [
        ("['EU', 'rejects']", "[0, 3]"),
        ('["EU", "rejects"]', '["B-ORG", "O"]'),
        ("['EU' 'rejects']", "['B-ORG' 'O']"),
        ("EU rejects", "B-ORG O"),
    ],
)
def test_words_and_tags_in_text_are_lists(words: str, tags: str, tmp_path: Path):
    path = as_csv({"tokens": [words], "ner_tags": [tags]}, tmp_path / "t.csv")
    (row,) = task_class("tag")().read(path)
    assert row.texts == ("EU", "rejects")
    assert len(row.target) == 2
    assert not any("[" in tag or "'" in tag for tag in row.target)


def test_what_was_decided_is_said(tmp_path: Path):
    def said(labels: Sequence[Any], **options: Any) -> str:
        path = as_jsonl({"text": texts(len(labels)), "label": labels}, tmp_path / "t.jsonl")
        return preview_fit(path, **options)

    shown = said([i * 7 for i in range(80)])
    assert "80 different whole numbers in 80 rows: they are read as numbers; use task='cl" in shown
    assert "they are read as classes; use task='regress'" in said([i % 60 for i in range(600)])
    many = "40 different whole numbers in 400 rows: they are read as classes; use task='regress'"
    assert many in said([i % 40 for i in range(400)])
    many = "40 different whole numbers in 400 rows: they are read as numbers; use task='classify"
    assert many in said([18 + i % 40 for i in range(400)])  # such as ages
    assert "they are read as classes; use task=" in said([1000 + 37 * (i % 40) for i in range(400)])
    assert "they are read as classes; use task=" in said([i % 11 for i in range(200)])
    assert "they are read as" not in said([f"{i % 60:03}" for i in range(90)])
    assert "they are read as" not in said([i % 10 for i in range(200)])
    assert "only 2 different numbers, some with fractions: they are r" in said([0.5, 3.8] * 10)
    assert "numbers with ',' between thousands" in said(["2,000.50", "7,000.50"] * 10)
    assert "multi-hot vectors of 2; label_names" in said([[1, 0], [1, 1]] * 10)
    shown = said(["Smith, J", "Doe, A"] * 10, task="multilabel")
    assert "separated by ','; choose another separator with label_separator" in shown
    shown = said(["0 7 16", "7", "", "0 16"] * 10)
    assert shown.startswith("multilabel: 40 labelled texts of words, 3 labels")
    assert "separated by ' '; choose" in shown
    assert "New York 50.0%" in said(["New York", "Rome"] * 10, task="multilabel")
    shown = said(["Smith, J|Doe, A", "Doe, A"] * 10, task="multilabel", label_separator="|")
    assert "labels: Doe, A 100.0%, Smith, J 50.0%" in shown


def test_weights_of_labels_with_commas():
    labels, counts = ("Doe, A", "Smith, J", "x=1"), np.ones(3)
    assert label_weights("Smith, J=2,x=1=3", labels, counts) == (1.0, 2.0, 3.0)
    assert label_weights('{"Doe, A": 4}', labels, counts) == (4.0, 1.0, 1.0)
    for wrong in ("Smith=2", "Smith, J=0", "Smith, J=x", '{"Smith": 1}', "{"):
        with pytest.raises(InputError, match=r"task\.class_weights"):
            label_weights(wrong, labels, counts)


def test_any_names_are_sorted():
    assert sort_labels({"--1", "2", "10"}) == ("--1", "10", "2")
    assert sort_labels({"-1", "2", "10"}) == ("-1", "2", "10")


@pytest.mark.parametrize("counts", [(1, 1, 8), (1, 9), (2, 2, 2, 2, 2)])
def test_rows_are_held_out_as_far_as_possible(counts: Sequence[int]):
    labels = np.repeat(np.arange(len(counts)), counts)
    estimator = OwnBertClassifier(dev_share=0.2)
    rows = [Row(i, (f"text {i}",), str(label)) for i, label in enumerate(labels)]
    train, dev = estimator._split(rows, labels, 0)
    assert dev
    assert len(train) + len(dev) == len(rows)
    assert {row.target for row in train} == {str(label) for label in labels}


def read_labels(labels: Sequence[Any], name: str | None = None) -> tuple[Task, list[Any]]:
    """The task that labels are for, and the targets of their rows."""
    data = table_of({"text": texts(len(labels)), "label": labels})
    task = find_task(data, ColumnNames(), name)
    return task, [row.target for row in task.read(data)]


@pytest.mark.parametrize(
    ("labels", "task", "first"),
    [
        (["3,5", "4,0", "2,5", "4,5", "5,4"] * 30, "regress", (3.5,)),
        ([f"{2000 + i},{i:02}" for i in range(60)], "regress", (2000.0,)),
        (["1,2", "1", "2,3", "3", "1,3"], "multilabel", ("1", "2")),
        (["1,2", "1", "2,3", "3", "1,3"] * 40, "multilabel", ("1", "2")),
        (["[np.str_('a'), np.str_('b')]", "[]", "[np.str_('b')]"], "multilabel", ("a", "b")),
        (["a"] * 5200 + ["a|b", "b"] * 300, "multilabel", ("a",)),
        (["{'a', 'b'}", "set()", "{'b'}"], "multilabel", ("a", "b")),
        (["{city}", "{date}"], "classify", "{city}"),
    ],
)
def test_what_looks_like_something_else(labels: list[Any], task: str, first: Any):
    found, targets = read_labels(labels)
    assert (found.name, targets[0]) == (task, first)


@pytest.mark.parametrize(
    ("labels", "task", "message"),
    [
        ([[1, 1, 0], [0, 1], [0, 0, 1]], "multilabel", "row 2: the label vector has 2 elements"),
        ([[1, 1, 0], [0, 1], [0, 0, 1]], None, "row 2: the label vector has 2 elements"),
        (["[a, b]", "[a]", "[b]"], None, r"row 1: the labels start with \["),
        (["{a,b}", "{a}", "{b}"], None, r"row 1: the labels start with \{"),
        ([[0.5, 0.25], [0.75, 0.5]], "multilabel", "row 1: the labels are decimal numbers"),
        ([f"id-{i}" for i in range(58)] + ["id-1"] * 2, None, "58 different values in 60 rows"),
    ],
)
def test_what_is_half_a_label_is_refused(labels: list[Any], task: str | None, message: str):
    with pytest.raises(InputError, match=message):
        read_labels(labels, task)


@pytest.mark.parametrize("name", ["classify", "multilabel"])
@pytest.mark.parametrize(("cell", "label"), [("1.0", "1.0"), ("1", "1"), ("true", "True")])
def test_two_known_labels_of_one_value_stay_two(name: str, cell: str, label: str):
    task = task_class(name)(labels=("1", "1.0", "True"))
    labels = [cell if name == "classify" else [cell]] * 2
    rows = task.read(table_of({"text": texts(2), "label": labels}))
    assert {str(row.target) for row in rows} == {label if name == "classify" else str((label,))}


def test_labels_of_many_digits_are_sorted():
    assert sort_labels({"9" * 5000, "1"}) == ("1", "9" * 5000)


def test_numbered_labels_are_sorted_as_columns_are():
    columns = [f"label_{i}" for i in range(12)]
    assert sort_labels(set(columns)) == tuple(columns)
    assert sort_labels({"a10", "b2"}) == ("a10", "b2")
    assert sort_labels({"a10", "a9", "b"}) == ("a10", "a9", "b")


@pytest.mark.parametrize("form", ["sparse", "frame"])
def test_a_matrix_of_labels_may_be_sparse_or_a_frame(form: str):
    matrix = np.eye(12, dtype=int)
    matrix[0, 11] = 1
    pandas = pytest.importorskip("pandas")
    y = csr_matrix(matrix) if form == "sparse" else pandas.DataFrame(matrix)
    task = find_task(table_of((texts(12), y)), ColumnNames(), None, {})
    rows = task.read(table_of((texts(12), y)))
    assert [row.target for row in rows][:2] == [("label_0", "label_11"), ("label_1",)]
    task.learn(rows, "")
    assert task.labels == tuple(f"label_{i}" for i in range(12))


def test_known_labels_with_commas_are_not_split():
    task = task_class("multilabel")(labels=("Smith, J", "Doe"))
    rows = task.read(table_of({"text": texts(2), "label": ["Smith, J", "Doe,Doe"]}))
    assert [row.target for row in rows] == [("Smith, J",), ("Doe",)]


def test_nan_in_json_is_missing_as_in_frames(tmp_path: Path):
    path = tmp_path / "t.jsonl"
    path.write_text('{"text": NaN, "label": 1}\n')
    with pytest.raises(InputError, match="line 1: 'text' is missing or null"):
        task_class("classify")().read(path)


@pytest.mark.parametrize("name", ["classify", "tag", "answer", "choose"])
def test_a_missing_id_is_blank(name: str):
    texts = {"text": "a b", "question": "a", "context": "b", "choices": ["a", "b"]}
    data = table_of([{"id": 1, **texts}, {"id": None, **texts}])
    for columns, ids in (
        (ColumnNames(), [{"id": 1}, {"id": ""}]),
        (ColumnNames(id="id"), [{"id": 1}, {"id": None}]),
    ):
        task = task_class(name)(columns=columns)
        assert [task.identity(row) for row in task.stream(data)] == ids


def test_names_of_places_may_have_commas():
    assert with_label_columns({"label_names": ["joy", "fear, mild"]}) == {
        "label_names": '"joy","fear, mild"'
    }
    data = table_of({"text": texts(2), "label": [[1, 0], [1, 1]]})
    task = find_task(data, ColumnNames(), None, {"label_names": 'joy,"fear, mild"'})
    assert [row.target for row in task.read(data)] == [("joy",), ("joy", "fear, mild")]


def test_one_hot_rows_of_the_estimators_are_classes():
    y = np.asarray([[1, 0, 0], [0, 0, 1], [0, 1, 0]])
    for given_ in (y, y.astype(float), y.astype(bool), y.tolist()):
        assert labels_of(given_).tolist() == [0, 2, 1]
    with pytest.raises(InputError, match="several labels"):
        labels_of([[1, 1, 0], [0, 0, 1]])


SIGNS = st.characters(codec="utf-8", exclude_characters="\0\r", exclude_categories=("Cs", "Cc"))
# As they are read: without blanks around them, and no lists.
NAMES = st.text(SIGNS, min_size=1, max_size=6).filter(
    lambda name: name.strip() == name and name[0] not in "[({"
)
VALUES = st.one_of(
    st.lists(NAMES, min_size=2, max_size=4, unique=True),
    st.lists(st.integers(-5, 40), min_size=2, max_size=6, unique=True),
    st.lists(st.floats(0, 9, width=16), min_size=3, max_size=6, unique=True),
    st.just([True, False]),
)


@settings(max_examples=30, suppress_health_check=list(HealthCheck))
@given(values=VALUES)
def test_random_tables_are_read_alike_in_every_form(
    values: list[Any], tmp_path_factory: pytest.TempPathFactory
):
    path = tmp_path_factory.mktemp("tables")
    labels = [values[i % len(values)] for i in range(len(values) * 9)]
    columns = {"text": texts(len(labels)), "label": labels}
    found = set()
    for form in ("csv", "tsv", "jsonl", "parquet", "frame", "records", "iterable"):
        try:
            task, rows = read(FORMS[form](columns, path))
            found.add((task.name, tuple(row.target for row in rows)))
        except InputError as error:
            found.add(("refused", str(error).split(":")[-1]))
    assert len(found) == 1, found


def test_a_column_of_dates_as_labels_is_doubted(tmp_path: Path):
    """302 labels for 500 rows were accepted without a word; fewer are refused as ids."""
    path = tmp_path / "a.csv"
    days = [f"day {i if i < 60 else i % 7}" for i in range(100)]
    rows = "".join(f"text {i},{day},{i % 2}\n" for i, day in enumerate(days))
    path.write_text(f"text,date,label\n{rows}")
    doubt = "60 labels for 100 rows, and most labels have one row: is 'date' the column of the"
    assert doubt in preview_fit(path, label_column="date")
    assert "most labels" not in preview_fit(path)
