"""Is it worth choosing which texts to label? Macro-F1 by the number of labels and how they are
chosen: by chance, by uncertainty alone, and as ``ownbert label`` chooses.

    python benchmarks/label.py [--data FOLDER ...] [--draws 3] [--thin] [--several]

FOLDER contains train and test (csv, tsv, plain or .gz: label and text); the default is the sample
in the repository. Labels begin with five per class by chance; each round adds five per class, up to
40. The learner is a linear model of TF-IDF, vectors are those of LSA; with several labels, as many
are predicted per text as the labelled rows have. --thin keeps a tenth of the
training rows of every second label, so that there are rare ones. --several: the reports with any
number of 17 labels of benchmarks/several_labels.py instead.
"""

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
from quality_sets import several_labels

from ownbert.fitting.rows.labelled_rows import find_task
from ownbert.tables.columns import ColumnNames
from ownbert.tables.memory import table_of
from ownbert.tasks.metrics import score_labels
from ownbert.tasks.multilabel import MultiLabelTask, score_multilabel
from ownbert.tasks.row_network import sigmoid
from ownbert.unlabelled.label import (
    FEW,
    POOL_FACTOR,
    SAMPLE,
    choose,
    count_for_rare,
    rare_labels,
    uncertainty,
    uncertainty_of_sets,
)
from ownbert.views.linear_models import Targets, fit_linear
from ownbert.views.tokens import text_kind
from ownbert.views.view_features import VIEWS, Texts

_ROUND, _SHOWN = 5, (10, 20, 40)  # labels per class
_WAYS = ("chance", "uncertainty", "label")


