"""Which columns of a file are taken: those that were named, usual names, the only one left."""

import json
import re
import sys
from contextlib import nullcontext
from pathlib import Path
from subprocess import run

import pytest
from typer.testing import CliRunner

from ownbert.cli import app
from ownbert.exceptions import InputError
from ownbert.language.messages import on_command_line
from ownbert.tables.columns import (
    COLUMNS,
    TEXT,
    ColumnNames,
    find_columns,
    read_texts_with_ids,
)
from ownbert.tables.memory import table_of
from ownbert.translation.translation_pairs import Pairs, read_pairs
from ownbert.translation.translation_recipe import PairFiles


@pytest.fixture
def found(tmp_path: Path):
    def find(task: str, header: str, given: ColumnNames | None = None, **how: bool):
        (tmp_path / "a.csv").write_text(header + "\n")
        specs = [TEXT] if task == "text" else COLUMNS[task]
        columns = find_columns(tmp_path / "a.csv", specs, given, **how)
        return {role: ",".join(names) for role, names in columns.items()}

    return find


def test_texts_and_labels_by_their_usual_names_or_what_is_left(found):
    assert found("text", "id,Title,Content,Label") == {"text": "Content"}
    assert found("text", "id,words here,label") == {"text": "words here"}
    assert found("classify", "text,genre") == {"text": "text", "label": "genre"}
    assert found("text", "a,b,text", ColumnNames(text="b")) == {"text": "b"}
    assert found("text", "label,sentence") == {"text": "sentence"}
    with pytest.raises(InputError, match=r"label_column; .* are: a, b, text"):
        found("classify", "a,b,text")


def test_named_columns_may_have_their_accents_apart(found):
    apart, header = "ti\u0301tulo", "ti\u0301tulo,opinio\u0301n,genre"
    assert found("text", header, ColumnNames(text="título")) == {"text": apart}
    given = ColumnNames(text="opinión", label="genre, título")
    assert found("multilabel", header, given)["label"] == f"genre,{apart}"
    both = f"título,{apart},genre"
    assert found("text", both, ColumnNames(text=apart)) == {"text": apart}


def test_columns_of_ids_and_translations_may_have_their_accents_apart(tmp_path: Path):
    rows = [{"ti\u0301tulo": "uno", "en": "one"}, {"ti\u0301tulo": "dos", "en": "two"}]
    lines = tmp_path / "a.jsonl"
    lines.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for source in (lines, table_of(rows, name="the rows")):
        found = read_texts_with_ids(source, ColumnNames(text="en", id="título"))
        assert list(found) == [("uno", "one"), ("dos", "two")]
    pairs = read_pairs(PairFiles(pairs=str(lines), source_column="título", target_column="en"))
    assert pairs == Pairs(["uno", "dos"], ["one", "two"])


def test_numbers_come_before_labels_and_may_be_several(found):
    assert found("regress", "id,score,words here") == {"label": "score", "text": "words here"}
    assert found("regress", "label,text,rating")["label"] == "rating"
    # A text may have any name where nothing else is left.
    assert found("regress", "score,value") == {"label": "score", "text": "value"}
    several = found("regress", "a,b,words here", ColumnNames(label="b, a"))
    assert several == {"label": "b,a", "text": "words here"}
    with pytest.raises(InputError, match="the column 'text' cannot be used twice"):
        found("regress", "a,text,b", ColumnNames(label="a,text"))


def test_a_pair_is_taken_together_or_refused(found):
    both = {"text": "Query", "second": "document"}
    assert found("classify", "Query,document,label", labelled=False) == both
    assert found("embed", "Query,document,neg") == {**both, "negative": "neg"}
    alone = found("classify", "query,document,label", pair=False)
    assert alone == {"text": "document", "label": "label"}
    named = ColumnNames(text="document")
    assert found("classify", "query,document,label", named) == {
        "text": "document",
        "label": "label",
    }
    with pytest.raises(InputError, match="has one text per row, but two are needed"):
        found("classify", "query,label", pair=True)
    with pytest.raises(InputError, match="single texts; omit second_column"):
        found("classify", "query,label", ColumnNames(second="query"), pair=False)
    with pytest.raises(InputError, match=r"no column 'x'; .*choose with second_column"):
        found("classify", "query,label", ColumnNames(second="x"))


