"""Error analysis of a trained model on labelled rows. N rows, D vector size."""

import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np

from ownbert.checkpoint import CONFIG
from ownbert.exceptions import InputError, percent
from ownbert.inference.embedder import Embedder
from ownbert.inference.embedding_outputs import of_length_one
from ownbert.inference.engines import Compute
from ownbert.inference.open_folder import open_folder
from ownbert.inference.opened import Opened, decide_all, given_rows, read_labelled_rows
from ownbert.inference.opened_blend import OpenedBlend
from ownbert.inspect.error_judgement import JUDGES, Named, WrongPrediction
from ownbert.inspect.explain.blend_words import CONTRIBUTIONS, LinearShares
from ownbert.inspect.explain.explain import Explainer
from ownbert.language import translated
from ownbert.language.messages import Message
from ownbert.tables.columns import ColumnNames
from ownbert.tasks.rows import Row
from ownbert.tasks.task import Task
from ownbert.views.linear_models import LinearView
from ownbert.views.view_features import Texts

# Minimum rows of a reported group, and by how many standard errors its error rate must exceed the
# overall one.
_FEWEST, _CLEARLY = 10, 2.0
_EXPLAINED_WORDS = 5
# Texts of more tokens are explained by the gradient: one pass instead of one for each word.
_MOST_PASSES = 256
_SHOWN = 100  # characters of a text or a label
# Clusters of vectors: mean rows per cluster, maximum number, and words in a cluster's name.
_ROWS_OF_CLUSTER, _CLUSTERS, _NAMING_WORDS = 25, 12, 3