class Data:
    """Features, vectors and labels of a data set; folder None: that with several labels."""

    def __init__(self, folder: Path | None, *, thin: bool) -> None:
        if folder is None:
            parts = several_labels()
            train, test = (
                table_of([{"text": t, "labels": own} for own, t in parts[name]], name=name)
                for name in ("train", "test")
            )
        else:
            train, test = (next(folder.glob(f"{name}.*")) for name in ("train", "test"))
        task: Any = find_task(train, ColumnNames())
        self.several = isinstance(task, MultiLabelTask)
        rows, held = list(task.read(train)), list(task.read(test))
        task.learn(rows, train)
        if thin:
            seen = dict.fromkeys(task.labels, 0)
            every = []
            for row in rows:
                seen[row.target] += 1
                if task.labels.index(row.target) % 2 == 0 or seen[row.target] % 10 == 0:
                    every.append(row)
            rows = every
        kind = text_kind(row.texts[0] for row in rows)
        texts, none = Texts([row.texts for row in rows], kind), Texts([], kind)
        view = VIEWS["tfidf"].fit(texts, none)
        self.features = view.features(texts)
        self.test = view.features(Texts([row.texts for row in held], kind))
        self.vectors = np.asarray(VIEWS["lsa"].fit(texts, none).features(texts))
        self.labels = task.labels

        def known(of: list) -> np.ndarray:
            """(N) indices of labels; with several (N, C) of 0 and 1."""
            if self.several:
                return np.asarray([task.target(row) for row in of])
            return np.asarray([task.labels.index(row.target) for row in of])

        self.known, self.truth = known(rows), known(held)

    def counts(self, chosen: np.ndarray) -> np.ndarray:
        """(C) rows of each label."""
        own = self.known[chosen]
        return own.sum(0) if self.several else np.bincount(own, minlength=len(self.labels))

    def model(self, chosen: np.ndarray):
        task = "multilabel" if self.several else "classify"
        targets = Targets(task, self.known[chosen], len(self.labels))
        return fit_linear(self.features[chosen], targets, 10.0)

    def threshold(self, probabilities: np.ndarray, chosen: np.ndarray) -> float:
        """With as many labels per row as the labelled rows have."""
        return float(np.quantile(probabilities, 1 - self.known[chosen].mean()))

    def macro_f1(self, chosen: np.ndarray) -> float:
        model = self.model(chosen)
        if self.several:
            found = sigmoid(model.scores(self.test))
            least = self.threshold(found, chosen)
            return score_multilabel(self.truth, found, least, self.labels).values["macro_f1"]
        answers = model.scores(self.test).argmax(1).tolist()
        return score_labels(self.truth.tolist(), answers, self.labels).macro_f1

    def further(self, way: str, chosen: np.ndarray, count: int, draw: int) -> np.ndarray:
        """Rows to label next."""
        left = np.setdiff1d(np.arange(len(self.known)), chosen)
        if way == "chance":
            return np.random.default_rng([draw, len(chosen)]).permutation(left)[:count]
        found = self.model(chosen).scores(self.features[left])
        probabilities = sigmoid(found) if self.several else np.exp(found)
        scores = (uncertainty_of_sets if self.several else uncertainty)(probabilities)
        if way == "uncertainty":
            return left[np.argsort(-scores, kind="stable")[:count]]
        counts = self.counts(chosen)
        share = count_for_rare(counts, count)
        rare = rare_labels(counts)
        if self.several:
            least = self.threshold(probabilities, chosen)
            of_rare = np.flatnonzero((probabilities[:, rare] >= least).any(1))
        else:
            of_rare = np.flatnonzero(np.isin(probabilities.argmax(1), rare))
        of_rare = of_rare[np.argsort(-scores[of_rare], kind="stable")]
        first = self._clustered(left, of_rare, scores, share, POOL_FACTOR * share)
        rest = np.setdiff1d(np.arange(len(left)), first)
        ranks, pool = scores, POOL_FACTOR * count
        if counts.mean() < FEW:
            ranks = np.random.default_rng([draw, len(chosen)]).random(len(left))
            pool = max(SAMPLE, pool)
        rest = rest[np.argsort(-ranks[rest], kind="stable")]
        return left[[*first, *self._clustered(left, rest, scores, count - len(first), pool)]]

    def _clustered(self, left, rows, scores: np.ndarray, count: int, pool: int) -> np.ndarray:
        """Of the first ``pool`` of these rows those that ``ownbert label`` chooses."""
        rows = rows[:pool]
        return rows[choose(scores[rows], self.vectors[left[rows]], count)]


def curve(data: Data, way: str, draw: int) -> dict[int, float]:
    """Macro-F1 by labels per class."""
    size = len(data.labels) * _ROUND
    chosen = np.random.default_rng(draw).permutation(len(data.known))[:size]
    found = {}
    while len(chosen) < max(_SHOWN) * len(data.labels):
        chosen = np.concatenate([chosen, data.further(way, chosen, size, draw)])
        if len(chosen) // len(data.labels) in _SHOWN:
            found[len(chosen) // len(data.labels)] = data.macro_f1(chosen)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, nargs="*", default=[Path("examples/anonymised")])
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--thin", action="store_true")
    parser.add_argument("--several", action="store_true")
    given = parser.parse_args()
    for folder in [None] if given.several else given.data:
        began = time.monotonic()
        data = Data(folder, thin=given.thin)
        print(
            f"{folder.name if folder else 'several labels'}{', thinned' if given.thin else ''}: "
            f"{len(data.known):,} texts, "
            f"{len(data.labels)} labels"
        )
        for way in _WAYS:
            curves = [curve(data, way, draw) for draw in range(given.draws)]
            cells = []
            for size in _SHOWN:
                scores = [each[size] for each in curves]
                spread = statistics.stdev(scores) if len(scores) > 1 else 0.0
                cells.append(f"{size}: {statistics.mean(scores):.4f} ± {spread:.4f}")
            seconds = time.monotonic() - began
            print(f"  {way:12} {'   '.join(cells)}   ({seconds:.0f} s)", flush=True)


if __name__ == "__main__":
    main()
