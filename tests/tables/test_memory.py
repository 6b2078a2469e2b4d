"""Rows in memory: every form that people have them in is the same table."""

import json
import warnings
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar
from uuid import UUID

import numpy as np
import pyarrow as pa
import pytest
import torch

from ownbert import InputError, Predictor, predict
from ownbert.tables.columns import (
    COLUMNS,
    ColumnNames,
    find_columns,
    positional_names,
    read_texts,
)
from ownbert.tables.memory import Lines, table_of, texts_and_labels
from ownbert.tables.tables import columns, place, read_values

TEXTS, LABELS = ["one", "two"], ["a", "b"]
ROWS = [("one", "a"), ("two", "b")]


def frame(values: dict[str, list[Any]]) -> Any:
    return pytest.importorskip("pandas").DataFrame(values)


def polars(values: dict[str, list[Any]]) -> Any:
    return pytest.importorskip("polars").DataFrame(values)


def data_set(values: dict[str, list[Any]]) -> Any:
    return pytest.importorskip("datasets").Dataset.from_dict(values)


KINDS: dict[str, Callable[[dict[str, list[Any]]], Any]] = {
    "columns": dict,
    "records": lambda v: [dict(zip(v, row, strict=True)) for row in zip(*v.values(), strict=True)],
    "arrow": pa.table,
    "pandas": frame,
    "polars": polars,
    "datasets": data_set,
}


@pytest.mark.parametrize(
    "data",
    [
        (TEXTS, LABELS),
        (np.asarray(TEXTS), np.asarray(LABELS)),
        ROWS,
        [list(row) for row in ROWS],
        np.asarray(ROWS),
        iter(ROWS),
    ],
)
def test_texts_with_labels_are_a_table(data: Any):
    table = table_of(data)
    assert columns(table) == ["text", "label"]
    assert list(read_values(table, ["label", "text"])) == [(1, ("a", "one")), (2, ("b", "two"))]


@pytest.mark.parametrize("kind", ["arrow", "pandas", "polars", "datasets"])
def test_labels_may_stand_beside_a_table_of_texts(kind: str):
    pairs = KINDS[kind]({"sentence1": TEXTS, "sentence2": ["c", "d"], "label": ["x", "x"]})
    table = table_of((pairs, np.asarray(LABELS)))
    assert columns(table) == ["sentence1", "sentence2", "label"]
    assert [label for _, (label,) in table.read(["label"])] == list(LABELS)
    single = KINDS[kind]({"remark": TEXTS})
    assert columns(table_of((single, LABELS))) == ["remark", "label"]
    with pytest.raises(InputError, match="differ in length: remark 2, label 1"):
        table_of((single, LABELS[:1]))


@pytest.mark.parametrize("kind", KINDS)
def test_tables_have_the_cells_that_json_would_have(kind: str):
    values = {"text": ["one", None], "n": [1.5, float("nan")], "words": [["a", "b"], []]}
    table = table_of(KINDS[kind](values), name="train")
    assert columns(table) == list(values)
    rows = list(read_values(table, ["words", "n", "text"]))
    assert rows == [(1, (["a", "b"], 1.5, "one")), (2, ([], None, None))]
    assert place(table, 2) == "train, row 2"
    with pytest.raises(InputError, match="train has no column 'x'; the columns are: text, n"):
        list(read_values(table, ["x"]))


def test_names_of_classes_replace_their_numbers():
    datasets = pytest.importorskip("datasets")
    names = datasets.ClassLabel(names=["neg", "pos"])
    features = datasets.Features({"text": datasets.Value("string"), "label": names})
    data = datasets.Dataset.from_dict({"text": TEXTS, "label": [1, 0]}, features=features)
    assert [row for _, row in table_of(data).read(["label"])] == [("pos",), ("neg",)]


