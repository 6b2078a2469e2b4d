"""Word features in a token store, and in the examples that pretraining reads from it."""

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ownbert.batches.masking import Masking, ordinary_tokens
from ownbert.corpus.documents import read_documents
from ownbert.corpus.pretraining_examples import PretrainingData, pretraining_data
from ownbert.corpus.store import Store, prepare
from ownbert.exceptions import InputError
from ownbert.text.tokenizer import Tokenizer
from support.cli import run_cli

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
PIECES = Tokenizer.wordpiece([*SPECIAL, *"abcdef", *(f"##{letter}" for letter in "abcdef")])
# A word of control characters has no pieces; the last word has no features of its own.
SENTENCES = [
    (["abc", "d", "ef", "\u0007", "zz"], ["N", "V", "N", "X", "V"], ["1", "2", "2", "1", "1"]),
    (["f", "ab"], ["V", "N"], ["2", "2"]),
]


def write(folder: Path, sentences: Any = SENTENCES) -> dict[str, tuple[Path, str]]:
    """The same sentences in every form, and the names of their feature columns."""
    rows = ["".join(f"{w}\t{a}\t{b}\n" for w, a, b in zip(*s, strict=True)) for s in sentences]
    (folder / "a.conll").write_text("\n".join(rows))
    lines = [json.dumps({"words": w, "pos": a, "n": " ".join(b)}) for w, a, b in sentences]
    (folder / "a.jsonl").write_text("\n".join(lines))
    return {"conll": (folder / "a.conll", "2,3"), "jsonl": (folder / "a.jsonl", "pos, n")}


@pytest.mark.parametrize("form", ["conll", "jsonl"])
def test_every_token_has_the_tags_of_its_word(form: str, tmp_path: Path):
    path, names = write(tmp_path)[form]
    made = prepare(path, tmp_path / "s", tokenizer=PIECES, feature_columns=names)
    assert made.features is not None
    assert made.words is not None
    assert [*made.tags.values()] == [["N", "V", "X"], ["1", "2"]]
    assert [*made.tags] == [name.strip() for name in names.split(",")]
    assert PIECES.tokens(made.tokens.tolist()) == [
        *("a", "##b", "##c", "d", "e", "##f", "[UNK]", "[UNK]"),
        *("f", "a", "##b"),
    ]
    assert made.words.tolist() == [1, 0, 0, 1, 1, 0, 1, 1, 1, 1, 0]
    assert made.features.tolist() == [
        *([1, 1], [1, 1], [1, 1], [2, 2], [1, 2], [1, 2], [3, 1], [2, 1]),
        *([2, 2], [1, 2], [1, 2]),
    ]
    assert made.document_ends.tolist() == made.sentence_ends.tolist() == [8, 11]
    again = prepare(path, tmp_path / "s", tokenizer=PIECES, feature_columns=names)
    assert again.reused
    # Other columns make another store.
    one = prepare(path, tmp_path / "s", tokenizer=PIECES, feature_columns=names.split(",")[0])
    assert not one.reused
    assert one.identity != made.identity


def test_any_number_of_processes_writes_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("ownbert.corpus.chunks.CHUNK_SIZE", 60)
    path, names = write(tmp_path, SENTENCES * 10)["jsonl"]
    stores = [
        prepare(path, tmp_path / f"{n}", tokenizer=PIECES, feature_columns=names, processes=n)
        for n in (1, 2)
    ]
    assert stores[0].identity == stores[1].identity
    for name in ("tokens", "words", "features"):
        assert np.array_equal(getattr(stores[0], name), getattr(stores[1], name))


