"""Speed of a pretraining step: OwnBERT and Transformers, alternating in one process.

    python benchmarks/pretrain_step.py [--size mini base] [--precisions float32 bfloat16]
        [--rounds 10] [--minutes 4] [--profile] [--lengths 16 128] [--sequences 32]
        [--accumulate 1] [--dropout 0.1] [--threads N] [--clock cpu] [--device cpu] [--json]

A step is a forward pass, the MLM loss, a backward pass, gradient clipping to a norm of 1, and fused
AdamW. Each round has its own sequences, of lengths drawn uniformly from 16 to 128 (``--lengths``),
with 15 % of the tokens masked: 32 sequences for mini and smaller models, 8 for larger ones
(``--sequences``). With ``--accumulate N`` a step adds up the gradients of N such batches before it
clips and updates: ``--size base --sequences 28 --accumulate 4`` has some 8,000 tokens per update.
All variants start from the same weights and see the same sequences, except for Transformers' best
arrangement: the same number of blocks of 128 tokens, without padding or mask, in bfloat16 where the
processor multiplies it. Where it does not, bfloat16 is left out (``--precisions``). Batches are
prepared before the clock starts, for all variants. The table has medians over the rounds, with the
lowest and highest ratio: tokens per second without padding, how many times as fast as Transformers
in float32 (and, in the precision of Transformers' best, as that), and the model FLOPs utilisation
(MFU) relative to the matmul peak measured in all rounds. ``--profile`` also shows where OwnBERT's
time goes. The rows "sampled softmax" compare a masked word with those of its batch and 4,096 drawn
ones, as ``ownbert pretrain`` does on a CPU. A run takes the ``--minutes``, or as long as
``--rounds`` need. On a busy machine use ``--threads 1 --clock cpu``, which counts this process's
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
from rounds import add_rounds, native_precisions, rounds_of

from ownbert.config.encoder import SIZES, EncoderConfig
from ownbert.nn.model import Model
from ownbert.nn.undrawn import shapes_alone
from ownbert.train.device import keep_memory
from ownbert.train.meter import matmul_rate, training_flops

SEQUENCES = {"tiny": 32, "mini": 32}  # per batch; 8 for all others
PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16}
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
OURS, THEIRS = "OwnBERT, {}", "Transformers, {}"
SAMPLED, BEST = f"{OURS}, sampled softmax", "Transformers' best: full blocks, {}"
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
    precisions = given.precisions or native_precisions(given.device)
    found = {}
    for number, size in enumerate(given.size, 1):
        ours, theirs = make_both(size, given.dropout, device)
        trainers = {OURS: ours, SAMPLED: OwnBERT(ours.model, device, sampled=True), THEIRS: theirs}
        ways = {
            name.format(precision): Way(trainer, PRECISIONS[precision])
            for name, trainer in trainers.items()
            for precision in precisions
        }
        best = precisions[-1]
        ways[BEST.format(best)] = Way(theirs, PRECISIONS[best], blocks=True)
        race = Race(size, precisions, ways, given)
        race.run(number / len(given.size))
        found[size] = race.table()
        if given.profile:
            for name in map(OURS.format, precisions):
                profile(name, ways[name], race.texts(0))
    if given.json:
        print(json.dumps(found))


class Race:
    """All variants in turn, one step each per round."""

    def __init__(
        self, size: str, precisions: list[str], ways: dict[str, Way], given: argparse.Namespace
    ) -> None:
        self.size, self.precisions, self.ways, self.given = size, precisions, ways, given
        self.device, self.clock = torch.device(given.device), CLOCKS[given.clock]
        self.sequences = given.sequences or SEQUENCES.get(size, 8)
        with shapes_alone():
            config = EncoderConfig.of_size(size, vocab_size=VOCABULARY)
            self.model = Model(config, ["mlm"], pooler=False)
        # By variant, one value per round: tokens and operations per second.
        self.rates: dict[str, list[float]] = {name: [] for name in ways}
        self.operations: dict[str, list[float]] = {name: [] for name in ways}
        self.ceilings = dict.fromkeys((PRECISIONS[name] for name in precisions), 0.0)

    def texts(self, number: int, *, blocks: bool = False) -> list[Text]:
        """Those of the batches of a step."""
        rng = np.random.default_rng((number, blocks))
        low, high = self.given.lengths
        texts = []
        for _ in range(self.given.accumulate):
            lengths = rng.integers(low, high + 1, self.sequences)
            texts.append(make_text(rng, np.full(self.sequences, BLOCK) if blocks else lengths))
        return texts

    def run(self, share: float) -> None:
        for number in rounds_of(self.given, share, warm_up=True):
            for dtype, ceiling in self.ceilings.items():
                self.ceilings[dtype] = max(
                    ceiling, matmul_rate(self.device, dtype, 0.2, self.clock)
                )
            for name, way in self.ways.items():
                texts = self.texts(max(number, 0), blocks=way.blocks)
                seconds = self.seconds(way, [way.trainer.batch(text, way.dtype) for text in texts])
                if number < 0:
                    continue
                lengths = [length for text in texts for length in text.lengths]
                masked = sum(text.masked for text in texts)
                work = training_flops(self.model, lengths, {self.model.heads["mlm"]: masked})
                self.rates[name].append(sum(lengths) / seconds)
                self.operations[name].append(work / seconds)
            print(f"  {self.size}: round {number + 1}", file=sys.stderr, flush=True)

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
        peaks = zip(self.precisions, self.ceilings.values(), strict=True)
        peak = ", ".join(f"{rate / 1e9:,.0f} in {name}" for name, rate in peaks)
        theirs, best = THEIRS.format(self.precisions[0]), BEST.format(self.precisions[-1])
        print(
            f"\n{self.size}: {batches}{self.sequences} sequences of {low} to {high} tokens, "
            f"dropout {self.given.dropout}, {self.given.threads} threads, "
            f"{len(self.rates[best])} rounds; matmul peak in GFLOP/s {peak}\n"
        )
        print(f"| | tokens/s | times as fast as Transformers in {self.precisions[0]} | MFU |")
        print("|---|---|---|---|")
        for name, rates in self.rates.items():
            share = statistics.median(self.operations[name]) / self.ceilings[self.ways[name].dtype]
            times = "" if name == theirs else self.ratio(name, theirs)
            # The arithmetic of a sampled softmax is less, and not counted.
            mfu = "" if "sampled" in name else f"{share:.0%}"
            print(f"| {name} | {statistics.median(rates):,.0f} | {times} | {mfu} |")
        print()
        pairs = {"best_transformers": (OURS.format(self.precisions[-1]), best)}
        pairs["sampled_best"] = (SAMPLED.format(self.precisions[-1]), best)
        for name, _ in pairs.values():
            print(f"{name}: {self.ratio(name, best)} times as fast as {best}", flush=True)
        for precision in self.precisions:
            pairs[precision] = (OURS.format(precision), theirs)
            pairs[f"sampled_{precision}"] = (SAMPLED.format(precision), theirs)
        return {key: round(statistics.median(self.ratios(*pair)), 3) for key, pair in pairs.items()}

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
    parser.add_argument("--precisions", nargs="+", choices=PRECISIONS)
    add_rounds(parser, 10)
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
    sequences = 1 if given.sequences is None else given.sequences
    if min(given.most, given.threads, given.accumulate, sequences) < 1:
        parser.error("--rounds, --threads, --accumulate and --sequences must be at least 1")
    if not 1 <= given.lengths[0] <= given.lengths[1] <= 512:
        parser.error("--lengths must be two numbers from 1 to 512, the lower one first")
    return given


if __name__ == "__main__":
    main()
