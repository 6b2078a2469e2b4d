"""Parts of files: together they are the rows of the whole file, read alone each is right."""

import csv
import gzip
import json
import random
import warnings
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ownbert import InputError
from ownbert.bulk.input_parts import InputFile, list_input_files, open_part, split_file
from ownbert.inference.vector_files import records_of
from ownbert.tables.columns import ColumnNames
from ownbert.tables.tables import read_values

ODD = ["", 'a "quoted" b', "one\ntwo\r\nthree", "a,b;c\td", "\u2028é", '"', "x" * 300]


def texts(count: int, *, lines: bool = False) -> list[str]:
    rng = random.Random(1)
    found = [rng.choice(ODD) if i % 3 else f"w{i}" for i in range(count)]
    return [text.replace("\n", " ").replace("\r", "") for text in found] if lines else found


def write_csv(path: Path) -> None:
    with path.open("w", newline="") as file:
        file.write("\n\n")  # before the header
        csv.writer(file).writerows([["id", "text"], *enumerate(texts(50))])
        file.write("\n\n\n")


def write_single_column(path: Path) -> None:
    path.write_text("text\n" + "".join(f"w{i % 3}\n\n" for i in range(20)))


def write_tsv(path: Path) -> None:
    rows = [f"{i}\t{t}" for i, t in enumerate(texts(50, lines=True)) if "\t" not in t]
    path.write_text("\n".join(["id\ttext", *rows[:9], "", "", *rows[9:]]) + "\n\n")


def write_jsonl(path: Path) -> None:
    # The columns are those of the first object; others stand in any order.
    rows = [{"id": i, "text": t} if i % 2 == 0 else {"text": t} for i, t in enumerate(texts(50))]
    path.write_text("\ufeff\n" + "\n\n".join(map(json.dumps, rows)), encoding="utf-8")


def write_text(path: Path) -> None:
    path.write_text("\n".join(texts(50, lines=True)) + "\nlast without an end")


def write_parquet(path: Path) -> None:
    table = pa.table({"n": range(50), "text": texts(50), "id": [f"i{i}" for i in range(50)]})
    pq.write_table(table, path, row_group_size=13)


def write_excel(path: Path) -> None:
    with path.open("w", newline="") as file:
        file.write("sep=;\n")
        csv.writer(file, delimiter=";").writerows([["id", "text"], *enumerate(texts(50))])


def write_escaped(path: Path) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file, doublequote=False, escapechar="\\", quoting=csv.QUOTE_ALL)
        writer.writerows([["id", "text"], *enumerate(texts(50))])


def write_quoted_tsv(path: Path) -> None:
    rows = [(i, t) for i, t in enumerate(texts(50)) if t != '"']
    with path.open("w", newline="") as file:
        csv.writer(file, delimiter="\t").writerows([["id", "text"], *rows])


def write_returns(path: Path) -> None:
    path.write_bytes(b"id,text\r" + b"".join(b"%d,w%d\r" % (i, i % 3) for i in range(7)))


WRITERS = {
    "a.csv": write_csv,
    "excel.csv": write_excel,
    "escaped.csv": write_escaped,
    "quoted.tsv": write_quoted_tsv,
    "single.csv": write_single_column,
    "a.tsv": write_tsv,
    "a.jsonl": write_jsonl,
    "a.txt": write_text,
    "a.parquet": write_parquet,
}


def read(source: object, before: int = 0) -> list[tuple]:
    given = ColumnNames(id="id") if "id" in str(getattr(source, "names", "")) else ColumnNames()
    return list(records_of(source, given))[before:]  # type: ignore[arg-type]


def read_parts(file: InputFile, rows: int, folder: Path) -> list[list[str]]:
    """The texts of each part."""
    scratch, found = folder / "scratch", []
    scratch.mkdir()
    for part in split_file(0, file, rows):
        with open_part(file, part, scratch) as (source, before):
            found.append([text for _, text in read(source, before)])
    return found


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("rows", [1, 4, 7, 1000])
def test_parts_together_are_the_file(tmp_path: Path, name: str, rows: int, packed: bool):
    path = tmp_path / name
    WRITERS[name](path)
    if packed and name != "a.parquet":
        path.with_name(f"{name}.gz").write_bytes(gzip.compress(path.read_bytes()))
        path = path.with_name(f"{name}.gz")
    (file,) = list_input_files([path])
    found = read_parts(file, rows, tmp_path)
    assert [text for each in found for text in each] == [text for _, text in read([path])]
    assert max(map(len, found)) <= rows
    assert (len(found) == 1) == (rows == 1000)
    assert not list((tmp_path / "scratch").iterdir())