class TorchDataset:
    """As ``Dataset.with_format("torch")``, in which a missing label makes the others floats."""

    column_names = ("text", "label")
    features: ClassVar = {"label": SimpleNamespace(names=["neg", "pos"])}

    def __init__(self, kind: str | None = "torch") -> None:
        self.format = {"type": kind}

    def with_format(self, kind: str | None) -> "TorchDataset":
        return TorchDataset(kind)

    def select_columns(self, names: list[str]) -> "TorchDataset":
        return self

    def __len__(self) -> int:
        return 4

    def __getitem__(self, rows: slice) -> dict[str, Any]:
        if self.format["type"] is None:
            return {"text": [*"abcd"], "label": [1, 0, -1, None]}
        if self.format["type"] == "custom":
            return {"text": [*"ABCD"], "label": torch.tensor([1, 0, -1, 1])}
        return {"text": [*"abcd"], "label": torch.tensor([1.0, 0.0, -1.0, torch.nan])}


def test_names_of_classes_replace_tensors():
    names = [row for _, row in table_of(TorchDataset()).read(["label"])]
    assert names == [("pos",), ("neg",), (None,), (None,)]
    rows = [row for _, row in table_of(TorchDataset("custom")).read(["text", "label"])]
    assert rows == [("A", "pos"), ("B", "neg"), ("C", None), ("D", "pos")]


@pytest.mark.parametrize("kind", [None, "torch", "numpy", "pandas", "arrow"])
@pytest.mark.parametrize("streamed", [False, True])
def test_the_format_of_a_dataset_does_not_matter(kind: str | None, streamed: bool):
    datasets = pytest.importorskip("datasets")
    classes = datasets.ClassLabel(names=["neg", "pos"])
    features = datasets.Features({"text": datasets.Value("string"), "label": classes})
    rows = {"text": [*"abcd"], "label": [1, 0, -1, None]}
    data = datasets.Dataset.from_dict(rows, features=features)
    if streamed:
        data = data.to_iterable_dataset().with_format(kind)
    else:
        data = data.with_format(kind, columns=["label"])
    found = [row for _, row in table_of(data).read(["text", "label"])]
    assert found == [("a", "pos"), ("b", "neg"), ("c", None), ("d", None)]


def test_a_transform_of_a_dataset_stays():
    datasets = pytest.importorskip("datasets")
    data = datasets.Dataset.from_dict({"text": ["a"]})
    data = data.with_transform(lambda rows: {"text": [each.upper() for each in rows["text"]]})
    assert list(table_of(data).read(["text"])) == [(1, ("A",))]


def test_a_row_may_lack_what_others_have():
    table = table_of([{"text": "one"}, {"text": "two", "label": np.int64(3)}])
    assert list(table.read(["text", "label"])) == [(1, ("one", None)), (2, ("two", 3))]


def test_columns_of_mappings_may_be_numbers():
    """As in ``DataFrame.to_dict("records")`` of a file without a header."""
    rows = [{0: "one", 1: "a"}, {0: "two", 1: "b"}]
    assert list(read_texts(table_of(rows), text_column="0")) == ["one", "two"]


def test_finding_the_column_of_lines_loses_none():
    lines = Lines(json.dumps({"remark": text}) for text in TEXTS)
    assert list(read_texts(table_of(lines))) == TEXTS


@pytest.mark.parametrize(
    ("task", "labelled", "width", "names"),
    [
        ("classify", True, 2, ["text", "label"]),
        ("classify", True, 3, ["sentence1", "sentence2", "label"]),
        ("classify", False, 1, ["text"]),
        ("embed", True, 2, ["sentence1", "sentence2"]),
        ("embed", True, 3, ["sentence1", "sentence2", "score"]),
        ("answer", True, 3, ["question", "context", "answers"]),
        ("choose", False, 2, ["prompt", "choices"]),
        ("tag", True, 2, ["tokens", "tags"]),
    ],
)
def test_rows_without_names_have_those_of_the_task(task, labelled, width, names):
    specs = COLUMNS[task]
    assert list(positional_names(specs, ColumnNames(), labelled=labelled)(width)) == names
    table = table_of(
        [("x",) * width], positional=positional_names(specs, ColumnNames(), labelled=labelled)
    )
    found = find_columns(table, specs, labelled=labelled)
    assert {name for several in found.values() for name in several} == {*names}