def test_choices_are_columns_of_a_series_without_what_else_was_named(found):
    header = "question,answer,c1,c2,c3"
    wanted = {"text": "question", "label": "answer", "second": "c1,c2,c3"}
    assert found("choose", header) == wanted
    # A label among the numbers of the choices is none of them.
    named = ColumnNames(label="c3", second="c")
    assert found("choose", header, named)["second"] == "c1,c2"


@pytest.mark.parametrize("task", COLUMNS)
def test_help_shows_what_is_taken(task: str, tmp_path: Path):
    shown = CliRunner().invoke(app, ["finetune", task, "--help-all"], env={"COLUMNS": "120"}).output
    shown = "".join(re.sub("[│|]", "", shown).split())
    specs = [spec for spec in COLUMNS[task] if spec.help]
    required = {spec.role: spec.names[0] for spec in specs if spec.names}

    def taken(role: str, header: list[str], given: ColumnNames | None = None) -> list[str]:
        (tmp_path / "a.jsonl").write_text(json.dumps(dict.fromkeys(header, "")))
        return list(find_columns(tmp_path / "a.jsonl", specs, given)[role])

    for spec in specs:
        assert f"{spec.option}<str>{''.join(spec.help.split())}" in shown
        assert "".join(spec.default.split()) in shown
        others = [name for role, name in required.items() if role != spec.role]
        second, given = [], None
        if task == "embed":
            second, given = ["z"], ColumnNames(second="z")
        for names in re.findall(r"the first of ([a-z0-9_, ]+)", spec.default):
            assert names.strip().split(", ") == [*filter(str.isascii, spec.names)]
            for name in spec.names:
                assert taken(spec.role, [*others, *second, name], given) == [name]
        for prefix in spec.prefixes:
            series = [f"{prefix}{i}" for i in range(2)]
            assert taken(spec.role, [*others, *series]) == series
        if spec.role == "second":
            for one, two in spec.pairs:
                assert taken("second", [required["label"], one, two]) == [two]
                assert f"{one}and{two}" in shown or not one.isascii()


def test_it_is_light_to_import():
    """``ownbert finetune --help`` reads it."""
    code = (
        "import sys, ownbert.tables.columns; "
        "print([m for m in ('torch', 'numpy', 'pyarrow') if m in sys.modules])"
    )
    done = run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_chinese_names_are_known(found):
    for text in ("文本", "内容", "正文", "句子", "标题", "评论", "摘要"):
        for label in ("标签", "类别", "分类", "类目", "标注"):
            assert found("classify", f"{label},编号,{text}") == {"text": text, "label": label}
    assert found("classify", "标题,正文,类别")["text"] == "正文"
    for one in ("文本", "句子"):
        both = {"text": f"{one}1", "second": f"{one}2", "label": "标签"}
        assert found("classify", f"标签,{one}2,{one}1") == both


MAILS = [("Rechnung", "A"), ("Versand", "B"), ("Rechnung", "A"), ("Konto", "B")]


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl", "memory"])
def test_unknown_names_are_proposed_by_what_the_columns_hold(tmp_path: Path, name: str):
    rows = [
        {
            "Nr": str(i),
            "Datum": f"2024-01-{i:02}",
            "Nachricht": f"Wo ist Paket {i}?",
            "Kategorie": k,
        }
        for i, (k, _) in enumerate(MAILS * 3)
    ]
    source = _as(tmp_path, name, rows)
    with pytest.raises(InputError) as caught:
        find_columns(source, COLUMNS["classify"])
    assert (
        "cannot tell which column holds the texts; name it, such as text_column='Nachricht' (the "
        "longest texts) and label_column='Kategorie' (3 different values); the columns (from the "
        "first line) are: Nr, Datum, Nachricht, Kategorie"
    ) in str(caught.value)
    # What is named is not proposed.
    with pytest.raises(InputError, match=r"labels; name it, such as label_column='Kategorie' \(3"):
        find_columns(source, COLUMNS["classify"], ColumnNames(text="Nachricht"))
    with pytest.raises(InputError, match=r"text_column='Nachricht' \(the longest texts\); the"):
        find_columns(source, [TEXT])


def test_proposals_are_what_a_shell_takes(tmp_path: Path):
    rows = [
        {"der Text": f"Wo bleibt mein Paket {i}?", "Art": kind, "Team": team, "Note": str(i / 2)}
        for i, (kind, team) in enumerate(MAILS * 3)
    ]
    source = _as(tmp_path, "a.csv", rows)
    with (
        on_command_line(),
        pytest.raises(
            InputError, match=r"--text-column 'der Text' .* --label-column Art or Team; the"
        ),
    ):
        find_columns(source, COLUMNS["classify"])
    with pytest.raises(InputError, match=r"label_column='Note' \(12 different values\); the"):
        find_columns(source, COLUMNS["regress"])


