"""Preparing in several processes, stopped and resumed: always the same bytes."""

import importlib.util
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ownbert.cli.text_commands import report
from ownbert.corpus import chunks
from ownbert.corpus.chunks import DuplicateFilter, digest
from ownbert.corpus.documents import Document
from ownbert.corpus.prepare import WorkerDied, WorkerPool
from ownbert.corpus.store import Store, prepare
from ownbert.corpus.store_writer import StoreWriter
from ownbert.corpus.text_encoding import ChunkEncoder, TextEncoder
from ownbert.exceptions import InputError
from ownbert.text.text_parts import split_sentences
from ownbert.text.tokenizer import Tokenizer
from support.cli import run_cli
from support.forks import ForkedCommand

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
PIECES = Tokenizer.wordpiece(
    [*SPECIAL, *"abcdefgh", *(f"##{c}" for c in "abcdeh"), ".", "中", "文"]
)
BLANK = Tokenizer.blank([*SPECIAL, *"abcdefg", ".", "!"])


def command(corpus: Path, output: Path, *options: str) -> list[object]:
    """ownbert prepare."""
    return ["prepare", corpus, "-t", corpus.parent / "vocab", "-o", output, *options]


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """19,985 short documents of which many are equal, 15 blank lines, and a vocabulary."""
    folder = tmp_path_factory.mktemp("prepare")
    PIECES.save(folder / "vocab")
    rng = np.random.default_rng(0)
    words = rng.choice(["abc", "Bad.", "cab", "中文。", "deh", "xyz", "Had"], 90_000).tolist()
    stops = np.cumsum(rng.integers(1, 9, 20_000)).tolist()
    lines = [" ".join(words[a:b]) for a, b in zip([0, *stops], stops, strict=False)]
    (folder / "a.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder / "a.txt"


@pytest.fixture(scope="module")
def whole(corpus: Path) -> dict[str, bytes]:
    """What one process writes in one go."""
    prepare(corpus, corpus.parent / "whole", tokenizer=corpus.parent / "vocab", processes=1)
    return contents(corpus.parent / "whole")


@pytest.mark.parametrize("processes", [1, 2, 3])
def test_any_number_of_processes_gives_the_same_bytes(
    corpus: Path, whole: dict, tmp_path: Path, processes: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("ownbert.corpus.chunks.CHUNK_SIZE", 50_000)
    seen = []
    prepare(
        corpus,
        tmp_path / "store",
        tokenizer=PIECES,
        processes=processes,
        progress=lambda *now: seen.append(now),
    )
    assert contents(tmp_path / "store") == whole
    assert names(tmp_path) == ["store"]
    assert len(seen) > 5
    assert seen == sorted(seen)
    documents, done, total = seen[-1]
    assert (documents, total) == (Store.open(tmp_path / "store").documents, corpus.stat().st_size)
    assert done == total - 20_000  # all but the line ends


@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL")
@pytest.mark.parametrize("processes", [pytest.param("1", marks=pytest.mark.slow), "2"])
def test_killed_at_any_moment_and_started_again(
    corpus: Path, whole: dict, tmp_path: Path, processes: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("ownbert.corpus.chunks.CHUNK_SIZE", 4_000)
    output, state = tmp_path / "store", tmp_path / ".store.part" / "state.json"
    rng = np.random.default_rng(int(processes))
    run = command(corpus, output, "--processes", processes)
    kills = 0
    while kills < 3:
        before = state.read_bytes() if state.exists() else b""
        process = ForkedCommand(*run)
        # Killed at a random moment after it got on.
        while process.poll() is None and (not state.exists() or state.read_bytes() == before):
            time.sleep(0.002)
        time.sleep(float(rng.uniform(0, 0.05)))
        process.kill()
        if process.wait() != -signal.SIGKILL:
            break  # it was faster
        kills += 1
    assert kills
    last = run_cli(*run)
    assert last.returncode == 0, last.stderr
    if "unchanged" not in last.stdout:
        assert "documents by a stopped run" in last.stdout
        assert "resuming after" in last.stderr
    assert contents(output) == whole
    assert names(tmp_path) == ["store"]


@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGTERM")
@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)]
)
def test_an_interrupt_is_one_line_and_nothing_is_lost(
    corpus: Path, whole: dict, tmp_path: Path, number: signal.Signals
):
    output, add = tmp_path / "store", StoreWriter.add

    def wait(writer: StoreWriter, chunk: Any) -> None:
        add(writer, chunk)
        if writer.saved:
            print("saved", flush=True)
            while True:  # a signal just before one long sleep would wait for its end
                time.sleep(0.01)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ownbert.corpus.chunks.CHUNK_SIZE", 2_000)
        patch.setattr(StoreWriter, "add", wait)
        process = ForkedCommand(*command(corpus, output, "--processes", "2"))
    while process.poll() is None and process.output()[0] != "saved\n":
        time.sleep(0.005)
    process.send_signal(number)
    out, err = process.communicate()
    assert process.returncode == 2, (out, err)
    assert out == "saved\n"
    assert err.startswith("interrupted; ")
    assert "are kept in .store.part next to the output" in err
    assert err.count("\n") == 1
    assert names(tmp_path) == [".store.part"]
    store = prepare(corpus, output, tokenizer=PIECES, processes=1)
    assert store.resumed == 0  # chunks of another size were not resumed blindly
    assert contents(output) == whole
    assert names(tmp_path) == ["store"]


