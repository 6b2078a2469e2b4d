"""Documents out of files, folders and globs."""

import gzip
import json
from pathlib import Path

import pytest

from ownbert.corpus.documents import (
    Document,
    find_files,
    fingerprint,
    guess_layout,
    read_documents,
)
from ownbert.exceptions import InputError


def pieces(paths, **settings) -> list[list[str]]:
    return [document.pieces for document in read_documents(paths, **settings)]


def test_find_files_in_folders_globs_and_lists(tmp_path: Path):
    for name in ("b.txt", "a.csv.gz", "sub/c.JSONL", "sub/.hidden.txt", ".git/d.txt", "e.bin"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    relative = [str(path.relative_to(tmp_path)) for path in find_files(tmp_path)]
    assert relative == ["a.csv.gz", "b.txt", "sub/c.JSONL"]
    assert find_files(tmp_path / "e.bin") == [tmp_path / "e.bin"]
    assert find_files(str(tmp_path / "**/*.txt")) == [tmp_path / "b.txt"]
    twice = find_files([tmp_path / "b.txt", tmp_path])
    assert [path.name for path in twice] == ["b.txt", "a.csv.gz", "c.JSONL"]


def test_a_name_with_glob_letters_is_a_file_first(tmp_path: Path):
    (tmp_path / "part[1].txt").write_text("x")
    assert find_files(tmp_path / "part[1].txt") == [tmp_path / "part[1].txt"]


def test_find_files_names_what_is_missing(tmp_path: Path):
    with pytest.raises(InputError, match=r"no such file: .*absent\.txt"):
        find_files(tmp_path / "absent.txt")
    with pytest.raises(InputError, match="no file matches"):
        find_files(str(tmp_path / "*.txt"))
    with pytest.raises(InputError, match="in the folder"):
        find_files(tmp_path)
    with pytest.raises(InputError, match="no input files"):
        find_files([])


def test_a_document_a_line(tmp_path: Path):
    path = tmp_path / "a.txt"
    path.write_text("one two\n\n\n  three \n")
    assert list(read_documents(path, layout="line")) == [
        Document(pieces=["one two"], presplit=False),
        Document(pieces=["three"], presplit=False),
    ]
    assert pieces(path) == [["one two"], ["three"]]


def test_a_sentence_a_line(tmp_path: Path):
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress(b"\n\nA b.\nC.\n \n\nD.\r\n\r\n"))
    expected = [Document(["A b.", "C."], True), Document(["D."], True)]
    assert list(read_documents(path)) == expected
    assert list(read_documents(path, layout="blank")) == expected
    assert pieces(path, layout="line") == [["A b."], ["C."], ["D."]]


def test_guess_layout():
    assert guess_layout(["a", "b", "c"]) == "line"
    assert guess_layout(["a", "b", "", "c"]) == "blank"
    assert guess_layout(["a", "b", "", ""]) == "line"
    assert guess_layout(["a", "", "b", "", "c"]) == "line"
    assert guess_layout(["a"] * 900 + [""] + ["a"] * 900) == "line"
    assert guess_layout([]) == "line"


def test_the_lines_looked_at_are_not_lost(tmp_path: Path):
    path = tmp_path / "long.txt"
    path.write_text("".join(f"s{i}\n" + ("\n" if i % 10 == 9 else "") for i in range(6000)))
    documents = pieces(path)
    assert len(documents) == 600
    assert [piece for document in documents for piece in document] == [f"s{i}" for i in range(6000)]


def test_tables_and_text_together(tmp_path: Path):
    (tmp_path / "a.csv").write_text('label,text\n1,"one\ntwo"\n2,\n')
    (tmp_path / "b.jsonl").write_text(json.dumps({"content": "three", "label": 1}) + "\n")
    (tmp_path / "c.txt").write_text("four\n")
    assert pieces(tmp_path) == [["one\ntwo"], ["three"], ["four"]]
    with pytest.raises(InputError, match=r"no column 'body'.*label, text.*text_column"):
        pieces(tmp_path / "a.csv", text_column="body")


def test_both_texts_of_a_pair_are_documents(tmp_path: Path):
    table = tmp_path / "pairs.csv"
    table.write_text("label,text_a,text_b\nyes,one two,three\nno,,four\n")
    assert pieces(table) == [["one two"], ["three"], ["four"]]
    assert pieces(table, text_column="text_b") == [["three"], ["four"]]


def test_folders_without_texts_are_recognised(tmp_path: Path):
    for name, kind in (("config.json", "a model folder"), ("store.json", "a folder of tokens")):
        folder = tmp_path / name.partition(".")[0]
        folder.mkdir()
        (folder / name).write_text("{}")
        with pytest.raises(InputError, match=f"{folder} is {kind}.*, not a folder of texts"):
            find_files(folder)


def test_an_empty_corpus_is_refused(tmp_path: Path):
    (tmp_path / "a.txt").write_text("\n \n")
    (tmp_path / "b.csv").write_text("text,label\n,1\n")
    with pytest.raises(InputError, match="the corpus is empty"):
        pieces(tmp_path)
    with pytest.raises(InputError, match="layout 'lines'"):
        read_documents(tmp_path, layout="lines")


def test_bad_bytes_name_file_and_line(tmp_path: Path):
    (tmp_path / "a.txt").write_bytes(b"fine\n\xff\xfe\n")
    with pytest.raises(InputError, match=r"a\.txt, line 2: not UTF-8"):
        pieces(tmp_path)


def test_a_line_of_megabytes(tmp_path: Path):
    (tmp_path / "a.txt").write_text("7 " * 3_000_000 + "\nshort\n")
    assert [len(document[0]) for document in pieces(tmp_path)] == [5_999_999, 5]


def test_fingerprint_tells_content(tmp_path: Path):
    path = tmp_path / "a.txt"
    path.write_text("one")
    first = fingerprint(path)
    assert [sorted(entry) for entry in first] == [["mtime_ns", "name", "sha256", "size"]]
    assert first[0]["name"] == "a.txt"
    assert first[0]["size"] == 3
    assert fingerprint([tmp_path]) == first
    path.write_text("two")
    assert fingerprint(path)[0]["sha256"] != first[0]["sha256"]


def test_the_wikipedia_samples(shared_data: Path):
    for name, documents, sentences in [("enwiki", 4196, 120937), ("zhwiki", 5004, 151468)]:
        found = pieces(shared_data / f"{name}-sample" / "corpus.txt.gz")
        assert len(found) == documents
        assert sum(map(len, found)) == sentences
