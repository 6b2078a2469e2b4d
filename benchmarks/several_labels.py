"""Reports of ids with any number of 17 labels: TF-IDF beside ``ownbert fit`` and ``finetune``.

    python benchmarks/several_labels.py [--methods tfidf fit finetune] [--minutes 10]
        [--data FOLDER] [--work FOLDER]

TF-IDF of 1 to 3 tokens with one logistic regression or one calibrated linear SVM per label: the
strength with the best log loss on the dev rows, the threshold with the best micro-F1 there. ``fit``
and ``finetune`` choose by the same dev rows and by nothing else; ``finetune`` starts from the
network that ``fit`` has pretrained. Test rows are scored once. Log loss is the mean over rows and
labels.
"""

import argparse
import csv
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from quality_sets import DATA, several_labels
from sklearn.calibration import CalibratedClassifierCV
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score
from sklearn.multiclass import OneVsRestClassifier
from sklearn.preprocessing import MultiLabelBinarizer
from sklearn.svm import LinearSVC

Rows = dict[str, list[tuple[list[str], str]]]
THRESHOLDS = np.linspace(0.05, 0.95, 91)


def log_loss(answers: np.ndarray, probabilities: np.ndarray) -> float:
    """Mean over rows (N) and labels (C) of both."""
    p = np.clip(probabilities, 1e-7, 1 - 1e-7)
    return float(-np.mean(answers * np.log(p) + (1 - answers) * np.log(1 - p)))


def measured(answers: np.ndarray, found: np.ndarray, probabilities: np.ndarray) -> str:
    """Micro-F1, macro-F1 and log loss as text."""
    micro, macro = (
        f1_score(answers, found, average=a, zero_division=0) for a in ("micro", "macro")
    )
    loss = log_loss(answers, probabilities)
    return f"micro-F1 {micro:.4f}  macro-F1 {macro:.4f}  log loss {loss:.4f}"


def best_threshold(answers: np.ndarray, probabilities: np.ndarray) -> float:
    """With the best micro-F1."""
    scores = [f1_score(answers, probabilities >= t, average="micro") for t in THRESHOLDS]
    return float(THRESHOLDS[int(np.argmax(scores))])


def tfidf(rows: Rows) -> str:
    """The best linear model on TF-IDF of 1 to 3 tokens."""
    binarize = MultiLabelBinarizer().fit([labels for labels, _ in rows["train"]])
    y = {part: binarize.transform([labels for labels, _ in own]) for part, own in rows.items()}
    words = TfidfVectorizer(
        ngram_range=(1, 3), min_df=2, sublinear_tf=True, token_pattern=r"\S+"
    ).fit([text for _, text in rows["train"]])
    x = {part: words.transform([text for _, text in own]) for part, own in rows.items()}
    kinds = {f"logistic, C={c:g}": LogisticRegression(C=c, max_iter=200) for c in (1, 10, 100)} | {
        f"SVM, C={c:g}": CalibratedClassifierCV(LinearSVC(C=c), cv=3) for c in (0.1, 1)
    }
    fitted = {
        name: OneVsRestClassifier(kind).fit(x["train"], y["train"]) for name, kind in kinds.items()
    }
    dev = {name: model.predict_proba(x["dev"]) for name, model in fitted.items()}
    best = min(dev, key=lambda name: log_loss(y["dev"], dev[name]))
    threshold = best_threshold(y["dev"], dev[best])
    test = fitted[best].predict_proba(x["test"])
    return f"{measured(y['test'], test >= threshold, test)}  ({best})"


def answered(folder: Path, rows: Rows, *more: str) -> str:
    """What ``ownbert predict`` answers for the test rows, with the folder's own threshold."""
    with tempfile.TemporaryDirectory() as scratch:
        output = Path(scratch, "answers.jsonl")
        run("predict", folder, folder.parent / "test.csv", "-o", output, "--probabilities", *more)
        answers = [json.loads(line) for line in output.read_text("utf-8").splitlines()]
    labels = sorted(answers[0]["probabilities"])
    binarize = MultiLabelBinarizer(classes=labels)
    y = binarize.fit_transform([own for own, _ in rows["test"]])
    found = binarize.transform([own["labels"] for own in answers])
    p = np.asarray([[own["probabilities"][label] for label in labels] for own in answers])
    return measured(y, found, p)


def run(*words: object) -> None:
    """A command of ``ownbert``, as a user would type it."""
    subprocess.run([sys.executable, "-m", "ownbert", *map(str, words), "--quiet"], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--methods", nargs="+", default=["tfidf", "fit", "finetune"])
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--work", type=Path, default=Path("runs/several-labels"))
    given = parser.parse_args()
    given.work.mkdir(parents=True, exist_ok=True)
    rows = several_labels(given.data)
    files = {part: given.work / f"{part}.csv" for part in rows}
    for part, own in rows.items():
        with open(files[part], "w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows(
                [("labels", "text"), *(("|".join(labels), text) for labels, text in own)]
            )
    learnt = ("--dev", files["dev"], "--overwrite")
    fitted, finetuned = given.work / "fit", given.work / "finetuned"
    if "tfidf" in given.methods:
        print("TF-IDF:", tfidf(rows), flush=True)
    if "fit" in given.methods:
        run("fit", files["train"], *learnt, "--minutes", given.minutes, "-o", fitted)
        print("fit, blend:", answered(fitted, rows), flush=True)
        print("fit, network:", answered(fitted, rows, "--network"), flush=True)
    if "finetune" in given.methods:
        base = fitted / "work" / "network"
        options = ("--model", base, "--train", files["train"], *learnt, "-o", finetuned)
        run("finetune", "multilabel", *options)
        print("finetune:", answered(finetuned, rows), flush=True)


if __name__ == "__main__":
    main()
