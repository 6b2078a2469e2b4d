"""Tables of every format, and what a person is told about a bad one."""

import csv
import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pcsv
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ownbert.exceptions import InputError, InputWarning
from ownbert.tables.columns import ColumnNames, read_texts
from ownbert.tables.tables import columns, kind_of, read_records, read_values
from ownbert.tasks.classification import ClassificationTask


def save(folder: Path, name: str, content: str) -> Path:
    path = folder / name
    data = content.encode()
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return path


def read_labelled(path: Path, **given: str) -> list[tuple[int, str, str]]:
    """(line, text, label)"""
    rows = ClassificationTask(columns=ColumnNames(**given)).read(path)
    return [(row.line, row.texts[0], row.target) for row in rows]


def refusal(path: Path, **given: str) -> str:
    with pytest.raises(InputError) as caught:
        read_labelled(path, **given)
    message = str(caught.value)
    assert "\n" not in message
    assert path.name in message
    return message


def test_kind_is_told_by_the_name():
    cases = {"a.csv": "delimited", "a.TSV.gz": "delimited", "a.json": "jsonl", "a.log": "txt"}
    assert {name: kind_of(name) for name in cases} == cases
    assert kind_of("a.b.parquet") == "parquet"


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.csv.gz"])
def test_the_competition_format(tmp_path: Path, name: str):
    path = save(tmp_path, name, "label\ttext\n2\t2967 6758 339\n11\t4464 486, 6352\n")
    assert read_labelled(path) == [
        (2, "2967 6758 339", "2"),
        (3, "4464 486, 6352", "11"),
    ]


def test_very_long_documents(tmp_path: Path):
    text = "12345 " * 60_000 + "end"
    for name, delimiter in (("a.csv", ","), ("b.csv", "\t"), ("c.csv", ";")):
        path = save(tmp_path, name, f'text{delimiter}label\n"{text}"{delimiter}1\n')
        assert read_labelled(path) == [(2, text, "1")]


def test_csv_quotes_line_breaks_and_positions(tmp_path: Path):
    content = '\n"label" ,"text"\r\na,"one, ""two""\r\nthree"\r\n\r\nb,plain "quote"\r\n'
    path = save(tmp_path, "a.csv", "\ufeff" + content)
    assert columns(path) == ["label", "text"]
    assert read_labelled(path) == [
        (3, 'one, "two"\r\nthree', "a"),
        (6, 'plain "quote"', "b"),
    ]


def test_tab_keeps_quotes_unless_the_field_is_quoted(tmp_path: Path):
    rows = ['"whole, ""doubled"""', '"He said', '"A" and "B"', '"', '""', 'x "y"']
    path = save(tmp_path, "a.tsv", "text\tlabel\n" + "".join(f"{row}\t1\n" for row in rows))
    assert [text for _, text, _ in read_labelled(path)] == [
        'whole, "doubled"',
        '"He said',
        '"A" and "B"',
        '"',
        "",
        'x "y"',
    ]


def test_semicolon_and_single_column(tmp_path: Path):
    path = save(tmp_path, "a.csv", "label;text\n1;a, b\n")
    assert read_labelled(path) == [(2, "a, b", "1")]
    path = save(tmp_path, "b.csv", 'words_here\na, b\n\n"c\nd"\n')
    assert list(read_texts(path)) == ["a, b", "", "c\nd"]
    path = save(tmp_path, "c.tsv", 'text\n5 6\n\n"7\n')
    assert list(read_texts(path)) == ["5 6", "", '"7']


cells = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\0"), max_size=12)


@settings(max_examples=60)
@given(rows=st.lists(st.tuples(cells, cells, cells), min_size=1), delimiter=st.sampled_from(",;"))
def test_what_the_csv_module_writes_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, rows, delimiter
):
    path = tmp_path_factory.mktemp("csv") / "a.csv"
    rows.append(("the end", "", ""))  # empty rows at the end are left out
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, delimiter=delimiter)
        writer.writerows([("x", "y", "z"), *rows])
    assert [fields for _, fields in read_records(path, ["z", "x"])] == [(c, a) for a, _, c in rows]


@pytest.mark.parametrize("name", ["a.jsonl", "a.ndjson.gz", "a.json"])
def test_jsonl_values(tmp_path: Path, name: str):
    rows = [
        {"text": "a\u2028b", "label": 3},
        {"label": True, "text": ["1", 2, "x"]},
        {"text": "😀", "label": " 2.5 ", "more": None},
    ]
    lines = [json.dumps(rows[0], ensure_ascii=False), "", *map(json.dumps, rows[1:])]
    path = save(tmp_path, name, "\n".join(lines))
    assert columns(path) == ["text", "label"]
    assert read_labelled(path) == [
        (1, "a\u2028b", "3"),
        (3, "1 2 x", "true"),
        (4, "😀", "2.5"),
    ]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"text": "a", "label": ', "line 2: not JSON"),
        ("[1, 2]", "line 2: each line must be a JSON object"),
        ('{"text": null, "label": 1}', "line 2: 'text' is missing or null"),
        ('{"label": 1}', "line 2: 'text' is missing or null"),
        ('{"text": {"a": 1}, "label": 1}', "line 2: 'text' is an object"),
        ('{"text": "\\ud800", "label": 1}', "line 2: 'text' contains half a surrogate"),
        ('{"text": "a", "label": ""}', "line 2: the label"),
        ("[" * 100_000, "line 2: not JSON"),
    ],
)
def test_bad_jsonl_names_the_line(tmp_path: Path, line: str, message: str):
    path = save(tmp_path, "a.jsonl", '{"text": "ok", "label": 1}\n' + line + "\n")
    assert message in refusal(path)


