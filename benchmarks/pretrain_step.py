"""Speed of a pretraining step: OwnBERT and Transformers, alternating in one process.

    python benchmarks/pretrain_step.py [--size mini base] [--rounds 10] [--quick] [--profile]
        [--lengths 16 128] [--sequences 32] [--accumulate 1] [--dropout 0.1] [--threads N]
        [--clock cpu] [--device cpu] [--json]

A step is a forward pass, the MLM loss, a backward pass, gradient clipping to a norm of 1, and fused
AdamW. Each round has its own sequences, of lengths drawn uniformly from 16 to 128 (``--lengths``),
with 15 % of the tokens masked: 32 sequences for mini and smaller models, 8 for larger ones
(``--sequences``). With ``--accumulate N`` a step adds up the gradients of N such batches before it
clips and updates: ``--size base --sequences 28 --accumulate 4`` has some 8,000 tokens per update.
All variants start from the same weights and see the same sequences, except for Transformers' best
arrangement: the same number of blocks of 128 tokens, without padding or mask. Batches are prepared
before the clock starts, for all variants. The table has medians over the rounds, with the lowest
and highest ratio: tokens per second without padding, how many times as fast as Transformers in
float32 (and, for OwnBERT in bfloat16, as Transformers' best), and the model FLOPs utilisation (MFU)
relative to the matmul peak measured in all rounds. ``--profile`` also shows where OwnBERT's time
goes. The rows "sampled softmax" compare a masked word with those of its batch and 4,096 drawn ones,
as ``ownbert pretrain`` does on a CPU. Both sizes take some 5 minutes on two idle cores, with
``--quick`` 2. On a busy machine use ``--threads 1 --clock cpu``, which counts this process's
processor time. On a GPU, attention uses PyTorch's kernel for packed sequences, but only in bfloat16
and without dropout (``--dropout 0``), which that kernel does not support.
"""

import argparse
import json
import os
import statistics
import sys
import time
import warnings
from dataclasses import dataclass
from typing import Any

os.environ.setdefault("GOMP_SPINCOUNT", "3000")  # as the commands do; read when torch is loaded

import numpy as np
import torch
from pretrain_ways import BLOCK, VOCABULARY, OwnBERT, Text, Transformers, make_both, make_text, step

from ownbert.config import SIZES, EncoderConfig
from ownbert.train.device import keep_memory
from ownbert.train.flops import matmul_rate, training_flops

SEQUENCES = {"tiny": 32, "mini": 32}  # per batch; 8 for all others
F32, BF16 = torch.float32, torch.bfloat16
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
OURS, OURS_BF16 = "OwnBERT, float32", "OwnBERT, bfloat16"
SAMPLED, SAMPLED_BF16 = f"{OURS}, sampled softmax", f"{OURS_BF16}, sampled softmax"
THEIRS, BEST = "Transformers, float32", "Transformers' best: full blocks, bfloat16"
PROFILED = 16


@dataclass(frozen=True)
class Way:
    """A model with its precision, and whether it gets full blocks."""

    trainer: OwnBERT | Transformers
    dtype: torch.dtype
    blocks: bool = False


def main() -> None:
    given = arguments()
    warnings.filterwarnings("ignore")
    keep_memory()
    torch.set_num_threads(given.threads)
    device = torch.device(given.device)
    found = {}
    for size in given.size:
        ours, theirs = make_both(size, given.dropout, device)
        sampled = OwnBERT(ours.model, device, sampled=True)
        ways = {
            OURS: Way(ours, F32),
            OURS_BF16: Way(ours, BF16),
            SAMPLED: Way(sampled, F32),
            SAMPLED_BF16: Way(sampled, BF16),
            THEIRS: Way(theirs, F32),
            "Transformers, bfloat16": Way(theirs, BF16),
            BEST: Way(theirs, BF16, blocks=True),
        }
        race = Race(size, ways, given)
        race.run()
        found[size] = race.table()
        if given.profile:
            for name in (OURS, OURS_BF16):
                profile(name, ways[name], race.texts(0))
    if given.json:
        print(json.dumps(found))


