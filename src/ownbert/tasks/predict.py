"""Predict and evaluate with a fine-tuned folder."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ownbert.checkpoint import describe, load, load_tokenizer
from ownbert.data.tables import read_labelled, read_texts
from ownbert.errors import InputError
from ownbert.files import atomic_path, write_json
from ownbert.tasks.classify import blocks, cut_warning, encode, label_numbers, probabilities
from ownbert.tasks.measures import Scores, score
from ownbert.train.machine import pick_device, pick_precision

Progress = Callable[[int], None]
Say = Callable[[str], None]


_ONE_LABEL = (None, "single_label_classification")


class Classifier:
    """A fine-tuned folder, ready to label texts.

    precision: float32 by default, so that a text gets the same probabilities in any company.
    """

    def __init__(
        self, folder: str | Path, *, device: str = "auto", precision: str = "float32"
    ) -> None:
        self.folder = Path(folder)
        place = pick_device(device)
        self.precision = pick_precision(precision, place)
        self.model = load(folder).to(place)
        if not self.model.labels:
            raise InputError(f"{folder} is no classifier; make one with: ownbert finetune")
        self.tokenizer = load_tokenizer(folder, config=self.model.config)
        kind = describe(folder).values.get("problem_type")
        if "classification" not in self.model.specs or kind not in _ONE_LABEL:
            raise InputError(f"{folder} gives texts no single label: problem_type is {kind!r}")
        self.labels = self.model.labels
        self.max_length = self.model.config.longest
        self.seen = self.cut = 0

    def __call__(self, texts: list[str]) -> np.ndarray:
        """(N, C) probabilities; counts texts seen and cut."""
        ids, cut = encode(texts, self.tokenizer, self.max_length)
        self.seen += len(ids)
        self.cut += cut
        return probabilities(self.model, ids, precision=self.precision)

    def warning(self) -> str | None:
        """What to tell of texts that were too long, if there were any."""
        if not self.cut:
            return None
        return cut_warning(self.cut, self.seen, self.max_length, "documents")


def predict(
    folder: str | Path,
    input: str | Path,
    output: str | Path,
    *,
    text_column: str | None = None,
    device: str = "auto",
    precision: str = "float32",
    progress: Progress | None = None,
    say: Say | None = None,
) -> int:
    """Label every text of a file, one JSON row each ({"label", "probabilities"}), order kept.

    Streams, so neither file need fit in memory. Returns the number of rows; progress is called
    with it as it grows. ``output`` appears whole or not at all.
    """
    classifier = Classifier(folder, device=device, precision=precision)
    texts = read_texts(input, text_column=text_column)
    done = 0
    with atomic_path(output) as temporary, temporary.open("w", encoding="utf-8") as file:
        for block in blocks(texts):
            for row in classifier(block):
                file.write(json.dumps(_row(row, classifier.labels), ensure_ascii=False) + "\n")
            done += len(block)
            if progress is not None:
                progress(done)
    if say is not None and (warning := classifier.warning()):
        say(warning)
    return done


def _row(row: np.ndarray, labels: tuple[str, ...]) -> dict[str, Any]:
    return {
        "label": labels[int(row.argmax())],
        "probabilities": {label: round(float(p), 6) for label, p in zip(labels, row, strict=True)},
    }


def evaluate(
    folder: str | Path,
    data: str | Path,
    *,
    output: str | Path | None = None,
    text_column: str | None = None,
    label_column: str | None = None,
    device: str = "auto",
    precision: str = "float32",
    progress: Progress | None = None,
    say: Say | None = None,
) -> Scores:
    """Scores of a fine-tuned folder on labelled texts; as JSON in ``output`` if given.

    Raises ``InputError`` with the line for a label that the model does not know.
    """
    classifier = Classifier(folder, device=device, precision=precision)
    rows = read_labelled(data, text_column=text_column, label_column=label_column)
    truth = label_numbers(rows, classifier.labels, source=data, known=f"the model {folder}")
    predicted: list[int] = []
    for block in blocks(row.text for row in rows):
        predicted += classifier(block).argmax(1).tolist()
        if progress is not None:
            progress(len(predicted))
    scores = score(truth, predicted, classifier.labels)
    if say is not None and (warning := classifier.warning()):
        say(warning)
    if output is not None:
        write_json(output, as_json(scores))
    return scores


def as_json(scores: Scores) -> dict[str, Any]:
    """Scores as plain numbers."""
    return {
        "accuracy": scores.accuracy,
        "macro_f1": scores.macro_f1,
        "labels": {
            s.label: {
                "precision": s.precision,
                "recall": s.recall,
                "f1": s.f1,
                "support": s.support,
            }
            for s in scores.labels
        },
        "confusion": scores.confusion.tolist(),
    }
