"""Selects texts to label next, and labels to check, with a trained model and the report of its
``fit``: likely label errors, and gains from more labels.
"""

import contextlib
import heapq
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import numpy as np

from ownbert import limits
from ownbert.checkpoint import CONFIG
from ownbert.checks import between, list_of, maybe, number, record, text, whole
from ownbert.corpus.documents import find_files
from ownbert.exceptions import InputError, needing
from ownbert.files.input_files import refuse_same
from ownbert.files.json_files import read_json
from ownbert.fitting.report.report import SHOWN_TEXT
from ownbert.fitting.rows.unlabelled_texts import Corpus
from ownbert.inference.embedder import Embedder
from ownbert.inference.embedding_outputs import of_length_one
from ownbert.inference.engines import Compute, say_each
from ownbert.inference.open_folder import open_folder
from ownbert.inference.opened import characters
from ownbert.inference.row_files import PredictionWriter
from ownbert.language import translated
from ownbert.language.messages import Message, join
from ownbert.pages import cleaned
from ownbert.run.file_names import REPORT
from ownbert.tables.label_studio import ENDING, write_tasks
from ownbert.tables.texts_or_files import corpus_files
from ownbert.tasks.classification import ClassificationTask
from ownbert.tasks.multilabel import MultiLabelTask
from ownbert.tasks.related_rows import text_key
from ownbert.tasks.row_network import blocks
from ownbert.tasks.rows import Row
from ownbert.views.tokens import text_kind
from ownbert.views.view_features import VIEWS, Texts

_ROWS = 512  # predicted at a time
# The reason is "undecided" if the margin between the two most probable labels is below the first
# value, and "does not fit any label" if their sum is below the second.
_UNDECIDED, _NO_LABEL = 0.5, 0.6
# Texts are selected from POOL_FACTOR times as many of the most uncertain ones. With fewer training
# rows per label than FEW, uncertain texts are mostly outliers, and macro-F1 fell far below that of
# random selection (docs/labelling.md); texts are then selected from SAMPLE random ones.
POOL_FACTOR, FEW, SAMPLE = 10, 10, 5000
# A label is rare if it has less than this share of the mean number of training rows; maximum share
# of texts selected for rare labels.
_RARE, _MOST_RARE = 0.5, 0.5
# A learning curve is flat if doubling the rows gains less than this.
_FLAT = 0.01
_index, _finite = whole(0, limits.COUNT), maybe(number(-1e9, 1e9))
_ERROR = {"text": text, "place": text, "given": _index, "suggested": _index, "score": _finite}
_CURVE = {
    "at": list_of(number(1, limits.COUNT)),
    "reason": text,
    **dict.fromkeys(("limit", "slope", "exponent"), _finite),
}
_CHECK = record(
    {
        "labels": list_of(text),
        "train_counts": list_of(_index),
        "label_errors": list_of(record(_ERROR, required=tuple(_ERROR))),
        "learning_curve": maybe(record(_CURVE, required=tuple(_CURVE))),
    }
)


class _Candidate(NamedTuple):
    """A text of a pool, which keeps the texts with the highest (rank, number); score: its
    uncertainty."""

    rank: float
    number: int
    score: float
    text: str
    probabilities: np.ndarray