def test_parquet(tmp_path: Path):
    path = tmp_path / "a.parquet"
    table = {"label": [1, 0], "text": [["a", "b"], ["c"]], "id": [5, 6]}
    pq.write_table(pa.table(table), path)
    assert read_labelled(path) == [(1, "a b", "1"), (2, "c", "0")]
    assert list(read_records(path, ["id"])) == [(1, ("5",)), (2, ("6",))]

    coded = pa.array(["x", "y"] * 2000).dictionary_encode()
    pq.write_table(pa.table({"content": ["t"] * 4000, "class": coded}), path)
    rows = read_labelled(path)
    assert rows[-1] == (4000, "t", "y")

    pq.write_table(pa.table({"text": ["a", None], "label": ["1", "2"]}), path)
    assert "row 2: 'text' is missing or null" in refusal(path)
    pq.write_table(pa.table({"text": [b"\xff"], "label": ["1"]}), path)
    assert "row 1: 'text' is of type bytes" in refusal(path)
    path.write_bytes(b"PAR1 nothing of the kind")
    assert "not a readable parquet" in refusal(path)


def test_damaged_parquet_pages(tmp_path: Path):
    path = tmp_path / "a.parquet"
    texts = [f"{i} some text {i * 7919}" for i in range(5000)]
    pq.write_table(pa.table({"text": texts, "label": texts}), path, compression="gzip")
    data = bytearray(path.read_bytes())
    data[2000:3000] = bytes(1000)
    path.write_bytes(data)
    assert "damaged parquet data" in refusal(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is empty"),
        ("\n\n", "is empty"),
        ("label,text\n", "has no rows"),
        ("label,text\n1,a\n2,b,c\n", "line 3: 3 fields, but the header has 2"),
        ("label\ttext\n1\ta\n2\n", "line 3: 1 field, but the header has 2"),
        ("label,text\n,a\n", "line 2: the label (column 'label') is empty"),
        ('label,text\n1,a\n2,"b\n3,c\n', "line 3: a quote is opened and never closed"),
        ("label,label,text\n1,2,c\n", "two columns 'label'"),
        ("0,some words\n1,more\n", "the columns (from the first line) are: 0, some words"),
    ],
)
def test_bad_tables_say_what_and_where(tmp_path: Path, content: str, message: str):
    assert message in refusal(save(tmp_path, "a.csv", content))


def test_missing_columns_name_those_there_are_and_the_option(tmp_path: Path):
    path = save(tmp_path, "a.csv", "category,body\n1,a\n")
    message = refusal(path, text="txt")
    assert "no column 'txt'; the columns are: category, body; choose with text_column" in message
    assert "label_column" in refusal(path, label="y")
    assert "the column 'body' cannot be used twice" in refusal(path, text="body", label="body")
    assert refusal(save(tmp_path, "a.txt", "x\ty\n")).endswith("file is needed")
    plain = save(tmp_path, "b.csv", "label,text\n").rename(tmp_path / "b.csv.gz")
    assert "has no rows; it is not gzip data" in refusal(plain)
    with pytest.raises(InputError, match="no column 'q'"):
        read_records(path, ["q"])


def test_texts_keep_their_number(tmp_path: Path):
    path = save(tmp_path, "a.txt.gz", "one\n\ntwo\n")
    assert list(read_texts(path)) == ["one", "", "two"]
    path = save(tmp_path, "a.csv", "id,text\n1,\n2,x\n")
    assert list(read_texts(path)) == ["", "x"]
    for name, content in (("b.txt", ""), ("b.csv", "id,text\n")):
        path = save(tmp_path, name, content)
        with pytest.raises(InputError, match=r"is empty|has no rows"):
            list(read_texts(path))


def test_shared_tables(shared_data: Path):
    rows = read_labelled(shared_data / "dbpedia14" / "test.csv")
    assert len({label for *_, label in rows}) == 14
    assert len(read_labelled(shared_data / "banking77" / "test.tsv")) == 3080
    polarity = read_labelled(shared_data / "sentence-polarity" / "dev.tsv")
    assert {label for *_, label in polarity} == {"0", "1"}


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_empty_rows_at_the_end_are_left_out_of_every_file(tmp_path: Path, ending: str):
    """As programs write the empty rows that spreadsheets leave."""
    path = tmp_path / f"a.{ending}"
    table = pa.table({"text": ["a", None, "b", *[None] * 9], "n": [1, None, 2, 3, *[None] * 8]})
    if ending == "parquet":
        pq.write_table(table, path, row_group_size=5)
    elif ending == "csv":
        pcsv.write_csv(table, path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))
    with pytest.warns(InputWarning, match="empty rows at the end, left out: 8$"):
        rows = [text or None for _, (text,) in read_values(path, ["text"])]
    assert rows == ["a", None, "b", None]  # the last one has a number
    pq.write_table(pa.table({"text": ["a", None]}), tmp_path / "one.parquet")
    assert len([*read_values(tmp_path / "one.parquet", ["text"])]) == 2