@pytest.mark.parametrize(
    ("first", "warned"),
    [
        ("id,text,label", True),
        ('"Text"\t"label"', True),
        ("body;x", True),
        ("text", False),
        ("a text, with a comma", False),
        ("id,other", False),
    ],
)
def test_a_header_among_lines_is_a_warning(first: str, warned: bool):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        table = table_of(Lines([first, "1,one"]), name="the input", positional=lambda _: ["body"])
    assert list(table.read(["body"])) == [(1, (first,)), (2, ("1,one",))]
    assert ["looks like the header" in str(one.message) for one in seen] == [True] * warned


PAIRS = [("one two", "three"), ("four", "five six")]


@pytest.mark.parametrize(
    "data", [(PAIRS, ["a", "b"]), list(zip(PAIRS, ["a", "b"], strict=True))], ids=["two", "rows"]
)
def test_tuples_of_two_texts_are_pairs(data: Any):
    rows = [(1, ("one two", "three", "a")), (2, ("four", "five six", "b"))]
    names = positional_names(COLUMNS["classify"], ColumnNames(), labelled=True)
    for positional in (names, texts_and_labels):
        table = table_of(data, positional=positional)
        assert list(table.read(table.names)) == rows
    single = positional_names(COLUMNS["classify"], ColumnNames(), labelled=True, pair=False)
    with pytest.raises(InputError, match=r"data: a row must be .*, not \('one two', 'three'\)"):
        table_of(data, positional=single)


@pytest.mark.parametrize(
    "texts", [["x", "y"], [("x", "z"), ("y", "z")], pa.table({"text": ["x", "y"]})]
)
def test_a_matrix_has_the_columns_that_were_named(texts: Any):
    given = ColumnNames(label="warm, cold")
    names = positional_names(COLUMNS["regress"], given, labelled=True)
    table = table_of((texts, np.asarray([[0.5, 1.0], [2.0, 3.0]])), positional=names)
    assert [cells for _, cells in table.read(["warm", "cold"])] == [(0.5, 1.0), (2.0, 3.0)]
    table = table_of((texts, [["a", "b"], ["b", "c"]]), positional=names)  # sets of two labels
    assert "warm, cold" in table.names


def test_tuples_of_two_words_are_words():
    tags = positional_names(COLUMNS["tag"], ColumnNames(), labelled=True)
    table = table_of(([("New", "York")], [("B-LOC", "I-LOC")]), positional=tags)
    assert list(table.read(["tokens"])) == [(1, (["New", "York"],))]


def test_lines_have_times_and_decimals_as_text(tmp_path: Path):
    cells = {"day": date(2024, 1, 2), "price": Decimal("1.50"), "id": UUID(int=1)}
    table = table_of([{"text": "one", "label": "a", **cells}])
    (tmp_path / "rows.jsonl").write_text("".join(table.lines()))
    written = list(read_values(tmp_path / "rows.jsonl", ["text", "day", "price", "id"]))
    assert written == [(1, ("one", "2024-01-02", "1.50", str(UUID(int=1))))]
    with pytest.raises(InputError, match="a value that is not a text, number or list"):
        list(table_of([{"text": "one", "label": object()}]).lines())


