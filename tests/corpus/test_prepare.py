"""Preparing in several processes, stopped and resumed: always the same bytes."""

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ownbert.corpus.prepare import WorkerDied, WorkerPool
from ownbert.corpus.store import Store, prepare
from ownbert.corpus.store_writer import StoreWriter
from ownbert.exceptions import InputError
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
