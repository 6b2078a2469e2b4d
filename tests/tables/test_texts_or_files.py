"""Texts in memory, standard input and pipes are as good as files wherever a corpus is read."""

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest

import ownbert
from ownbert import Embedder, InputError
from support.cli import run_cli

TEXTS = ["12 7 9 12", "7 7 12 9\n12 12", "9 12 7 ?"] * 5


def vocabulary(given: Any, folder: Path) -> str:
    ownbert.learn_vocabulary(given, folder, kind="blank", min_count=1)
    return (folder / "vocab.txt").read_text()


@pytest.mark.parametrize(
    "given",
    [
        list,
        tuple,
        iter,
        np.asarray,
        pandas.Series,
        lambda texts: {"text": texts, "other": texts},
        lambda texts: [{"text": text} for text in texts],
        lambda texts: pandas.DataFrame({"text": texts, "label": range(len(texts))}),
    ],
)
def test_texts_in_memory_give_what_their_file_gives(given: Callable[[Any], Any], tmp_path: Path):
    pandas.DataFrame({"text": TEXTS}).to_csv(tmp_path / "texts.csv")
    of_file = vocabulary(tmp_path / "texts.csv", tmp_path / "file")
    assert vocabulary(given(TEXTS), tmp_path / "memory") == of_file
    options = {"tokenizer": tmp_path / "file", "processes": 1}
    store = ownbert.prepare(given(TEXTS), tmp_path / "store", **options)
    expected = ownbert.prepare(tmp_path / "texts.csv", tmp_path / "expected", **options)
    assert store.tokens.tolist() == expected.tokens.tolist()
    assert store.documents == len(TEXTS)
    assert ownbert.prepare(given(TEXTS), tmp_path / "store", **options).reused


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["missing.txt", "a text"], "no such file: missing.txt"),
        ("a text", "no such file: a text"),
        ([], "no input files given"),
        ([("a", "b")], "each of the texts must be one string"),
        (3, "the texts: rows must be given as"),
        (pandas.DataFrame({"a": ["1 2"], "b": ["3"]}), "cannot tell which column holds the texts"),
    ],
)
def test_what_is_neither_is_refused(given: Any, message: str, tmp_path: Path):
    with pytest.raises(InputError, match=message):
        vocabulary(given, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_names_among_texts_are_names(tmp_path: Path):
    (tmp_path / "a.txt").write_text("1 2 1 2\n")
    with pytest.raises(InputError, match="no such file: 3 4"):
        vocabulary([str(tmp_path / "a.txt"), "3 4"], tmp_path / "out")


@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize("line", ["{text}", '{{"text": "{text}"}}'], ids=["txt", "jsonl"])
def test_standard_input_and_pipes(line: str, mark: str, tmp_path: Path):
    text = mark + "".join(line.format(text=t.replace("\n", " ")) + "\n" for t in TEXTS)
    (tmp_path / "a.jsonl" if "{" in text else tmp_path / "a.txt").write_text(text)
    of_file = vocabulary(next(tmp_path.glob("a.*")), tmp_path / "file")
    command = ("vocab", "--kind", "blank", "--min-count", 1, "-o")
    done = run_cli(*command, tmp_path / "piped", "-", stdin=text)
    assert done.returncode == 0, done.stderr
    os.mkfifo(tmp_path / "fifo")
    writer = threading.Thread(target=(tmp_path / "fifo").write_text, args=(text,))
    writer.start()
    done = run_cli(*command, tmp_path / "from-fifo", tmp_path / "fifo")
    writer.join()
    assert done.returncode == 0, done.stderr
    for folder in ("piped", "from-fifo"):
        assert (tmp_path / folder / "vocab.txt").read_text() == of_file
    prepare = ("prepare", "-", "--tokenizer", tmp_path / "file", "-o", tmp_path / "store")
    assert "15 documents" in run_cli(*prepare, stdin=text).stdout
    empty = run_cli(*command, tmp_path / "nothing", "-", stdin="")
    assert (empty.returncode, len(empty.stderr.splitlines())) == (2, 1)
    assert "standard-input" in empty.stderr


def test_vectors_without_a_file(classifier: Path, tmp_path: Path):
    texts = ["red1 9", "blue2"]
    expected = Embedder(classifier).encode(texts)
    (tmp_path / "a.txt").write_text("red1 9\nblue2\n")
    for given in (texts, pandas.Series(texts), {"text": texts}, str(tmp_path / "a.txt")):
        np.testing.assert_array_equal(ownbert.embed(classifier, given), expected)
    np.testing.assert_allclose(ownbert.embed(classifier, "red1 9"), expected[0], atol=1e-5)
    assert ownbert.embed(classifier, "blue2").shape == expected[0].shape
    assert ownbert.embed(classifier, texts, tmp_path / "v.npy") == 2
    np.testing.assert_array_equal(np.load(tmp_path / "v.npy"), expected)
    with pytest.raises(InputError, match=r"no such file: missing.txt"):
        ownbert.embed(classifier, "missing.txt")


def test_a_list_of_one_word_is_a_text_in_python_and_a_name_in_a_command(tmp_path: Path):
    assert "##" in vocabulary(["word"], tmp_path / "v") or (tmp_path / "v" / "vocab.txt").exists()
    done = run_cli("vocab", "word", "-o", tmp_path / "w")
    assert (done.returncode, done.stderr.split(";")[0].strip()) == (2, "error: no such file: word")
