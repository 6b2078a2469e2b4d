"""Vectors without labels: the classes of the nearest texts, or the similarity of pairs.

    python benchmarks/vectors.py [--data FOLDER] [--steps 400] [--tuned MODEL ...]
    python benchmarks/vectors.py --stsb FOLDER --corpus corpus.txt.gz --minutes 6 --tsdae 2.5

FOLDER contains train and test (csv or .gz: label and text) and unlabelled.txt.gz; the default is
the sample in the repository. A tiny network is pretrained on the training and unlabelled texts, and
tuned on pairs that are made from the same texts. The baselines are fitted on these texts too.
Accuracy: test texts get the class of most of their ten nearest. Share: of these ten that have the
right class. MRR: of the nearest text of the right class.

With --stsb, FOLDER contains STS-B (train, dev and test.tsv; its scores are only read to compare
with them) and --corpus has documents, one sentence per line. Dev, test: Spearman correlation of the
cosines with the scores. --tsdae adds TSDAE (Wang et al. 2021) of sentence-transformers, trained for
so many minutes of processor time. Seconds are those of the processor.
"""

import argparse
import csv
import gzip
import random
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np

import ownbert
from ownbert.inference.embedding_outputs import of_length_one
from ownbert.views.ngram_counts import sparse
from ownbert.views.tokens import text_kind
from ownbert.views.view_features import VIEWS, Texts

# Texts to vectors (N, D), dense or sparse.
Encode = Callable[[Sequence[str]], Any]
_NEAREST, _ROWS = 10, 500
_VIEWS = {
    "word-vectors": "mean of PPMI word vectors",
    "tfidf": "TF-IDF of 1 to 2 words",
    "lsa": "LSA, 256 dimensions",
}


@dataclass(frozen=True)
class Data:
    """Texts, and a measure of vectors.

    Args:
        own: training texts.
        further: more texts without labels.
        corpus: a file with the text to pretrain on.
        tuned: titles and inputs of ``finetune embed``.
        measure: a line for vectors, and a line for dense vectors less their mean.
    """

    own: Sequence[str]
    further: Sequence[str]
    corpus: Path
    tuned: Mapping[str, Any]
    measure: Callable[[Encode], Iterator[str]]


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


def of_classes(folder: Path, work: Path) -> Data:
    """Texts with classes."""
    known, own = read(next(folder.glob("train.csv*")))
    wanted, test = read(next(folder.glob("test.csv*")))
    with gzip.open(folder / "unlabelled.txt.gz", "rt", encoding="utf-8") as file:
        further = [line.strip() for line in file if line.strip()]
    corpus = work / "texts.txt"
    lines = (" ".join(text.split()) + "\n" for text in (*own, *further))
    corpus.write_text("".join(lines), encoding="utf-8")

    def measure(encode: Encode) -> Iterator[str]:
        vectors, of_test = encode(own), encode(test)
        yield measured(vectors, of_test, known, wanted)
        if not sparse.issparse(vectors):
            mean = vectors.mean(0)
            yield measured(vectors - mean, of_test - mean, known, wanted)

    return Data(own, further, corpus, {"finetune embed, made pairs": own}, measure)


def of_scores(folder: Path, corpus: Path) -> Data:
    """Pairs of STS-B with scores, and a corpus of documents."""
    pairs = {}
    for part in ("train", "dev", "test"):
        with (folder / f"{part}.tsv").open(encoding="utf-8", newline="") as file:
            pairs[part] = [*csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)]
    own = [row[side] for row in pairs["train"] for side in ("sentence1", "sentence2")]
    with gzip.open(corpus, "rt", encoding="utf-8") as file:
        further = [line.strip() for line in file if line.strip()]
    few = random.Random(0).sample(further, min(12_000, len(further)))

    def measure(encode: Encode) -> Iterator[str]:
        from scipy.stats import spearmanr

        sides = [
            [encode([row[side] for row in pairs[part]]) for side in ("sentence1", "sentence2")]
            for part in ("dev", "test")
        ]
        for centred in (False,) if sparse.issparse(sides[0][0]) else (False, True):
            found = []
            for part, (one, two) in zip(("dev", "test"), sides, strict=True):
                mean = np.concatenate([one, two]).mean(0) if centred else 0
                a, b = (scaled(each - mean if centred else each) for each in (one, two))
                cosines = np.asarray((a.multiply(b) if sparse.issparse(a) else a * b).sum(1))
                scores = [float(row["score"]) for row in pairs[part]]
                found.append(spearmanr(cosines.ravel(), scores)[0])
            yield "dev {:.3f}   test {:.3f}".format(*found)

    trained = {
        f"made pairs: {len(few):,} sentences": few,
        "made pairs: texts of training rows": own,
        "made pairs: documents": corpus,
    }
    return Data(own, further, corpus, trained, measure)


