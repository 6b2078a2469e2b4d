"""Files of Excel, pandas, Spark and old Macs: what separates columns, rows and quotes in them."""

import csv
import io
import warnings
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ownbert import InputError
from ownbert.exceptions import InputWarning
from ownbert.tables.tables import columns, read_records
from support.cli import run_cli


def saved(folder: Path, name: str, content: str) -> Path:
    path = folder / name
    path.write_bytes(content.encode())
    return path


def rows(path: Path) -> list[tuple[int, tuple[str, ...]]]:
    return list(read_records(path, columns(path)))


@pytest.mark.parametrize(
    "start", ["sep=;\n", "\ufeffsep=;\r\n", '"sep=;"\n', "\nSEP=;\n\n", "sep=;;\n"]
)
def test_the_first_line_of_excel_names_the_separator(tmp_path: Path, start: str):
    path = saved(tmp_path, "a.csv", f'{start}text, short;label\n"a; ""b""";1\nc, d;2\n')
    assert columns(path) == ["text, short", "label"]
    found = [fields for _, fields in rows(path)]
    assert found == [('a; "b"', "1"), ("c, d", "2")]
    assert rows(path)[0][0] == start.count("\n") + 2


def test_any_separator_may_be_named(tmp_path: Path):
    path = saved(tmp_path, "a.csv", "sep=:\ntext:label\na, b:1\n")
    assert rows(path) == [(3, ("a, b", "1"))]
    path = saved(tmp_path, "a.tsv", 'sep=\t\ntext\tlabel\n"He said\t1\n')
    assert rows(path) == [(3, ('"He said', "1"))]
    with pytest.raises(InputError, match="is empty"):
        columns(saved(tmp_path, "a.csv", "sep=;\n\n"))


def test_separators_and_line_breaks_in_names_of_columns(tmp_path: Path):
    path = saved(tmp_path, "a.csv", '"text\n(a, b)";"label"\n"a";"x"\n')
    assert columns(path) == ["text\n(a, b)", "label"]
    assert rows(path) == [(3, ("a", "x"))]
    path = saved(tmp_path, "a.csv", 'label;"text (a, b)"\r\n1;c, d\r\n')
    assert rows(path) == [(2, ("1", "c, d"))]
    assert columns(saved(tmp_path, "a.csv", '"a\nb, c"\n"d"\n')) == ["a\nb, c"]
    assert columns(saved(tmp_path, "a.csv", '5" wide, 6" high;x\n1;2\n')) == [
        '5" wide',
        '6" high;x',
    ]


@pytest.mark.parametrize("name", ["a.csv", "a.tsv"])
def test_vertical_bars(tmp_path: Path, name: str):
    path = saved(tmp_path, name, 'text|label\na, b; c|1\n"d|e"|2\n')
    assert rows(path) == [(2, ("a, b; c", "1")), (3, ("d|e", "2"))]
    path = saved(tmp_path, name, "text,label\na|b,1\n")
    assert rows(path) == [(2, ("a|b", "1"))]


def test_carriage_returns_alone_end_lines_where_there_is_no_line_feed(tmp_path: Path):
    path = saved(tmp_path, "a.csv", 'text,label\ra b,1\r\r"c\rd",2\r')
    assert rows(path) == [(2, ("a b", "1")), (4, ("c\nd", "2"))]
    path = saved(tmp_path, "a.tsv", "text\tlabel\ra\t1\rb\t2")
    assert rows(path) == [(2, ("a", "1")), (3, ("b", "2"))]
    long = "text,label\r" + "".join(f"{'x' * 999} {i},{i}\r" for i in range(3000))
    assert len(rows(saved(tmp_path, "a.csv", long))) == 3000
    path = saved(tmp_path, "a.tsv", "text\tlabel\na\rb\t1\n")
    assert rows(path) == [(2, ("a\rb", "1"))]


PANDAS = [("a\tx", "1"), ('"b"\n\n"c"\td', "2"), ('"He said', "3"), ("e", "4\n5"), ("f", "6")]


