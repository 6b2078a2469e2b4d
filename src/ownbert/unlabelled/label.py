"""Selects texts to label next, and labels to check, with a finished model."""

import contextlib
import heapq
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import numpy as np

from ownbert import limits
from ownbert.checkpoint import CONFIG
from ownbert.checks import between
from ownbert.errors import InputError
from ownbert.fitting.networks import Corpus
from ownbert.inference.compute import Compute
from ownbert.inference.embedding.embedder import Embedder
from ownbert.inference.open_folder import open_folder
from ownbert.inference.opened import characters
from ownbert.inference.output.prediction_writer import PredictionWriter
from ownbert.language import translated
from ownbert.tables.label_studio import ENDING, write_tasks
from ownbert.tables.texts_or_files import corpus_files
from ownbert.tasks.classification import ClassificationTask
from ownbert.tasks.forward.batched_forward import blocks
from ownbert.tasks.rows import Row
from ownbert.unlabelled.choice import (
    FEW,
    POOL_FACTOR,
    SAMPLE,
    choose,
    rare_labels,
    share_of_rare,
    uncertainty,
)
from ownbert.unlabelled.fit_report import label_errors, read_report, worth_of_labels
from ownbert.views.tokens import text_kind
from ownbert.views.view_features import VIEWS, Texts

_ROWS = 512  # predicted at a time
# A text is called undecided if the margin between its two most probable labels is below the first
# value, and of no known label if their sum is below the second.
_UNDECIDED, _NO_LABEL = 0.5, 0.6


class _Candidate(NamedTuple):
    """A text of a pool.

    Args:
        rank, number: sort key; the pool keeps the texts with the highest ones.
        score: uncertainty of the text.
    """

    rank: float
    number: int
    score: float
    text: str
    probabilities: np.ndarray


class _Pool:
    """The distinct texts with the highest ranks so far.

    Args:
        most: maximum number of texts.
        labels: accept only texts with one of these as the most probable label; None: any.
        drawn: generator of random ranks; None: rank by uncertainty.
    """

    def __init__(
        self, most: int, labels: Sequence[int] | None = None, drawn: Random | None = None
    ) -> None:
        self.most, self.labels, self.drawn = most, labels, drawn
        self.heap: list[_Candidate] = []
        self.keys: set[str] = set()

    def add(self, number: int, text: str, score: float, probabilities: np.ndarray) -> None:
        key = _key(text)
        wanted = self.labels is None or int(probabilities.argmax()) in self.labels
        if key in self.keys or not (self.most and wanted):
            return
        rank = score if self.drawn is None else self.drawn.random()
        found = _Candidate(rank, -number, score, text, probabilities)
        if len(self.heap) < self.most:
            heapq.heappush(self.heap, found)
        elif found[:2] > self.heap[0][:2]:
            self.keys.remove(_key(heapq.heapreplace(self.heap, found).text))
        else:
            return
        self.keys.add(key)


def to_label(
    folder: str | Path,
    unlabelled: Any,
    output: str | Path | None = None,
    *,
    count: int = 50,
    check: str | Path | None = None,
    train: str | Path | None = None,
    text_column: str | None = None,
    seed: int = 0,
    device: str = "auto",
    progress: Callable[[int], None] | None = None,
    say: Callable[[str], None] | None = None,
) -> list[dict[str, Any]]:
    """Select the texts whose labels would help a model most: uncertain and diverse ones, first
    those that may have a rare label. With few training rows, typical texts are selected.

    Args:
        folder: single-label folder of ``fit`` or ``finetune``.
        unlabelled: files, folders, globs, or texts, see ``fit``.
        output: .csv, .tsv or .jsonl; .json for Label Studio tasks. With labels filled in, it is an
            input for ``fit(add=...)``.
        count: number of texts.
        check: file for the likely label errors in the report of ``fit``.
        train: training rows, which are not selected again; ``check`` then has their texts.
        text_column: column of the text in tables of ``unlabelled``.
        seed: seed of the clustering.
        device: auto, cpu or cuda.
        progress: called with the number of texts read so far.
        say: called with the expected gain of more labels, from the report's learning curve.

    Returns:
        For each text ``text``, ``label`` (empty), ``suggested``, ``score`` (the probability of the
        suggested label) and ``reason``.

    Raises:
        InputError: a file or the folder cannot be used, or there are no texts.
    """
    between(1, limits.COUNT, "[]")("count", count)
    predictor = open_folder(folder, Compute(device, "float32"))
    task, folder = predictor.task, predictor.folder
    if not isinstance(task, ClassificationTask) or task.pair:
        raise InputError(f"{folder}: texts can be chosen only for models with one label per text")
    report = read_report(folder)
    known = [row.texts[0] for row in task.read(train)] if train is not None else []
    with contextlib.ExitStack() as stack:
        save = [stack.enter_context(_writer(path)) for path in (output, check)]
        errors = label_errors(report, known) if check is not None else []
        counts = np.asarray(report.get("train_counts") or [])
        if len(counts) != len(task.labels):  # not a fit folder: assume many rows
            counts = np.full(len(task.labels), FEW)
        files = stack.enter_context(corpus_files(unlabelled))
        texts = Corpus(files, text_column).texts()
        share = share_of_rare(counts, count)
        pools = _pools(counts, count, share, seed)
        _read(predictor, texts, pools, {_key(each) for each in known}, progress)
        rows: list[dict[str, Any]] = []
        for pool, most in zip(pools, (share, count), strict=True):
            taken = {row["text"] for row in rows}
            found = [each for each in pool.heap if each.text not in taken]
            vectors = _vectors(folder, [each.text for each in found], device)
            scores = np.asarray([each.score for each in found])
            chosen = choose(scores, vectors, most - len(rows), seed)
            rows += [_row(found[i], task, counts) for i in chosen]
        if not rows:
            raise InputError("there is no text to choose from: all are empty or already labelled")
        for write, content in zip(save, (rows, errors), strict=True):
            write(content)
    if say is not None:
        if check is not None and not errors:
            say(f"the report has no likely label errors; {check} is not written")
        say(f"note: {worth_of_labels(report, len(rows))}")
    return rows


