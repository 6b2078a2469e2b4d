"""Speed beside other programs: what threads that wait for each other cost on a shared machine.

    python benchmarks/busy.py [--rounds 3] [--seconds 8] [--busy 2] [--only pretrain predict ...]

Each workload runs by itself, and beside processes that do nothing but compute, in turn, each time
in a new process that is set up as the commands are (``ownbert.threads``), or by the variables of
--with. The table has units per second alone and beside the others, medians over the rounds with the
range, and the share that is left; the fair share of two cores beside two busy processes is half.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

SAMPLE = Path(__file__).parents[1] / "examples" / "anonymised"
WORKLOADS = ("pretrain", "predict", "embed", "views")
_SPIN = "while True: sum(i * i for i in range(10000))"


def prepared(folder: Path) -> None:
    """A token store, a pretrained model and a classifier, for the workloads."""
    import ownbert

    corpus = str(SAMPLE / "unlabelled.txt.gz")
    ownbert.learn_vocabulary(corpus, folder / "bert", kind="blank")
    ownbert.prepare(corpus, folder / "tokens", tokenizer=folder / "bert")
    ownbert.pretrain(folder / "tokens", folder / "bert", size="tiny", max_steps=20, quiet=True)
    ownbert.finetune(
        model=folder / "bert",
        train=SAMPLE / "train.csv.gz",
        output=folder / "classifier",
        labels_per_class=10,
        max_steps=5,
        quiet=True,
    )


def work(name: str, folder: Path, seconds: float) -> float:
    """Units per second: tokens, texts or views."""
    import ownbert
    from ownbert.tables.columns import read_texts

    texts = list(read_texts(SAMPLE / "test.csv.gz"))[:1000]
    if name == "pretrain":
        with tempfile.TemporaryDirectory() as scratch:
            out = Path(scratch, "bert")
            options = {"size": "tiny", "max_minutes": seconds / 60, "log_every": 5}
            ownbert.pretrain(folder / "tokens", out, quiet=True, **options)
            rows = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
        found = [row["tokens_per_second"] for row in rows if row.get("tokens_per_second")]
        return statistics.median(found)
    if name == "views":
        from ownbert.views.view_features import VIEWS, Texts

        rows, none = [(text,) for text in texts], Texts([], "ids")

        def unit() -> int:
            for view in ("lsa", "word-vectors"):
                VIEWS[view].fit(Texts(rows, "ids"), none)
            return 2
    else:
        if name == "predict":
            run = ownbert.Predictor(folder / "classifier").predict
        else:
            run = ownbert.Embedder(folder / "bert").encode

        def unit() -> int:
            return len(run(texts))

    unit()  # compiles and fills caches
    began, done = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        done += unit()
    return done / (time.perf_counter() - began)


@contextlib.contextmanager
def busy(count: int) -> Iterator[None]:
    """Processes that compute while inside."""
    others = [subprocess.Popen([sys.executable, "-c", _SPIN]) for _ in range(count)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def measured(name: str, folder: Path, seconds: float, variables: Mapping[str, str]) -> float:
    """A workload in a process of its own."""
    command = [sys.executable, __file__, "--work", name, "--folder", str(folder)]
    command += ["--seconds", str(seconds)]
    done = subprocess.run(
        command, env={**os.environ, **variables}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    return float(done.stdout.split()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--busy", type=int, default=2)
    parser.add_argument("--only", nargs="+", default=WORKLOADS, choices=WORKLOADS)
    parser.add_argument("--with", nargs="*", dest="variants", default=[""], metavar="A=1,B=2")
    parser.add_argument("--work", choices=WORKLOADS)
    parser.add_argument("--folder", type=Path)
    given = parser.parse_args()
    if given.work:
        from ownbert.threads import share_the_machine

        share_the_machine()
        print(work(given.work, given.folder, given.seconds))
        return
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} before the start", flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        prepared(Path(scratch))
        for name in given.only:
            for variant in given.variants:
                variables = dict(part.split("=") for part in variant.split(",") if part)
                alone, beside = [], []
                for _ in range(given.rounds):
                    alone.append(measured(name, Path(scratch), given.seconds, variables))
                    with busy(given.busy):
                        beside.append(measured(name, Path(scratch), given.seconds, variables))
                shares = [b / a for a, b in zip(alone, beside, strict=True)]
                print(
                    f"{name:10} {variant or 'as the commands':40} "
                    f"alone {_range(alone)}  beside {_range(beside)}  "
                    f"share {statistics.median(shares):.2f} ({min(shares):.2f} to "
                    f"{max(shares):.2f})",
                    flush=True,
                )


def _range(values: list[float]) -> str:
    return f"{statistics.median(values):,.1f} ({min(values):,.1f} to {max(values):,.1f})"


if __name__ == "__main__":
    main()