def test_quoted_fields_of_tsv_that_hold_tabs_and_line_breaks(tmp_path: Path):
    stream = io.StringIO()
    csv.writer(stream, delimiter="\t", lineterminator="\n").writerows([("text", "label"), *PANDAS])
    path = saved(tmp_path, "a.tsv", stream.getvalue())
    assert [fields for _, fields in rows(path)] == PANDAS
    # The first row starts at line 2, and the second takes three lines.
    assert [line for line, _ in rows(path)] == [2, 3, 6, 7, 9]
    turned = "label\ttext\n" + '1\t"a\n\nb"\n2\t"open\n3\tc\n4\t"d\n'
    assert [fields for _, fields in rows(saved(tmp_path, "a.tsv", turned))] == [
        ("1", "a\n\nb"),
        ("2", '"open'),
        ("3", "c"),
        ("4", '"d'),
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("text\tlabel\na\tb\t1\n", "line 2: 3 fields, but the header has 2"),
        ('text\tlabel\n"a" b\tc\t1\n', "line 2: 3 fields, but the header has 2"),
        # A quote that another row closes is no field: a label is missing.
        ('text\tlabel\n"a\nb\t1\nc"\t2\n', "line 2: 1 field, but the header has 2"),
        ('text\tlabel\nz\t0\n"a\n', "line 3: 1 field, but the header has 2"),
        ('label\ttext\n1\t"a\nb\n', "line 3: 1 field, but the header has 2"),
    ],
)
def test_what_no_rule_reads_is_refused(tmp_path: Path, content: str, message: str):
    with pytest.raises(InputError, match=message):
        rows(saved(tmp_path, "a.tsv", content))


cells = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\n\t\0"), max_size=8)


@settings(max_examples=60)
@given(table=st.lists(st.tuples(cells, cells), min_size=1))
def test_plain_tsv_is_read_as_ever(tmp_path_factory: pytest.TempPathFactory, table):
    table.append(("the end", ""))  # empty rows at the end are left out
    path = saved(
        tmp_path_factory.mktemp("tsv"), "a.tsv", "x\ty\n" + "".join(f"{a}\t{b}\n" for a, b in table)
    )

    def unquoted(field: str) -> str:
        inner = field[1:-1]
        whole = len(field) > 1 and field[0] == field[-1] == '"' and '"' not in inner
        return inner if whole else field

    found = [fields for _, fields in rows(path)]
    wanted = [(unquoted(a), unquoted(b)) for a, b in table]
    assert all(f == w for f, w in zip(found, wanted, strict=True) if '""' not in "".join(w))


escaped = st.text(st.sampled_from('ab"\\, \n'), max_size=8)


@settings(max_examples=200)
@given(table=st.lists(st.tuples(escaped, escaped), min_size=1, max_size=6))
def test_quotes_escaped_by_backslashes(tmp_path_factory: pytest.TempPathFactory, table):
    """As pandas writes with escapechar, once a row cannot be read otherwise."""
    stream = io.StringIO()
    writer = csv.writer(
        stream, doublequote=False, escapechar="\\", quoting=csv.QUOTE_ALL, lineterminator="\n"
    )
    # It starts with a row that only backslashes explain.
    first = ('say "a", "b"', "1")
    table.append(("the end", ""))  # empty rows at the end are left out
    writer.writerows([("x", "y"), first, *table])
    path = saved(tmp_path_factory.mktemp("csv"), "a.csv", stream.getvalue())
    assert [fields for _, fields in rows(path)] == [first, *table]


@pytest.mark.parametrize(
    "row", [r'"a \"b\" c",1', r'"\"a\", b",1', r'"a\"",1', r'"a \"b, c\"",1', r'"\"",1']
)
def test_each_kind_of_escaped_quote_tells(tmp_path: Path, row: str):
    path = saved(tmp_path, "a.csv", f'x,y\n"C:\\dir",0\n{row}\n"z ""q""",2\n')
    (_, one), (line, two), (_, three) = rows(path)
    assert (one, line) == (("C:\\dir", "0"), 3)
    assert two == (row.rpartition(",")[0][1:-1].replace('\\"', '"'), "1")
    assert three == ('z "q"', "2")