class _Pool:
    """The distinct texts with the highest ranks so far, at most ``most``; with ``labels``, only
    those for which one of these is predicted; with a generator ranks are random instead of the
    uncertainty."""

    def __init__(
        self, most: int, labels: Sequence[int] | None = None, generator: Random | None = None
    ) -> None:
        self.most, self.generator = most, generator
        self.labels = None if labels is None else set(labels)
        self.heap: list[_Candidate] = []
        self.keys: set[str | bytes] = set()

    def add(
        self, number: int, text: str, score: float, probabilities: np.ndarray, labels: Sequence[int]
    ) -> None:
        """Add a text with its predicted labels if there is room or its rank is high enough."""
        key = text_key(text)
        is_candidate = self.labels is None or not self.labels.isdisjoint(labels)
        if key in self.keys or not (self.most and is_candidate):
            return
        rank = score if self.generator is None else self.generator.random()
        candidate = _Candidate(rank, -number, score, text, probabilities)
        if len(self.heap) < self.most:
            heapq.heappush(self.heap, candidate)
        elif candidate[:2] > self.heap[0][:2]:
            self.keys.remove(text_key(heapq.heapreplace(self.heap, candidate).text))
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
    train: Any = None,
    text_column: str | None = None,
    seed: int = 0,
    device: str = "auto",
    progress: Callable[[int], None] | None = None,
    say: Callable[[str], None] | None = None,
) -> list[dict[str, Any]]:
    """Select the texts whose labels would help a model most: uncertain and diverse ones, first
    those that may have a rare label. With few training rows, typical texts are selected.

    Args:
        folder: folder of ``fit`` or ``finetune`` with one label or several labels per text.
        unlabelled: files, folders, globs, or texts, see ``fit``.
        output: .csv, .tsv or .jsonl; .json for Label Studio tasks. With labels filled in, it is an
            input for ``fit(add=...)``.
        count: number of texts.
        check: file for the likely label errors in the report of ``fit``.
        train: training rows, a file or in memory, which are not selected again; with them,
            ``check`` includes the texts.
        text_column: column of the text in tables of ``unlabelled``.
        seed: seed of the clustering.
        device: auto, cpu or cuda.
        progress: called with the number of texts read so far.
        say: called with notes, such as the gain expected from more labels.

    Returns:
        For each text ``text``, ``label`` (empty), ``suggested``, ``score`` (the probability of the
        suggested label) and ``reason``. With several labels per text ``suggested`` is a list, and
        ``score`` the mean probability of the decisions on single labels.

    Raises:
        InputError: a file or the folder cannot be used, or there are no texts.
    """
    between(1, limits.COUNT, "[]")("count", count)
    predictor = open_folder(folder, Compute(device, "float32"))
    task, folder = predictor.task, predictor.folder
    if not gives_labels(task):
        message = "{folder}: texts can be chosen only for models with labels for single texts"
        raise InputError(message, folder)
    if check is not None and isinstance(task, MultiLabelTask):
        raise InputError(
            "{folder} has several labels per text; likely label errors are only found for one "
            "label per text: omit {--check}",
            folder,
        )
    report = read_report(folder)

    def vectors(texts: Sequence[str]) -> np.ndarray:
        return np.asarray(Embedder(folder, device=device).encode(list(texts)))

    learnt = [] if train is None else task.read(task.source(train, labelled=True))
    with contextlib.ExitStack() as stack:
        files = stack.enter_context(corpus_files(unlabelled))
        for path in (output, check):
            refuse_same([folder, train, *find_files(files)], path)
        save = [stack.enter_context(_writer(path)) for path in (output, check)]
        errors = label_errors(report, learnt) if check is not None else []
        rows = chosen_rows(
            predictor,
            Corpus(files, text_column).texts(),
            count,
            report=report,
            known=[row.texts[0] for row in learnt],
            vectors=vectors if (folder / CONFIG).exists() else None,
            seed=seed,
            progress=progress,
        )
        for write, content in zip(save, (rows, errors), strict=True):
            write(content)
    notes = [Message("note: {line!t}", worth_of_labels(report, len(rows)))]
    if check is not None:
        found = Message("{count:,} likely label errors; saved {check}", len(errors), check)
        none = Message("the report has no likely label errors; {check} is not written", check)
        notes.insert(0, found if errors else none)
    say_each(notes, say)
    return rows


def gives_labels(task: Any) -> bool:
    """Whether a task predicts labels of single texts."""
    return isinstance(task, ClassificationTask | MultiLabelTask) and not task.pair


def chosen_rows(
    predictor: Any,
    texts: Iterable[str],
    count: int,
    *,
    report: Mapping[str, Any],
    known: Iterable[str] = (),
    vectors: Callable[[Sequence[str]], np.ndarray] | None = None,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
) -> list[dict[str, Any]]:
    """Choose the rows for ``to_label`` with an ``Opened`` folder.

    Args:
        report: report of ``fit``, may be empty.
        known: texts to exclude.
        vectors: function that computes vectors (N, D) of texts; by default LSA.

    Raises:
        InputError: there are no texts, or scikit-learn is not installed.
    """
    task = predictor.task
    counts = np.asarray(report.get("train_counts") or [])
    if len(counts) != len(task.labels):  # not a fit folder: assume many rows
        counts = np.full(len(task.labels), FEW)
    rare_count = count_for_rare(counts, count)
    # For texts that may have a rare label, and for all others (some may be in both).
    rare = _Pool(POOL_FACTOR * rare_count, rare_labels(counts).tolist())
    others = _Pool(POOL_FACTOR * count + rare_count)
    if counts.mean() < FEW:
        others = _Pool(max(SAMPLE, POOL_FACTOR * count), generator=Random(seed))
    pools = rare, others
    _read(predictor, texts, pools, {text_key(text) for text in known}, progress)
    rows: list[dict[str, Any]] = []
    for pool, most in zip(pools, (rare_count, count), strict=True):
        selected = {text_key(row["text"]) for row in rows}
        candidates = [each for each in pool.heap if text_key(each.text) not in selected]
        scores = np.asarray([each.score for each in candidates])
        features = np.zeros((len(candidates), 1))  # all are chosen
        if len(candidates) > most - len(rows):
            features = (vectors or _lsa)([each.text for each in candidates])
        chosen = choose(scores, features, most - len(rows), seed)
        rows += [_row(candidates[i], task, counts) for i in chosen]
    if not rows:
        raise InputError("there is no text to choose from: all are empty or already labelled")
    return rows


