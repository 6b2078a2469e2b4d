"""The cost of glibc's malloc and of spinning threads for a pretraining step.

    python benchmarks/machine.py TOKENS [--rounds 3]

TOKENS is a token store (ownbert prepare). Runs 60 steps of tiny, MLM and NSP, in new processes,
alternating between the settings, once on an idle machine and once beside a program that keeps one
core busy, and prints the median milliseconds per step for every round.
"""

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator

SETTINGS = {
    "malloc as it is": {"KEEP": "", "GOMP_SPINCOUNT": "3000"},
    "malloc keeps memory": {"KEEP": "1", "GOMP_SPINCOUNT": "3000"},
    "and threads spin long": {"KEEP": "1"},
}


def steps(tokens: str) -> float:
    """Median seconds per step in this process."""
    from ownbert.batches.loader import Position
    from ownbert.pretraining.pretrain_recipe import PretrainRecipe
    from ownbert.pretraining.pretraining_run import Pretraining
    from ownbert.settings import resolve
    from ownbert.train.device import keep_memory
    from ownbert.train.distributed import ALONE
    from ownbert.train.optimizers import make_optimizer
    from ownbert.train.step import count_targets, step

    if os.environ["KEEP"]:
        keep_memory()
    options = {"tokens": tokens, "max_steps": 60, "init_embeddings": "random"}
    options |= {"objectives": "mlm,nsp"}
    run = Pretraining(resolve(PretrainRecipe, options=options))
    learner, optim = run.make_learner(), run.recipe.optim
    optimizer = make_optimizer(learner, optim)
    (phase,) = run.phases(learner, ALONE)
    took = []
    batches = phase.loader.batches(Position())
    for _ in range(60):
        batch, _ = next(batches)
        names = [o.name for o in phase.objectives]
        counts = dict(zip(names, count_targets(phase.objectives, [batch]), strict=True))
        start = time.perf_counter()
        step(
            learner,
            optimizer,
            [batch],
            counts,
            objectives=phase.objectives,
            optim=optim,
            rate=1e-3,
            precision=run.recipe.run.precision,
        )
        took.append(time.perf_counter() - start)
    batches.close()
    return statistics.median(took[10:])


@contextlib.contextmanager
def busy(wanted: bool) -> Iterator[None]:
    """Keep one core busy with a second program, if ``wanted``."""
    other = subprocess.Popen([sys.executable, "-c", "while True: pass"]) if wanted else None
    try:
        yield
    finally:
        if other is not None:
            other.kill()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tokens")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--once", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.once:
        print(steps(given.tokens))
        return
    for wanted in (False, True):
        found: dict[str, list[float]] = {name: [] for name in SETTINGS}
        with busy(wanted):
            for _ in range(given.rounds):
                for name, setting in SETTINGS.items():
                    environment = {k: v for k, v in os.environ.items() if k != "GOMP_SPINCOUNT"}
                    command = [sys.executable, __file__, given.tokens, "--once"]
                    out = subprocess.check_output(command, env=environment | setting)
                    found[name].append(1000 * float(out))
        print("beside a busy program" if wanted else "alone")
        for name, times in found.items():
            print(f"  {name:24}" + " ".join(f"{t:5.0f}" for t in times) + " ms")


if __name__ == "__main__":
    main()
