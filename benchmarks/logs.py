"""How well are anomalous log sessions found, when only normal ones are known?

    python benchmarks/logs.py [--data FOLDER] [--seeds 0 1 2] [--steps 300]

For every seed a tiny model is pretrained on the normal sessions (train.txt, one in a line), and
what is normal is learnt from the same sessions. The threshold of each row of the table is that of a
rate of false alarms, chosen on normal sessions alone. The test set (test.csv.gz, with the columns
text and label; "normal" is one label) chooses nothing. F1 is given for its own share of anomalies,
and for --share of them, by weighting its rows.
"""

import argparse
import csv
import gzip
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from quality_sets import DATA
from sklearn.metrics import roc_auc_score

import ownbert
from ownbert.inference.score import PARTS

RATES = (0.01, 0.005)


def pretrained(train: Path, folder: Path, seed: int, steps: int) -> Path:
    """A tiny model of the sessions."""
    ownbert.learn_vocabulary(train, folder / "bert", kind="blank", min_count=1)
    ownbert.prepare(train, folder / "tokens", tokenizer=folder / "bert")
    ownbert.pretrain(folder / "tokens", folder / "bert", seed=seed, max_steps=steps, quiet=True)
    return folder / "bert"


def scores(
    folder: Path, train: list[str], test: list[str]
) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """The name of each way to score, and the scores of normal sessions and of test sessions."""
    scorer = ownbert.Scorer(folder).fit(train)
    profile = scorer.profile
    assert profile is not None
    seen, found = scorer(train), scorer(test)
    surprisal = np.array([one.surprisal for one in found])
    measured, _ = profile.counts.measured([one.tokens for one in found])
    parts = np.stack([{"surprisal": surprisal, **measured}[name] for name in PARTS], 1)
    for i, name in enumerate(PARTS):
        yield name, profile.normal[:, i], parts[:, i]
    yield "largest surprisal", *(np.array([max(o.surprisals) for o in s]) for s in (seen, found))
    both = [list(PARTS).index(name) for name in ("surprisal", "counts")]
    for name, chosen in (("surprisal and counts", both), ("all", slice(None))):
        yield name, *(profile.weighed(p)[:, chosen].sum(1) for p in (profile.normal, parts))


def figures(normal: np.ndarray, test: np.ndarray, odd: np.ndarray, share: float) -> Iterator[float]:
    """AUC, and for each rate F1, F1 at the share, and the share of false alarms."""
    yield float(roc_auc_score(odd, test))
    weights = np.where(odd, share / odd.mean(), (1 - share) / (1 - odd.mean()))
    for rate in RATES:
        place = int(np.ceil((len(normal) + 1) * (1 - rate)))
        flagged = test > np.sort(normal)[min(place, len(normal)) - 1] + 1e-4  # another batch
        for weight in (np.ones(len(odd)), weights):
            right = weight[flagged & odd].sum()
            yield 2 * right / (weight[flagged].sum() + weight[odd].sum())
        yield flagged[~odd].mean()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, default=DATA / "hdfs")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--share", type=float, default=0.029)
    given = parser.parse_args()
    train = (given.data / "train.txt").read_text().splitlines()
    with gzip.open(given.data / "test.csv.gz", "rt", newline="") as file:
        rows = list(csv.DictReader(file))
    test, odd = [row["text"] for row in rows], np.array([row["label"] != "normal" for row in rows])
    table: dict[str, list[list[float]]] = {}
    for seed in given.seeds:
        with tempfile.TemporaryDirectory() as folder:
            bert = pretrained(given.data / "train.txt", Path(folder), seed, given.steps)
            for name, *both in scores(bert, train, test):
                table.setdefault(name, []).append([*figures(*both, odd, given.share)])
    rates = "".join(f" | F1 at {r:g} | F1, {given.share:g} odd | false alarms" for r in RATES)
    print(f"| score | AUC{rates} |")
    for name, own in table.items():
        middle, apart = np.mean(own, 0), np.std(own, 0)
        shown = (f"{m:.4f} ± {s:.4f}" for m, s in zip(middle, apart, strict=True))
        print(f"| {name} | {' | '.join(shown)} |")


if __name__ == "__main__":
    main()
