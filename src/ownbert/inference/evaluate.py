"""Metrics on labelled rows, and by chance: those of the same predictions, assigned to random rows.

N: rows.
"""

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ownbert.corpus.documents import fingerprint
from ownbert.exceptions import InputError
from ownbert.files.encodings import reads_encoding
from ownbert.files.input_files import refuse_same
from ownbert.files.json_files import read_json, read_yaml, require_json_name, write_json
from ownbert.hub import model_folder
from ownbert.inference.decisions import Doubts, measure, save_thresholds, with_thresholds
from ownbert.inference.engines import Compute, Progress, Say, say_each
from ownbert.inference.open_folder import open_folder
from ownbert.inference.opened import Networks, decide_all, given_rows, read_labelled_rows
from ownbert.inference.pipeline import output_options
from ownbert.inference.predict import UNUSED_CALIBRATION
from ownbert.language.messages import Message
from ownbert.nn.default_dtype import in_float32
from ownbert.run.file_names import RECIPE
from ownbert.tables.columns import ColumnNames, find_columns
from ownbert.tasks.classification import SingleLabelTask
from ownbert.tasks.finetune_recipe import TEXT_TASKS
from ownbert.tasks.metrics import Scores
from ownbert.tasks.related_rows import clusters_of, permutations
from ownbert.tasks.rows import Row
from ownbert.tasks.task import DEFAULT, NoTaskHead, Task, untrained_similarity
from ownbert.time_limit import seconds_left
from ownbert.train.metric_names import LOWER, decimals, shown_name