def test_other_settings_and_damage_start_anew(
    corpus: Path, whole: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("ownbert.corpus.chunks.CHUNK_SIZE", 50_000)
    output, work = tmp_path / "store", tmp_path / ".store.part"

    def stopped_after(chunks: int) -> None:
        def stop(documents: int, done: int, total: int | None) -> None:
            nonlocal chunks
            chunks -= 1
            if not chunks:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt, match=r"kept in \.store\.part"):
            prepare(corpus, output, tokenizer=PIECES, progress=stop, processes=1)

    stopped_after(3)
    resumed = prepare(corpus, output, tokenizer=PIECES, processes=1)
    assert 0 < resumed.resumed < resumed.documents
    assert contents(output) == whole
    for path in output.iterdir():
        path.unlink()
    stopped_after(3)
    other = prepare(corpus, output, tokenizer=PIECES, duplicates="drop", processes=1)
    assert other.resumed == 0
    assert other.documents < resumed.documents
    stopped_after(3)
    tokens = work / "store" / "tokens.bin"
    tokens.write_bytes(b"\xfe" + tokens.read_bytes()[1:])
    again = prepare(corpus, output, tokenizer=PIECES, processes=1)
    assert again.resumed == 0
    assert contents(output) == whole
    assert names(tmp_path) == ["store"]


def test_what_was_moved_away_at_the_last_moment_comes_back(corpus: Path, tmp_path: Path):
    output, work = tmp_path / "store", tmp_path / ".store.part"
    first = prepare(corpus, output, tokenizer=PIECES)
    before = contents(output)
    # As a kill between the two renames of WorkFolder.finish leaves it.
    work.mkdir()
    output.rename(work / "old")
    bad = tmp_path / "bad.txt"
    bad.write_bytes(b"abc\n\xff\n")
    with pytest.raises(InputError, match=r"bad\.txt, line 2: not UTF-8"):
        prepare(bad, output, tokenizer=PIECES)
    assert contents(output) == before
    assert Store.open(output).identity == first.identity
    assert names(tmp_path) == ["bad.txt", "store"]