def test_a_column_for_each_label_is_proposed(tmp_path: Path):
    rows = [
        {"text": f"Wo bleibt mein Paket {i}?", **{k: str(int(k == kind)) for k in ("pos", "neg")}}
        for i, (kind, _) in enumerate([("pos", ""), ("neg", "")] * 3)
    ]
    with pytest.raises(InputError, match=r"label_column='pos,neg' \(a column of 0 and 1 for each"):
        find_columns(_as(tmp_path, "a.csv", rows), COLUMNS["classify"])


def test_a_column_of_numbers_is_no_text(tmp_path: Path):
    rows = [{"label": "ab"[i % 2], "pos": str(i % 2)} for i in range(6)]
    with pytest.raises(InputError, match="cannot tell which column holds the texts"):
        find_columns(_as(tmp_path, "a.csv", rows), COLUMNS["classify"])


@pytest.mark.parametrize("first", ["wo bleibt mein Paket denn,late", "1 5 17,late"])
def test_a_file_without_a_header_is_said(tmp_path: Path, first: str):
    path = tmp_path / "a.csv"
    lines = [first, *(f"Paket ist da {i},{k}" for i, k in enumerate(["late", "broken"] * 3))]
    path.write_text("\n".join(lines))
    with pytest.raises(InputError, match=r"the first line .* seems to be a row; add a header line"):
        find_columns(path, COLUMNS["classify"])


@pytest.mark.parametrize(
    ("lines", "warned"),
    [
        (["wo bleibt mein Paket denn", "ist da", "nein"], True),
        (["nice day", "bad film", "a good town"], True),
        (["5 7 12", "3 4", "9 9 9 1"], True),
        (["今天天气很好", "这部电影不好看"], True),
        (["tweet", "what a nice day this is", "the worst of films"], False),
        (["user_review", "good", "bad"], False),
        (["text", "good", "bad"], False),
        (["Customer feedback", "the parcel came three days late", "never again, thank you"], True),
    ],
)
def test_a_single_column_without_a_header(tmp_path: Path, lines: list[str], warned: bool):
    path = tmp_path / "a.csv"
    path.write_text("\n".join(lines).replace(",", ""), encoding="utf-8")
    message = rf"a.csv: the first line, '{lines[0]}', is read as a header.*such as text"
    with pytest.warns(match=message) if warned else nullcontext():
        assert find_columns(path, [TEXT]) == {"text": (lines[0],)}
    assert find_columns(path, [TEXT], ColumnNames(text=lines[0]))


def test_rows_that_are_wrong_propose_nothing(tmp_path: Path):
    path = tmp_path / "a.csv"
    path.write_text("Nachricht,Kategorie,x\na long text of words,b\n")
    with pytest.raises(InputError, match="texts; name it with text_column; the columns"):
        find_columns(path, COLUMNS["classify"])


def _as(folder: Path, name: str, rows: list[dict[str, str]]):
    if name == "memory":
        return table_of(rows, name="the rows", positional=lambda width: ())
    path = folder / name
    if name.endswith(".csv"):
        path.write_text("\n".join([",".join(rows[0]), *(",".join(row.values()) for row in rows)]))
    else:
        path.write_text("\n".join(map(json.dumps, rows)))
    return path


@pytest.mark.parametrize("labelled", [True, False])
def test_numbers_and_a_first_row_are_no_column_of_texts(tmp_path: Path, labelled: bool):
    rows = [{"label": kind, "pos": str(i % 2)} for i, (kind, _) in enumerate(MAILS * 3)]
    with pytest.raises(InputError, match="cannot tell which column holds the texts"):
        find_columns(_as(tmp_path, "a.csv", rows), COLUMNS["classify"], labelled=labelled)
    lines = [f"Wo bleibt mein Paket {i} nun,{'ab'[i % 2]}\n" for i in range(12)]
    (tmp_path / "b.csv").write_text("".join(lines))
    with pytest.raises(InputError, match="seems to be a row"):
        find_columns(tmp_path / "b.csv", COLUMNS["classify"], labelled=labelled)
