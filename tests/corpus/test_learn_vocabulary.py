"""Vocabularies learnt from a corpus, and their reports."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from transformers import BertTokenizerFast

from ownbert.corpus.documents import read_documents
from ownbert.corpus.learn_vocabulary import (
    format_report,
    learn_tokenizer,
    learn_vocabulary,
    train_bpe,
)
from ownbert.exceptions import InputError
from ownbert.text.bert_rules import SPECIAL_TOKENS
from ownbert.text.tokenizer import Tokenizer
from ownbert.text.tokenizer_folder import read_vocabulary
from ownbert.text.vocabulary_report import TokenCount, propose_sentence_ends

ENGLISH = ["The cat sat on the mat, didn't it?", "The dogs were sitting; cats sat!", "A cat naps."]


def write_lines(path: Path, lines: list[str]) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def anonymous(path: Path, *, full_stop: bool, seed: int = 0) -> Path:
    """Documents of two to four sentences of ids drawn by Zipf's law; id 7 is the full stop."""
    chance = random.Random(seed)
    ids = [str(1000 + index) for index in range(500)]
    weights = [1 / (rank + 1) for rank in range(len(ids))]
    lines = []
    for _ in range(400):
        words: list[str] = []
        for _ in range(chance.randint(2, 4)):
            words += chance.choices(ids, weights, k=chance.randint(5, 20))
            words += ["7"] * full_stop
        lines.append(" ".join(words))
    return write_lines(path, lines)


def test_blank_keeps_the_frequent_in_order(tmp_path: Path):
    long, literal = "x" * 101, "a[MASK]"
    lines = ["b a c a", "a b d", f"b c c {long} {literal} [SEP]", f"{long} {literal} [SEP]"]
    corpus = write_lines(tmp_path / "a.txt", lines * 2)
    seen: list[int] = []
    report = learn_vocabulary(corpus, tmp_path / "out", kind="blank", progress=seen.append)
    assert read_vocabulary(tmp_path / "out" / "vocab.txt") == [*SPECIAL_TOKENS, "a", "b", "c"]
    assert (report.documents, report.running_tokens, report.distinct_tokens) == (8, 32, 7)
    assert report.coverage == pytest.approx((6 + 6 + 6 + 4) / 32)
    assert report.out_of_vocabulary_rate == pytest.approx(1 - report.coverage)
    assert seen == [8]
    row = report.top[-1]
    assert (row.token, row.count, row.ends) == ("d", 2, 2)
    assert row.end_share == pytest.approx(2 / 8)
    smaller = learn_vocabulary(corpus, tmp_path / "small", kind="blank", vocab_size=7, min_count=1)
    assert read_vocabulary(tmp_path / "small" / "vocab.txt")[5:] == ["a", "b"]
    assert smaller.vocabulary_size == 7