def test_columns_without_features_are_texts(tmp_path: Path):
    path, _ = write(tmp_path)["conll"]
    documents = list(read_documents(path, layout="conll"))
    assert [document.pieces for document in documents] == [["abc d ef \u0007 zz"], ["f ab"]]
    done = run_cli("vocab", path, "--layout", "conll", "--kind", "blank", "--min-count", 1)
    assert done.returncode == 2  # no -o
    done = run_cli(
        *("vocab", path, "--layout", "conll", "--kind", "blank", "--min-count", 1),
        *("-o", tmp_path / "v"),
    )
    assert done.returncode == 0, done.stderr
    assert "abc" in (tmp_path / "v" / "vocab.txt").read_text().split()
    assert "N" not in (tmp_path / "v" / "vocab.txt").read_text().split()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Long documents whose words are tagged by their first letter and by their length."""
    folder, rng = tmp_path_factory.mktemp("store"), np.random.default_rng(0)
    sentences = []
    for length in (40, 3, 25, 60):
        words = ["".join(rng.choice([*"abcdef"], rng.integers(1, 5))) for _ in range(length)]
        sentences.append((words, [w[0] for w in words], [str(len(w)) for w in words]))
    path, names = write(folder, sentences)["conll"]
    return prepare(path, folder / "s", tokenizer=PIECES, feature_columns=names)


@pytest.mark.parametrize("pairs", [None, "nsp", "sop"])
@pytest.mark.parametrize("kind", ["token", "word"])
def test_examples_have_the_words_of_their_tokens(store: Store, pairs: str | None, kind: str):
    ordinary = ordinary_tokens(PIECES.vocab_size, PIECES.special_ids)
    masking = Masking(PIECES.mask_id, ordinary, 0.3, kind=kind)
    data, _ = pretraining_data(
        store, PIECES, masking, max_length=16, pairs=pairs, held_out=0.0, seed=0
    )
    cut = 0
    for epoch in range(3):
        for index in range(len(data)):
            cut += check_words(data, epoch, index)
    assert cut > 0  # sequences that begin inside a word
    plain, _ = pretraining_data(
        replace(store, features=None, words=None),
        PIECES,
        masking,
        max_length=16,
        pairs=pairs,
        held_out=0.0,
        seed=0,
    )
    assert plain.example(0, 0).words is None
    if kind == "token":  # what is masked does not depend on features
        assert np.array_equal(plain.example(0, 0).token_ids, data.example(0, 0).token_ids)


def check_words(data: PretrainingData, epoch: int, index: int) -> int:
    """1 if the sequence begins inside a word."""
    example = data.example(epoch, index)
    assert example.words is not None
    assert example.masked_positions is not None
    ids = example.token_ids.copy()
    ids[example.masked_positions] = example.masked_ids
    tokens = PIECES.tokens(ids.tolist())
    ends = np.cumsum(example.words[:, 0])
    assert ends[-1] == len(ids)
    words = [tokens[a:b] for a, b in pairwise([0, *ends.tolist()])]
    letters, lengths = store_tags(data)
    whole = 0
    for word, (first, length) in zip(words, example.words[:, 1:].tolist(), strict=True):
        if word[0] in SPECIAL:
            assert (word, first, length) == ([word[0]], 0, 0)
            continue
        assert all(piece.startswith("##") for piece in word[1:])
        if word[0].startswith("##") or len(word) != int(lengths[length - 1]):
            continue  # the rest of a word
        assert letters[first - 1] == word[0]
        whole += 1
    assert whole >= len(words) - 7  # each part may begin and end inside a word, besides [CLS], ...
    return int(words[1][0].startswith("##"))


def store_tags(data: PretrainingData) -> list[list[str]]:
    return [[*tags] for tags in data.store.tags.values()]


def test_a_damaged_store_is_refused(tmp_path: Path):
    path, names = write(tmp_path)["jsonl"]
    prepare(path, tmp_path / "s", tokenizer=PIECES, feature_columns=names)
    file = tmp_path / "s" / "store.json"
    good = json.loads(file.read_text())
    fewer = {**good["settings"], "features": {"pos": ["N"], "n": ["1", "2"]}}
    gone = {name: value for name, value in good["settings"].items() if name != "features"}
    for settings in (fewer, gone, {**fewer, "features": {"pos": ["N", "V", "X"]}}):
        file.write_text(json.dumps({**good, "settings": settings}))
        with pytest.raises(InputError, match="word features do not fit its tokens"):
            Store.open(tmp_path / "s")


@pytest.mark.parametrize(
    ("name", "text", "options", "words"),
    [
        ("t.jsonl", '{"words": ["a"], "pos": ["N"]}', ["n"], "has no column 'n'; the columns are"),
        ("t.jsonl", '{"words": ["a"], "pos": ["N"]}', ["pos,pos"], "used twice"),
        ("t.jsonl", '{"words": ["a", "b"], "pos": ["N"]}', ["pos"], "2 words, but 1 tag in"),
        (
            "t.jsonl",
            '{"words": ["a"], "pos": ["N"]}\n{"words": ["a"]}',
            ["pos"],
            "line 2: 'pos' is",
        ),
        ("t.txt", "a b c\nd e\n", ["2"], "line 2: 2 columns, but line 1 has 3; one word per line"),
        ("t.txt", "a b c\nd e f\n", ["pos"], "has no column 'pos' (--feature-columns)"),
        (
            "t.txt",
            "a b\n",
            ["2", "--layout", "line"],
            "layout line has no columns of word features",
        ),
        ("t.txt", "a b\n", ["2", "--segmenter", "jieba"], "omit the segmenter"),
    ],
)
def test_mistakes(name: str, text: str, options: list[str], words: str, tmp_path: Path):
    if "jieba" in options:
        pytest.importorskip("jieba")
    PIECES.save(tmp_path / "v")
    (tmp_path / name).write_text(text)
    given = ("prepare", tmp_path / name, "-t", tmp_path / "v", "-o", tmp_path / "out")
    done = run_cli(*given, "--feature-columns", *options)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert words in done.stderr
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / ".out.part").exists()
