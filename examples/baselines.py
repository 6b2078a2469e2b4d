"""Linear baselines on the same text, to compare a network with.

    python examples/baselines.py --train F --dev F --test F --unlabelled F
        [--labels-per-class N ...] [--draws K] [--seed S] [--json OUT]

Two baselines, which both use the unlabelled text, as a pretrained network does:

- TF-IDF of unigrams and bigrams, with vocabulary and idf from the training and unlabelled text.
- LSA: TF-IDF of unigrams, reduced to 256 dimensions by an SVD of the same text.

Each is followed by logistic regression, whose C is chosen by macro-F1 on dev. Files are csv with
the header ``label,text``, and a text file with one document per line, plain or gzip; tokens are
separated by whitespace. The rows of a draw are those that ``ownbert finetune classify
--labels-per-class N --seed S`` trains on.
"""

import argparse
import csv
import gzip
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, f1_score
from sklearn.multiclass import OneVsRestClassifier
from sklearn.preprocessing import normalize

from ownbert.finetuning.labelled_splits import labels_per_class

C_GRID = (1.0, 10.0, 100.0)
LSA_SIZE = 256

Labelled = tuple[list[str], list[str]]  # labels, texts
Row = dict[str, Any]


def read_csv(path: str | Path) -> Labelled:
    """Labels and texts of a csv file with the columns `label` and `text`, plain or gzip."""
    csv.field_size_limit(2**31 - 1)  # the default limit is 128 KiB per document
    opener = gzip.open if str(path).endswith(".gz") else open
    with opener(path, "rt", encoding="utf-8", newline="") as lines:
        reader = csv.DictReader(lines)
        if not {"label", "text"} <= set(reader.fieldnames or ()):
            raise ValueError(f"{path}: needs the columns label and text, has {reader.fieldnames}")
        rows = [(row["label"], row["text"]) for row in reader]
    return [label for label, _ in rows], [text for _, text in rows]


def read_lines(path: str | Path) -> list[str]:
    """The documents of a text file, one per line, plain or gzip."""
    opener = gzip.open if str(path).endswith(".gz") else open
    with opener(path, "rt", encoding="utf-8", newline="\n") as lines:
        return [line.rstrip("\r\n") for line in lines]


class Baseline:
    """Features of train, dev and test, fitted once and scored for any subset of training rows."""

    def __init__(self, name: str, train: Labelled, dev: Labelled, test: Labelled) -> None:
        self.name = name
        self.labels = [labels for labels, _ in (train, dev, test)]
        self.texts = [texts for _, texts in (train, dev, test)]
        self.features: list[Any] = []
        self.fit_seconds = 0.0

    def fit(self, unlabelled: Sequence[str], *, seed: int = 0) -> "Baseline":
        start = time.perf_counter()
        corpus = [*self.texts[0], *unlabelled]
        vectorizer = TfidfVectorizer(
            tokenizer=str.split,
            token_pattern=None,
            lowercase=False,
            ngram_range=(1, 1) if self.name == "LSA" else (1, 2),
            min_df=2,
            sublinear_tf=True,
        ).fit(corpus)
        self.features = [vectorizer.transform(texts) for texts in self.texts]
        if self.name == "LSA":
            # Two power iterations: four or seven took twice as long and scored no better.
            svd = TruncatedSVD(LSA_SIZE, n_iter=2, random_state=seed)
            svd.fit(vectorizer.transform(corpus))
            self.features = [normalize(svd.transform(rows)) for rows in self.features]
        self.fit_seconds = time.perf_counter() - start
        return self

    def score(self, rows: Sequence[int]) -> Row:
        """Test scores with the best C on dev, after training on these rows of the training file."""
        start = time.perf_counter()
        train, dev, test = self.features
        train = train[np.asarray(rows)]
        train_labels = np.asarray(self.labels[0])[np.asarray(rows)]
        if sparse.issparse(train):
            # A column that is empty in the training rows keeps weight 0: dropping it only saves
            # time. With few labels, some 10,000 of 153,000 columns remain.
            used = np.flatnonzero(train.getnnz(axis=0))
            train, dev, test = train[:, used], dev[:, used], test[:, used]
        best: Row = {"dev_macro_f1": -1.0}
        for c in C_GRID:
            model = classifier(c, is_sparse=sparse.issparse(train)).fit(train, train_labels)
            dev_f1 = f1_score(self.labels[1], model.predict(dev), average="macro")
            if dev_f1 > best["dev_macro_f1"]:
                best = {"dev_macro_f1": dev_f1, "c": c, "model": model}
        predicted = best.pop("model").predict(test)
        return {
            "macro_f1": f1_score(self.labels[2], predicted, average="macro"),
            "accuracy": accuracy_score(self.labels[2], predicted),
            **best,
            "seconds": self.fit_seconds + time.perf_counter() - start,
        }