@dataclass(frozen=True)
class Mistake:
    """A wrong prediction.

    Args:
        line: line in the file, or number of the row.
        probability: probability of the prediction; for regression its distance from the truth.
        words: words that support the prediction most, if explained.
        neighbour: label and text of the most similar training row, if there are training rows.
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
    """Rows with a common property and a higher error rate (for regression: mean distance) than
    average."""

    name: str
    rows: int
    errors: float


@dataclass(frozen=True)
class ErrorAnalysis:
    """The results of an error analysis.

    Args:
        errors: error rate; for regression the mean distance from the truth.
        confusions: (label, prediction, count), most frequent first.
        mistakes: most confident first; for regression largest distance first.
        groups: failing groups, worst first.
        label_errors: rows whose label the model contradicts, most likely errors first.
    """

    task: str
    rows: int
    errors: float
    confusions: tuple[tuple[str, str, int], ...]
    mistakes: tuple[Mistake, ...]
    groups: tuple[FailingGroup, ...]
    label_errors: tuple[Mistake, ...]

    def to_dict(self) -> dict[str, Any]:
        """The results as JSON values; for regression, distances have other names."""
        values = asdict(self)
        if self.task == "regress":
            names = {"errors": "mean_absolute_error", "probability": "error"}

            def renamed(values: Mapping[str, Any]) -> dict[str, Any]:
                return {names.get(name, name): value for name, value in values.items()}

            values = renamed(values)
            for key in ("groups", "mistakes"):
                values[key] = [renamed(each) for each in values[key]]
        return values


def analyse_errors(
    folder: str | Path,
    data: Any,
    *,
    train: Any = None,
    most: int = 10,
    columns: ColumnNames | None = None,
    device: str = "auto",
    network: bool = False,
    skip_unlabelled: bool = False,
) -> ErrorAnalysis:
    """Analyse the errors of a model on rows that it was not trained on.

    ``JUDGES`` defines mistakes and their confidence for each task.

    Args:
        folder: model folder written by ``ownbert finetune`` or ``fit``.
        data: labelled rows, see ``ownbert.evaluate``.
        train: training rows, to find the one nearest to each mistake.
        most: maximum number of mistakes, confusions and label errors.
        columns: columns named by the user; by default those used in training.
        device: auto, cpu or cuda.
        network: use only the network of a ``fit`` folder.
        skip_unlabelled: see ``ownbert.evaluate``; also for ``train``.

    Raises:
        InputError: the task is not supported, or rows cannot be read.

    Source: Northcutt, Jiang and Chuang 2021, section 3 (label errors).
    """
    data = given_rows(data)
    predictor = open_folder(folder, Compute(device, network=network), columns=columns)
    task: Any = predictor.task
    if task.name not in JUDGES:
        raise InputError(
            "{folder} is a model for {name}; ownbert errors supports {judges}",
            folder,
            task.name,
            ", ".join(JUDGES),
        )
    if train is not None and task.reads_arrays:
        raise InputError("training rows are compared by text vectors; omit {--train}")
    rows = read_labelled_rows(task, data, folder, skip_unlabelled=skip_unlabelled)

    def answered(block: Sequence[Row]) -> list[tuple[np.ndarray, Any]]:
        return list(zip(*predictor.answered(block), strict=True))

    raws, decided = zip(*decide_all(answered, rows), strict=True)
    judgement = JUDGES[task.name](task, rows, raws, decided)
    wrong = sorted(judgement.wrong, key=lambda each: -each.confidence)[:most]
    wrong = list(judgement.wrong)[:most] if task.name == "regress" else wrong  # keeps the order
    doubtful = list(judgement.doubtful)[:most]
    chosen = list(dict.fromkeys((*wrong, *doubtful)))
    vectors = None if task.reads_arrays else _vectors_of(predictor)
    mistakes: dict[WrongPrediction, Mistake] = {}
    words = _words_of(predictor, rows, chosen)
    near = _neighbours(folder, task, [rows[each.row] for each in chosen], train, vectors)
    for each, supporting, neighbour in zip(chosen, words, near, strict=True):
        row, answer = rows[each.row], (each.label, each.predicted, each.confidence)
        texts = tuple(task.shown_texts(row))
        mistakes[each] = Mistake(row.line, texts, *answer, tuple(supporting), neighbour)
    members = {**judgement.groups, **_common_groups(predictor, rows)}
    if vectors is not None:
        members |= _clusters(vectors, rows)
    return ErrorAnalysis(
        task.name,
        len(rows),
        float(judgement.badness.mean()),
        tuple((a, b, n) for (a, b), n in Counter(judgement.pairs).most_common(most)),
        tuple(mistakes[each] for each in wrong),
        tuple(_failing(members, judgement.badness)),
        tuple(mistakes[each] for each in doubtful),
    )


def _words_of(
    predictor: Opened, rows: Sequence[Row], chosen: Sequence[WrongPrediction]
) -> list[list[str]]:
    """The words of each row that support the prediction most."""
    if predictor.task.reads_arrays or not chosen:
        return [[] for _ in chosen]
    explainer = Explainer(predictor, device=predictor.compute.device)
    words = []
    for each in chosen:
        explanations = []
        for method in _methods(explainer, rows[each.row]) if each.target is not None else ():
            # The network of a blend, which explains long texts, may predict something else.
            with suppress(InputError):
                explanations = explainer([rows[each.row]], method=method, target=each.wanted)
                break
        named = [one for one in explanations if one.target == each.target]
        if not named:  # a text without words
            words.append([])
            continue
        values = -named[0].values if each.against else named[0].values
        order = np.argsort(-values, kind="stable")[:_EXPLAINED_WORDS].tolist()
        words.append([named[0].word(i) for i in order if values[i] > 0])
    return words


def _methods(explainer: Explainer, row: Row) -> tuple[str, ...]:
    """Methods to try in order: one pass per word is too slow for long texts, but the gradient does
    not exist for a network that reads n-grams."""
    if isinstance(explainer.blend, LinearShares):
        return (CONTRIBUTIONS,)
    if explainer.blend is not None:
        tokens = len(explainer.blend.words(row))
    else:
        tokens = len(explainer.tokenizer.encode_batch([" ".join(row.texts)])[0])
    return ("gradient_x_input", "leave_one_out") if tokens > _MOST_PASSES else ("leave_one_out",)


def _vectors_of(predictor: Opened) -> Callable[[Sequence[Row]], np.ndarray]:
    """A function that computes unit vectors (N, D) of rows with the folder's network; if there is
    none, with its LSA, or by the outputs of its linear models."""
    if not isinstance(predictor, OpenedBlend) or (predictor.folder / CONFIG).is_file():
        embedder = Embedder(predictor.folder, device=predictor.compute.device)
        return lambda rows: embedder.encode([" ".join(row.texts) for row in rows], normalize=True)
    path = predictor.folder / "members" / "lsa"
    if not path.is_dir():
        return lambda rows: of_length_one(predictor.scores(rows))
    lsa = LinearView.load(path)
    return lambda rows: of_length_one(
        np.asarray(lsa.view.features(Texts([row.texts for row in rows], lsa.kind)))
    )


def _neighbours(
    folder: str | Path, task: Task, rows: Sequence[Row], train: Any, vectors: Any
) -> list[tuple[str, str] | None]:
    """Label and text of the training row with the most similar vector, for each row."""
    if train is None or not rows:
        return [None] * len(rows)
    known = read_labelled_rows(task, train, folder)
    nearest = (vectors(rows) @ vectors(known).T).argmax(1)
    return [
        (task.readable_target(known[i]), " / ".join(task.shown_texts(known[i])))
        for i in nearest.tolist()
    ]


def _common_groups(predictor: Any, rows: Sequence[Row]) -> dict[str, np.ndarray]:
    """Groups by length and unknown words; none for images."""
    if predictor.task.reads_arrays:
        return {}
    members: dict[str, np.ndarray] = {}
    lengths = np.asarray([sum(map(len, row.texts)) for row in rows])
    limits = np.quantile(lengths, (0.25, 0.75))
    members[Message("texts of up to {limits:,.0f} characters", limits[0])] = lengths <= limits[0]
    members[Message("texts of {limits:,.0f} characters or more", limits[1])] = lengths >= limits[1]
    if (tokenizer := getattr(predictor, "tokenizer", None)) is not None:
        ids = tokenizer.encode_batch([" ".join(row.texts) for row in rows])
        unknown = np.asarray(
            [row_ids.count(tokenizer.unk_id) / max(1, len(row_ids)) for row_ids in ids]
        )
        members["texts with at least a tenth of unknown words"] = unknown >= 0.1
    return members


def _clusters(vectors: Any, rows: Sequence[Row]) -> dict[str, np.ndarray]:
    """Clusters of similar vectors (k-means), named by their most characteristic words."""
    from scipy.cluster.vq import kmeans2

    count = min(_CLUSTERS, len(rows) // _ROWS_OF_CLUSTER)
    if count < 2:
        return {}
    with warnings.catch_warnings():  # about empty clusters of identical rows
        warnings.simplefilter("ignore")
        # The name of the seed differs between scipy versions; all accept ``seed``.
        cluster = kmeans2(vectors(rows), count, minit="++", seed=0)[1]  # pyright: ignore[reportCallIssue]
    words = [set(" ".join(row.texts).lower().split()) for row in rows]
    everywhere = Counter(word for row_words in words for word in row_words)
    groups: dict[str, np.ndarray] = {}
    for number in range(count):
        members = cluster == number
        size = max(1, int(members.sum()))
        inside = Counter(word for i in np.flatnonzero(members) for word in words[i])
        # Difference between the word's frequency in the cluster and in all rows.
        excess = {w: n / size - everywhere[w] / len(rows) for w, n in inside.items()}
        names = sorted(excess, key=lambda w: (-excess[w], w))[:_NAMING_WORDS]
        if names:
            groups[Message("similar texts, such as those with {names}", ", ".join(names))] = members
    return groups


def _failing(members: Mapping[str, np.ndarray], badness: np.ndarray) -> list[FailingGroup]:
    """Groups that are significantly worse than all rows."""
    mean, spread = float(badness.mean()), float(badness.std())
    failing = []
    for name, rows_of_group in members.items():
        count = int(rows_of_group.sum())
        if _FEWEST <= count < len(badness):
            own_mean = float(badness[rows_of_group].mean())
            if own_mean > mean + _CLEARLY * spread / sqrt(count):
                failing.append(FailingGroup(name, count, own_mean))
    return sorted(failing, key=lambda group: -group.errors)


def as_lines(analysis: ErrorAnalysis) -> list[str]:
    """The analysis as lines for a terminal."""

    def start(text: str) -> str:
        text = " ".join(text.split())
        return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."

    def named(name: str) -> str:
        return translated(name) if isinstance(name, Named | Message) else name

    numbers = analysis.task == "regress"
    share = "{:.4g}" if numbers else "{:.1%}"
    lines = [
        translated(
            "{rows:,} rows, mean absolute error {errors:.4g}", analysis.rows, analysis.errors
        )
        if numbers
        else translated(
            "{errors} of {rows:,} rows are wrong", percent(analysis.errors), analysis.rows
        )
    ]
    if analysis.confusions:
        shown = "; ".join(f"{named(a)} -> {named(b)}: {n:,}" for a, b, n in analysis.confusions)
        lines += ["", translated("label -> prediction, most frequent"), f"  {shown}"]
    if analysis.groups:
        lines += ["", translated("groups with a higher error rate than all rows")]
        lines += [
            f"  {translated(g.name)}: {share.format(g.errors)} ({g.rows:,})"
            for g in analysis.groups
        ]
    first = "the most confident mistakes"
    header = "line: label -> prediction, its probability, text"
    if numbers:
        first, header = "the largest errors", "line: true value -> prediction, distance, text"
    sections = {first: analysis.mistakes, "labels that may be wrong": analysis.label_errors}
    for title, mistakes in sections.items():
        if not mistakes:
            continue
        lines += ["", translated(title), f"  {translated(header)}"]
        for each in mistakes:
            shown = (" / ".join(each.texts), named(each.label), named(each.predicted))
            text, label, predicted = map(start, shown)
            lines.append(f"  {each.line}: {label} -> {predicted} {each.probability:.3f}  {text}")
            if each.words:
                lines.append(f"      {translated('because of')} {' '.join(each.words)}")
            if each.neighbour is not None:
                label, near = each.neighbour
                lines.append(f"      {translated('nearest training row')} ({label}) {start(near)}")
    return lines