class Race:
    """All variants in turn, one step each per round."""

    def __init__(self, size: str, ways: dict[str, Way], given: argparse.Namespace) -> None:
        self.size, self.ways, self.given = size, ways, given
        self.device, self.clock = torch.device(given.device), CLOCKS[given.clock]
        self.sequences = given.sequences or SEQUENCES.get(size, 8)
        self.config = EncoderConfig.of_size(size, vocab_size=VOCABULARY)
        # By variant, one value per round: tokens and operations per second.
        self.rates: dict[str, list[float]] = {name: [] for name in ways}
        self.operations: dict[str, list[float]] = {name: [] for name in ways}
        self.ceilings = {F32: 0.0, BF16: 0.0}

    def texts(self, number: int, *, blocks: bool = False) -> list[Text]:
        """Those of the batches of a step."""
        rng = np.random.default_rng((number, blocks))
        low, high = self.given.lengths
        texts = []
        for _ in range(self.given.accumulate):
            lengths = rng.integers(low, high + 1, self.sequences)
            texts.append(make_text(rng, np.full(self.sequences, BLOCK) if blocks else lengths))
        return texts

    def run(self) -> None:
        for number in range(-1, self.given.rounds):  # the first round is a warm-up
            for dtype, ceiling in self.ceilings.items():
                self.ceilings[dtype] = max(ceiling, matmul_rate(self.device, dtype, 0.2))
            for name, way in self.ways.items():
                texts = self.texts(max(number, 0), blocks=way.blocks)
                seconds = self.seconds(way, [way.trainer.batch(text, way.dtype) for text in texts])
                if number < 0:
                    continue
                lengths = [length for text in texts for length in text.lengths]
                masked = sum(text.masked for text in texts)
                work = training_flops(self.config, lengths, masked)
                self.rates[name].append(sum(lengths) / seconds)
                self.operations[name].append(work / seconds)
            done = f"  {self.size}: round {number + 1} of {self.given.rounds}"
            print(done, file=sys.stderr, flush=True)

    def seconds(self, way: Way, batches: list[Any]) -> float:
        self.wait()
        start = self.clock()
        loss = step(way.trainer, batches, way.dtype)
        self.wait()
        took = self.clock() - start
        if not torch.isfinite(loss):
            sys.exit("the loss is not finite: these times are meaningless")
        return took

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def table(self) -> dict[str, float]:
        low, high = self.given.lengths
        batches = f"{self.given.accumulate} x " if self.given.accumulate > 1 else ""
        print(
            f"\n{self.size}: {batches}{self.sequences} sequences of {low} to {high} tokens, "
            f"dropout {self.given.dropout}, {self.given.threads} threads; matmul peak "
            f"{self.ceilings[F32] / 1e9:,.0f} GFLOP/s in float32, {self.ceilings[BF16] / 1e9:,.0f} "
            "in bfloat16\n"
        )
        print("| | tokens/s | times as fast as Transformers in float32 | MFU |")
        print("|---|---|---|---|")
        for name, rates in self.rates.items():
            share = statistics.median(self.operations[name]) / self.ceilings[self.ways[name].dtype]
            times = "" if name == THEIRS else self.ratio(name, THEIRS)
            # The arithmetic of a sampled softmax is less, and not counted.
            mfu = "" if name in (SAMPLED, SAMPLED_BF16) else f"{share:.0%}"
            print(f"| {name} | {statistics.median(rates):,.0f} | {times} | {mfu} |")
        print()
        for name in (OURS_BF16, SAMPLED_BF16):
            print(f"{name}: {self.ratio(name, BEST)} times as fast as {BEST}", flush=True)
        return {
            "float32": round(statistics.median(self.ratios(OURS, THEIRS)), 3),
            "bfloat16": round(statistics.median(self.ratios(OURS_BF16, THEIRS)), 3),
            "best_transformers": round(statistics.median(self.ratios(OURS_BF16, BEST)), 3),
            "sampled_float32": round(statistics.median(self.ratios(SAMPLED, THEIRS)), 3),
            "sampled_bfloat16": round(statistics.median(self.ratios(SAMPLED_BF16, THEIRS)), 3),
            "sampled_best": round(statistics.median(self.ratios(SAMPLED_BF16, BEST)), 3),
        }

    def ratios(self, one: str, other: str) -> list[float]:
        return [a / b for a, b in zip(self.rates[one], self.rates[other], strict=True)]

    def ratio(self, one: str, other: str) -> str:
        found = self.ratios(one, other)
        return f"{statistics.median(found):.2f} ({min(found):.2f} to {max(found):.2f})"


def profile(name: str, way: Way, texts: list[Text]) -> None:
    """Print the operations that take most of the time of a step, excluding those that they call."""
    batches = [way.trainer.batch(text, way.dtype) for text in texts]
    step(way.trainer, batches, way.dtype)
    with torch.profiler.profile() as profiler:
        for _ in range(3):
            step(way.trainer, batches, way.dtype)
    rows = profiler.key_averages()
    on_device = way.trainer.device.type == "cuda"
    spent = "self_device_time_total" if on_device else "self_cpu_time_total"
    total = sum(getattr(row, spent) for row in rows)
    print(f"\n{name}: where the time goes\n\n| | share | calls per step |\n|---|---|---|")
    for row in sorted(rows, key=lambda row: -getattr(row, spent))[:PROFILED]:
        print(f"| {row.key} | {getattr(row, spent) / total:.1%} | {row.count / 3:.0f} |")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", nargs="+", choices=SIZES, default=["mini", "base"])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--quick", action="store_true", help="three rounds")
    parser.add_argument("--lengths", type=int, nargs=2, default=[16, 128], metavar=("LOW", "HIGH"))
    parser.add_argument("--sequences", type=int, help="per batch; 32 up to mini, 8 for larger")
    parser.add_argument("--accumulate", type=int, default=1, help="batches per update")
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--profile", action="store_true", help="show where OwnBERT's time goes")
    parser.add_argument("--json", action="store_true", help="ratios as JSON on the last line")
    given = parser.parse_args()
    given.rounds = 3 if given.quick else given.rounds
    sequences = 1 if given.sequences is None else given.sequences
    if min(given.rounds, given.threads, given.accumulate, sequences) < 1:
        parser.error("--rounds, --threads, --accumulate and --sequences must be at least 1")
    if not 1 <= given.lengths[0] <= given.lengths[1] <= 512:
        parser.error("--lengths must be two numbers from 1 to 512, the lower one first")
    return given


if __name__ == "__main__":
    main()
