"""Speed-up from the key-value cache: the same decoding with and without it, in alternation.

    python benchmarks/translation.py [--layers 3] [--d-model 256] [--sentences 32] [--tokens 50]

A model with random weights generates exactly this number of tokens for each sentence (of 10 to 30
tokens); the end token is never chosen. Prints median seconds with and without, and their ratio.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch

from ownbert.batches.batch import Batch, from_padded
from ownbert.nn.prepack import prepack
from ownbert.translation.generate import Hypothesis, beam_search, greedy
from ownbert.translation.transformer import make_model

VOCABULARY, START, END = 8000, 1, 2


def sources(count: int) -> Batch:
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(3, VOCABULARY, (count, 30), generator=generator)
    lengths = torch.randint(10, 31, (count, 1), generator=generator)
    return from_padded(ids, (torch.arange(30) < lengths).long())[0]


def seconds(run: Callable[[], list[Hypothesis]]) -> tuple[float, list[Hypothesis]]:
    start = time.perf_counter()
    written = run()
    return time.perf_counter() - start, written


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    for name, value in (("layers", 3), ("d-model", 256), ("sentences", 32), ("tokens", 50)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    torch.manual_seed(0)
    width = given.d_model
    made = make_model(
        VOCABULARY,
        VOCABULARY,
        N=given.layers,
        d_model=width,
        d_ff=4 * width,
        h=width // 64,
        share_embeddings=True,
    )
    made.heads["generator"].projection.bias.data[END] = -1e9
    model, batch = prepack(made), sources(given.sentences)
    asked = {"start": START, "end": END, "longest": [given.tokens] * given.sentences}
    ways = {
        "greedy": lambda cached: greedy(model, batch, **asked, cached=cached),
        "beam of 4": lambda cached: beam_search(model, batch, **asked, beams=4, cached=cached),
    }
    print(
        f"{given.layers} + {given.layers} layers of {width}, {given.sentences} sentences, "
        f"{given.tokens} tokens each, {torch.get_num_threads()} threads"
    )
    for name, run in ways.items():
        times: dict[bool, list[float]] = {True: [], False: []}
        texts = {cached: run(cached) for cached in (True, False)}
        same = sum(a.ids == b.ids for a, b in zip(texts[True], texts[False], strict=True))
        for _ in range(given.rounds):
            for cached in (True, False):
                times[cached].append(seconds(lambda run=run, cached=cached: run(cached))[0])
        ratios = [b / a for a, b in zip(times[True], times[False], strict=True)]
        kept, again = (statistics.median(times[cached]) for cached in (True, False))
        print(
            f"{name}: {kept:.3f} s with the cache, {again:.3f} s without; "
            f"{statistics.median(ratios):.1f} times as fast ({min(ratios):.1f} to "
            f"{max(ratios):.1f}); {same} of {given.sentences} texts identical"
        )


if __name__ == "__main__":
    main()