def tsdae(base: Path, texts: Sequence[str], minutes: float) -> Encode:
    """The vectors of TSDAE with the settings of its paper: 60 % of the words are deleted, first
    token, decoder tied to the encoder."""
    import torch
    from sentence_transformers import SentenceTransformer, losses, models

    word = models.Transformer(str(base), max_seq_length=128)
    pooling = models.Pooling(word.get_word_embedding_dimension(), "cls")
    model = SentenceTransformer(modules=[word, pooling], device="cpu")
    loss = losses.DenoisingAutoEncoderLoss(
        model, decoder_name_or_path=str(base), tie_encoder_decoder=True
    )
    optimizer, draw = torch.optim.AdamW(loss.parameters(), lr=3e-4), random.Random(0)
    loss.train()
    began = process_time()
    while process_time() - began < 60 * minutes:
        words = [text.split()[:100] for text in draw.sample(texts, 32)]
        noisy = [[each for each in own if draw.random() > 0.6] or own[:1] for own in words]
        features = [model.tokenize([*map(" ".join, each)]) for each in (noisy, words)]
        optimizer.zero_grad()
        loss(features, None).backward()
        torch.nn.utils.clip_grad_norm_(loss.parameters(), 1.0)
        optimizer.step()
    model.eval()
    return model.encode


def pretrained(corpus: Path, kind: str, limit: Mapping[str, Any], work: Path) -> Path:
    """A tiny network that has learnt from a corpus."""
    folder = work / "bert"
    form = "blank" if kind == "ids" else "wordpiece"
    ownbert.learn_vocabulary(corpus, folder, kind=form)
    ownbert.prepare(corpus, work / "tokens", tokenizer=folder)
    ownbert.pretrain(work / "tokens", folder, **limit, overwrite=True, quiet=True)
    return folder


def compare(data: Data, given: argparse.Namespace, work: Path) -> None:
    """Print the measures of all vectors."""
    kind = text_kind(data.own)

    def show(name: str, began: float, encode: Encode) -> None:
        endings = ("", ", less the mean")
        for ending, found in zip(endings, data.measure(encode), strict=False):
            print(f"{name + ending:50} {found}   ({process_time() - began:.0f} s)", flush=True)

    def as_rows(texts: Sequence[str]) -> Texts:
        return Texts([(text,) for text in texts], kind)

    for name, title in _VIEWS.items():
        began = process_time()
        view = VIEWS[name].fit(as_rows(data.own), as_rows(data.further))
        show(title, began, lambda texts, view=view: view.features(as_rows(texts)))
    limit = {"max_minutes": given.minutes} if given.minutes else {"max_steps": given.steps}
    began = process_time()
    model = pretrained(data.corpus, kind, limit, work)
    show("pretrained, not tuned", began, ownbert.Embedder(model).encode)
    for title, train in data.tuned.items():
        began = process_time()
        output = work / "tuned"
        ownbert.finetune(
            "embed", train=train, model=model, output=output, overwrite=True, quiet=True
        )
        show(title, began, ownbert.Embedder(output).encode)
    if given.tsdae:
        began = process_time()
        show("TSDAE", began, tsdae(model, data.further, given.tsdae))
    for each in given.tuned:
        show(each.name, process_time(), ownbert.Embedder(each).encode)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("examples/anonymised"))
    parser.add_argument("--stsb", type=Path)
    parser.add_argument("--corpus", type=Path)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--tsdae", type=float)
    parser.add_argument("--tuned", type=Path, nargs="*", default=[])
    given = parser.parse_args()
    if (given.stsb is None) != (given.corpus is None):
        parser.error("--stsb and --corpus go together")
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        if given.stsb is None:
            data = of_classes(given.data, work)
        else:
            data = of_scores(given.stsb, given.corpus)
        compare(data, given, work)


if __name__ == "__main__":
    main()
