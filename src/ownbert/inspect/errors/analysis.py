"""The errors of a classifier on labelled rows. N rows, C labels, D size of a vector."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np

from ownbert.errors import InputError
from ownbert.fitting.report.label_errors import find_label_errors
from ownbert.inference.any_predictor import open_predictor
from ownbert.inference.embedder import Embedder
from ownbert.inference.predict import decide_all, read_labelled_rows
from ownbert.inspect.explain.explain import Explainer
from ownbert.language import translated
from ownbert.tasks.rows import Row
from ownbert.tasks.task import Task

# A group is shown from so many rows on, if its share of errors is so many standard errors above
# that of all rows.
_FEWEST, _CLEARLY = 10, 2.0
_EXPLAINED_WORDS = 5


@dataclass(frozen=True)
class Mistake:
    """A row that is answered wrongly.

    Args:
        line: of the file, or the number of the row.
        texts, label: of the row.
        predicted, probability: the answer.
        words: that speak most for the answer, if explained.
        neighbour: the training row that is most alike, if there are training rows: its label and
            text.
    """

    line: int
    texts: tuple[str, ...]
    label: str
    predicted: str
    probability: float
    words: tuple[str, ...] = ()
    neighbour: tuple[str, str] | None = None


@dataclass(frozen=True)
class FailingGroup:
    """Rows that fail together more often than all rows do.

    Args:
        name: what they have in common.
        rows: how many.
        errors: the share that is wrong.
    """

    name: str
    rows: int
    errors: float


@dataclass(frozen=True)
class ErrorAnalysis:
    """What is wrong, and where.

    Args:
        rows: N.
        errors: the share that is wrong.
        confusions: (label, predicted, how often), the most frequent first.
        mistakes: the most confident first.
        groups: the worst first.
        label_errors: rows whose label the model contradicts, the most probable first.
    """

    rows: int
    errors: float
    confusions: tuple[tuple[str, str, int], ...]
    mistakes: tuple[Mistake, ...]
    groups: tuple[FailingGroup, ...]
    label_errors: tuple[Mistake, ...]

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def analyse_errors(
    folder: str | Path,
    data: Any,
    *,
    train: Any = None,
    most: int = 10,
    device: str = "auto",
) -> ErrorAnalysis:
    """Where a classifier of texts is wrong on rows that it was not trained on.

    Args:
        folder: of a model that ``ownbert finetune classify`` or ``fit`` made.
        data: labelled rows, as for ``ownbert.evaluate``.
        train: the rows that it was trained on, of which the nearest is named for each mistake.
        most: so many mistakes, confusions and label errors.
        device: auto, cpu or cuda.

    Raises:
        InputError: it is no classifier of texts, or rows cannot be read.

    Source: of label errors Northcutt, Jiang and Chuang 2021, section 3.
    """
    predictor = open_predictor(folder, device=device)
    task: Any = predictor.task
    if task.name != "classify":
        raise InputError(f"{folder} is a model for {task.name}; errors are those of classify")
    rows = read_labelled_rows(task, data, folder)
    raws = np.stack(decide_all(predictor, rows, None))
    truth = np.asarray([task.label_indices[row.target] for row in rows])
    found = raws.argmax(1)
    wrong = np.flatnonzero(found != truth)
    order = wrong[np.argsort(-raws[wrong].max(1), kind="stable")][:most]
    suspects = [error.row for error in find_label_errors(raws, truth)][:most]
    mistakes = {i: _mistake(task, rows[i], raws[i]) for i in {*order.tolist(), *suspects}}
    chosen = sorted(mistakes)
    if chosen:
        words = _words_of(folder, [rows[i] for i in chosen], device)
        near = _neighbours(folder, task, [rows[i] for i in chosen], train, device)
        for i, own, neighbour in zip(chosen, words, near, strict=True):
            mistakes[i] = Mistake(
                **{**vars(mistakes[i]), "words": tuple(own), "neighbour": neighbour}
            )
    names = task.labels
    pairs, counts = np.unique(np.stack([truth[wrong], found[wrong]], 1), axis=0, return_counts=True)
    often = np.argsort(-counts, kind="stable")[:most]
    return ErrorAnalysis(
        len(rows),
        len(wrong) / len(rows),
        tuple((names[pairs[k, 0]], names[pairs[k, 1]], int(counts[k])) for k in often),
        tuple(mistakes[i] for i in order.tolist()),
        tuple(_groups(predictor, rows, truth, found != truth, names)),
        tuple(mistakes[i] for i in suspects),
    )


def _mistake(task: Any, row: Row, raw: np.ndarray) -> Mistake:
    best = int(raw.argmax())
    return Mistake(row.line, row.texts, row.target, task.labels[best], float(raw[best]))


def _words_of(folder: str | Path, rows: Sequence[Row], device: str) -> list[list[str]]:
    """The words of each row that speak most for the answer of the folder's network."""
    explainer = Explainer(folder, device=device)
    data: list[Any] = [row.texts[0] if len(row.texts) == 1 else row.texts for row in rows]
    found: dict[tuple[str, ...], list[str]] = {}
    for each in explainer(data, method="leave_one_out"):
        order = np.argsort(-each.values, kind="stable")[:_EXPLAINED_WORDS]
        found[each.texts] = [each.word(int(i)) for i in order if each.values[i] > 0]
    return [found.get(row.texts, []) for row in rows]  # a text without words has none


