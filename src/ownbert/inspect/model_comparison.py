"""Two models on the same labelled rows: scores, their difference, and where they differ.

N: rows.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ownbert.exceptions import InputError, counted, percent
from ownbert.files.encodings import reads_encoding
from ownbert.files.input_files import refuse_same
from ownbert.files.json_files import require_json_name, write_json
from ownbert.inference.engines import Compute, Progress, Say, say_each
from ownbert.inference.open_folder import open_folder
from ownbert.inference.opened import decide_all, given_rows, read_labelled_rows
from ownbert.inspect.error_judgement import JUDGES
from ownbert.language import translated
from ownbert.language.messages import Message
from ownbert.nn.default_dtype import in_float32
from ownbert.pages import TEXT, Page, Section, cleaned
from ownbert.tables.columns import ColumnNames
from ownbert.tasks.answer import compare as compare_answers
from ownbert.tasks.related_rows import clusters_of
from ownbert.tasks.rows import Row, with_columns
from ownbert.tasks.task import Task
from ownbert.train.metric_names import LOWER, decimals, shown_name

# Bootstrap samples: at most, at least, and their rows together.
_MOST_SAMPLES, _FEWEST_SAMPLES, _SAMPLED_ROWS = 1000, 100, 2_000_000
_LEVEL = (0.025, 0.975)
_CHANGES = 10
_TEXT = 200  # characters shown of a text
_LABEL = 40  # characters shown of a label or an answer


@dataclass(frozen=True)
class ScoreDifference:
    """A metric of two models, and the 95% interval of ``second - first``, from a paired bootstrap
    over rows; None if the metric is not defined for most samples."""

    first: float
    second: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class DifferingRow:
    """A row for which the models differ: its line in the file, text, true label or value, and both
    predictions."""

    line: int
    text: str
    label: str
    first: str
    second: str


@dataclass(frozen=True)
class ModelComparison:
    """Two models on the same labelled rows.

    Args:
        clusters: number of independent clusters of rows: copies of a text, and rows with the same
            value of the group column, belong together.
        metric: main metric.
        equal: share of rows with the same prediction.
        right: number of rows that both, only the first, only the second, and neither predicts
            right; None for numbers, of which only the distance is known.
        closer: for numbers, rows in which the first and the second model is closer to the truth.
        changes: (label, first prediction, second prediction, count) of rows with different
            predictions, most frequent first.
        first_right, second_right: rows that only this model predicts right; for numbers, those in
            which it is closer by most.
    """

    task: str
    models: tuple[str, str]
    rows: int
    clusters: int
    metric: str
    scores: Mapping[str, ScoreDifference]
    equal: float
    right: Mapping[str, int] | None
    closer: Mapping[str, int] | None
    changes: tuple[tuple[str, str, str, int], ...]
    first_right: tuple[DifferingRow, ...]
    second_right: tuple[DifferingRow, ...]

    @property
    def better(self) -> int | None:
        """The model whose main metric is better by more than chance: 0 or 1; None: neither."""
        found = self.scores[self.metric]
        if found.low is None or found.high is None or found.low <= 0 <= found.high:
            return None
        return int((found.low > 0) != (self.metric in LOWER))

    def to_dict(self) -> dict[str, Any]:
        """The results as JSON values."""
        return asdict(self)


@reads_encoding
@in_float32
def compare(
    first: str | Path,
    second: str | Path,
    data: Any,
    labels: Any = None,
    *,
    group: str | None = None,
    metric: str | None = None,
    rows: int = 10,
    output: str | Path | None = None,
    html: str | Path | None = None,
    text_column: str | None = None,
    second_column: str | None = None,
    label_column: str | None = None,
    encoding: str | None = None,
    device: str = "auto",
    precision: str | None = None,
    network: bool = False,
    skip_unlabelled: bool = False,
    progress: Progress | None = None,
    say: Say | None = None,
) -> ModelComparison:
    """Compare two model folders on the same labelled rows.

    Args:
        first, second: folders of fine-tuned models, ensembles or blends for the same task.
        data, labels: see ``ownbert.evaluate``.
        group: column of a table; rows with the same value, such as a customer, are not
            independent and are drawn together.
        metric: metric that decides which model is better; by default the task's main metric.
        rows: maximum number of rows per model that only it predicts right.
        output: file to write the results to, as JSON.
        html: file to write the results to, as a page.
        text_column, second_column, label_column: columns of the rows; by default as in training.
        encoding: encoding of text files; by default UTF-8.
        device, precision, network, skip_unlabelled: see ``ownbert.evaluate``.
        progress: called with the number of predictions so far.
        say: called with notes and warnings.

    Raises:
        InputError: the tasks differ, or a row cannot be read or has a label that a model does not
            know.

    Source: Efron and Tibshirani 1993, "An Introduction to the Bootstrap", section 13.3.
    """
    for path in (output, html):
        refuse_same([first, second, data], path)
    if output is not None:
        require_json_name(output)
    columns = ColumnNames(text_column, second_column, label_column)
    data = given_rows(data, labels)
    compute = Compute(device, precision, network=network)
    opened = [open_folder(folder, compute, columns=columns) for folder in (first, second)]
    task, other = (each.task for each in opened)
    if task.name != other.name:
        tasks = Message("{first} and {second}", task.name, other.name)
        raise InputError(
            "{first} and {second} are for different tasks: {tasks}; compare models for the same "
            "task",
            *(first, second, tasks),
        )
    if task.name not in JUDGES:
        judges = ", ".join(JUDGES)
        raise InputError(
            "compare does not apply to {name}; it supports {judges}", task.name, judges
        )
    read = [
        read_labelled_rows(each.task, data, each.folder, skip_unlabelled=skip_unlabelled)
        for each in opened
    ]
    if len(read[0]) != len(read[1]):  # a folder that was trained with the option
        left_out = "one of the models leaves out rows without a label: use {--skip-unlabelled}"
        raise InputError(left_out)
    if [row.target for row in read[0]] != [row.target for row in read[1]]:
        raise InputError("{first} and {second} read different labels from the rows", first, second)
    sides = []
    for each, own_rows in zip(opened, read, strict=True):
        before = len(sides) * len(own_rows)
        own = None if progress is None else (lambda n, b=before: progress(b + n))
        sides.append(_Side(each.task, own_rows, decide_all(each, own_rows, own)))
    every_row = range(len(read[0]))
    scored = [side.score(every_row) for side in sides]
    shared = [name for name in scored[0] if name in scored[1]]
    main = metric or next((name for name in task.metrics if name in shared), shared[0])
    if main not in shared:
        raise InputError(
            "there is no metric {main!r}; choose one of {shared}", main, ", ".join(shared)
        )
    clusters = _clusters(task, data, read[0], group)
    intervals = _intervals(sides, clusters, shared)
    result = ModelComparison(
        task=task.name,
        models=(str(first), str(second)),
        rows=len(read[0]),
        clusters=int(clusters.max()) + 1,
        metric=main,
        scores={
            name: ScoreDifference(scored[0][name], scored[1][name], *intervals[name])
            for name in shared
        },
        **_differences(sides, rows),
    )
    for each in opened:
        say_each((*each.notes(), *each.warnings()), say)
    if output is not None:
        write_json(output, result.to_dict())
    if html is not None:
        comparison_page(result).write(html)
    return result


def _clusters(task: Task, data: Any, rows: Sequence[Row], group: str | None) -> np.ndarray:
    """(N) the number of each row's cluster."""
    keys: list[list[Any]] = [[("text", key) for key in task.fold_keys(row)] for row in rows]
    if group is not None:
        source = task.source(data, labelled=True)
        with_group = with_columns(iter(rows), source, [group], option="--group")
        for own, row in zip(keys, with_group, strict=True):
            own += [("group", str(value)) for _, value in row.kept if value not in (None, "")]
    return clusters_of(keys)


