"""Texts of no label, and label sets: AUROC of ``unknown_score`` and coverage, over several draws.

    python benchmarks/unknown.py train.tsv test.tsv --model MODEL --leave-out 20 [--draws 5]

In each draw, some labels are left out of training (their test rows are the texts of no label), and
of the other labels --rows rows are drawn (by default all). ``ownbert fit`` trains for --minutes;
with --finetune, ``ownbert finetune classify`` instead, with a fifth of the rows as dev rows. With
--frozen, only a linear probe is trained on the vectors of the model, and texts of no label are
found as in a folder of ``fit`` or ``finetune``: many draws take minutes. The last lines are the
means, and the range of the mean coverage by chance.
"""

import argparse
import csv
import math
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import ownbert
from ownbert.inference.embedding_outputs import of_length_one
from ownbert.inference.held_out import Scope
from ownbert.run.file_names import HELD_OUT
from ownbert.tables.tables import columns, read_values
from ownbert.tasks.metrics import auroc
from ownbert.views.linear_models import Targets, centre_and_scale, fit_linear

COVERAGES = (0.8, 0.9, 0.95)
UNKNOWN = 0.05

Rows = list[tuple[str, str]]


def read(path: Path) -> Rows:
    """Pairs of label and text."""
    names = ["label", "text" if "text" in columns(path) else "sentence"]
    return [(str(label), str(text)) for _, (label, text) in read_values(path, names)]


def write(path: Path, rows: Rows) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("label", "text"), *rows])
    return path


def measured(given: Any, draw: int, train: Rows, test: Rows, work: Path) -> dict[str, float]:
    """Metrics of one draw by name."""
    rng = random.Random(draw)
    names = sorted({label for label, _ in train})
    outside = set(rng.sample(names, given.leave_out))
    own = [row for row in train if row[0] not in outside]
    rng.shuffle(own)
    own = own[: given.rows]
    inside = write(work / "test.csv", [row for row in test if row[0] not in outside])
    files: dict[str, Any] = {"train": own}
    if given.finetune:
        files = {"train": own[len(own) // 5 :], "dev": own[: len(own) // 5]}
    files = {name: write(work / f"{name}.csv", rows) for name, rows in files.items()}
    if given.finetune:
        folder = work / "model"
        settings = {"max_minutes": given.minutes, "overwrite": True, "quiet": True}
        ownbert.finetune("classify", model=given.model, output=folder, **files, **settings)
    else:
        folder, model = work / "best", {} if given.model is None else {"model": given.model}
        settings = {"minutes": given.minutes, "overwrite": True, "quiet": True}
        ownbert.fit(files["train"], output=folder, **settings, **model)
    found: dict[str, float] = {}
    options: dict[str, Any] = {}
    if outside:
        others = write(work / "other.csv", [row for row in test if row[0] in outside])
        options = {"unknown": UNKNOWN, "out_of_scope": others}
    for coverage in COVERAGES:
        values = ownbert.evaluate(folder, inside, coverage=coverage, **options).values
        found |= {k: values[k] for k in ("accuracy", *FIGURES) if k in values}
        found |= {f"coverage {coverage}": values["set_coverage"]}
        found |= {f"labels {coverage}": values["set_size"]}
        options = {}
    with np.load(folder / HELD_OUT) as held_out:
        found |= {"calibration rows": len(held_out["missing"])}
    return found | {"test rows": len([row for row in test if row[0] not in outside])}


def by_chance(coverage: float, every: list[dict[str, float]]) -> tuple[float, float]:
    """The range that contains the mean coverage of the draws with probability .95, if calibration
    and test rows come from the same source.

    The coverage of one draw is beta-binomial (Angelopoulos and Bates 2021, section 3.2). The test
    rows are assumed to be the same in all draws, so that more draws do not reduce their part.
    """
    rows, tested = every[0]["calibration rows"], every[0]["test rows"]
    rank = math.ceil((rows + 1) * coverage - 1e-9)
    mean = rank / (rows + 1)
    variance = mean * (1 - mean) * (1 / (rows + 2) / len(every) + 1 / tested)
    return mean - 1.96 * math.sqrt(variance), mean + 1.96 * math.sqrt(variance)


FIGURES = ("unknown_auroc_of_probability", "unknown_auroc", "refused", "unknown_refused")


class Frozen:
    """Texts of no label by the vectors of a model, which are computed once for all draws."""

    def __init__(self, model: str, train: Rows, test: Rows) -> None:
        embedder = ownbert.Embedder(model)
        self.train, self.test = (
            of_length_one(embedder.encode([text for _, text in rows])) for rows in (train, test)
        )

    def measured(self, given: Any, draw: int, train: Rows, test: Rows) -> dict[str, float]:
        """Metrics of one draw by name; labels left out are those of ``measured``."""
        rng = random.Random(draw)
        names = sorted({label for label, _ in train})
        outside = set(rng.sample(names, given.leave_out))
        known = sorted(set(names) - outside)
        own = np.asarray([i for i, (label, _) in enumerate(train) if label not in outside])
        own = np.asarray(rng.sample(own.tolist(), len(own)))[: given.rows]
        labels = np.asarray([known.index(train[i][0]) for i in own])
        inside = np.asarray([label not in outside for label, _ in test])
        scope, scores = Scope.fit(self.train[own], labels, len(known), blind=True)
        new, strange = scope.scores(self.test[inside]), scope.scores(self.test[~inside])
        threshold = np.quantile(scores, 1 - UNKNOWN)
        mean, scale = centre_and_scale(self.train[own])
        targets = Targets("classify", labels, len(known))
        probe = fit_linear(((self.train[own] - mean) / scale).astype(np.float32), targets, 10.0)
        logs = probe.scores(((self.test - mean) / scale).astype(np.float32))
        doubt = 1 - np.exp(logs.max(1))
        truth = [known.index(label) for label, _ in test if label not in outside]
        return {
            "accuracy": float((logs[inside].argmax(1) == truth).mean()),
            "unknown_auroc_of_probability": auroc(doubt[inside], doubt[~inside]),
            "unknown_auroc": auroc(new, strange),
            "refused": float((new > threshold).mean()),
            "unknown_refused": float((strange > threshold).mean()),
        }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("train", type=Path)
    parser.add_argument("test", type=Path)
    parser.add_argument("--model")
    parser.add_argument("--leave-out", type=int, default=0)
    parser.add_argument("--rows", type=int)
    parser.add_argument("--draws", type=int, default=1)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=2)
    parser.add_argument("--finetune", action="store_true")
    parser.add_argument("--frozen", action="store_true")
    given = parser.parse_args()
    if (given.finetune or given.frozen) and given.model is None:
        sys.exit("error: --finetune and --frozen need --model")
    train, test = read(given.train), read(given.test)
    every, frozen = [], Frozen(given.model, train, test) if given.frozen else None
    for draw in range(given.first, given.first + given.draws):
        if frozen is not None:
            every.append(frozen.measured(given, draw, train, test))
        else:
            with tempfile.TemporaryDirectory() as folder:
                every.append(measured(given, draw, train, test, Path(folder)))
        print(f"draw {draw}: ", {k: round(v, 3) for k, v in every[-1].items()}, flush=True)
    print("mean: ", {k: round(float(np.mean([e[k] for e in every])), 3) for k in every[0]})
    for coverage in () if given.frozen else COVERAGES:
        low, high = by_chance(coverage, every)
        print(f"coverage {coverage} by chance: {low:.3f} to {high:.3f}")


if __name__ == "__main__":
    main()