def test_columns_of_the_same_name_are_not_written():
    pandas = pytest.importorskip("pandas")
    rows = pandas.DataFrame([["one", "two", "a"]], columns=["text", "text", "label"])
    with pytest.raises(InputError, match="train has two columns 'text'"):
        list(table_of(rows, name="train").lines())


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (7, "train: rows must be given as a file, a DataFrame, .* not as int"),
        ("a text", "train: rows must be given as .* not as str"),
        ([], "train is empty"),
        (["a"], "train: a row must be a text and its label, not 'a'"),
        ([("a", "b"), ("a",)], "train, row 2 has 1 values and row 1 has 2"),
        ([{"a": 1}, "b"], "train, row 2 is of type str among mappings"),
        ({"text": "a"}, "train: the columns of a mapping must be lists; a single row is"),
        ({"text": ["a"], "label": ["a", "b"]}, "train: .* differ in length: text 1, label 2"),
        ({"train": pa.table({"a": [1]})}, r"train has several tables \(train\); choose one: data"),
    ],
)
def test_what_is_no_rows_is_one_line(data: Any, message: str):
    with pytest.raises(InputError, match=message) as found:
        table_of(data, name="train")
    assert len(str(found.value).splitlines()) == 1


def test_a_row_of_a_frame_is_one_row(classifier: Path):
    predictor = Predictor(classifier)
    rows = frame({"label": ["red", "blue"], "text": ["red1 9", "blue1 9"]})
    rows.index = [7, 9]
    expected = predictor.predict(rows).tolist()
    assert [predictor.predict(row) for _, row in rows.iterrows()] == expected
    assert [predictor.predict(row) for row in rows.itertuples()] == expected
    named = rows["text"].set_axis(["x", "y"])  # texts by their names are no row
    for texts in (named, named.astype("category"), named.astype(object), named.astype("string")):
        assert predictor.predict(texts).tolist() == expected


def test_ids_of_a_frame_keep_their_type(classifier: Path, tmp_path: Path):
    pandas = pytest.importorskip("pandas")
    rows = frame({"text": ["red1 9", "blue1 9"]})
    for ids, written in (
        (pandas.array([1, None], dtype="Int64"), [1, None]),
        (pandas.to_datetime(["2026-01-02", None]), ["2026-01-02 00:00:00", None]),
        (pandas.Categorical(["x", "y"]), ["x", "y"]),
    ):
        predict(classifier, rows.assign(own=ids), tmp_path / "p.jsonl", id_column="own")
        lines = (tmp_path / "p.jsonl").read_text().splitlines()
        assert [json.loads(line)["own"] for line in lines] == written


def test_a_lazy_frame_is_collected_first():
    lazy = polars({"text": TEXTS}).lazy()
    with pytest.raises(InputError, match=r"not as LazyFrame; collect\(\) it first"):
        table_of(lazy)


@pytest.mark.parametrize("kind", ["arrow", "pandas", "polars", "datasets"])
@pytest.mark.parametrize("empty", [2, 3000])
def test_empty_rows_at_the_end_of_any_table_are_left_out(kind: str, empty: int):
    values = {"text": ["a", None, "b", *[None, " "] * empty], "label": ["x", None, "y"]}
    values["label"] += [None] * 2 * empty
    data = KINDS[kind](values | {"n": [1.0, None, None, *[float("nan")] * 2 * empty]})
    with pytest.warns(UserWarning, match=f"data: empty rows at the end, left out: {2 * empty:,}"):
        table = table_of(data, trim=True)
    assert [row for _, row in table.read(["text"])] == [("a",), (None,), ("b",)]
    assert len([*table_of(data).read(["text"])]) == 3 + 2 * empty


def test_empty_rows_at_the_end_of_a_frame_are_left_out_as_those_of_a_file():
    """Spreadsheets leave such rows, and only files with them could be used."""
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(
        {
            "text": ["a", None, "b", None, " "],
            "label": ["x", None, "y", None, float("nan")],
            "day": pd.to_datetime(["2024-01-01", None, None, None, None]),
        }
    )
    with pytest.warns(UserWarning, match="data: empty rows at the end, left out: 2"):
        table = table_of(frame, trim=True)
    found = [row for _, row in table.read(["text", "label"])]
    assert found == [("a", "x"), (None, None), ("b", "y")]
    assert len([*table_of(frame).read(["text"])]) == 5  # predictions are those of all rows
