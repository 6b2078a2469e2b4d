"""Speed and memory of preparing a token store, and the time to load a batch from it.

    python benchmarks/store.py [--gigabytes 0.05] [--vocabulary 30000] [--rounds 5] [--json]

The text is generated: 50,000 words following Zipf's law, sentences, documents of 20 to 400 words.
`ownbert prepare` runs in its own process, whose resident memory is polled together with that of its
children. It is paused (SIGSTOP) repeatedly while the tokenizer's own `encode_batch` encodes the
same kind of text, so both run under the same conditions; `ratio` is the rate of prepare divided by
that of encode_batch. Finally, the time to load a batch of 2,048 tokens from a store of 10 MB and
from the whole store, in alternation, and the ratio of the two.
"""

import argparse
import contextlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ownbert.batches.loader import Loader, Position
from ownbert.batches.masking import Masking, ordinary_tokens
from ownbert.corpus.documents import read_documents
from ownbert.corpus.learn_vocabulary import learn_vocabulary
from ownbert.corpus.pretraining_examples import pretraining_data
from ownbert.corpus.store import Store
from ownbert.text.tokenizer import Tokenizer

SMALL = 10_000_000
BATCH_TOKENS = 2048
# Batches measured per round, and batches that a loader prepares ahead.
BATCHES, READY = 40, 6
# Characters per call of encode_batch.
BLOCK = 1_000_000
LETTERS = "etaoinshrdlucmfwypvbgkjqxz"


def generate(path: Path, size: int, words: int = 50_000) -> None:
    """About ``size`` bytes of text, the same on every run."""
    rng = np.random.default_rng(0)
    shares = 1 / np.arange(1, len(LETTERS) + 1)
    letters = rng.choice(list(LETTERS), (words, 11), p=shares / shares.sum())
    lengths = rng.integers(2, 11, words).tolist()
    table = ["".join(row[:n]) for row, n in zip(letters.tolist(), lengths, strict=True)]
    # Each word inside a sentence, at its end, and at its beginning.
    kinds = np.array([*table, *(w + "." for w in table), *(w.capitalize() for w in table)], object)
    edges = np.cumsum(1 / np.arange(1, words + 1))
    written = 0
    with path.open("w", encoding="utf-8") as file:
        while written < size:
            chosen = np.searchsorted(edges / edges[-1], rng.random(200_000))
            chosen = np.minimum(chosen, words - 1)
            ends = rng.random(len(chosen)) < 1 / 15
            chosen[ends] += words
            chosen[1:][ends[:-1] & ~ends[1:]] += 2 * words
            stops = np.cumsum(rng.integers(20, 400, 900))
            stops = stops[stops < len(chosen)]
            parts = np.split(kinds[chosen], stops)
            written += file.write("\n".join(" ".join(part) for part in parts) + "\n")


def resident(process: int) -> float:
    """Current resident memory of a process and its children in MB."""
    total = 0
    for number in family(process):
        with contextlib.suppress(OSError):
            lines = Path(f"/proc/{number}/status").read_text().splitlines()
            total += sum(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))
    return total / 1e3