def _read(
    predictor: Any,
    texts: Iterable[str],
    pools: Sequence[_Pool],
    known: set[str | bytes],
    progress: Callable[[int], None] | None,
) -> None:
    """Predict the texts that are not ``known``, and add them to the pools."""
    number = 0
    for block in blocks((Row(0, (each,)) for each in texts), rows=_ROWS, size=characters):
        new = [r for r in block if (key := text_key(r.texts[0])) and key not in known]
        if new:
            probabilities = np.stack(predictor.raws(new)[0])
            several = isinstance(predictor.task, MultiLabelTask)
            scores = (uncertainty_of_sets if several else uncertainty)(probabilities).tolist()
            for i, row in enumerate(new):
                predicted = _predicted(predictor.task, probabilities[i])
                for pool in pools:
                    pool.add(number + i, row.texts[0], scores[i], probabilities[i], predicted)
        number += len(block)
        if progress is not None:
            progress(number)


def _lsa(texts: Sequence[str]) -> np.ndarray:
    """(N, D) vectors of LSA on the texts themselves."""
    own = Texts([(each,) for each in texts], text_kind(iter(texts)))
    return np.asarray(VIEWS["lsa"].fit(own, Texts([], own.kind)).features(own))


def _predicted(task: Any, probabilities: np.ndarray) -> list[int]:
    """Indices of the predicted labels: one, or all that reach the threshold."""
    if isinstance(task, MultiLabelTask):
        return np.flatnonzero(probabilities >= task.threshold).tolist()
    return [int(task.preferences(probabilities).argmax())]


def _row(candidate: _Candidate, task: Any, counts: np.ndarray) -> dict[str, Any]:
    """The output row of a chosen text."""
    predicted = _predicted(task, candidate.probabilities)
    rare = next((i for i in rare_labels(counts) if i in predicted), None)
    several = isinstance(task, MultiLabelTask)
    if rare is not None:
        name, rows = task.labels[rare], int(counts[rare])
        reason = Message(
            "may have the rare label {name}, which has only {rows:,} training rows", name, rows
        )
    elif counts.mean() < FEW:
        reason = "typical of similar texts; there are few labels so far"
    else:
        reason = (_reason_of_sets if several else _reason)(candidate.probabilities, task.labels)
    suggested: Any = [task.labels[i] for i in predicted]
    certainty = candidate.probabilities
    if several:
        holds = np.isin(np.arange(len(certainty)), predicted)
        certainty = np.where(holds, certainty, 1 - certainty)
    score = round(float(certainty.mean() if several else certainty.max()), 4)
    row = {"text": candidate.text, "label": ""}
    row["suggested"] = suggested if several else suggested[0]
    return row | {"score": score, "reason": translated(reason)}


def _reason(probabilities: np.ndarray, labels: Sequence[str]) -> str:
    order = np.argsort(-probabilities, kind="stable")[:2].tolist()
    (a, p), (b, q) = ((labels[i], probabilities[i]) for i in order)
    if p + q < _NO_LABEL:
        return Message(
            "does not fit any label well: {value} {path:.0%}, {value2} {q:.0%}", a, p, b, q
        )
    if p - q < _UNDECIDED:
        return Message("undecided between {value} ({path:.0%}) and {value2} ({q:.0%})", a, p, b, q)
    return Message("less certain than most texts: {value} {path:.0%}", a, p)


def _reason_of_sets(probabilities: np.ndarray, labels: Sequence[str]) -> str:
    order = np.argsort(np.abs(probabilities - 0.5), kind="stable")[:2].tolist()
    near = (Message("{label} ({share:.0%})", labels[i], probabilities[i]) for i in order)
    return Message("undecided about {labels}", join(near, " and "))


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


def uncertainty(probabilities: np.ndarray) -> np.ndarray:
    """(N) 1 minus the margin between the two most probable labels, of probabilities (N, C), C at
    least 2.

    Source: Scheffer, Decomain and Wrobel 2001, "Active Hidden Markov Models for Information
    Extraction", section 3.
    """
    second, first = np.partition(probabilities, -2, axis=1)[:, -2:].T
    return 1 - (first - second)


