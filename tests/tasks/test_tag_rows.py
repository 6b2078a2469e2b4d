"""Files of tagged words, and of words and texts to tag."""

import csv
import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ownbert import InputError
from ownbert.tables.columns import COLUMNS, ColumnNames, positional_names
from ownbert.tables.memory import table_of
from ownbert.tasks.tag_rows import read_sentences, stream_sentences

WORDS, TAGS = ["Ann", "saw", "New", "York"], ["B-per", "O", "B-loc", "I-loc"]


def test_all_formats_are_the_same(tmp_path: Path):
    def saved(name: str, text: str) -> Path:
        (tmp_path / name).write_text(text)
        return tmp_path / name

    columns = "".join(f"{w}\t{t}\n" for w, t in zip(WORDS, TAGS, strict=True))
    joined = {"tokens": " ".join(WORDS), "ner_tags": " ".join(TAGS)}
    files = [
        *(saved(f"a{ending}", columns) for ending in (".conll", ".txt", ".bio", ".tsv", "")),
        saved("a.jsonl", json.dumps({"id": 3, "words": WORDS, "labels": TAGS})),
        saved("b.json", json.dumps({"tags": TAGS, "tokens": WORDS, "text": "Ann saw"})),
        saved("table.tsv", "tokens\ttags\n" + " ".join(WORDS) + "\t" + " ".join(TAGS) + "\n"),
        *(tmp_path / name for name in ("b.csv", "c.parquet", "d.conll.gz", "e.jsonl.gz")),
    ]
    with (tmp_path / "b.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, joined)
        writer.writeheader()
        writer.writerow(joined)
    pq.write_table(pa.table({"tokens": [WORDS], "tags": [TAGS]}), tmp_path / "c.parquet")
    (tmp_path / "d.conll.gz").write_bytes(gzip.compress(columns.encode()))
    (tmp_path / "e.jsonl.gz").write_bytes(gzip.compress((tmp_path / "a.jsonl").read_bytes()))
    for path in files:
        (row,) = read_sentences(path, ColumnNames())
        assert (row.texts, row.target) == (tuple(WORDS), tuple(TAGS)), path.name
        if path.name != "a.txt" and path.suffix:
            (row,) = stream_sentences(path, ColumnNames())
            assert (row.texts, row.target) == (tuple(WORDS), None), path.name
    # A first word that is called as a column does not make a table.
    (row,) = read_sentences(saved("g.tsv", "words\tO\n" + columns), ColumnNames())
    assert row.texts == ("words", *WORDS)
    named = saved("f.jsonl", json.dumps({"mine": WORDS, "theirs": TAGS, "x": 1}))
    (row,) = read_sentences(named, ColumnNames(text="mine", label="theirs"))
    assert row.target == tuple(TAGS)
    # Numbers of columns that were given for a CoNLL file mean nothing to a table.
    assert (
        read_sentences(tmp_path / "a.jsonl", ColumnNames(text="1", label="4"))[0].target
        == row.target
    )


def test_plain_text_and_chinese_to_predict(tmp_path: Path):
    (tmp_path / "a.txt").write_text("Ann saw  York\n\n我买iPhone了。 好\n", encoding="utf-8")
    rows = list(stream_sentences(tmp_path / "a.txt", ColumnNames()))
    assert [row.texts for row in rows] == [
        ("Ann", "saw", "York"),
        (),
        ("我", "买", "iPhone", "了", "。", "好"),
    ]
    (tmp_path / "a.csv").write_text("text\nAnn saw\n我们\n", encoding="utf-8")
    assert [r.texts for r in stream_sentences(tmp_path / "a.csv", ColumnNames())] == [
        ("Ann", "saw"),
        ("我", "们"),
    ]
    (tmp_path / "b.csv").write_text("words\n我们 好\n", encoding="utf-8")
    assert next(stream_sentences(tmp_path / "b.csv", ColumnNames())).texts == ("我们", "好")
    named = positional_names(COLUMNS["tag"], ColumnNames(), labelled=False)
    table = table_of(["我们 Ann"], name="the texts", positional=named)
    assert next(stream_sentences(table, ColumnNames())).texts == ("我", "们", "Ann")
    (tmp_path / "a.conll").write_text("Ann\nsaw\n\nBob\n")
    assert [r.texts for r in stream_sentences(tmp_path / "a.conll", ColumnNames())] == [
        ("Ann", "saw"),
        ("Bob",),
    ]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.jsonl", '{"tokens": ["a", "b"], "tags": ["O"]}', "line 1: 2 words, but 1 tag;"),
        ("a.csv", "tokens,tags\na b,O O\na b,O\n", "line 3: 2 words, but 1 tag;"),
        ("a.jsonl", '{"tokens": [], "tags": []}', "line 1: there are no words"),
        ("a.jsonl", '{"tokens": ["a"], "tags": [null]}', "line 1: 'tags' is missing or null"),
        ("a.jsonl", '{"tokens": ["a"], "tags": [""]}', "line 1: the tag of word 1 is empty"),
        ("a.jsonl", '{"tokens": ["a"]}', "cannot tell which column holds the labels"),
        ("a.conll", "a O\n\nb\n", "line 3: 1 column"),
        ("a.conll", "", "is empty"),
        ("a.jsonl", "", "is empty"),
        ("a.csv", "tokens,tags\n", "has no rows"),
    ],
)
def test_files_that_cannot_be_read(tmp_path: Path, name: str, text: str, message: str):
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=rf"{name}.*{message}"):
        read_sentences(tmp_path / name, ColumnNames())


@pytest.mark.parametrize("words", ['["Ann", "saw"]', "['Ann', 'saw']", "['Ann' 'saw']"])
def test_words_to_tag_may_be_lists_that_were_written_as_text(tmp_path: Path, words: str):
    path = tmp_path / "a.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("tokens",), (words,), ("[ 1 ] is",), ("['a', 'b",)])
    rows = stream_sentences(path, ColumnNames())
    assert next(rows).texts == ("Ann", "saw")
    assert next(rows).texts == ("[", "1", "]", "is")
    with pytest.raises(InputError, match=r"a.csv, line 4: 'tokens' looks like a list"):
        next(rows)