def family(process: int) -> list[int]:
    """A process and its descendants. A child that has been forked but has not yet called exec is
    left out: its memory is its parent's."""
    found = [process]
    for task in Path(f"/proc/{process}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in map(int, task.read_text().split()):
                if command_line(child) != command_line(process):
                    found += family(child)
    return found


def command_line(process: int) -> bytes:
    return Path(f"/proc/{process}/cmdline").read_bytes()


def send(process: int, number: int) -> None:
    for one in family(process):
        with contextlib.suppress(ProcessLookupError):
            os.kill(one, number)


def blocks(corpus: Path) -> Iterator[list[str]]:
    """Blocks of documents of about ``BLOCK`` characters, repeating the corpus endlessly."""
    while True:
        block, size = [], 0
        for document in read_documents(corpus, layout="line"):
            block += document.pieces
            size += len(document.pieces[0])
            if size >= BLOCK:
                yield block
                block, size = [], 0


def measure_prepare(corpus: Path, vocabulary: Path, output: Path) -> dict[str, Any]:
    """Rates in MB per second and peak memory in MB."""
    tokenizer = Tokenizer.load(vocabulary)
    command = [sys.executable, "-m", "ownbert", "prepare", str(corpus), "-o", str(output)]
    own, texts = [], blocks(corpus)
    tokenizer.backend.encode_batch(next(texts), add_special_tokens=False)  # start the threads
    process = subprocess.Popen([*command, "-t", str(vocabulary)], stdout=subprocess.DEVNULL)
    started, stopped, peak = time.perf_counter(), 0.0, 0.0
    begun = False
    every = 2 + 6 * min(1.0, corpus.stat().st_size / 1e9)
    turn = started
    while process.poll() is None:
        peak = max(peak, resident(process.pid))
        time.sleep(0.02)
        if time.perf_counter() - turn < (every if begun else 1):
            continue
        begun = True
        pause = time.perf_counter()
        send(process.pid, signal.SIGSTOP)
        block = next(texts)
        size = sum(len(text.encode()) for text in block) / 1e6
        start = time.perf_counter()
        tokenizer.backend.encode_batch(block, add_special_tokens=False)
        own.append(size / (time.perf_counter() - start))
        send(process.pid, signal.SIGCONT)
        turn = time.perf_counter()
        stopped += turn - pause
    seconds = time.perf_counter() - started - stopped
    if process.returncode:
        sys.exit(process.returncode)
    store = Store.open(output)
    rate = corpus.stat().st_size / 1e6 / seconds
    return {
        "megabytes": corpus.stat().st_size / 1e6,
        "tokens": len(store.tokens),
        "seconds": seconds,
        "prepare_mb_per_s": rate,
        "prepare_tokens_per_s": len(store.tokens) / seconds,
        "encode_batch_mb_per_s": statistics.median(own),
        "encode_batch_calls": len(own),
        "ratio": rate / statistics.median(own),
        "peak_mb": peak,
    }


def batches(store: Store) -> Iterator[object]:
    tokenizer = store.tokenizer()
    ordinary = ordinary_tokens(tokenizer.vocab_size, tokenizer.special_ids)
    masking = Masking(tokenizer.mask_id, ordinary)
    data, _ = pretraining_data(
        store, tokenizer, masking, max_length=128, pairs="nsp", held_out=0.02, seed=0
    )
    return Loader(data, seed=0, batch_tokens=BATCH_TOKENS).batches(Position())


def measure_loading(folders: list[Path], rounds: int) -> list[dict[str, float]]:
    """Seconds to open a store and to its first batch, milliseconds for each later batch."""
    sources, rows = [], []
    for folder in folders:
        start = time.perf_counter()
        store = Store.open(folder)
        opened = time.perf_counter() - start
        source = batches(store)
        next(source)
        rows.append({"open_s": opened, "first_s": time.perf_counter() - start - opened})
        sources.append((source, []))
    for _ in range(rounds):
        for source, times in sources:
            for _ in range(READY):  # prepared ahead while the other was measured
                next(source)
            start = time.perf_counter()
            for _ in range(BATCHES):
                next(source)
            times.append(1e3 * (time.perf_counter() - start) / BATCHES)
    for row, (_, times) in zip(rows, sources, strict=True):
        row["ms"] = statistics.median(times)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gigabytes", type=float, default=0.05)
    parser.add_argument("--vocabulary", type=int, default=30_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="folder for the temporary text and stores")
    parser.add_argument("--json", action="store_true", help="results as JSON on the last line")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(dir=given.folder))
    try:
        row = run(folder, given)
    finally:
        shutil.rmtree(folder)
    for name, value in row.items():
        print(
            f"{name:24} {value:>16,.3f}" if isinstance(value, float) else f"{name:24} {value:>16,}"
        )
    if given.json:
        print(json.dumps(row))


def run(folder: Path, given: argparse.Namespace) -> dict[str, Any]:
    small, whole, vocabulary = folder / "small.txt", folder / "whole.txt", folder / "vocabulary"
    generate(small, SMALL)
    generate(whole, round(given.gigabytes * 1e9))
    learn_vocabulary(small, vocabulary, vocab_size=given.vocabulary)
    measure_prepare(small, vocabulary, folder / "small")
    row = measure_prepare(whole, vocabulary, folder / "whole")
    loading = measure_loading([folder / "small", folder / "whole"], given.rounds)
    for name, found in zip(("10mb", "whole"), loading, strict=True):
        row |= {f"batch_ms_{name}": found["ms"], f"open_s_{name}": found["open_s"]}
        row |= {f"first_batch_s_{name}": found["first_s"]}
    return row | {"batch_ratio": loading[1]["ms"] / loading[0]["ms"]}


if __name__ == "__main__":
    main()