def uncertainty_of_sets(probabilities: np.ndarray) -> np.ndarray:
    """(N) mean binary entropy of the labels (N, C), in bits; 1 if all probabilities are 0.5."""
    p = np.clip(probabilities.astype(np.float64), 1e-12, 1 - 1e-12)
    return -(p * np.log2(p) + (1 - p) * np.log2(1 - p)).mean(1)


def choose(scores: np.ndarray, vectors: np.ndarray, count: int, seed: int = 0) -> np.ndarray:
    """Select diverse texts: the nearest to the centre of each of ``count`` clusters, most uncertain
    first.

    Args:
        scores: (N) uncertainties, used as weights in the clustering.
        vectors: (N, D); without features (D = 0), the most uncertain texts are selected.

    Raises:
        InputError: scikit-learn is not installed.

    Source: Zhdanov 2019, "Diverse mini-batch Active Learning", section 3.
    """
    order = np.argsort(-scores, kind="stable")
    if len(order) <= count or not count or not vectors.shape[1]:
        return order[:count]
    with needing("clustering texts needs scikit-learn: pip install 'ownbert[eval]'"):
        from sklearn.cluster import KMeans
    vectors = of_length_one(vectors[order] - vectors.mean(0))
    once: Any = 1  # scikit-learn's annotation only allows strings
    means = KMeans(count, n_init=once, max_iter=20, random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about fewer clusters than distinct vectors
        clusters = means.fit_predict(vectors, sample_weight=scores[order] + 1e-6)
    distances = ((vectors - means.cluster_centers_[clusters]) ** 2).sum(1)
    nearest = np.argsort(distances, kind="stable")
    first = nearest[np.unique(clusters[nearest], return_index=True)[1]]
    rest = np.setdiff1d(np.arange(len(order)), first)[: count - len(first)]
    return order[np.sort(np.concatenate([first, rest]))]


def rare_labels(counts: np.ndarray) -> np.ndarray:
    """Indices of labels with few of the training rows (C), rarest first."""
    order = np.argsort(counts, kind="stable")
    return order[counts[order] < _RARE * counts.mean()]


def count_for_rare(counts: np.ndarray, count: int) -> int:
    """How many of ``count`` texts are selected for rare labels: as many as these labels lack."""
    lacking = np.ceil(_RARE * counts.mean() - counts[rare_labels(counts)]).sum()
    return int(min(lacking, _MOST_RARE * count))


def read_report(folder: Path) -> dict[str, Any]:
    """Read the report of a folder; empty if it has none, as ``finetune`` folders."""
    return read_json(folder / REPORT, missing={}, check=_CHECK)


def label_errors(report: dict[str, Any], known: Sequence[Row]) -> list[dict[str, Any]]:
    """The likely label errors in the report of ``fit`` as output rows, most certain first.

    ``known``: the training rows; without them output rows only have locations. Rows of other files
    are left out.
    """
    if "label_errors" not in report:
        raise InputError("likely label errors are in the {report} that ownbert fit writes", REPORT)
    rows: list[dict[str, Any]] = []
    # Texts of the same beginning are distinguished by their places: "line 7", earlier "row 7".
    whole_texts: dict[Any, str] = {}
    for row in known:
        start = cleaned(row.texts[0], SHOWN_TEXT)
        whole_texts[start] = whole_texts[start, str(row.line)] = row.texts[0]
    names = dict(enumerate(report.get("labels", [])))
    for error in report["label_errors"]:
        labels = {k: names.get(error[k], str(error[k])) for k in ("given", "suggested")}
        start, place = error["text"], error["place"]
        text = whole_texts.get((start, place.rpartition(" ")[2]), whole_texts.get(start))
        if text is not None:
            rows.append({"text": text, "label": "", **labels, "score": error["score"]})
        elif not known:
            rows.append({"place": place, **labels, "score": error["score"]})
    return rows


def worth_of_labels(report: dict[str, Any], count: int) -> str:
    """The expected gain of ``count`` more labels, from the report's learning curve."""
    curve = report.get("learning_curve") or {"at": [], "reason": "the report has no learning curve"}
    if curve["reason"] or None in (curve["slope"], curve["exponent"]) or not curve["at"]:
        reason = curve["reason"]
        return Message("the gain from {count:,} more labels is unknown: {reason}", count, reason)
    rows, slope, exponent = curve["at"][-1], curve["slope"], curve["exponent"]

    def gain(further: float) -> float:
        return slope * (rows**-exponent - (rows + further) ** -exponent)

    line = "{count:,} more labels would gain about {gain:+.3f}, twice as many {twice:+.3f}"
    found = Message(line, count, gain(count), gain(rows))
    return Message("the curve is flat: {line}", found) if gain(rows) < _FLAT else found