@pytest.mark.skipif(sys.platform == "win32", reason="needs flock")
def test_two_at_once_are_refused(corpus: Path, tmp_path: Path):
    output = tmp_path / "store"
    messages = []

    def meanwhile(documents: int, done: int, total: int | None) -> None:
        with pytest.raises(InputError) as found:
            prepare(corpus, output, tokenizer=PIECES)
        messages.append(str(found.value))

    prepare(corpus, output, tokenizer=PIECES, progress=meanwhile)
    assert set(messages) == {f"another process is writing {output}; wait for it or end it"}
    assert Store.open(output).documents == 19_985


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="reads /proc")
def test_a_worker_that_is_killed(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("ownbert.corpus.chunks.CHUNK_SIZE", 20_000)
    made = []
    start = WorkerPool.__init__

    def remember(self: WorkerPool, *given: object) -> None:
        made.append(self)
        start(self, *given)  # type: ignore[arg-type]

    def kill(documents: int, done: int, total: int | None) -> None:
        made[0].all[0].process.kill()

    monkeypatch.setattr(WorkerPool, "__init__", remember)
    with pytest.raises(WorkerDied, match=r"ended by signal 9 .* run the same command again"):
        prepare(corpus, tmp_path / "store", tokenizer=PIECES, processes=2, progress=kill)
    assert all(worker.process.poll() is not None for worker in made[0].all)
    assert names(tmp_path) == [".store.part"]
    assert prepare(corpus, tmp_path / "store", tokenizer=PIECES, processes=1).resumed > 0
    assert names(tmp_path) == ["store"]


def test_workers_need_no_torch():
    modules = "ownbert.corpus.prepare, ownbert.corpus.store"
    code = f"import sys, {modules}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_a_corpus_that_changes_meanwhile(tmp_path: Path):
    corpus = tmp_path / "a.txt"
    corpus.write_text("a b\n")

    def change(documents: int, done: int, total: int | None) -> None:
        corpus.write_text("a b c\n")

    with pytest.raises(InputError, match=r"a\.txt was changed while it was read"):
        prepare(corpus, tmp_path / "store", tokenizer=BLANK, progress=change)
    assert names(tmp_path) == ["a.txt"]


def test_identity_is_that_of_the_content(tmp_path: Path):
    texts = {"1": "a b\nc d\n", "2": "a b\nc d\n", "3": "a b\nd c\n", "4": "a b c d\n"}
    prints = []
    for name, text in texts.items():
        corpus = tmp_path / f"{name}.txt"
        corpus.write_text(text)
        prints.append(prepare(corpus, tmp_path / name, tokenizer=BLANK).identity)
    assert prints[0] == prints[1]
    assert len(set(prints)) == 3
    assert Store.open(tmp_path / "1").identity == prints[0]
    more = Tokenizer.blank([*BLANK.vocabulary(), "new"])
    assert prepare(tmp_path / "1.txt", tmp_path / "5", tokenizer=more).identity not in prints
    assert all(len(one) == 16 for one in prints)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"duplicates": "no"}, "duplicates 'no' is not known; use one of keep, drop"),
        ({"processes": 0}, r"processes is 0; it must be in \[1, 256\]"),
        ({"segmenter": "other"}, "segmenter 'other' is not known; use one of jieba"),
        ({"segmenter": "jieba"}, "needs a wordpiece tokenizer, this one is blank"),
    ],
)
def test_wrong_settings_are_named(tmp_path: Path, settings: dict, message: str):
    (tmp_path / "a.txt").write_text("a b\n")
    with pytest.raises(InputError, match=message):
        prepare(tmp_path / "a.txt", tmp_path / "store", tokenizer=BLANK, **settings)
    assert names(tmp_path) == ["a.txt"]


def test_a_touched_corpus_is_gone_on_with(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("ownbert.corpus.chunks.CHUNK_SIZE", 50_000)
    copy = tmp_path / "a.txt"
    copy.write_bytes(corpus.read_bytes())
    given: dict[str, Any] = {"tokenizer": PIECES, "processes": 1}

    def stop(documents: int, done: int, total: int | None) -> None:
        if documents > 5_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt, match=r"run the same command again to resume"):
        prepare(copy, tmp_path / "store", progress=stop, **given)
    copy.touch()
    store = prepare(copy, tmp_path / "store", **given)
    assert store.resumed > 5_000
    assert prepare(copy, tmp_path / "store", **given).reused


def test_bytes_that_are_no_text_in_one_line(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("ownbert.corpus.chunks.CHUNK_SIZE", 20_000)
    bad = corpus.parent / "bad.txt"
    bad.write_bytes(corpus.read_bytes() + b"abc \xff\n")
    done = run_cli(*command(bad, tmp_path / "store", "--processes", "2"))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"error: {bad}, line 20001: not UTF-8 (byte 0xff); save the file as UTF-8, or name "
        "its encoding, as in --encoding cp1252\n"
    )
    assert names(tmp_path) == []


LETTERS = [*"abcdefgh12", *(f"##{c}" for c in "abcdefgh12"), *".?!,", "中", "文", "。", "？"]
WORDPIECE = Tokenizer.wordpiece([*SPECIAL, *LETTERS, "[", "]", "pad"])
CASED = Tokenizer.wordpiece([*SPECIAL, *LETTERS, "A", "B"], do_lower_case=False)
BLANK_TEXT = Tokenizer.blank([*SPECIAL, *"abcdefgh", ".", "!", "a.", "中"])
NONE = np.empty(0, dtype=np.int64)

# Whitespace of all kinds, controls, combining marks, special tokens, halves of them.
ODD = [*" \t\n\r\x0b\x0c\x1c\x85\u00a0\u2028\u3000\u200b\u0301\x00ßİςA", "[PAD]", "[P", "AD]", "  "]
TEXTS = st.lists(st.one_of(st.sampled_from([*ODD, *"abcdefgh12.?!,中文。？"]), st.text(max_size=2)))
TEXTS = TEXTS.map("".join)


