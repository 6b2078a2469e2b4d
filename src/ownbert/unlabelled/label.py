"""Which texts to label next, and which labels to look at again, by a finished model."""

import contextlib
import heapq
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ownbert import limits
from ownbert.checkpoint import CONFIG
from ownbert.data.readers.columns import ColumnNames
from ownbert.data.readers.label_studio import ENDING, write_tasks
from ownbert.data.readers.texts_or_files import corpus_files
from ownbert.errors import InputError
from ownbert.files import read_json, together
from ownbert.fitting.networks import Corpus
from ownbert.fitting.report.contents import cleaned
from ownbert.fitting.report.report import SHOWN_TEXT
from ownbert.inference.any_predictor import open_predictor
from ownbert.inference.embedder import Embedder
from ownbert.inference.prediction_writer import PredictionWriter
from ownbert.language import translated
from ownbert.schema import anything, list_of, maybe, number, record, text, whole
from ownbert.settings import between
from ownbert.tasks.batched_forward import blocks
from ownbert.tasks.classification import ClassificationTask
from ownbert.tasks.rows import Row
from ownbert.unlabelled.choice import (
    POOL_FACTOR,
    choose,
    rare_labels,
    share_of_rare,
    uncertainty,
)
from ownbert.views.features import VIEWS, Texts
from ownbert.views.tokens import text_kind

Say = Callable[[str], None]

_ROWS = 512  # that are predicted at a time
# A text is said to be undecided where the two most probable labels are closer than this, and to fit
# no label where they have less than this share together.
_UNDECIDED, _NO_LABEL = 0.5, 0.6
# A curve is flat if twice as many rows gain less than this.
_FLAT = 0.01
_REPORT = "report.json"
_finite = number(-1e9, 1e9)
_CHECK = record(
    {
        "metric": text,
        "labels": list_of(text),
        "train_counts": list_of(whole(0, limits.COUNT)),
        "label_errors": list_of(
            record(
                {
                    "text": text,
                    "place": text,
                    "given": whole(0, limits.COUNT),
                    "suggested": whole(0, limits.COUNT),
                    "score": _finite,
                },
                required=("text", "place", "given", "suggested", "score"),
            )
        ),
        "learning_curve": maybe(
            record(
                {
                    "at": list_of(_finite),
                    "reason": text,
                    **dict.fromkeys(("limit", "slope", "exponent"), maybe(_finite)),
                    "fitted": anything,
                },
                required=("at", "reason"),
            )
        ),
    }
)


class _Uncertain(NamedTuple):
    """A text of the pool; the first two are its order."""

    score: float
    number: int
    text: str
    probabilities: np.ndarray


class _Pool:
    """The most uncertain texts so far, each once."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.heap: list[_Uncertain] = []
        self.keys: set[str] = set()

    def add(self, found: _Uncertain) -> None:
        key = _key(found.text)
        if key in self.keys or not self.most:
            return
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
    say: Say | None = None,
) -> list[dict[str, Any]]:
    """The texts whose labels a model has most use for: uncertain ones that differ from each other,
    those that may have a rare label first.

    Args:
        folder: of ``fit`` or ``finetune``, for one label per text.
        unlabelled: files, folders, globs, or texts, as ``fit`` takes them.
        output: .csv, .tsv or .jsonl; .json for tasks of Label Studio. Filled in, it is what
            ``fit(add=...)`` reads.
        count: number of texts.
        check: a file for the likely label errors that the report of ``fit`` has found.
        train: the training rows, which are not chosen again; ``check`` has their texts then.
        text_column: of ``unlabelled``, in tables.
        seed: of the clustering.
        device: auto, cpu or cuda.
        progress: called with the number of texts read so far.
        say: called with what more labels would bring, by the report's learning curve.

    Returns:
        For each text ``text``, ``label`` (empty), ``suggested``, ``score`` (the probability of the
        suggested label) and ``reason``.

    Raises:
        InputError: a file or the folder cannot be used, or there is no text.
    """
    between(1, limits.COUNT, "[]")("count", count)
    predictor = open_predictor(folder, device=device)
    task, folder = predictor.task, predictor.folder
    if not isinstance(task, ClassificationTask) or task.pair:
        raise InputError(f"{folder}: texts are chosen for models of one label per text")
    report = read_json(folder / _REPORT, missing={}, check=_CHECK)
    known = [row.texts[0] for row in task.read(train)] if train is not None else []
    with contextlib.ExitStack() as stack:
        save = [stack.enter_context(_writer(path)) for path in (output, check)]
        errors = _label_errors(report, known) if check is not None else []
        counts = np.asarray(report.get("train_counts") or [])
        counts = counts if len(counts) == len(task.labels) else np.ones(len(task.labels))
        files = stack.enter_context(corpus_files(unlabelled))
        texts = Corpus(files, text_column).texts()
        found = _pools(predictor, texts, count, counts, {_key(each) for each in known}, progress)
        rows: list[dict[str, Any]] = []
        for pool, most in found:
            most = count - len(rows) if most is None else most
            taken = {row["text"] for row in rows}
            pool = [each for each in pool if each.text not in taken]
            vectors = _vectors(folder, [each.text for each in pool], device)
            scores = np.asarray([each.score for each in pool])
            rows += [_row(pool[i], task, counts) for i in choose(scores, vectors, most, seed)]
        if not rows:
            raise InputError("there is no text to choose from: all are empty or labelled already")
        with together():
            for write, content in zip(save, (rows, errors), strict=True):
                write(content)
    if say is not None:
        for line in _lines(report, len(rows), errors, check):
            say(line)
    return rows


def _pools(
    predictor: Any,
    texts: Iterator[str],
    count: int,
    counts: np.ndarray,
    known: set[str],
    progress: Callable[[int], None] | None,
) -> list[tuple[list[_Uncertain], int | None]]:
    """The most uncertain texts whose most probable label is rare, with how many are chosen of
    them, and the most uncertain of all texts."""
    rare, share = set(rare_labels(counts).tolist()), share_of_rare(counts, count)
    of_rare, of_all = _Pool(POOL_FACTOR * share), _Pool(POOL_FACTOR * count + share)
    number = 0
    rows = (Row(0, (each,)) for each in texts)
    for block in blocks(rows, rows=_ROWS, size=lambda row: len(row.texts[0])):
        number += len(block)
        new = [r for r in block if (key := _key(r.texts[0])) and key not in known]
        if new:
            probabilities = np.stack(predictor.raws(new)[0])
            for i, score in enumerate(uncertainty(probabilities).tolist()):
                each = _Uncertain(score, i - number, new[i].texts[0], probabilities[i])
                of_all.add(each)
                if int(each.probabilities.argmax()) in rare:
                    of_rare.add(each)
        if progress is not None:
            progress(number)
    return [(sorted(of_rare.heap, reverse=True, key=lambda each: each[:2]), share),
            (sorted(of_all.heap, reverse=True, key=lambda each: each[:2]), None)]  # fmt: skip


def _vectors(folder: Path, texts: Sequence[str], device: str) -> np.ndarray:
    """(N, D) vectors of the folder's network; of LSA where it has only linear models."""
    if not texts:
        return np.zeros((0, 1))
    if (folder / CONFIG).exists():
        return np.asarray(Embedder(folder, device=device).encode(list(texts)))
    own = Texts([(each,) for each in texts], text_kind(iter(texts)))
    return np.asarray(VIEWS["lsa"].fit(own, Texts([], own.kind)).features(own))