def classifier(c: float, *, is_sparse: bool, class_weight: str | None = None) -> Any:
    """Logistic regression with the solver that is fast on these features.

    With all labels and 80,000 sparse columns, one-vs-rest liblinear took 2 s and multinomial
    lbfgs 19 s, for the same score; for 256 dense columns lbfgs is suitable. The dual problem has a
    variable per row instead of one per column: with 240 rows and 28,000 columns it took 0.1 s, and
    the primal one 5 s or more. At this tolerance the scores no longer depend on it.
    """
    if is_sparse:
        solver: dict[str, Any] = {"solver": "liblinear", "dual": True, "tol": 1e-3}
        model = LogisticRegression(C=c, class_weight=class_weight, random_state=0, **solver)
        return OneVsRestClassifier(model)
    return LogisticRegression(C=c, class_weight=class_weight, max_iter=200)


def run(
    train: Labelled,
    dev: Labelled,
    test: Labelled,
    unlabelled: Sequence[str],
    *,
    counts: Sequence[int | None] = (20, None),
    seeds: Sequence[int] = (0,),
) -> list[Row]:
    """Scores of both baselines for each number of labels per class (None: all) and each draw.

    A row has `baseline`, `labels_per_class`, `seed`, `macro_f1`, `accuracy`, `dev_macro_f1`, `c`
    and `seconds`, which includes fitting the features in every row.
    """
    results: list[Row] = []
    for name in ("TF-IDF", "LSA"):
        baseline = Baseline(name, train, dev, test).fit(unlabelled)
        for count in counts:
            # With all labels, the rows do not depend on the seed.
            for seed in seeds if count is not None else seeds[:1]:
                rows = range(len(train[0]))
                if count is not None:
                    rows = labels_per_class(train[0], count, seed)
                key = {"baseline": name, "labels_per_class": count or "all", "seed": seed}
                results.append({**key, **baseline.score(rows)})
    return results


def count_or_all(text: str) -> int | None:
    if text == "all":
        return None
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is neither a positive integer nor 'all'")
    return int(text)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="TF-IDF and LSA with logistic regression.")
    for name in ("train", "dev", "test"):
        parser.add_argument(f"--{name}", required=True, help="csv with the header label,text")
    parser.add_argument("--unlabelled", required=True, help="text file, one document per line")
    parser.add_argument(
        "--labels-per-class",
        type=count_or_all,
        nargs="+",
        default=[20, None],
        help="integers, or 'all' (default: 20 all)",
    )
    parser.add_argument(
        "--draws", type=int, default=1, help="number of draws, with seeds S, S + 1, ..."
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the first draw of labels")
    parser.add_argument("--json", type=Path, help="output file for the scores")
    options = parser.parse_args(arguments)
    if options.draws < 1 or options.seed < 0:
        parser.error("--draws must be at least 1 and --seed at least 0")
    try:
        labelled = [read_csv(path) for path in (options.train, options.dev, options.test)]
        unlabelled = read_lines(options.unlabelled)
    except (OSError, ValueError, csv.Error) as error:
        sys.exit(f"error: {error}")
    seeds = range(options.seed, options.seed + options.draws)
    results = run(*labelled, unlabelled, counts=options.labels_per_class, seeds=seeds)
    print(
        f"{'baseline':9}{'labels per class':>17}{'seed':>5}{'macro-F1':>10}{'accuracy':>10}", end=""
    )
    print(f"{'C':>6}{'seconds':>9}")
    for row in results:
        print(f"{row['baseline']:9}{row['labels_per_class']:>17}{row['seed']:>5}", end="")
        print(f"{row['macro_f1']:10.4f}{row['accuracy']:10.4f}", end="")
        print(f"{row['c']:6g}{row['seconds']:9.1f}")
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