def ids_of(tokenizer: Tokenizer, texts: list[str]) -> list[int]:
    return [i for ids in tokenizer.encode_batch(texts) for i in ids]


@pytest.mark.parametrize(
    "tokenizer", [WORDPIECE, CASED, BLANK_TEXT], ids=["lower", "cased", "blank"]
)
@settings(max_examples=60)
@given(texts=st.lists(TEXTS, min_size=1, max_size=6))
def test_looked_up_ids_are_the_tokenizers(tokenizer: Tokenizer, texts: list[str]):
    encoder = TextEncoder(tokenizer)
    assert encoder.by_word
    expected = tokenizer.encode_batch(texts)
    # Not looked up as too many are new, learnt, known.
    for repeats in (1 << 40, 0, 0):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("ownbert.corpus.text_encoding._FEW_REPEATS", repeats)
            ids, lengths = encoder.encode(texts)
        assert lengths.tolist() == [len(one) for one in expected]
        assert ids.tolist() == [i for one in expected for i in one]
    assert {word for text in texts for word in text.split(" ")} == encoder.numbers.keys()


def test_words_are_forgotten_when_they_are_many(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("ownbert.corpus.text_encoding._MOST_WORDS", 20)
    monkeypatch.setattr("ownbert.corpus.text_encoding._FEW_REPEATS", 0)
    encoder = TextEncoder(WORDPIECE)
    rng = np.random.default_rng(0)
    for _ in range(30):
        texts = [" ".join("".join(rng.choice([*"abc"], 4)) for _ in range(5)) for _ in range(4)]
        assert encoder.encode(texts)[0].tolist() == ids_of(WORDPIECE, texts)
        assert len(encoder.numbers) <= 40


def test_rules_that_see_more_than_words_are_not_looked_up(tmp_path: Path):
    from tokenizers import AddedToken

    backend = Tokenizer.wordpiece([*SPECIAL, *LETTERS]).backend
    backend.add_tokens([AddedToken("a b", normalized=False)])
    tokenizer = Tokenizer(backend)
    encoder = TextEncoder(tokenizer)
    assert not encoder.by_word
    assert encoder.encode(["a b a", "b"])[0].tolist() == ids_of(tokenizer, ["a b a", "b"])


def encoded(tokenizer: Tokenizer, documents: list[Document], ends: set[str] = frozenset()):
    """All chunks together: ids, sentence ends, document ends."""
    options = chunks.ChunkingOptions(tokenizer.kind != "blank", frozenset(ends), False)
    end_ids = np.array([tokenizer.id_of(end) for end in ends], dtype=np.int64)
    encoder = ChunkEncoder(tokenizer, end_ids)
    found = list(chunks.split_into_chunks(documents, options, chunks.ReadStats()))
    at, tokens, sentences, stops = 0, [], [], []
    for one in map(encoder.encode, found):
        tokens += one.tokens.tolist()
        sentences += (one.sentence_ends + at).tolist()
        stops += (one.document_ends + at).tolist()
        at += len(one.tokens)
    return tokens, sorted({*sentences} - {0}), sorted({*stops} - {0}), len(found)


WORDS = st.sampled_from(
    ["abc", "Bad.", "12", "cab?", "Mr.", "中文。", "fe!", "A. B", "\n", "", "…"]
)
LONG = st.lists(WORDS, min_size=60, max_size=120).map(" ".join)


@settings(max_examples=60)
@given(texts=st.lists(LONG, min_size=1, max_size=3), presplit=st.booleans())
# The window ends behind a full stop.
@example(["abc " * 16 + "Bad. 12 " + "abc " * 8 + "Bad. Bad. abc abc"], False)
# The window ends in front of a line break.
@example(["abc A. B Bad. cab? cab? abc abc 12 A. B \n " + "abc " * 12] * 3, False)
def test_a_long_document_is_split_without_a_trace(texts: list[str], presplit: bool):
    documents = [Document([text.strip() or "a"], presplit) for text in texts]
    documents += [Document([t.strip() or "a" for t in texts], presplit)]
    whole = encoded(WORDPIECE, documents)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunks, "LONGEST_PIECE", 40)
        patch.setattr(chunks, "CHUNK_SIZE", 100)
        split = encoded(WORDPIECE, documents)
    assert (split[0], split[2]) == (whole[0], whole[2])
    assert split[3] > whole[3]
    # Where every space of a window follows a full stop an end may be lost.
    assert len(set(split[1]) ^ set(whole[1])) <= 2


