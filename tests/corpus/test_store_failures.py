"""Stores that are damaged are refused; a write that fails leaves what was there."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ownbert.corpus.store import Store, prepare
from ownbert.exceptions import InputError
from ownbert.text.tokenizer import Tokenizer

BLANK = Tokenizer.blank(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefg"])
FILES = ("tokens.bin", "sentences.bin", "documents.bin", "counts.bin")


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "a.txt"
    path.write_text("a b c\nd e\nf g a b\n")
    return path


@pytest.fixture
def folder(tmp_path: Path, corpus: Path) -> Path:
    return prepare([corpus], tmp_path / "store", tokenizer=BLANK).folder


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("name", FILES)
def test_a_cut_altered_or_lost_file_is_named(folder: Path, name: str):
    path = folder / name
    data = path.read_bytes()
    for bad in (data[:-1], data + b"\0", b""):
        path.write_bytes(bad)
        with pytest.raises(InputError, match=f"{name} has {len(bad)} bytes, expected {len(data)}"):
            Store.open(folder)
    for at in (0, len(data) - 1):
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        with pytest.raises(InputError, match=f"{name} was altered"):
            Store.open(folder)
    path.unlink()
    with pytest.raises(InputError, match=f"{name} has 0 bytes"):
        Store.open(folder)
    path.write_bytes(data)
    assert Store.open(folder).documents == 3


@pytest.mark.parametrize("name", FILES)
def test_a_damaged_store_is_written_anew(folder: Path, corpus: Path, name: str):
    before = contents(folder)
    for bad in (b"", bytes(len(before[name]))):
        (folder / name).write_bytes(bad)
        store = prepare([corpus], folder, tokenizer=BLANK)
        assert not store.reused
        assert contents(folder)[name] == before[name]


def test_a_damaged_index_is_named(folder: Path, corpus: Path):
    path = folder / "store.json"
    good = path.read_text()
    index = json.loads(good)
    without_file = index | {"files": {k: v for k, v in index["files"].items() if k != "counts"}}
    without_size = index | {"files": index["files"] | {"counts": {"dtype": "<i8"}}}
    bads = [good[:-20], "[]", "{}", "null", "\xff", without_file, without_size]
    for bad in bads:
        text = bad if isinstance(bad, str) else json.dumps(bad)
        path.write_text(text, encoding="latin-1")
        with pytest.raises(InputError, match=r"store\.json is damaged"):
            Store.open(folder)
        assert not prepare([corpus], folder, tokenizer=BLANK).reused
        assert Store.open(folder).documents == 3


def test_another_format_is_refused(folder: Path, corpus: Path):
    path = folder / "store.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 99}))
    with pytest.raises(InputError, match="format 99, this version reads 1; prepare it again"):
        Store.open(folder)
    assert not prepare([corpus], folder, tokenizer=BLANK).reused


def test_an_exchanged_tokenizer_is_refused(folder: Path):
    Tokenizer.blank([*BLANK.vocabulary()[:5], *"gfedcba"]).save(folder)
    with pytest.raises(InputError, match="differ from those that the store was written with"):
        Store.open(folder).tokenizer()


def test_what_is_no_store_is_refused(tmp_path: Path, corpus: Path):
    for name in ("absent", "a.txt", "."):
        with pytest.raises(InputError, match="contains no token store"):
            Store.open(tmp_path / name)
    with pytest.raises(InputError, match="is not empty and contains no token store"):
        prepare([corpus], tmp_path, tokenizer=BLANK)
    with pytest.raises(InputError, match="is read by this command"):
        prepare([corpus], corpus, tokenizer=BLANK)
    assert names(tmp_path) == ["a.txt"]
    (tmp_path / "empty").mkdir()
    prepare([corpus], tmp_path / "empty", tokenizer=BLANK)
    assert names(tmp_path) == ["a.txt", "empty"]


def test_a_sentence_end_outside_the_vocabulary_is_named(tmp_path: Path, corpus: Path):
    with pytest.raises(InputError, match="sentence end 'x' is not in the vocabulary"):
        prepare([corpus], tmp_path / "store", tokenizer=BLANK, sentence_end=["a", "x"])
    assert names(tmp_path) == ["a.txt"]


@pytest.mark.parametrize("failure", [KeyboardInterrupt, RuntimeError, InputError])
def test_an_interrupt_leaves_what_was_there(
    tmp_path: Path, corpus: Path, folder: Path, failure: type[BaseException]
):
    def stop(documents: int, done: int, total: int | None) -> None:
        raise failure

    before = contents(folder)
    corpus.write_text("g\n")
    for target in (folder, tmp_path / "new"):
        with pytest.raises(failure):
            prepare([corpus], target, tokenizer=BLANK, progress=stop)
    # What was finished waits for the same command; a text that is wrong has to change first.
    waiting = [] if failure is InputError else [".new.part", ".store.part"]
    assert names(tmp_path) == [*waiting, "a.txt", "store"]
    assert contents(folder) == before


def test_bad_bytes_late_in_the_corpus_leave_what_was_there(
    corpus: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
):
    before = contents(folder)
    monkeypatch.setattr("ownbert.corpus.chunks.CHUNK_SIZE", 100)
    corpus.write_bytes(b"a b c d e f g\n" * 50 + b"a \xff b\n")
    with pytest.raises(InputError, match=r"a\.txt, line 51: not UTF-8"):
        prepare([corpus], folder, tokenizer=BLANK, layout="line")
    assert names(corpus.parent) == ["a.txt", "store"]
    assert contents(folder) == before


FULL_DISK = """
import resource, signal, sys
from ownbert.corpus.store import prepare
from ownbert.exceptions import InputError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]),) * 2)
for target in sys.argv[4:]:
    try:
        prepare([sys.argv[2]], target, tokenizer=sys.argv[3])
        sys.exit("was written")
    except InputError as error:
        print(error)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs RLIMIT_FSIZE")
@pytest.mark.parametrize("limit", [100, 20_000])
def test_a_full_disk_leaves_what_was_there(tmp_path: Path, corpus: Path, folder: Path, limit: int):
    BLANK.save(tmp_path / "vocab")
    before = contents(folder)
    # 40,000 bytes of tokens: more than one limit allows, and the other stops the smaller files.
    corpus.write_text("a b c d e f g a b c\n" * 2000)
    paths = [str(tmp_path / name) for name in ("a.txt", "vocab", "store", "new")]
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(limit), *paths], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert [line.startswith(f"cannot write {p}") for line, p in zip(lines, paths[2:], strict=True)]
    assert all("File too large" in line for line in lines)
    assert names(tmp_path) == ["a.txt", "store", "vocab"]
    assert contents(folder) == before


def test_the_store_is_mapped_not_read(folder: Path):
    store = Store.open(folder)
    assert isinstance(store.tokens, np.memmap)
    with pytest.raises(ValueError, match="read-only"):
        store.tokens[0] = 1
