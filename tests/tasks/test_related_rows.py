"""Rows that belong together: copies of texts, groups, and which rows are later."""

import re
import unicodedata
from datetime import date, datetime

import numpy as np
import pandas as pd
import pytest

from ownbert.exceptions import InputError
from ownbert.tables.memory import MemoryTable, table_of
from ownbert.tasks.related_rows import SplitColumns, clusters_of, split_by_time, text_key
from ownbert.tasks.rows import Row


@pytest.mark.parametrize(
    "copy",
    [
        *("Café au lait, s'il vous plaît! ", "café au lait, s'il vous plaît", "CAFÉ AU LAIT S IL "),
        unicodedata.normalize("NFD", "Café au lait, s'il vous plaît."),
        "Café\u00a0au lait\tS´IL\nvous  plaît \u200b…",
    ],
)
def test_copies_have_the_key_of_the_text(copy: str):
    text = "Café au lait s'il vous plaît"
    expected = "Café au lait s'il" if copy.startswith("CAFÉ") else text
    assert text_key(copy) == text_key(expected)
    long = f"{copy} {'and so on ' * 30}"
    assert text_key(long) == text_key(f"{expected} {'And so on, ' * 30}")


@pytest.mark.parametrize(
    ("one", "two"),
    [
        *(("1 23", "12 3"), ("1.5", "15"), ("a b", "ab"), ("!", "?"), (":-)", ":-("), ("ä", "a")),
        *(("มา", "ม้า"), ("कि", "की"), ("\ue000", "\ue001"), ("一 二", "一二")),
        ("word " * 40 + "a", "word " * 40 + "b"),
    ],
)
def test_other_texts_have_other_keys(one: str, two: str):
    assert text_key(one) != text_key(two)


def test_blank_texts_have_no_key():
    assert [*map(text_key, ("", " \t\n", "\u3000"))] == ["", "", ""]
    assert text_key(" ... ") == text_key("...") != ""


def test_clusters_are_connected_by_any_shared_key():
    keys = [("a",), (), ("b", "c"), ("a", "d"), ("c",), ("d", "b"), (), ("e",)]
    assert clusters_of(keys).tolist() == [0, 1, 0, 0, 0, 0, 2, 3]
    assert clusters_of([]).tolist() == []
    assert clusters_of([(), ()]).tolist() == [0, 1]


def rows_of(values: list, column: str = "day") -> tuple[list[Row], MemoryTable]:
    table = table_of([{"text": f"text {i}", column: value} for i, value in enumerate(values)])
    return [Row(i, (f"text {i}",)) for i in range(1, len(values) + 1)], table


@pytest.mark.parametrize(
    "values",
    [
        ["2023-12-31", "2024-01-01", "2024-01-01T00:00:01", "2024-01-01 12:00", "2024-02-01"],
        ["2024-01-01T00:00:00+02:00", "2024-01-01T00:00:00Z", "2024-01-01T00:00:00.5-01:00"],
        ["2024/1/31", "2024/2/1", "2024/10/01"],
        ["2023-12", "2024-01", "2024-2"],
        [-1.5, 0, 7, 1_700_000_000_000],
        ["9", "10", "1e3"],
        [date(2023, 5, 1), datetime(2023, 5, 1, 8), datetime(2024, 1, 1)],
        [*pd.to_datetime(["2023-05-01", "2023-05-02"])],
        ["20230531", "20231201", "20240101"],
        # Sorted by the year, not by the day; the second is that of a column of integers.
        ["31122023", "01012024", "15012024", "02022024"],
        [31122023, 1012024, 15012024, 2022024],
        ["12312023", "01012024", "01152024"],
        ["311220232359", "010120240000", "150120241200"],
    ],
)
def test_times_are_in_order(values: list):
    rows, table = rows_of(values)
    times = SplitColumns(time="day").times(rows, table)
    assert times is not None
    assert (np.diff(times.numbers) > 0).all()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("31.12.2024", "row 2: column 'day' has '31.12.2024', which is not a time; write times as"),
        ("", "row 2: column 'day' is empty; each row needs a time"),
        (None, "row 2: column 'day' is empty"),
        ("nan", "which is not a time"),
        ("9" * 400, "which is not a time"),
        (17, "row 2: column 'day' has 17, a plain number; earlier rows have a date"),
        ("2024-02-30", "which is not a time"),
    ],
)
def test_unreadable_times_are_one_line(value: object, message: str):
    rows, table = rows_of(["2024-01-01", value, "2024-01-03"])
    with pytest.raises(InputError, match=re.escape(message)):
        SplitColumns(time="day").times(rows, table)
    assert SplitColumns().times(rows, table) is None


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (["01022024", "03042024"], "'day' has dates such as 01022024, in which the day or the mo"),
        (["31012024", "99999999", "15022024"], "row 2: column 'day' has 99999999, which is not a "),
    ],
)
def test_digits_that_end_with_the_year_are_no_numbers(values: list[str], message: str):
    rows, table = rows_of(values)
    with pytest.raises(InputError, match=re.escape(message)):
        SplitColumns(time="day").times(rows, table)


def test_the_times_that_are_learnt_and_measured_are_named():
    rows, table = rows_of(["31122023", "01012024", "15012024", "02022024"])
    times = SplitColumns(time="day").times(rows, table)
    assert times is not None
    assert times.period(np.asarray([0, 1]), np.asarray([2, 3])) == (
        "trained on rows up to 2024-01-01, measured on rows from 2024-01-15 to 2024-02-02"
    )


def test_groups_are_equal_however_tables_write_them():
    values = [7, 7.0, "7", " 7 ", None, "", "Jos\u00e9", "Jose\u0301", "jos\u00e9"]
    rows, table = rows_of(values, "customer")
    groups = [row.group for row in SplitColumns("customer").with_groups(rows, table)]
    assert groups == ["7"] * 4 + [None] * 2 + ["Jos\u00e9"] * 2 + ["jos\u00e9"]
    with pytest.raises(InputError, match="no column 'client'; the columns are: text, customer"):
        SplitColumns("client").with_groups(rows, table)
    with pytest.raises(InputError, match="group is 'customer', the column of the labels"):
        SplitColumns("customer").refuse_labels(table, ["customer"])


def test_the_latest_rows_are_held_out_without_copies_among_the_earlier_ones():
    times = np.array([3, 1, 2, 1, 5, 5, 4, 2, 0, 0])
    keys = [(f"text {i}",) for i in range(10)]
    learn, held_out = split_by_time(times, keys, "t.csv")
    assert held_out.tolist() == [4, 5]
    assert learn.tolist() == [0, 1, 2, 3, 6, 7, 8, 9]
    keys[2] = keys[5]
    keys[8] = ("text 8", "text 4")
    assert split_by_time(times, keys, "t.csv")[0].tolist() == [0, 1, 3, 6, 7, 9]
    with pytest.raises(InputError, match="all rows have the same time"):
        split_by_time(np.zeros(10), keys, "t.csv")
    with pytest.raises(InputError, match="nearly all earlier rows share a text or a group"):
        split_by_time(times, [("same",)] * 10, "t.csv")
    # Ties stay together, whatever share they are.
    assert split_by_time(np.array([1, 1, 1, 2, 2, 2]), keys[:6], "t")[1].tolist() == [3, 4, 5]