@pytest.mark.parametrize("space", [" ", "\t", "\n", "\u3000"])
def test_a_long_text_is_split_at_any_space(
    space: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("ownbert.corpus.learn_vocabulary.LONGEST_PIECE", 20)
    text = space.join(["1234567", "123456"] * 20)
    report = learn_vocabulary([text], tmp_path, kind="blank")
    assert (report.running_tokens, report.distinct_tokens) == (40, 2)


def test_coverage_is_what_the_tokenizer_does(tmp_path: Path):
    corpus = anonymous(tmp_path / "a.txt", full_stop=True)
    report = learn_vocabulary(corpus, tmp_path / "out", kind="blank", min_count=10)
    tokenizer = Tokenizer.load(tmp_path / "out")
    texts = [piece for document in read_documents(corpus) for piece in document.pieces]
    ids = [index for text in tokenizer.encode_batch(texts) for index in text]
    assert len(ids) == report.running_tokens
    assert 0 < ids.count(tokenizer.unk_id) < len(ids)
    assert ids.count(tokenizer.unk_id) / len(ids) == pytest.approx(report.out_of_vocabulary_rate)


def test_sentence_ends_are_proposed_when_there_are_any(tmp_path: Path):
    for full_stop, expected in ((True, ["7"]), (False, [])):
        corpus = anonymous(tmp_path / "a.txt", full_stop=full_stop)
        report = learn_vocabulary(corpus, tmp_path / str(full_stop), kind="blank")
        assert report.sentence_ends == expected
        text = format_report(report)
        assert ("Likely sentence ends: 7" in text) == full_stop
        assert ("Likely sentence ends: none" in text) != full_stop
        assert len(text.splitlines()) <= 30
        assert max(map(len, text.splitlines())) <= 90


def test_luck_with_few_documents_is_no_sentence_end():
    row = TokenCount(token="5", count=20, share=0.002, ends=2, end_share=0.1)
    assert propose_sentence_ends([row], documents=20) == []


def test_real_words_permuted_to_ids(tmp_path: Path, shared_data: Path):
    ids: dict[str, str] = {}
    lines = []
    for document in read_documents(shared_data / "dbpedia14" / "unlabelled.txt"):
        words = document.pieces[0].replace(".", " . ").replace(",", " , ").lower().split()
        lines.append(" ".join(ids.setdefault(word, str(7 + 3 * len(ids))) for word in words))
        if len(lines) == 3000:
            break
    corpus = write_lines(tmp_path / "a.txt", lines)
    report = learn_vocabulary(corpus, tmp_path / "out", kind="blank")
    assert report.sentence_ends == [ids["."]]


def test_report_is_kept(tmp_path: Path):
    corpus = write_lines(tmp_path / "a.txt", ["a b c a b c a b c"])
    report = learn_vocabulary(corpus, tmp_path / "out", kind="blank")
    kept = json.loads((tmp_path / "out" / "vocabulary_report.json").read_text())
    assert kept == report.to_dict()


def test_wordpiece_on_a_small_text(tmp_path: Path):
    corpus = write_lines(tmp_path / "a.txt", ENGLISH * 5)
    report = learn_vocabulary(corpus, tmp_path / "out", vocab_size=80)
    tokenizer = Tokenizer.load(tmp_path / "out")
    vocabulary = tokenizer.vocabulary()
    assert vocabulary[:5] == list(SPECIAL_TOKENS)
    assert {"the", "cat", "sat", "##s", "?"} <= set(vocabulary)
    assert tokenizer.vocab_size <= 80
    assert report.coverage == 1
    assert report.pieces_per_word is not None
    assert 1 <= report.pieces_per_word < 3
    assert "pieces per word" in format_report(report)
    assert tokenizer.decode(tokenizer.encode_batch(["the CAT sat."])[0]) == "the cat sat."
    assert next(row for row in report.top if row.token == ".").ends == 5


def test_wordpiece_keeps_case_on_request(tmp_path: Path):
    corpus = write_lines(tmp_path / "a.txt", ENGLISH * 5)
    learn_vocabulary(corpus, tmp_path / "out", lowercase=False)
    tokenizer = Tokenizer.load(tmp_path / "out")
    assert tokenizer.id_of("The") is not None
    assert tokenizer.tokens(tokenizer.encode_batch(["The"])[0]) == ["The"]


LEARN = """
import sys
from ownbert.corpus.learn_vocabulary import learn_vocabulary
learn_vocabulary(sys.argv[1], sys.argv[2], vocab_size=1500)
"""


@pytest.mark.parametrize(
    ("one", "other"), [("में है", "मैं हो"), ("ปิด มา", "ปีด ม้า"), ("がき Tea", "かき Tea")]
)
def test_vowel_signs_and_voicing_marks_are_no_accents(tmp_path: Path, one: str, other: str):
    learn_vocabulary([one, other] * 3, tmp_path)
    tokenizer = Tokenizer.load(tmp_path)
    ids, others = tokenizer.encode_batch([one, other])
    assert ids != others
    assert tokenizer.encode(one.upper()) == ids
    theirs = BertTokenizerFast.from_pretrained(tmp_path)
    assert theirs(one, add_special_tokens=False)["input_ids"] == ids


def test_accents_are_stripped(tmp_path: Path):
    """Also points and vowels that are seldom written, and in text with a few other signs."""
    texts = ["Ñandú שָׁלוֹם مُحَمَّد", *["plain words of another language"] * 9, "में"]
    learn_vocabulary(texts, tmp_path, min_count=1)
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.encode(texts[0]) == tokenizer.encode("nandu שלום محمد")


def test_wordpiece_is_the_same_on_every_run(tmp_path: Path, shared_data: Path):
    # Real text has hundreds of characters and merges of the same count, in both scripts.
    lines = []
    for name in ("enwiki", "zhwiki"):
        documents = read_documents(shared_data / f"{name}-sample" / "corpus.txt.gz")
        lines += [" ".join(next(documents).pieces) for _ in range(40)]
    corpus = write_lines(tmp_path / "a.txt", lines)
    for run in ("one", "two"):
        subprocess.run([sys.executable, "-c", LEARN, corpus, tmp_path / run], check=True)
    first = (tmp_path / "one" / "tokenizer.json").read_bytes()
    assert (tmp_path / "two" / "tokenizer.json").read_bytes() == first


def test_chinese_characters_and_english_words_share_the_room(tmp_path: Path, shared_data: Path):
    documents = read_documents(shared_data / "zhwiki-sample" / "corpus.txt.gz")
    lines = [" ".join(next(documents).pieces) for _ in range(400)]
    report = learn_vocabulary(write_lines(tmp_path / "a.txt", lines), tmp_path / "out")
    tokenizer = Tokenizer.load(tmp_path / "out")
    assert 3000 < tokenizer.vocab_size < 6000
    pieces = [token for token in tokenizer.vocabulary() if len(token.removeprefix("##")) > 1]
    assert len(pieces) > 700
    assert report.coverage > 0.99
    found = tokenizer.tokens(tokenizer.encode_batch(["1984年在北京大学毕业。"])[0])
    assert found == ["1984", "年", "在", "北", "京", "大", "学", "毕", "业", "。"]
    assert "##学" not in tokenizer.vocabulary()


def test_what_cannot_be_learnt_is_refused(tmp_path: Path):
    corpus = write_lines(tmp_path / "a.txt", ["a b", "c d"])
    out = tmp_path / "out"
    cases = [
        ({"kind": "blank"}, "no token occurs 3 times or more"),
        ({"min_count": 9}, "no character occurs 9 times or more"),
        ({"kind": "words"}, "kind 'words'"),
        ({"vocab_size": 5}, "vocab_size 5"),
        ({"min_count": 0}, "min_count is 0"),
    ]
    for settings, message in cases:
        with pytest.raises(InputError, match=message):
            learn_vocabulary(corpus, out, **settings)
    with pytest.raises(InputError, match="no such file"):
        learn_vocabulary(tmp_path / "b.txt", out)
    long = write_lines(tmp_path / "long.txt", ["x" * 101, "12-" * 40 + "1", "a " + "7" * 5000] * 5)
    message = "15 of 20 words have over 100 characters, .*: separate words, ids or codes"
    with pytest.raises(InputError, match=message):
        learn_vocabulary(long, out, kind="blank", min_count=6)
    write_lines(long, ["x" * 101, "7" * 5000] * 5)
    for kind in ("blank", "wordpiece"):
        with pytest.raises(InputError, match="10 of 10 words have over 100 characters"):
            learn_vocabulary(long, out, kind=kind)
    with pytest.raises(InputError, match="is a file"):
        learn_vocabulary(corpus, corpus)
    (tmp_path / "bad.txt").write_bytes(b"fine\n" * 3 + b"\xff\n")
    for kind in ("blank", "wordpiece"):
        with pytest.raises(InputError, match="line 4: not UTF-8"):
            learn_vocabulary(tmp_path / "bad.txt", out, kind=kind)
    assert not out.exists()


def test_a_trained_model_keeps_its_vocabulary(tmp_path: Path):
    corpus = write_lines(tmp_path / "a.txt", ["a b c"] * 3)
    other = write_lines(tmp_path / "b.txt", ["a b d"] * 3)
    out = tmp_path / "out"
    learn_vocabulary(corpus, out, kind="blank")
    learn_vocabulary(other, out, kind="blank")
    tokenizer = Tokenizer.load(out)
    tokenizer.max_length = 64
    tokenizer.save(out)
    (out / "model.safetensors").write_bytes(b"weights")
    with pytest.raises(InputError, match="a model trained with another vocabulary"):
        learn_vocabulary(corpus, out, kind="blank")
    learn_vocabulary(other, out, kind="blank")
    assert Tokenizer.load(out).vocabulary() == [*SPECIAL_TOKENS, "a", "b", "d"]
    assert Tokenizer.load(out).max_length == 64


FULL_DISK = """
import resource, sys
from ownbert.exceptions import InputError
from ownbert.corpus.learn_vocabulary import learn_vocabulary
resource.setrlimit(resource.RLIMIT_FSIZE, (6000, 6000))
try:
    learn_vocabulary(sys.argv[1], sys.argv[2], kind="blank", min_count=1)
except InputError as error:
    print(error)
    sys.exit(2)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs RLIMIT_FSIZE")
def test_a_full_disk_leaves_the_old_tokenizer(tmp_path: Path):
    out = tmp_path / "out"
    learn_vocabulary(write_lines(tmp_path / "a.txt", ["a b c"] * 3), out, kind="blank")
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    # vocab.txt fits below the limit, tokenizer.json does not.
    corpus = write_lines(tmp_path / "b.txt", [" ".join(map(str, range(1000)))])
    result = subprocess.run(
        [sys.executable, "-c", FULL_DISK, corpus, out], capture_output=True, text=True
    )
    assert result.returncode == 2, result.stderr
    assert result.stdout.startswith(f"cannot write {out}")
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


@pytest.mark.parametrize("kind", ["wordpiece", "bpe"])
def test_a_word_of_any_length_takes_no_time(kind: str):
    """Beyond 100 characters a word is unknown, and the trainer's time grows with its square."""
    short = ["the cat sat on the mat", "한국어 " * 9, "狗" * 150, "a-" * 90] * 5
    long = "abcdefgh" * 10_000
    words = [long, f"the {long}", f"({long})", "é" * 20_000, "한" * 101]

    def learnt(texts: list[str]) -> Tokenizer:
        return learn_tokenizer(lambda: iter(texts), kind=kind, vocab_size=400)

    if kind == "wordpiece":
        with_them = [f"{text} {word}" for text, word in zip(short, words, strict=False)]
        found, wanted = learnt([*with_them, *short[5:]]), learnt(["the ()", *short])
        assert found.fingerprint() == wanted.fingerprint()
    else:
        assert 300 < learnt([*short, *words]).vocab_size <= 400


def test_a_signal_ends_learning():
    ended = threading.Event()

    def texts() -> Iterator[str]:
        os.kill(os.getpid(), signal.SIGTERM)
        while not ended.is_set():
            yield "the cat sat on the mat"

    def stop(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        with pytest.raises(KeyboardInterrupt):
            train_bpe(texts(), special=["<s>"], size=400, min_count=2, lowercase=False)
    finally:
        ended.set()
        signal.signal(signal.SIGTERM, before)


def test_codes_joined_by_separators_get_a_warning(tmp_path: Path):
    rows = [f"A{i % 7}0,B{i % 5}1,C{i % 3}2" for i in range(300)]
    with pytest.warns(UserWarning, match=r"codes joined by separators, .* use kind wordpiece"):
        learn_vocabulary(rows, tmp_path / "blank", kind="blank")
    learn_vocabulary(rows, tmp_path / "pieces", kind="wordpiece")
    tokens = BertTokenizerFast.from_pretrained(tmp_path / "pieces").tokenize("A10,B21;C12")
    assert tokens[tokens.index(",") + 1 :] != []
    assert "[UNK]" not in tokens[: tokens.index(",")]
