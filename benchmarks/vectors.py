"""Vectors without labels: how many of the ten nearest training texts have the class of a test text.

    python benchmarks/vectors.py [--data FOLDER] [--steps 400] [--tuned MODEL ...]

FOLDER contains train and test (csv or .gz: label and text) and unlabelled.txt.gz; the default is
the sample in the repository. A tiny network is pretrained on the training and unlabelled texts, and
tuned on pairs that are made from the same texts. The baselines are fitted on these texts too.
Accuracy: test texts get the class of most of their ten nearest. Share: of these ten that have the
right class. MRR: of the nearest text of the right class.
"""

import argparse
import csv
import gzip
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import ownbert
from ownbert.inference.embedding.embedding_outputs import of_length_one
from ownbert.views.ngram_counts import sparse
from ownbert.views.tokens import text_kind
from ownbert.views.view_features import VIEWS, Texts

_NEAREST, _ROWS = 10, 500
_VIEWS = {
    "word-vectors": "mean of PPMI word vectors",
    "tfidf": "TF-IDF of 1 to 2 words",
    "lsa": "LSA, 256 dimensions",
}


def read(path: Path) -> tuple[list[str], list[str]]:
    """The labels and the texts of a csv file, plain or .gz."""
    opened: Callable[..., Any] = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return [row["label"] for row in rows], [row["text"] for row in rows]


def scaled(vectors: Any) -> Any:
    """Vectors (N, D) of length one, dense or sparse."""
    if not sparse.issparse(vectors):
        return of_length_one(np.asarray(vectors, np.float32))
    lengths = np.sqrt(vectors.multiply(vectors).sum(1)).ravel()
    return sparse.diags_array(1 / np.maximum(lengths, 1e-12)) @ vectors


def measured(own: Any, test: Any, known: Sequence[str], wanted: Sequence[str]) -> str:
    """Accuracy, share and MRR of test vectors among training vectors."""
    names = sorted(set(known))
    classes = np.array([names.index(label) for label in known])
    truth = np.array([names.index(label) for label in wanted])
    own, test = scaled(own), scaled(test)
    right, share, reciprocal = [], [], []
    for start in range(0, len(truth), _ROWS):
        cosines = test[start : start + _ROWS] @ own.T
        cosines = cosines.toarray() if sparse.issparse(cosines) else cosines
        ranked = classes[np.argsort(-cosines, axis=1, kind="stable")]
        for row, label in zip(ranked, truth[start : start + _ROWS], strict=True):
            nearest = row[:_NEAREST]
            right.append(np.bincount(nearest, minlength=len(names)).argmax() == label)
            share.append((nearest == label).mean())
            reciprocal.append(1 / (1 + np.flatnonzero(row == label)[0]))
    values = (float(np.mean(each)) for each in (right, share, reciprocal))
    return "accuracy {:.4f}   share {:.4f}   MRR {:.4f}".format(*values)


def pretrained(texts: Sequence[str], kind: str, steps: int, work: Path) -> Path:
    """A tiny network that has learnt from texts."""
    corpus, folder = work / "texts.txt", work / "bert"
    corpus.write_text("".join(" ".join(text.split()) + "\n" for text in texts), encoding="utf-8")
    form = "blank" if kind == "ids" else "wordpiece"
    ownbert.learn_vocabulary(corpus, folder, kind=form)
    ownbert.prepare(corpus, work / "tokens", tokenizer=folder)
    ownbert.pretrain(work / "tokens", folder, max_steps=steps, overwrite=True, quiet=True)
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("examples/anonymised"))
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--tuned", type=Path, nargs="*", default=[])
    given = parser.parse_args()
    known, own = read(next(given.data.glob("train.csv*")))
    wanted, test = read(next(given.data.glob("test.csv*")))
    with gzip.open(given.data / "unlabelled.txt.gz", "rt", encoding="utf-8") as file:
        further = [line.strip() for line in file if line.strip()]
    kind = text_kind(own)
    rows, tested, others = (
        Texts([(text,) for text in each], kind) for each in (own, test, further)
    )

    def show(name: str, began: float, vectors: Any, of_test: Any) -> None:
        found = measured(vectors, of_test, known, wanted)
        print(f"{name:34} {found}   ({time.monotonic() - began:.0f} s)", flush=True)

    for name, title in _VIEWS.items():
        began = time.monotonic()
        view = VIEWS[name].fit(rows, others)
        show(title, began, view.features(rows), view.features(tested))

    def of_model(name: str, began: float, folder: Path) -> None:
        embedder = ownbert.Embedder(folder)
        vectors, of_test = embedder.encode(own), embedder.encode(test)
        show(name, began, vectors, of_test)
        show(f"{name}, less the mean", began, vectors - vectors.mean(0), of_test - vectors.mean(0))

    with tempfile.TemporaryDirectory() as folder:
        work, began = Path(folder), time.monotonic()
        model = pretrained([*own, *further], kind, given.steps, work)
        of_model("pretrained, not tuned", began, model)
        began = time.monotonic()
        ownbert.finetune("embed", train=own, model=model, output=work / "tuned", quiet=True)
        of_model("finetune embed, made pairs", began, work / "tuned")
    for each in given.tuned:
        of_model(each.name, time.monotonic(), each)


if __name__ == "__main__":
    main()