@reads_encoding
@in_float32
def evaluate(
    folder: str | Path,
    data: Any,
    labels: Any = None,
    *,
    output: str | Path | None = None,
    text_column: str | None = None,
    second_column: str | None = None,
    label_column: str | None = None,
    encoding: str | None = None,
    device: str = "auto",
    precision: str | None = None,
    network: bool = False,
    unknown: float | None = None,
    coverage: float | None = None,
    calibrate: Any = None,
    out_of_scope: Any = None,
    positive: str | None = None,
    threshold: Any = None,
    save_threshold: bool = False,
    skip_unlabelled: bool = False,
    progress: Progress | None = None,
    say: Say | None = None,
) -> Scores:
    """Compute metrics of a model folder on labelled rows.

    A folder that was not fine-tuned for a task is evaluated on pairs of texts with similarity
    scores: the correlation of these with the cosine similarities of ``Embedder`` vectors.

    Args:
        folder: folder of a fine-tuned model, an ensemble or a blend.
        data: a file, or rows in memory: a DataFrame, a datasets.Dataset, a list of mappings, a
            mapping of columns, (texts, labels), a list of (text, label); for "image" also a folder
            or (images, labels).
        labels: labels of the rows if ``data`` contains only texts or images.
        output: file to write the metrics to, as JSON.
        text_column, second_column, label_column: columns of the rows; by default as in training.
        encoding, device, precision, network: see ``predict``.
        unknown, coverage, calibrate: see ``predict``; adds the rejection rate, the accuracy on the
            other rows, and the coverage and size of label sets to the metrics.
        out_of_scope: texts that have none of the labels, a file or rows in memory; with
            ``unknown``, adds the detection quality to the metrics.
        positive: the label that f1, roc_auc and average_precision are about; by default that of
            training, see ``ownbert finetune classify``.
        threshold: thresholds of labels, see ``Predictor``.
        save_threshold: whether to store them in the folder, so that every command uses them.
        skip_unlabelled: leave out rows without a label or number, with a warning; a folder that was
            trained with it always does.
        progress: called with the number of rows so far.
        say: called with notes and warnings.

    Raises:
        InputError: a row cannot be read, or has an unknown label; the message has its line.
    """
    options = output_options(DEFAULT, threshold, False, unknown, coverage)
    given = options.threshold if options.thresholds is None else options.thresholds
    if save_threshold and given is None:
        raise InputError("{--save-threshold} requires {--threshold}")
    if out_of_scope is not None and unknown is None:
        raise InputError(
            "{--out-of-scope} requires {--unknown}; give the share that may be unknown"
        )
    if calibrate is not None and not options.calibrated:
        raise InputError(UNUSED_CALIBRATION)
    columns = ColumnNames(text_column, second_column, label_column)
    data = given_rows(data, labels)
    refuse_same([folder, data], output)
    if output is not None:
        require_json_name(output)
    compute = Compute(device, precision, network=network)
    try:
        predictor = open_folder(folder, compute, columns=columns)
    except NoTaskHead as error:
        similarity, described = _similarity(folder, data, columns), [error.description]
        if similarity is None:
            raise
        settled = compute.settled(described)
        predictor = Networks(model_folder(folder), described, settled, task=similarity)
    if calibrate is not None:
        from ownbert.inference.calibrate import held_out_of  # imports torch

        held_out_of(predictor, calibrate, say, options)
    if given is not None:
        predictor = with_thresholds(predictor, given, say)
    task = predictor.task
    if positive is not None:
        if not isinstance(task, SingleLabelTask):
            raise InputError("{--positive} does not apply to {name}", task.name)
        task.name_positive(positive)
    rows = read_labelled_rows(task, data, folder, skip_unlabelled=skip_unlabelled)
    say_each((Message("note: {line!t}", line) for line in task.notes_on_rows()), say)
    say_each(predictor.notes(), say)
    if say is not None and has_learnt_from(predictor.folder, data):
        line = "{data} is the training data of {folder}: these metrics say nothing about new rows"
        say(Message(line, data, folder))
    doubts = Doubts(predictor, options, say) if options.abstains else None
    outside = None if out_of_scope is None else task.source(out_of_scope, labelled=False)
    outside = [] if outside is None else list(task.stream(outside))
    decided = decide_all(predictor, rows, progress)
    scores = task.score(rows, decided)
    if warning := chance_warning(task, rows, decided, scores.values):
        scores = replace(scores, warnings=(*scores.warnings, warning))
    if doubts is not None:
        values = {**scores.values, **measure(predictor, doubts, rows, decided, outside)}
        scores = replace(scores, values=values)
    say_each((*predictor.warnings(), *scores.warnings), say)
    if output is not None:
        write_json(output, scores.as_json())
    if save_threshold:
        save_thresholds(predictor)
        note = Message(
            "note: stored in {folder}; its card and report name the one of training",
            predictor.folder,
        )
        say_each((note,), say)
    return scores


def has_learnt_from(folder: Path, data: Any) -> bool:
    """Whether a folder was trained on a file: compared by content for ``fit``, and by the name in
    the recipe for ``finetune``."""
    if not isinstance(data, str | os.PathLike) or not Path(data).is_file():
        return False
    with contextlib.suppress(InputError, OSError, LookupError, TypeError, AttributeError):
        state = read_json(folder / "fit.json", missing={})
        digest = fingerprint([data])[0]["sha256"] if state else ""
        if state and digest == state["identity"]["files"][0]["sha256"]:
            return True
        recipe = folder / RECIPE
        train = read_yaml(recipe)["data"]["train"] if recipe.exists() else None
        return bool(train) and Path(train).exists() and os.path.samefile(train, data)
    return False


def _similarity(folder: str | Path, data: Any, columns: ColumnNames) -> Task | None:
    """The task for a folder without a task head if the rows are pairs of texts with scores."""
    task = untrained_similarity(folder, columns)
    try:
        found = find_columns(task.source(data, labelled=True), task.column_specs, columns)
    except InputError:
        return None
    return task if {"second", "label"} <= found.keys() else None