def _neighbours(
    folder: str | Path, task: Task, rows: Sequence[Row], train: Any, device: str
) -> list[tuple[str, str] | None]:
    """Label and text of the training row with the most similar vector."""
    if train is None:
        return [None] * len(rows)
    known = read_labelled_rows(task, train, folder)
    embedder = Embedder(folder, device=device)

    def vectors(of: Sequence[Row]) -> np.ndarray:
        return embedder.encode([" ".join(row.texts) for row in of], normalize=True)

    nearest = (vectors(rows) @ vectors(known).T).argmax(1)
    return [(known[i].target, " ".join(known[i].texts)) for i in nearest.tolist()]


def _groups(
    predictor: Any, rows: Sequence[Row], truth: np.ndarray, wrong: np.ndarray, names: Sequence[str]
) -> list[FailingGroup]:
    """Groups by label, length and unknown words whose errors are clearly above those of all."""
    members: dict[str, np.ndarray] = {
        f"label {name}": truth == index for index, name in enumerate(names)
    }
    lengths = np.asarray([sum(map(len, row.texts)) for row in rows])
    limits = np.quantile(lengths, (0.25, 0.75))
    members[f"texts of up to {limits[0]:,.0f} characters"] = lengths <= limits[0]
    members[f"texts of {limits[1]:,.0f} characters or more"] = lengths >= limits[1]
    if (tokenizer := getattr(predictor, "tokenizer", None)) is not None:
        ids = tokenizer.encode_batch([" ".join(row.texts) for row in rows])
        unknown = np.asarray([own.count(tokenizer.unk_id) / max(1, len(own)) for own in ids])
        members["texts with a tenth of unknown words or more"] = unknown >= 0.1
    mean = float(wrong.mean())
    spread = sqrt(mean * (1 - mean))
    found = []
    for name, own in members.items():
        count = int(own.sum())
        if _FEWEST <= count < len(rows):
            share = float(wrong[own].mean())
            if share > mean + _CLEARLY * spread / sqrt(count):
                found.append(FailingGroup(name, count, share))
    return sorted(found, key=lambda group: -group.errors)


def as_lines(found: ErrorAnalysis, most_characters: int = 100) -> list[str]:
    """The analysis for a terminal."""
    lines = [translated(f"{found.errors:.1%} of {found.rows:,} rows are wrong")]
    if found.confusions:
        shown = "; ".join(f"{a} -> {b}: {n:,}" for a, b, n in found.confusions)
        lines += ["", translated("label -> answer, most often"), f"  {shown}"]
    if found.groups:
        lines += ["", translated("groups that are wrong more often than all rows")]
        lines += [f"  {translated(g.name)}: {g.errors:.1%} ({g.rows:,})" for g in found.groups]
    sections: Mapping[str, Sequence[Mistake]] = {
        "the most confident mistakes": found.mistakes,
        "labels that may be wrong": found.label_errors,
    }
    for title, mistakes in sections.items():
        if not mistakes:
            continue
        lines += ["", translated(title)]
        for each in mistakes:
            text = " / ".join(each.texts)
            text = text if len(text) <= most_characters else f"{text[:most_characters]}..."
            lines.append(
                f"  {each.line}: {each.label} -> {each.predicted} {each.probability:.3f}  {text}"
            )
            if each.words:
                lines.append(f"      {translated('because of')} {' '.join(each.words)}")
            if each.neighbour is not None:
                label, near = each.neighbour
                near = near if len(near) <= most_characters else f"{near[:most_characters]}..."
                lines.append(f"      {translated('nearest training row')} ({label}) {near}")
    return lines