@settings(max_examples=60)
@given(words=st.lists(st.sampled_from([*"abcd.!", "\t", "a."]), min_size=60, max_size=200))
def test_a_long_line_of_tokens_is_split_without_a_trace(words: list[str]):
    text = "a " + " ".join(words) + " b"
    documents = [Document([text], False), Document(["c"], False)]
    whole = encoded(BLANK_TEXT, documents, {".", "!"})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunks, "LONGEST_PIECE", 50)
        patch.setattr(chunks, "CHUNK_SIZE", 50)
        split = encoded(BLANK_TEXT, documents, {".", "!"})
    assert split[0] == whole[0]
    assert split[2] == whole[2]
    # A run of ends that is longer than a piece may be is two.
    if not any(set(words[i : i + 20]) <= {".", "!", "\t"} for i in range(len(words) - 20)):
        assert split[1] == whole[1]


def test_chinese_without_a_blank_is_cut_between_characters(monkeypatch: pytest.MonkeyPatch):
    documents = [Document(["中文" * 50 + "ab" * 4 + "文" * 9], False)]
    whole = encoded(WORDPIECE, documents)
    monkeypatch.setattr(chunks, "LONGEST_PIECE", 30)
    assert encoded(WORDPIECE, documents)[:3] == whole[:3]


def test_one_huge_line(tmp_path: Path):
    rng = np.random.default_rng(0)
    words = rng.choice(["abc", "Bad.", "cab", "中文。", "deh", "Had"], 150_000).tolist()
    text = " ".join(words)
    (tmp_path / "a.txt").write_text(text, encoding="utf-8")
    store = prepare(tmp_path / "a.txt", tmp_path / "store", tokenizer=WORDPIECE, processes=1)
    sentences = split_sentences(text)
    expected = WORDPIECE.encode_batch(sentences)
    assert store.tokens.tolist() == [i for ids in expected for i in ids]
    assert store.sentence_ends.tolist() == np.cumsum([len(ids) for ids in expected]).tolist()
    assert store.documents == 1


@settings(max_examples=60)
@given(st.lists(st.lists(st.integers(0, 60), max_size=50), max_size=30))
def test_the_table_of_hashes_is_a_set(groups: list[list[int]]):
    seen, known = DuplicateFilter(), set()
    for group in groups:
        new = seen.add([digest([str(number)])[0] for number in group])
        expected = []
        for number in group:
            expected.append(number not in known)
            known.add(number)
        assert new.tolist() == expected
    assert seen.count == len(known)


def test_the_table_of_hashes_grows():
    seen = DuplicateFilter()
    keys = [digest([str(number)])[0] for number in range(50_000)]
    for start in range(0, len(keys), 3_000):
        assert seen.add(keys[start : start + 3_000]).all()
    assert seen.table.nbytes <= 43 * len(keys)
    assert not seen.add(keys).any()
    assert seen.count == len(keys)


def test_a_digest_is_that_of_the_text(monkeypatch: pytest.MonkeyPatch):
    texts = [["ab中"], ["a", "b中"], ["a\nb中"], ["b"]]
    keys = [digest(text) for text in texts]
    assert [size for _, size in keys] == [5, 5, 6, 1]
    assert keys[1][0] == keys[2][0]  # lines of one document
    assert len({key for key, _ in keys}) == 3
    monkeypatch.setattr("ownbert.corpus.chunks._SLICE", 2)
    assert [digest(text) for text in texts] == keys


