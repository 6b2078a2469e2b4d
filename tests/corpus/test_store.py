"""The token store: what it holds, and when it is used again."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ownbert.corpus.store import Store, prepare
from ownbert.exceptions import InputError
from ownbert.text.text_parts import split_sentences
from ownbert.text.tokenizer import Tokenizer

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
BLANK = Tokenizer.blank([*SPECIAL, *"abcdefg", ".", "!"])
PIECES = [*SPECIAL, *"abcdefgh", "##a", "##b", "##c", "##e", "##h", ".", "?", "中", "文", "。"]
WORDPIECE = Tokenizer.wordpiece(PIECES)


def write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def parts(ends: np.ndarray, tokens: np.ndarray, tokenizer: Tokenizer) -> list[str]:
    starts = np.concatenate([[0], ends[:-1]])
    return [
        " ".join(tokenizer.tokens(tokens[a:b].tolist())) for a, b in zip(starts, ends, strict=True)
    ]


def test_a_blank_corpus(tmp_path: Path):
    texts = ["a b . c d . ! e", "f x", "a .", ". b"]
    corpus = write(tmp_path / "a.txt", *texts)
    store = prepare([corpus], tmp_path / "store", tokenizer=BLANK, sentence_end=[".", "!"])
    assert parts(store.document_ends, store.tokens, BLANK) == [
        "a b . c d . ! e",
        "f [UNK]",
        *texts[2:],
    ]
    # A run of ends is one end; a document's end is a sentence's end.
    sentences = ["a b .", "c d . !", "e", "f [UNK]", "a .", ".", "b"]
    assert parts(store.sentence_ends, store.tokens, BLANK) == sentences
    assert store.tokens.tolist() == [i for ids in BLANK.encode_batch(texts) for i in ids]
    assert (store.documents, store.sentences, store.reused) == (4, 7, False)
    assert np.array_equal(store.counts, np.bincount(store.tokens, minlength=BLANK.vocab_size))
    assert store.tokenizer().fingerprint() == BLANK.fingerprint()
    assert store.tokens.dtype == np.uint16


def test_a_plain_text_corpus(tmp_path: Path):
    texts = ["Abc bee. Had a cab? 中文。文中。a", "Bad. Ceh gab", "..."]
    corpus = write(tmp_path / "a.txt", *texts)
    store = prepare([corpus], tmp_path / "store", tokenizer=WORDPIECE)
    sentences = [s for text in texts for s in split_sentences(text)]
    assert len(sentences) == 8
    encoded = WORDPIECE.encode_batch(sentences)
    assert store.tokens.tolist() == [i for ids in encoded for i in ids]
    assert store.sentence_ends.tolist() == np.cumsum([len(ids) for ids in encoded]).tolist()
    whole = WORDPIECE.encode_batch(texts)
    assert store.document_ends.tolist() == np.cumsum([len(ids) for ids in whole]).tolist()
    again = Store.open(tmp_path / "store")
    assert np.array_equal(again.tokens, store.tokens)


def test_sentences_that_are_split_already(tmp_path: Path):
    corpus = write(tmp_path / "a.txt", "abc. Bad", "cab", "", "bee", "", "a", "b")
    store = prepare([corpus], tmp_path / "store", tokenizer=WORDPIECE)
    assert store.sentences == 5
    assert store.documents == 3


def test_documents_without_a_token_vanish(tmp_path: Path):
    # A zero-width space and an accent alone are cleaned away.
    corpus = write(tmp_path / "a.txt", "\u200b", "a b", "\u0301", "c", "\u200b")
    store = prepare([corpus], tmp_path / "store", tokenizer=WORDPIECE, layout="line")
    assert parts(store.document_ends, store.tokens, WORDPIECE) == ["a b", "c"]
    write(corpus, "\u200b", "\u0301")
    with pytest.raises(InputError, match="the corpus is empty: no document has a token"):
        prepare([corpus], tmp_path / "other", tokenizer=WORDPIECE, layout="line")
    assert not (tmp_path / "other").exists()


def test_a_large_vocabulary(tmp_path: Path):
    tokenizer = Tokenizer.blank([*SPECIAL, *map(str, range(70_000))])
    corpus = write(tmp_path / "a.txt", "69999 0 65531")
    store = prepare([corpus], tmp_path / "store", tokenizer=tokenizer)
    assert store.tokens.tolist() == [70_004, 5, 65_536]


def changed_tokenizer(folder: Path, corpus: Path) -> Store:
    more = Tokenizer.blank([*BLANK.vocabulary(), "new"])
    return prepare([corpus], folder, tokenizer=more)


def changed_text(folder: Path, corpus: Path) -> Store:
    write(corpus, "b b", "c d")  # of the same size
    return prepare([corpus], folder, tokenizer=BLANK)


def changed_ends(folder: Path, corpus: Path) -> Store:
    return prepare([corpus], folder, tokenizer=BLANK, sentence_end=["b"])


def changed_layout(folder: Path, corpus: Path) -> Store:
    return prepare([corpus], folder, tokenizer=BLANK, layout="blank")


def one_file_more(folder: Path, corpus: Path) -> Store:
    other = write(corpus.parent / "b.txt", "e")
    return prepare([corpus, other], folder, tokenizer=BLANK)


CHANGES = [changed_tokenizer, changed_text, changed_ends, changed_layout, one_file_more]


@pytest.mark.parametrize("change", CHANGES)
def test_used_again_only_while_nothing_has_changed(tmp_path: Path, change):
    corpus, folder = write(tmp_path / "a.txt", "a b", "c d"), tmp_path / "store"
    prepare([corpus], folder, tokenizer=BLANK)
    stamp = (folder / "tokens.bin").stat().st_ino
    write(corpus, "a b", "c d")  # touched, not changed
    again = prepare([corpus], folder, tokenizer=BLANK)
    assert again.reused
    assert (folder / "tokens.bin").stat().st_ino == stamp
    store = change(folder, corpus)
    assert not store.reused
    fresh = change(tmp_path / "fresh", corpus)
    assert np.array_equal(store.tokens, fresh.tokens)
    assert np.array_equal(store.sentence_ends, fresh.sentence_ends)
    assert change(folder, corpus).reused


def test_the_column_is_part_of_the_settings(tmp_path: Path):
    table = write(tmp_path / "a.csv", "text,body", "a b,c")
    first = prepare([table], tmp_path / "store", tokenizer=BLANK, text_column="text")
    second = prepare([table], tmp_path / "store", tokenizer=BLANK, text_column="body")
    assert (len(first.tokens), len(second.tokens), second.reused) == (2, 1, False)


# Not ru_maxrss, which a process inherits from the one that started it.
MEMORY = """
import sys
from ownbert.corpus.store import prepare
prepare([sys.argv[1]], sys.argv[2], tokenizer=sys.argv[3])
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_does_not_grow_with_the_corpus(tmp_path: Path):
    BLANK.save(tmp_path / "vocab")
    line, peaks = "a b c . d e f g ! a " * 60 + "\n", []
    for lines in (6_000, 30_000):
        with open(tmp_path / "corpus.txt", "w") as file:
            for _ in range(lines):
                file.write(line)
        arguments = [str(tmp_path / name) for name in ("corpus.txt", f"store{lines}", "vocab")]
        done = subprocess.run(
            [sys.executable, "-c", MEMORY, *arguments], capture_output=True, text=True, check=True
        )
        peaks.append(int(done.stdout) / 1024)
    # 29 MB more of text, whose ids would take 63 MB as int32; blocks and threads vary by 30.
    assert peaks[1] - peaks[0] < 48
    assert Store.open(tmp_path / "store30000").documents == 30_000


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