def _row(found: _Uncertain, task: Any, counts: np.ndarray) -> dict[str, Any]:
    first, second = np.argsort(-found.probabilities, kind="stable")[:2].tolist()
    a, b = task.labels[first], task.labels[second]
    p, q = found.probabilities[first], found.probabilities[second]
    if first in rare_labels(counts):
        reason = f"may have the rare label {a}, which has {int(counts[first]):,} training rows"
    elif p + q < _NO_LABEL:
        reason = f"fits no label well: {a} {p:.0%}, {b} {q:.0%}"
    elif p - q < _UNDECIDED:
        reason = f"undecided between {a} ({p:.0%}) and {b} ({q:.0%})"
    else:
        reason = f"the least certain of texts like it: {a} {p:.0%}"
    return {
        "text": found.text,
        "label": "",
        "suggested": a,
        "score": round(float(p), 4),
        "reason": translated(reason),
    }


def _label_errors(report: dict[str, Any], known: Sequence[str]) -> list[dict[str, Any]]:
    """Rows of the report's likely label errors, the surest first; with texts if these are known."""
    if "label_errors" not in report:
        raise InputError(f"--check needs the {_REPORT} that ownbert fit writes")
    names, rows = report.get("labels", []), []
    whole_texts = {cleaned(each, SHOWN_TEXT): each for each in known}
    for each in report["label_errors"]:
        given, suggested = (
            names[each[key]] if each[key] < len(names) else str(each[key])
            for key in ("given", "suggested")
        )
        own = {"given": given, "suggested": suggested, "score": round(each["score"], 4)}
        if known:
            if (found := whole_texts.get(each["text"])) is None:
                continue  # of dev rows
            own = {"text": found, "label": "", **own}
        rows.append({**own, "place": each["place"]})
    return rows


def _lines(
    report: dict[str, Any], count: int, errors: Sequence[Any], check: Any
) -> Iterator[str]:
    """What the user is told besides."""
    if check is not None and not errors:
        yield f"the report has no likely label errors; {check} is not written"
    curve = report.get("learning_curve")
    if not curve or not curve["at"]:
        return
    if curve["reason"] or None in (curve.get("slope"), curve.get("exponent")):
        reason = translated(curve["reason"])
        yield f"note: what {count:,} more labels would bring is not known: {reason}"
        return
    rows, slope, exponent = curve["at"][-1], curve["slope"], curve["exponent"]

    def gain(further: float) -> float:
        return slope * (rows**-exponent - (rows + further) ** -exponent)

    flat = "the curve is flat" if gain(rows) < _FLAT else "the curve still rises"
    yield (
        f"note: {translated(flat)}: {count:,} more labels would bring about {gain(count):+.3f}, "
        f"twice as many {gain(rows):+.3f} ({report.get('metric', '')})"
    )


@contextlib.contextmanager
def _writer(path: str | Path | None) -> Iterator[Callable[[Sequence[dict[str, Any]]], object]]:
    """What writes rows to a file, whose name and place are checked at once."""
    if path is None:
        yield lambda rows: None
    elif Path(path).suffix.lower() == ENDING:
        yield lambda rows: write_tasks(path, rows)
    else:
        writer = PredictionWriter(path, None, resume=False)
        with contextlib.closing(writer):
            yield lambda rows: writer.fill([rows], list) if rows else None


def _key(text: str) -> str:
    """Alike for texts that differ by white space only."""
    return " ".join(text.split())
