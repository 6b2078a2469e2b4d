"""How many of the ten texts that an index finds have the class of the query, by each way.

    python benchmarks/search.py MODEL train.csv test.csv [--titles N [--forms float16 int8 ...]]

With --titles, the time and the memory of an index of N pieces of the texts of train.csv.
"""

import argparse
import csv
import random
import statistics
import tempfile
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from time import process_time

import numpy as np

from ownbert import build_index
from ownbert.unlabelled.index import RANKINGS

TOP = 10
FORMS, APPROXIMATE = ("float16", "int8"), "approximate"


def read(path: Path) -> tuple[list[str], list[str]]:
    """The labels and the texts of a csv file."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return [row["label"] for row in rows], [row["text"] for row in rows]


def titles(texts: list[str], count: int) -> list[str]:
    """Pieces of 5 to 10 words of the texts."""
    rng, found = random.Random(0), []
    while len(found) < count:
        words = rng.choice(texts).split()
        start = rng.randrange(max(1, len(words) - 5))
        found.append(" ".join(words[start : start + rng.randint(5, 10)]))
    return found


def time_titles(model: Path, texts: list[str], count: int, forms: list[str]) -> None:
    """Print the processor time of an index of titles, and of queries that come one by one; and the
    memory of the process so far, memory-mapped files included."""
    given = titles(texts, count)
    with tempfile.TemporaryDirectory() as folder:
        exact = None
        for name in forms:
            start = process_time()
            place, approximate = Path(folder, name), name == APPROXIMATE
            form = "float16" if approximate else name
            index = build_index(model, given, place, form=form, approximate=approximate)
            exact = exact or index
            took = process_time() - start
            size = sum(path.stat().st_size for path in place.iterdir())
            if approximate and exact is not index:
                queries = given[:: max(1, count // 500)]
                found, true = (
                    each.search(queries, by="vectors", top_k=TOP) for each in (index, exact)
                )
                shared = [
                    len({h["row"] for h in a} & {h["row"] for h in b}) / TOP
                    for a, b in zip(found, true, strict=True)
                ]
                print(f"approximate: {np.mean(shared):.3f} of the nearest {TOP} are found")
            print(f"{name}: {count:,} titles indexed in {took:.1f} s, {size / 1e6:.0f} MB")
            for by in RANKINGS:
                index.search(given[0], by=by)
                times = []
                for query in given[:: max(1, count // 50)]:
                    start = process_time()
                    index.search(query, by=by)
                    times.append(process_time() - start)
                print(f"  {by}: {1000 * statistics.median(times):.1f} ms per query")
            print(f"  {getrusage(RUSAGE_SELF).ru_maxrss / 1000:.0f} MB of memory at most")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("texts", type=Path)
    parser.add_argument("queries", type=Path)
    parser.add_argument("--titles", type=int)
    forms = (*FORMS, APPROXIMATE)
    parser.add_argument("--forms", nargs="+", choices=forms, default=forms)
    given = parser.parse_args()
    labels, texts = read(given.texts)
    if given.titles is not None:
        time_titles(given.model, texts, given.titles, given.forms)
        return
    wanted, queries = read(given.queries)
    known = np.asarray(labels)
    with tempfile.TemporaryDirectory() as folder:
        for form in ("float16", "int8"):
            start = process_time()
            index = build_index(given.model, texts, Path(folder, form), form=form)
            print(f"{form}: {len(index):,} texts indexed in {process_time() - start:.1f} s")
            index.search(queries[0])
            for by in RANKINGS:
                start = process_time()
                found = index.search(queries, top_k=TOP, by=by)
                took = (process_time() - start) / len(queries)
                right = [
                    np.mean(known[[hit["row"] - 1 for hit in hits]] == label) if hits else 0.0
                    for hits, label in zip(found, wanted, strict=True)
                ]
                print(f"  {by}: precision at {TOP} {np.mean(right):.3f}, {1000 * took:.2f} ms")


if __name__ == "__main__":
    main()