@pytest.mark.parametrize("size", [chunks.CHUNK_SIZE, 30])
@pytest.mark.parametrize("processes", [1, 2])
def test_duplicates(tmp_path: Path, size: int, processes: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(chunks, "CHUNK_SIZE", size)
    (tmp_path / "a.txt").write_text("a b\nc\n  a b \na  b\nd\nc\n")
    (tmp_path / "b.txt").write_text("c\ne\n")
    paths = [tmp_path / "a.txt", tmp_path / "b.txt"]

    def made(name: str, **more: str) -> Store:
        return prepare(paths, tmp_path / name, tokenizer=BLANK_TEXT, processes=processes, **more)

    kept = made("kept")
    # The one with two spaces is another text.
    assert (kept.documents, kept.read_documents, kept.duplicates) == (8, 8, 3)
    line = list(report(kept, tmp_path / "kept", dropped=False))[-1]
    assert line == (
        "3 of 8 documents (37.5%) repeat an earlier one, kept; remove them with --duplicates drop"
    )
    dropped = made("dropped", duplicates="drop")
    assert (dropped.documents, dropped.read_documents, dropped.duplicates) == (5, 8, 3)
    assert dropped.tokens.tolist() == ids_of(BLANK_TEXT, ["a b", "c", "a b", "d", "e"])
    line = list(report(dropped, tmp_path / "dropped", dropped=True))[-1]
    assert line == "3 of 8 documents (37.5%) repeat an earlier one, dropped"
    assert dropped.identity != kept.identity
    assert made("dropped", duplicates="drop").reused


def test_duplicates_only(tmp_path: Path):
    (tmp_path / "a.txt").write_text("a b c\n" * 20_000)
    store = prepare(tmp_path / "a.txt", tmp_path / "store", tokenizer=BLANK_TEXT, duplicates="drop")
    assert (store.documents, len(store.tokens), store.duplicates) == (1, 3, 19_999)


def test_many_documents_of_one_word(tmp_path: Path):
    rng = np.random.default_rng(0)
    words = rng.choice(["a", "b", "xyz", "h"], 20_000).tolist()
    (tmp_path / "a.txt").write_text("\n".join(words) + "\n")
    store = prepare(tmp_path / "a.txt", tmp_path / "store", tokenizer=BLANK_TEXT)
    assert store.document_ends.tolist() == list(range(1, 20_001))
    assert store.tokens.tolist() == ids_of(BLANK_TEXT, words)
    assert store.duplicates == 20_000 - 4


def test_empty_files_among_others_and_alone(tmp_path: Path):
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "blank.txt").write_text(" \n\n")
    (tmp_path / "a.txt").write_text("a\n")
    paths = [tmp_path / name for name in ("empty.txt", "a.txt", "blank.txt")]
    assert prepare(paths, tmp_path / "store", tokenizer=BLANK_TEXT).documents == 1
    with pytest.raises(InputError, match="the corpus is empty: no text in"):
        prepare([paths[0], paths[2]], tmp_path / "other", tokenizer=BLANK_TEXT)
    assert not (tmp_path / ".other.part").exists()


@pytest.mark.skipif(importlib.util.find_spec("jieba") is None, reason="jieba is not installed")
def test_words_of_a_segmenter(tmp_path: Path):
    text = "我们在北京大学学习。 Natural北京 中国"
    letters = sorted({*text.lower()} - {" "})
    entries = [*SPECIAL, *letters, *(f"##{c}" for c in letters), "natu", "##ral"]
    tokenizer = Tokenizer.wordpiece(entries)
    (tmp_path / "a.txt").write_text(text + "\n中国\n", encoding="utf-8")
    store = prepare(tmp_path / "a.txt", tmp_path / "store", tokenizer=tokenizer, segmenter="jieba")
    assert store.words is not None
    assert store.words.dtype == np.uint8
    marked = [
        ("|" if first else "") + token
        for token, first in zip(
            tokenizer.tokens(store.tokens.tolist()), store.words.tolist(), strict=True
        )
    ]
    expected = "|我 们 |在 |北 京 大 学 |学 习 |。 |natu ##ral |北 京 |中 国 |中 国"
    assert " ".join(marked) == expected
    plain = prepare(tmp_path / "a.txt", tmp_path / "plain", tokenizer=tokenizer)
    assert plain.words is None
    assert np.array_equal(plain.tokens, store.tokens)
    assert plain.identity != store.identity
    several = tmp_path / "several"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunks, "CHUNK_SIZE", 1)
        prepare(tmp_path / "a.txt", several, tokenizer=tokenizer, segmenter="jieba", processes=2)
    assert (several / "words.bin").read_bytes() == (tmp_path / "store/words.bin").read_bytes()


@pytest.mark.skipif(importlib.util.find_spec("jieba") is not None, reason="jieba is installed")
def test_a_segmenter_that_is_missing(tmp_path: Path):
    (tmp_path / "a.txt").write_text("a\n")
    with pytest.raises(InputError, match=r"pip install 'ownbert\[zh\]'"):
        prepare(tmp_path / "a.txt", tmp_path / "s", tokenizer=WORDPIECE, segmenter="jieba")