_DRAWS, _FEWEST_DRAWS = 40, 10
# With fewer clusters, the rows of one cannot be told from those of another.
_FEWEST_CLUSTERS = 5
# A metric that is better by fewer standard deviations may be due to chance. Of several metrics, one
# is sooner better by chance than the metric that was named.
_CLEARLY, _ANY_CLEARLY, _NOT_AT_ALL = 2.5, 3.5, 1.0
# A smaller gain, relative to the largest possible one, is none: thresholds that were chosen on the
# same rows gain as much.
_LEAST_GAIN = 0.02
_ROUNDING = 1e-6
# Rows that ``chance_warning`` looks at: with fewer nothing is clear, and more take long.
_FEWEST_ROWS, _MOST_ROWS = 30, 5_000


@dataclass(frozen=True)
class Chance:
    """Mean and standard deviation of a metric of predictions that are assigned to random rows."""

    mean: float
    deviation: float

    def is_beaten(self, value: float, deviations: float, *, lower: bool) -> bool:
        """Whether a value is better than the mean by more than this many deviations."""
        gain = self.mean - value if lower else value - self.mean
        least = _LEAST_GAIN * (self.mean if lower else 1 - self.mean)
        return gain > max(deviations * self.deviation, least, _ROUNDING)


def metrics_by_chance(
    metrics: Callable[[np.ndarray], Mapping[str, float]], clusters: np.ndarray
) -> dict[str, Chance]:
    """The metrics of predictions that are assigned to random rows; empty if there are too few
    clusters.

    Args:
        metrics: the metrics of the predictions, in their order, for the rows with these indices.
        clusters: (N) number of the cluster of each row; targets of a cluster stay together.

    Source: Ojala and Garriga 2010, "Permutation Tests for Studying Classifier Performance", test 1.
    """
    if len(np.unique(clusters)) < _FEWEST_CLUSTERS:
        return {}
    draws = []
    for order in permutations(clusters, _DRAWS):
        draws.append(metrics(order))
        if seconds_left() <= 0 and len(draws) >= _FEWEST_DRAWS:
            break
    values = {name: [draw[name] for draw in draws] for name in draws[0]}
    return {name: Chance(float(np.mean(v)), float(np.std(v, ddof=1))) for name, v in values.items()}


def like_guessing(
    metric: str, values: Mapping[str, float], chance: Mapping[str, Chance]
) -> str | None:
    """How a model compares with guessing if it is not clearly better, in words; None if it is
    better by this metric, or by far by another one, or if this is unknown."""

    def beats(name: str, deviations: float) -> bool:
        return chance[name].is_beaten(values[name], deviations, lower=name in LOWER)

    if metric not in chance or metric not in values or beats(metric, _CLEARLY):
        return None
    if any(beats(name, _ANY_CLEARLY) for name in chance if name in values):
        return None
    clearly = beats(metric, _NOT_AT_ALL)
    return "not clearly better than guessing" if clearly else "no better than guessing"


def chance_warning(
    task: Task, rows: Sequence[Row], decided: Sequence[Any], values: Mapping[str, float]
) -> str | None:
    """A warning if predictions for N rows are not clearly better than guessing; other tasks than
    labels, sets of labels and numbers have none."""
    metric = task.metrics[0]
    if (task.name not in TEXT_TASKS and not task.counts_labels) or len(rows) < _FEWEST_ROWS:
        return None
    if len(rows) > _MOST_ROWS:
        chosen = np.random.default_rng(0).choice(len(rows), _MOST_ROWS, replace=False)
        rows, decided = ([each[i] for i in chosen] for each in (rows, decided))
        values = task.score(rows, decided).values
    clusters = clusters_of([task.fold_keys(row) for row in rows])
    chance = metrics_by_chance(
        lambda order: task.score([rows[i] for i in order], decided).values, clusters
    )
    if (guessing := like_guessing(metric, values, chance)) is None:
        return None
    return Message(
        "{metric!t} {score} is {guessing!t} ({chance} by chance)",
        *(shown_name(metric), decimals(values[metric]), guessing, decimals(chance[metric].mean)),
    )