@pytest.mark.parametrize(
    ("name", "content", "place"),
    [
        ("a.csv", b'text,n\na,1\n"b\nb",2\nc,3\nd\n', "a.csv, line 6: 1 field"),
        ("a.csv", b'text,n\na,1\nb,2\n"c,3\n', "a.csv, line 4: a quote is opened"),
        ("a.csv", b"text,n\na,1\nb,2\nc\rd,3\n", "a.csv, line 4: not csv"),
        ("a.csv", b"text,n\na\rb,1\nc,3\n", "a.csv, line 2: not csv"),
        ("a.csv", b'id,"text\rb"\r\n1,a\r\n"2\r\n",b\r\n3\r\n', "a.csv, line 5: 1 field"),
        ("a.txt", b"a\rb\nc\nd\ne\xff\n", "a.txt, line 4: not UTF-8"),
        ("a.jsonl", b'{"text": "a"}\n{"text": "b"}\n{"text": "c"}\n{"text": 1\n', "line 4"),
        ("a.txt", b"a\nb\nc\nd\xff\n", "a.txt, line 4: not UTF-8"),
    ],
)
def test_a_mistake_has_the_line_of_the_whole_file(
    tmp_path: Path, name: str, content: bytes, place: str
):
    (tmp_path / name).write_bytes(content)
    (file,) = list_input_files([tmp_path / name])
    with pytest.raises(InputError) as caught:
        read_parts(file, 2, tmp_path)
    assert place in str(caught.value)
    assert str(tmp_path / name) in str(caught.value)
    assert "scratch" not in str(caught.value)


def test_a_file_of_an_old_mac_is_one_part(tmp_path: Path):
    write_returns(tmp_path / "a.csv")
    (file,) = list_input_files([tmp_path / "a.csv"])
    assert read_parts(file, 2, tmp_path) == [[f"w{i % 3}" for i in range(7)]]


def test_a_mistake_in_parquet_has_its_row(tmp_path: Path):
    # A missing text is a blank row, an object is a mistake.
    pq.write_table(pa.table({"text": [None, None, None, {"a": 1}]}), tmp_path / "a.parquet")
    (file,) = list_input_files([tmp_path / "a.parquet"])
    with pytest.raises(InputError, match=r"a\.parquet, row 4: 'text' is"):
        read_parts(file, 2, tmp_path)


def test_files_of_folders_and_addresses(tmp_path: Path):
    (tmp_path / "in" / "below").mkdir(parents=True)
    for name in ("b.csv", "a.jsonl", "below/c.txt", "notes.md", "_part.csv", ".hidden.csv"):
        (tmp_path / "in" / name).write_text("text\na\n")
    known = ["a.jsonl", "b.csv", "below/c.txt"]
    uri = (tmp_path / "in").as_uri()
    found = [file.address for file in list_input_files([uri])]
    assert found == [f"{uri}/{name}" for name in known]
    assert [f.address for f in list_input_files([f"{uri}/b.csv"])] == [f"{uri}/b.csv"]
    local = [file.address for file in list_input_files([str(tmp_path / "in" / "*.csv")])]
    assert str(tmp_path / "in" / "b.csv") in local
    (part,) = split_file(0, list_input_files([f"{uri}/below/c.txt"])[0], 5)
    assert (part.start, part.end) == (0, 7)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere.csv", "no such file"),
        ("file:///nowhere/x.csv", "no such file: file:///nowhere/x.csv"),
        ("nope://x/y.csv", "cannot read nope://x/y.csv"),
        ("a.xyz", "the file type is not known"),
    ],
)
def test_names_that_give_no_files(
    tmp_path: Path, name: str, message: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.xyz").write_text("a\n")
    with pytest.raises(InputError, match=message):
        list_input_files([name])


@pytest.mark.parametrize("content", [b"", b"text,n\n", b"\n\n"])
def test_a_file_without_rows(tmp_path: Path, content: bytes):
    (tmp_path / "a.csv").write_bytes(content)
    with pytest.raises(InputError, match=r"a\.csv has no rows"):
        split_file(0, list_input_files([tmp_path / "a.csv"])[0], 5)


@pytest.mark.parametrize("ending", ["csv", "csv.gz", "jsonl"])
def test_empty_rows_are_left_out_at_the_end_of_the_file_alone(tmp_path: Path, ending: str):
    rows = [(1, "a"), ("", ""), (2, "b"), (3, "c"), ("", ""), ("", "")]
    lines = [f"{i},{text}" for i, text in (("id", "text"), *rows)]
    if ending == "jsonl":
        lines = [json.dumps({"id": i, "text": text}) for i, text in rows]
    data = "\n".join(lines).encode() + b"\n"
    path = tmp_path / f"a.{ending}"
    path.write_bytes(gzip.compress(data) if ending.endswith(".gz") else data)
    (file,) = list_input_files([path])
    (folder := tmp_path / "part").mkdir()
    found = []
    for part in split_file(0, file, 2):
        with open_part(file, part, folder) as (source, before), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found += [text for _, (text,) in read_values(source, ["text"])][before:]
    assert found == ["a", "", "b", "c"]
