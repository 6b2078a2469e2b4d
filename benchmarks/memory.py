"""Memory of a training step of BERT-base, and what checkpointing and chunking save.

    python benchmarks/memory.py [--sequences 16] [--length 512] [--chunk 64] [--size base] [--json]

Random weights and random text, float32, the MLM loss on 15 % of the tokens, forward and backward
pass without an optimiser. Every variant runs in its own process. The table shows by how much the
step raises resident memory above that of the model with its gradients (step), the peak resident
memory (peak), and seconds. The last two variants are forward passes without gradients.
"""

import argparse
import contextlib
import json
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import torch

from ownbert.batches.batch import Batch, Example, pack
from ownbert.config.encoder import EncoderConfig
from ownbert.nn.model import Model
from ownbert.objectives import MaskedLM

# Name: gradient checkpointing, chunks in the feed-forward network, training.
VARIANTS = {
    "plain": (False, False, True),
    "gradient checkpointing": (True, False, True),
    "chunked feed-forward": (False, True, True),
    "both": (True, True, True),
    "inference": (False, False, False),
    "inference, chunked feed-forward": (False, True, False),
}
VOCABULARY = 30_522
STATUS = Path("/proc/self/status")


def make_batch(sequences: int, length: int) -> Batch:
    """Random tokens, 15 % of them masked."""
    rng = np.random.default_rng(0)
    examples = []
    for _ in range(sequences):
        ids = rng.integers(5, VOCABULARY, length)
        masked = np.sort(rng.choice(length, round(0.15 * length), replace=False))
        examples.append(Example(ids, np.zeros(length, int), masked, ids[masked]))
    return pack(examples)


def resident(name: str) -> float:
    """Resident memory of this process in GiB: current (VmRSS) or peak (VmHWM)."""
    if STATUS.exists():
        line = next(x for x in STATUS.read_text().splitlines() if x.startswith(name))
        return int(line.split()[1]) / 2**20
    # Other systems report only the peak since the start.
    kibibytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return kibibytes / 2 ** (30 if sys.platform == "darwin" else 20)


def forget_peak() -> None:
    """Reset VmHWM to the current resident memory; see proc(5), clear_refs."""
    with contextlib.suppress(OSError):
        STATUS.with_name("clear_refs").write_text("5")


def measure(name: str, given: argparse.Namespace) -> dict[str, float]:
    """Run one step of a variant in this process."""
    checkpointing, chunks, training = VARIANTS[name]
    torch.manual_seed(0)
    chunk = given.chunk if chunks else 0
    config = EncoderConfig.of_size(
        given.size,
        vocab_size=VOCABULARY,
        chunk_size_feed_forward=chunk,
        max_position_embeddings=max(512, given.length),
    )
    model = Model(config, ["mlm"]).train(training)
    model.encoder.gradient_checkpointing = checkpointing
    objective = MaskedLM()

    def step(batch: Batch) -> None:
        with torch.set_grad_enabled(training):
            loss = objective(model(batch).logits["mlm"], batch).total
        if training:
            loss.backward()

    step(make_batch(1, 16))  # allocate gradients and load libraries before the clock starts
    batch = make_batch(given.sequences, given.length)
    forget_peak()
    before, start = resident("VmRSS"), time.perf_counter()
    step(batch)
    seconds, peak = time.perf_counter() - start, resident("VmHWM")
    return {"step": peak - before, "peak": peak, "seconds": seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", default="base")
    parser.add_argument("--sequences", type=int, default=16)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--chunk", type=int, default=64, help="tokens per chunk of each sequence")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--only", choices=VARIANTS, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.only:
        print(json.dumps(measure(given.only, given)))
        return
    rows = {}
    if not given.json:
        print(f"{'GiB':32} {'step':>6} {'peak':>6} {'seconds':>8}")
    for name in VARIANTS:
        command = [sys.executable, __file__, *sys.argv[1:], "--only", name]
        done = subprocess.run(command, stdout=subprocess.PIPE)
        if done.returncode:
            # If memory runs out, the system kills the process.
            rows[name] = {"failed": done.returncode}
        else:
            rows[name] = json.loads(done.stdout)
        if not given.json:
            row = rows[name]
            if done.returncode:
                print(f"{name:32} exited with {done.returncode}", flush=True)
                continue
            print(
                f"{name:32} {row['step']:6.2f} {row['peak']:6.2f} {row['seconds']:8.1f}", flush=True
            )
    if given.json:
        print(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