@dataclass(frozen=True)
class _Side:
    """A model's task, the rows as it reads them, and its decisions."""

    task: Task
    rows: Sequence[Row]
    decided: Sequence[Any]

    def score(self, places: Sequence[int]) -> Mapping[str, float]:
        """The metrics on the rows at ``places``."""
        rows, decided = ([column[i] for i in places] for column in (self.rows, self.decided))
        return self.task.score(rows, decided).values


def _intervals(
    sides: Sequence[_Side], clusters: np.ndarray, names: Sequence[str]
) -> dict[str, tuple[float | None, float | None]]:
    """95% intervals of the differences, from samples of clusters with replacement."""
    rng = np.random.default_rng(0)
    members = np.split(np.argsort(clusters, kind="stable"), np.cumsum(np.bincount(clusters))[:-1])
    draws = min(_MOST_SAMPLES, max(_FEWEST_SAMPLES, _SAMPLED_ROWS // len(clusters)))
    differences = np.full((draws, len(names)), np.nan)
    for draw in range(draws):
        chosen = rng.integers(0, len(members), len(members))
        places = np.concatenate([members[i] for i in chosen]).tolist()
        scores = [side.score(places) for side in sides]
        values = [[own.get(name, np.nan) for name in names] for own in scores]
        differences[draw] = np.subtract(values[1], values[0])
    intervals: dict[str, tuple[float | None, float | None]] = {}
    for name, column in zip(names, differences.T, strict=True):
        known = column[np.isfinite(column)]
        low, high = np.quantile(known, _LEVEL).tolist() if len(known) > draws / 2 else (None, None)
        intervals[name] = low, high
    return intervals


def _differences(sides: Sequence[_Side], most: int) -> dict[str, Any]:
    """The fields of ``ModelComparison`` about single rows."""
    plain = [list(map(side.task.plain, side.decided, side.rows)) for side in sides]
    shown = [[_shown(prediction) for prediction in column] for column in plain]
    task, rows = sides[0].task, sides[0].rows
    labels = [cleaned(task.readable_target(row), _LABEL) for row in rows]

    def differing(places: Sequence[int]) -> tuple[DifferingRow, ...]:
        return tuple(
            DifferingRow(row.line, " ".join(row.texts), labels[i], shown[0][i], shown[1][i])
            for i, row in ((i, rows[i]) for i in places[:most])
        )

    changes = Counter(
        (label, *pair) for label, *pair in zip(labels, *shown, strict=True) if pair[0] != pair[1]
    )
    equal = np.mean([one == other for one, other in zip(*shown, strict=True)])
    if task.name == "regress":
        truth = np.asarray([row.target for row in rows], dtype=float)
        spread = np.maximum(truth.std(0), 1e-9)
        far = [(np.abs(np.stack(side.decided) - truth) / spread).mean(1) for side in sides]
        gain = far[1] - far[0]  # positive: the first model is closer
        order = np.argsort(-gain, kind="stable")
        return {
            "equal": float(equal),
            "right": None,
            "closer": {"first": int((gain > 0).sum()), "second": int((gain < 0).sum())},
            "changes": (),
            "first_right": differing([int(i) for i in order if gain[i] > 0]),
            "second_right": differing([int(i) for i in order[::-1] if gain[i] < 0]),
        }
    first, second = (
        np.asarray([*map(partial(is_right, side.task), side.rows, side.decided, own)])
        for side, own in zip(sides, plain, strict=True)
    )
    kinds = {"both": first & second, "first": first & ~second, "second": second & ~first}
    kinds["neither"] = ~first & ~second
    return {
        "equal": float(equal),
        "right": {name: int(mask.sum()) for name, mask in kinds.items()},
        "closer": None,
        "changes": tuple((*names, n) for names, n in changes.most_common(_CHANGES)),
        "first_right": differing(np.flatnonzero(kinds["first"]).tolist()),
        "second_right": differing(np.flatnonzero(kinds["second"]).tolist()),
    }


def is_right(task: Any, row: Row, decided: Any, plain: Any) -> bool:
    """Whether a prediction is completely right: all labels, all tags, the answer."""
    if task.name == "answer":
        return compare_answers([gold.text for gold in row.target], decided.text)[0] == 1
    if task.label_sets:
        wanted = zip(task.labels, task.target(row).tolist(), strict=True)
        return {*plain} == {label for label, share in wanted if share > 0.5}
    if task.name == "tag":
        return tuple(plain) == tuple(row.target)
    return plain == row.target


def _shown(plain: Any) -> str:
    """A prediction on one line."""
    if isinstance(plain, float):
        return f"{plain:.4g}"
    if isinstance(plain, list | tuple):
        return cleaned(", ".join(map(_shown, plain)), _LABEL) or "–"
    return cleaned(str(plain), _LABEL) or "–"


def result_lead(result: ModelComparison) -> list[str]:
    """Sentences: which model is better, and how often they agree."""
    found = result.scores[result.metric]
    name = translated(shown_name(result.metric))
    gap = decimals(found.second - found.first, sign="+")
    better = result.better
    if better is None:
        first = translated("No clear difference: {name} {gap} for the second model", name, gap)
    else:
        first = translated(
            "{models} is better: {name} {gap} for the second model",
            result.models[better],
            name,
            gap,
        )
    if found.low is not None and found.high is not None:
        low, high = (decimals(value, sign="+") for value in (found.low, found.high))
        first = translated("{first} (95% interval {low} to {high})", first, low, high)
    rows = translated(counted(result.rows, "row"))
    lines = [
        first,
        translated("{rows}; {equal} of the predictions are equal", rows, percent(result.equal)),
    ]
    if result.clusters < result.rows:
        treats = "The interval treats them as {count:,} clusters of rows that belong together"
        lines.append(translated(treats, result.clusters))
    return lines


def comparison_page(result: ModelComparison) -> Page:
    """The comparison as sentences and tables."""
    counts = result.right or result.closer or {}
    titles = {
        "both": "both right",
        "first": "only the first right" if result.right else "the first closer",
        "second": "only the second right" if result.right else "the second closer",
        "neither": "neither right",
    }
    rows = tuple(
        (translated(titles[name]), f"{count:,}", percent(count / result.rows))
        for name, count in counts.items()
    )
    changes = tuple((*names, f"{count:,}") for *names, count in result.changes)
    sections = [
        _scores(result),
        Section("right", "Rows", "", ("", "rows", "share"), rows),
        Section(
            "changes",
            "Most frequent different predictions",
            "",
            ("label", "first", "second", "rows"),
            changes,
            names=3,
        ),
    ]
    for key, differing in (("first", result.first_right), ("second", result.second_right)):
        rows = tuple(
            (str(row.line), row.label, row.first, row.second, cleaned(row.text, _TEXT))
            for row in differing
        )
        columns = ("line", "label", "first", "second", TEXT)
        title = translated(titles[key]).capitalize()
        sections.append(Section(f"{key}-right", title, "", columns, rows, names=5))
    shown = [section.in_language() for section in sections if section.rows]
    return Page("two models", result_lead(result), shown)


def _scores(result: ModelComparison) -> Section:
    def shown(value: float | None, sign: str = "") -> str:
        return "–" if value is None else decimals(value, 4, sign)

    rows = tuple(
        (
            translated(shown_name(name)),
            shown(each.first),
            shown(each.second),
            shown(each.second - each.first, "+"),
            f"{shown(each.low, '+')} … {shown(each.high, '+')}",
        )
        for name, each in result.scores.items()
    )
    columns = ("", "first", "second", "difference", "95% interval")
    lead = Message("First: {first}. Second: {second}.", *result.models)
    return Section("scores", "Scores", lead, columns, rows)


def shown_comparison(result: ModelComparison) -> str:
    """The comparison as text for a terminal."""
    return comparison_page(result).text()
