"""ownbert embed: texts, files and standard input in; vectors as rows or files out."""

import json
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from ownbert import Embedder, InputError, embed
from support.cli import printed_rows, refusal, run_cli
from support.tiny import made

rows_of, refused = partial(printed_rows, "embed"), partial(refusal, "embed")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("embed") / "model"
    made(folder)
    return folder


def test_texts_lines_and_files_have_the_same_vectors(folder: Path, tmp_path: Path):
    texts = ["a b c", "d", "e f"]
    found = rows_of(folder, *texts)
    assert [list(row) for row in found] == [["text", "embedding"]] * 3
    assert [row["text"] for row in found] == texts
    expected = Embedder(folder).encode(texts)
    assert np.array_equal(np.asarray([row["embedding"] for row in found], np.float32), expected)
    lines = "\n".join(texts)
    (tmp_path / "new.txt").write_text(lines)
    objects = "\n".join(json.dumps({"n": 1, "text": text}) for text in texts)
    for arguments, stdin in (
        ([], lines),
        (["-"], lines + "\n"),
        ([], objects),
        ([tmp_path / "new.txt"], ""),
        ([tmp_path / "*.txt", "-o", "-"], ""),
        (["--input", tmp_path / "new.txt"], ""),
    ):
        assert rows_of(folder, *arguments, stdin=stdin) == found
    done = run_cli("embed", folder, *texts, "-o", tmp_path / "v.npy")
    assert (done.returncode, "3 texts embedded" in done.stdout) == (0, True), done.stderr
    assert np.array_equal(np.load(tmp_path / "v.npy"), expected)


def test_rows_carry_their_ids(folder: Path, tmp_path: Path):
    (tmp_path / "new.csv").write_text("order,text\na7,a b\nb8,c\n")
    (tmp_path / "more.jsonl").write_text('{"text": "d", "order": "c9"}\n')
    files = [tmp_path / "new.csv", tmp_path / "more.jsonl"]
    found = rows_of(folder, *files, "--id-column", "order")
    assert [list(row) for row in found] == [["order", "text", "embedding"]] * 3
    assert [row["order"] for row in found] == ["a7", "b8", "c9"]
    for name in ("v.jsonl", "v.parquet"):
        run_cli("embed", folder, *files, "--id-column", "order", "-o", tmp_path / "out" / name)
    lines = (tmp_path / "out/v.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == found
    table = pq.read_table(tmp_path / "out/v.parquet").to_pylist()
    assert [(row["order"], row["text"]) for row in table] == [
        (row["order"], row["text"]) for row in found
    ]
    lines = '{"text": "a", "n": 1}\n{"text": "b", "n": 2}\n'
    assert [row["n"] for row in rows_of(folder, "--id-column", "n", stdin=lines)] == [1, 2]


def test_rows_in_memory(folder: Path, tmp_path: Path):
    rows = [{"order": 1, "text": "a"}, {"order": 2, "text": "b"}]
    assert embed(folder, rows, tmp_path / "v.parquet", id_column="order") == 2
    assert pq.read_table(tmp_path / "v.parquet").column("order").to_pylist() == [1, 2]
    rows[1]["order"] = "two"
    with pytest.raises(InputError, match="the ids in 'order' have different types"):
        embed(folder, rows, tmp_path / "w.parquet", id_column="order")
    assert not (tmp_path / "w.parquet").exists()


def test_mistakes_in_what_is_given(folder: Path, tmp_path: Path):
    (tmp_path / "new.txt").write_text("a\n")
    (tmp_path / "new.csv").write_text("text,embedding\na,1\n")
    assert "no such file: nix.csv" in refused(folder, "nix.csv")
    assert "no such file: ./nix" in refused(folder, "./nix")
    assert "no such file: a b (but " in refused(folder, tmp_path / "new.txt", "a b")
    assert "the input is empty" in refused(folder)
    assert "standard input, line 1: not UTF-8" in refused(folder, stdin=b"\xff\n")  # type: ignore
    csv = (tmp_path / "new.csv", "--id-column")
    assert "has no column 'x'" in refused(folder, *csv, "x")
    assert "'embedding' has the same name as" in refused(folder, *csv, "embedding")
    out = tmp_path / "v.npy"
    assert "is a matrix, which cannot store ids" in refused(folder, *csv, "embedding", "-o", out)
    assert "is plain text and has no columns" in refused(
        folder, tmp_path / "new.txt", "--id-column", "id"
    )
    assert not out.exists()
