"""The token store: what it holds, and when it is used again."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ownbert.corpus.store import Store, prepare
from ownbert.exceptions import InputError
from ownbert.text.sentences import split_sentences
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