def test_backslashes_of_proper_csv_are_text(tmp_path: Path):
    path = saved(tmp_path, "a.csv", 'x,y\n"C:\\",1\n"a \\""b\\""",2\n\\"c\\",3\n"d" e,4\n')
    assert [fields for _, fields in rows(path)] == [
        ("C:\\", "1"),
        ('a \\"b\\"', "2"),
        ('\\"c\\"', "3"),
        ("d e", "4"),
    ]
    with pytest.raises(InputError, match="line 3: a quote is opened and never closed"):
        rows(saved(tmp_path, "a.csv", 'x,y\na,1\n"a \\"" b,2\nc,3\n'))
    with pytest.raises(InputError, match="line 3: 3 fields, but the header has 2"):
        rows(saved(tmp_path, "a.csv", 'x,y\na,1\na \\" b,2,3\nc,3\n'))


@pytest.mark.parametrize(("name", "mark"), [("a.csv", ","), ("a.tsv", "\t"), ("a.csv", "|")])
def test_a_header_inside_the_rows_is_left_out_with_a_warning(tmp_path: Path, name: str, mark: str):
    content = "text,label\na,1\n text ,label\nb,2\ntext,label\nlabel,text\n".replace(",", mark)
    path = saved(tmp_path, name, content)
    with pytest.warns(InputWarning) as found:
        assert [fields for _, fields in rows(path)] == [("a", "1"), ("b", "2"), ("label", "text")]
    (said,) = found
    wanted = "line 3 repeats the header and is skipped (the first of 2 such lines)"
    assert str(said.message) == f"{path}, {wanted}"
    # In a single column it is a text.
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert rows(saved(tmp_path, "b.csv", "text\na\ntext\n"))[1] == (3, ("text",))


@pytest.mark.parametrize(("name", "mark"), [("a.csv", ";"), ("a.tsv", "\t")])
def test_what_spreadsheets_leave_behind_rows_is_left_out(tmp_path: Path, name: str, mark: str):
    content = "text,label\na,1,,\n,\nb,2, \n,,,\n,\n\n,\n".replace(",", mark)
    path = saved(tmp_path, name, content)
    with pytest.warns(InputWarning, match="empty rows at the end, left out: 3$"):
        assert [fields for _, fields in rows(path)] == [("a", "1"), ("", ""), ("b", "2")]
    path = saved(tmp_path, name, "text,label\na,1,,x\n".replace(",", mark))
    with pytest.raises(InputError, match="line 2: 4 fields, but the header has 2"):
        rows(path)


@pytest.mark.parametrize("quiet", [(), ("--quiet",)])
def test_commands_warn_once_of_what_is_left_out(tmp_path: Path, pretrained: Path, quiet):
    (tmp_path / "a.csv").write_text("text,label\n" + "a 1,x\nb 2,y\n" * 9 + "text,label\nc,x\n")
    (tmp_path / "a.conll").write_text("word\ttag\n" + "Ann\tB-x\nsaw\tO\n\n" * 9)
    model = ("--model", pretrained)
    commands = {
        ("fit", "a.csv", "--dry-run", *quiet): "a.csv, line 20 repeats the header",
        ("finetune", "classify", *model, "--train", "a.csv", "--dry-run", *quiet): "a.csv, line 20",
        ("finetune", "tag", *model, "--train", "a.conll", "--dry-run", *quiet): "a.conll, line 1 n",
        ("embed", pretrained, "a.csv", "-o", "v.npy", *quiet): "a.csv, line 20 repeats",
    }
    for command, wanted in commands.items():
        done = run_cli(*command, cwd=tmp_path)
        assert done.returncode == 0
        said = [line for line in done.stderr.splitlines() if line.startswith("warning: a.c")]
        assert len(said) == 1, done.stderr
        assert wanted in said[0]