def _pools(counts: np.ndarray, count: int, share: int, seed: int) -> tuple[_Pool, _Pool]:
    """The pools for ``share`` texts that may have a rare label, and for all other selected
    texts."""
    of_rare = _Pool(POOL_FACTOR * share, rare_labels(counts).tolist())
    if counts.mean() < FEW:
        return of_rare, _Pool(max(SAMPLE, POOL_FACTOR * count), drawn=Random(seed))
    return of_rare, _Pool(POOL_FACTOR * count + share)  # some may be selected as rare ones


def _read(
    predictor: Any,
    texts: Iterator[str],
    pools: Sequence[_Pool],
    known: set[str],
    progress: Callable[[int], None] | None,
) -> None:
    """Add texts without labels to the pools."""
    number = 0
    for block in blocks((Row(0, (each,)) for each in texts), rows=_ROWS, size=characters):
        new = [r for r in block if (key := _key(r.texts[0])) and key not in known]
        if new:
            probabilities = np.stack(predictor.raws(new)[0])
            scores = uncertainty(probabilities).tolist()
            for i, row in enumerate(new):
                for pool in pools:
                    pool.add(number + i, row.texts[0], scores[i], probabilities[i])
        number += len(block)
        if progress is not None:
            progress(number)


def _vectors(folder: Path, texts: Sequence[str], device: str) -> np.ndarray:
    """(N, D) vectors of the folder's network, or of LSA if it only has linear models."""
    if not texts:
        return np.zeros((0, 1))
    if (folder / CONFIG).exists():
        return np.asarray(Embedder(folder, device=device).encode(list(texts)))
    new_texts = Texts([(each,) for each in texts], text_kind(iter(texts)))
    return np.asarray(VIEWS["lsa"].fit(new_texts, Texts([], new_texts.kind)).features(new_texts))


def _row(found: _Candidate, task: Any, counts: np.ndarray) -> dict[str, Any]:
    first, second = np.argsort(-found.probabilities, kind="stable")[:2].tolist()
    a, b = task.labels[first], task.labels[second]
    p, q = found.probabilities[first], found.probabilities[second]
    if first in rare_labels(counts):
        reason = f"may have the rare label {a}, which has only {int(counts[first]):,} training rows"
    elif counts.mean() < FEW:
        reason = "typical of similar texts; there are few labels so far"
    elif p + q < _NO_LABEL:
        reason = f"does not fit any label well: {a} {p:.0%}, {b} {q:.0%}"
    elif p - q < _UNDECIDED:
        reason = f"undecided between {a} ({p:.0%}) and {b} ({q:.0%})"
    else:
        reason = f"less certain than most texts: {a} {p:.0%}"
    return {
        "text": found.text,
        "label": "",
        "suggested": a,
        "score": round(float(p), 4),
        "reason": translated(reason),
    }


@contextlib.contextmanager
def _writer(path: str | Path | None) -> Iterator[Callable[[Sequence[dict[str, Any]]], object]]:
    """Yield a function that writes rows to a file, whose name is checked immediately."""
    if path is None:
        yield lambda rows: None
    elif Path(path).suffix.lower() == ENDING:
        yield lambda rows: write_tasks(path, rows)
    else:
        writer = PredictionWriter(path, None, resume=False)
        with contextlib.closing(writer):
            yield lambda rows: writer.fill([rows], list) if rows else None


def _key(text: str) -> str:
    """The text with normalised white space."""
    return " ".join(text.split())
