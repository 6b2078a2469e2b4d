"""Compares the runs inside a folder: reads settings, progress and results, and shows a table (or
blocks, if it is too wide), CSV, and a plot.
"""

import csv
import io
import math
import os
import statistics
import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.cells import cell_len
from rich.text import Text

from ownbert.config.encoder import SIZES
from ownbert.exceptions import InputError
from ownbert.families import ENCODER_DECODERS, FAMILIES
from ownbert.families.mapping.family import OWN
from ownbert.figures import figure_class
from ownbert.files.json_files import read_json, read_yaml
from ownbert.inspect.terminal_tables import open_table, plain_text
from ownbert.language import translated
from ownbert.language.messages import Message
from ownbert.objectives import PRETRAINING
from ownbert.run.file_names import RECIPE, REPORT
from ownbert.train.display import duration
from ownbert.train.log import LOG, read_log
from ownbert.train.metric_names import LOWER, UP_TO_ONE, decimals, shown_name
from ownbert.train.training_curves import draw_runs

# Saved states, as in ownbert.train.state, whose import loads torch.
_STATES = "checkpoints/step-*"
# The state of a fit, as in ownbert.fitting.fit_state, whose import loads torch.
_FIT = "fit.json"
_SKIPPED = ("checkpoints", "tensorboard", "node_modules")
# A run whose last log row is at most this old, in seconds, may still be running.
_ACTIVE = 60.0
# Settings without effect on the model.
_NO_EFFECT = ("log_every", "eval_every", "save_every", "keep", "tensorboard")
# Numbers in an evaluation row that are not metrics. The only baseline kept is the one that shows
# whether a run learns anything.
_NOT_METRICS = ("step", "evaluation", "phase", "seconds", "uniform_loss")
_TOKEN_LOSSES = tuple(f"{name}_loss" for name, each in PRETRAINING.items() if each.predicts)
BASELINE = "unigram_loss"
_KEYS = {
    "name": lambda run: run.name,
    "when": lambda run: run.written,
    "time": lambda run: run.seconds,
    "step": lambda run: run.step,
    "tokens": lambda run: run.tokens,
}
_HEADINGS = ("run", "name", "state", "time", "size", "steps", "tokens")
_TITLES = {"fit": "fits", "pretrain": "pretraining", "finetune": "fine-tuning"}
_NAMES = {"unigram_loss": "unigram", "span_corruption_loss": "span loss"}
_NAMES["span_corruption_accuracy"] = "span accuracy"
Columns = dict[str, list[str]]


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """A run.

    Args:
        name: folder relative to the searched one.
        kind: fit, pretrain or finetune.
        state: finished, or the progress.
        size: name of the model size, or layers x hidden size.
        written: time of the last log row, in seconds since 1970.
        seconds: time spent in the training loop.
        tokens_per_second: median throughput.
        settings: settings by dotted name.
        last: metrics of the last evaluation; for a fit those of the model that predicts.
        best: best value of each metric, and its step.
        model: for a fit, the title of the model that predicts.
    """

    name: str
    folder: Path
    kind: str
    state: str
    size: str
    written: float
    seconds: float
    step: int = 0
    tokens: int = 0
    tokens_per_second: float | None = None
    settings: Mapping[str, Any]
    last: Mapping[str, float]
    best: Mapping[str, tuple[float, int]]
    rows: Sequence[Mapping[str, Any]] = field(default=(), repr=False)
    model: str = ""

    def as_json(self) -> dict[str, Any]:
        """All fields except the rows as JSON values; the time in ISO 8601."""
        values = asdict(self)
        del values["rows"]
        values["folder"] = str(self.folder)
        values["written"] = time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(self.written))
        values["last"] = {k: v if math.isfinite(v) else None for k, v in self.last.items()}
        values["best"] = {k: {"value": v, "step": step} for k, (v, step) in self.best.items()}
        return values


@dataclass(frozen=True)
class RunList:
    """The runs inside a folder, and a message for each folder with an unreadable log."""

    runs: Sequence[RunSummary]
    broken: Sequence[str]


def find_runs(folder: str | os.PathLike[str], *, sort: str = "name") -> RunList:
    """Find all runs in a folder, at any depth; ``sort``: name, when, time, step, tokens, a metric
    (best first) or a setting.

    Raises:
        InputError: there are no runs, or none has the sort key.
    """
    top = Path(folder)
    if not top.is_dir():
        raise InputError("no such folder: {top}", top)
    runs, broken = [], []
    for candidate in _candidates(top):
        try:
            name = top.resolve().name if candidate == top else candidate.relative_to(top).as_posix()
            runs.append(read_run(candidate, name=name))
        except InputError as error:
            broken.append(error.message)
    if not runs:
        if broken:
            raise InputError("no runs in {folder}: {problem}", top, broken[0])
        raise InputError("no runs in {folder} (folders with {log} and {recipe})", top, LOG, RECIPE)
    return RunList(_sorted(runs, sort), broken)


def read_run(folder: Path, *, name: str | None = None) -> RunSummary:
    """Read the run in a folder; ``InputError`` if the log or the recipe is missing or damaged."""
    is_fit = (folder / _FIT).exists()
    for needed in () if is_fit else (RECIPE, LOG):
        if not (folder / needed).exists():
            raise InputError("{folder} has no {needed}", folder, needed)
    settings = dict(_flat(_recipe(folder / RECIPE)))
    written = (folder / (_FIT if is_fit else LOG)).stat().st_mtime
    values = (_of_fit if is_fit else _of_training)(folder, settings, written)
    return RunSummary(
        name=name or folder.name, folder=folder, written=written, settings=settings, **values
    )


def _of_training(folder: Path, settings: Mapping[str, Any], written: float) -> dict[str, Any]:
    rows = list(read_log(folder))
    trained = [row for row in rows if not row.get("evaluation")]
    speeds = [row["tokens_per_second"] for row in trained if "tokens_per_second" in row]
    evaluations = [row for row in rows if row.get("evaluation")]
    kind = "pretrain" if "data.tokens" in settings else "finetune"
    return {
        "kind": kind,
        "state": _state(folder, kind, settings, rows, written),
        "size": _size(folder, settings),
        "seconds": float(rows[-1].get("seconds", 0.0)) if rows else 0.0,
        "step": rows[-1]["step"] if rows else 0,
        "tokens": int(trained[-1].get("tokens", 0)) if trained else 0,
        "tokens_per_second": statistics.median(speeds) if speeds else None,
        "last": _metrics(evaluations[-1]) if evaluations else {},
        "best": _best(evaluations),
        "rows": rows,
    }


def _of_fit(folder: Path, _: Mapping[str, Any], written: float) -> dict[str, Any]:
    """A folder of ``ownbert fit``; without a report it is unfinished."""
    state, report = read_json(folder / _FIT), read_json(folder / REPORT, missing={})
    last: dict[str, float] = {}
    try:
        seconds = float(state["seconds"])
        model = str(report.get("best", ""))
        if report:
            row = next(row for row in report["leaderboard"] if row["name"] == model)
            metric = str(report["metric"])
            scores = {metric: row["score"], f"test_{metric}": row["test_score"]}
            last = {k: float(v) for k, v in scores.items() if v is not None}
    except (KeyError, TypeError, ValueError, AttributeError, StopIteration):
        damaged = REPORT if report else _FIT
        raise InputError("{folder} has a damaged {report}", folder, damaged) from None
    active = (
        Message("active {ago} s ago", _ago(written)) if _active(written) else "stopped, resumable"
    )
    return {
        "kind": "fit",
        "state": "finished" if report else active,
        "size": _size(folder, {"model.size": "-"}),
        "seconds": seconds,
        "last": last,
        "best": {metric: (value, 0) for metric, value in last.items()},
        "model": model,
    }


def _ago(written: float) -> int:
    return max(0, round(time.time() - written))


def _active(written: float) -> bool:
    return time.time() - written < _ACTIVE


def differing(runs: Sequence[RunSummary]) -> list[str]:
    """Dotted names of the settings in which runs differ; one that older runs lack counts only if it
    differs among the others."""
    names = dict.fromkeys(name for run in runs for name in run.settings)
    different = []
    for name in names:
        values = [run.settings[name] for run in runs if name in run.settings]
        if name.rpartition(".")[2] not in _NO_EFFECT and any(v != values[0] for v in values):
            different.append(name)
    return different


def main_metric(runs: Sequence[RunSummary]) -> str | None:
    """The metric for comparing runs in a plot: the token loss, the main metric of a task other than
    accuracy, or the loss; otherwise any metric, or None."""
    for name in (*_TOKEN_LOSSES, *(n for n in UP_TO_ONE if n != "accuracy"), "loss"):
        if any(name in run.last for run in runs):
            return name
    return next((name for run in runs for name in run.last), None)


def lower_is_better(metric: str) -> bool:
    return metric in LOWER or metric.endswith(("loss", "perplexity", "error"))


def _candidates(top: Path) -> Iterator[Path]:
    """Yield fits, and other folders with a log; the members of a fit are not runs."""
    for path, folders, files in os.walk(top):
        folders[:] = sorted(f for f in folders if not f.startswith(".") and f not in _SKIPPED)
        if _FIT in files:
            folders.clear()
        if _FIT in files or LOG in files:
            yield Path(path)


def _recipe(path: Path) -> dict[str, Any]:
    recipe = read_yaml(path)
    if not isinstance(recipe, dict):
        raise InputError("{path} is not a recipe: it has no sections", path)
    return recipe


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _state(
    folder: Path,
    kind: str,
    settings: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]],
    written: float,
) -> str:
    """finished, or the progress and whether the run can be resumed."""
    states = sorted(folder.glob(_STATES))
    if not rows:
        return "nothing logged yet"
    last = rows[-1]
    seconds = last.get("seconds", 0.0)
    limits = (
        ("run.max_steps", last["step"]),
        # As in ownbert.train.loop: at most half of the limit is for the setup and evaluations.
        ("run.max_minutes", min(2 * seconds, seconds + _reserved(states)) / 60),
        ("run.epochs", max(row.get("epoch", 0) for row in rows)),
    )
    # Fine-tuning, and pretraining by fit, delete their states when they finish.
    finished = kind == "finetune" or settings.get("run.max_steps") is None
    finished &= not states and (folder / "model.safetensors").exists()
    for name, reached in limits:
        limit = settings.get(name)
        # Seconds are rounded.
        finished |= isinstance(limit, int | float) and reached >= limit - 1e-4
    if finished:
        return "finished"
    if _active(written):
        return Message("at step {last:,}, active {ago} s ago", last["step"], _ago(written))
    return Message("stopped at step {last:,}", last["step"]) + (", resumable" if states else "")


def _reserved(states: Sequence[Path]) -> float:
    """Part of the time limit, in seconds, for the setup and the last evaluation."""
    try:
        return float(read_json(states[-1] / "state.json")["clock"]["reserved"])
    except (InputError, LookupError, TypeError, ValueError):  # none, damaged, or an older version
        return 0.0


def _size(folder: Path, settings: Mapping[str, Any]) -> str:
    """The name of the model size, or layers x width, from config.json, or else from the recipe."""
    try:
        config = read_json(folder / "config.json")
    except InputError:
        return str(settings.get("model.size", "?"))
    model_type = str(config.get("model_type")).removeprefix(OWN)
    family = {**ENCODER_DECODERS, **FAMILIES}.get(model_type)
    names = {} if family is None else family.names
    layers, width = (config.get(names.get(n, n)) for n in ("num_hidden_layers", "hidden_size"))
    layers = config.get("encoder_layers", layers)
    named = (n for n, s in SIZES.items() if (s[0], s[1]) == (layers, width))
    return next(named, f"{layers}x{width}")


def _metrics(row: Mapping[str, Any]) -> dict[str, float]:
    """The metrics for comparing runs: token losses, or accuracy and the like."""
    losses = [k for k in row if k in _TOKEN_LOSSES] or ["loss"]
    numbers = {k: v for k, v in row.items() if isinstance(v, int | float) and k not in _NOT_METRICS}
    return {
        key: value
        for key, value in numbers.items()
        if key in (*losses, BASELINE) or not key.endswith(("loss", "majority_accuracy"))
    }


def _best(rows: Sequence[Mapping[str, Any]]) -> dict[str, tuple[float, int]]:
    """The best finite value of each metric, and its step."""
    best: dict[str, tuple[float, int]] = {}
    for row in rows:
        for key, value in _metrics(row).items():
            if key == BASELINE or not math.isfinite(value):
                continue
            old = best.get(key)
            if old is None or (value < old[0] if lower_is_better(key) else value > old[0]):
                best[key] = (value, row["step"])
    return best


def _sorted(runs: list[RunSummary], sort: str) -> list[RunSummary]:
    if sort in _KEYS:
        return sorted(runs, key=_KEYS[sort])
    metrics = dict.fromkeys(key for run in runs for key in run.best)
    settings = dict.fromkeys(key for run in runs for key in run.settings)
    names = [key for key in settings if sort in (key, key.rpartition(".")[2])]
    if sort in metrics:
        sign = 1 if lower_is_better(sort) else -1
        return sorted(runs, key=lambda r: sign * r.best[sort][0] if sort in r.best else math.inf)
    if names:
        return sorted(runs, key=lambda run: _order(run.settings.get(names[0])))
    known = ", ".join([*_KEYS, *metrics])
    message = "cannot sort by {sort!r}; sort by {options}, or by a setting such as learning_rate"
    raise InputError(message, sort, known)


def _order(value: Any) -> tuple[int, float, str]:
    """Sort key: numbers first, then words, then missing values."""
    if isinstance(value, int | float):
        return (0, float(value), "")
    return (2, 0.0, "") if value is None else (1, 0.0, str(value))


def show_runs(runs: Sequence[RunSummary], *, width: int | None = None) -> str:
    """Tables of fits, pretraining and fine-tuning runs: state, time, differing settings, results. A
    table wider than ``width`` characters is split into one block per run."""
    parts = []
    for kind, title in _TITLES.items():
        chosen = [run for run in runs if run.kind == kind]
        if chosen:
            columns = _columns(chosen)
            text = _table(columns)
            if width is not None and any(cell_len(line) > width for line in text.splitlines()):
                text = _blocks(columns, width)
            parts.append(f"{translated(title)}\n{text}")
    return "\n\n".join(parts)


def runs_csv(runs: Sequence[RunSummary]) -> str:
    """CSV with one row per run: identity, differing settings, last and best metrics."""
    settings = differing(runs)
    metrics = list(dict.fromkeys(name for run in runs for name in run.last))
    rows = []
    for run in runs:
        row = {k: v for k, v in run.as_json().items() if k not in ("settings", "last", "best")}
        row |= {name: _plain(run.settings.get(name)) for name in settings}
        row |= {f"last.{name}": run.last.get(name, "") for name in metrics}
        best = {name: run.best.get(name, ("", ""))[0] for name in metrics if name != BASELINE}
        rows.append(row | {f"best.{name}": value for name, value in best.items()})
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def draw(runs: Sequence[RunSummary], path: Path) -> Path:
    """Plot the main held-out metric of all runs, for pretraining and fine-tuning."""
    panels: dict[str, dict[str, Any]] = {}
    for kind in _TITLES:
        chosen = [run for run in runs if run.kind == kind]
        metric = main_metric(chosen)
        if metric is not None and kind != "fit":  # which has no curve
            rows = {run.name: run.rows for run in chosen if metric in run.last}
            panels.setdefault(metric, {}).update(rows)
    if not panels:
        raise InputError("no run has been evaluated yet: there is nothing to draw")
    figure_class()
    draw_runs(path, panels)
    return path


def _columns(runs: Sequence[RunSummary]) -> Columns:
    """Columns by heading, with one cell per run."""
    columns: Columns = {
        "run": [run.name for run in runs],
        "state": [translated(run.state) for run in runs],
        "last row": [time.strftime("%Y-%m-%d %H:%M", time.localtime(r.written)) for r in runs],
        "time": [duration(run.seconds) for run in runs],
        "size": [run.size for run in runs],
    }
    names = [n for n in differing(runs) if n != "model.size"]
    short = [name.rpartition(".")[2] for name in names]
    for name, last in zip(names, short, strict=True):
        heading = name if short.count(last) > 1 or last in _HEADINGS else last
        columns[heading] = [_setting(run.settings.get(name)) for run in runs]
    if runs[0].kind == "fit":
        columns["model"] = [run.model or "-" for run in runs]
    else:
        columns["steps"] = [f"{run.step:,}" for run in runs]
        columns["tokens"] = [f"{run.tokens:,}" for run in runs]
        speeds = [run.tokens_per_second for run in runs]
        columns["tokens/s"] = ["-" if speed is None else f"{speed:,.0f}" for speed in speeds]
    for name in dict.fromkeys(name for run in runs for name in run.last):
        columns[_heading(name)] = [_result(run, name) for run in runs]
    return columns


def _heading(metric: str) -> str:
    """The name of a metric, such as MLM loss or RTD accuracy."""
    objective, _, measure = metric.rpartition("_")
    of_objective = f"{objective.upper()} {measure}" if objective in PRETRAINING else None
    return translated(_NAMES.get(metric) or of_objective or shown_name(metric))


def _result(run: RunSummary, name: str) -> str:
    """The last value, and the best one if it differs."""
    if name not in run.last:
        return "-"
    last = _figure(name, run.last[name])
    best = _figure(name, run.best[name][0]) if name in run.best else last
    return last if best == last else translated("{last} (best {best})", last, best)


def _figure(name: str, value: float) -> str:
    return f"{value:.1%}" if name.endswith("accuracy") else decimals(value, 4)


def _setting(value: Any) -> str:
    text = _plain(value)
    return f"{text:g}" if isinstance(text, float) else str(text)


def _plain(value: Any) -> Any:
    """A setting on one line, with lists and phases abbreviated."""
    if value is None or value == []:
        return "-"
    if isinstance(value, dict):
        return " ".join(f"{k}={_plain(v)}" for k, v in value.items() if v is not None)
    if isinstance(value, list):
        return (" | " if any(isinstance(v, dict) for v in value) else "+").join(
            str(_plain(v)) for v in value
        )
    return value


def _table(columns: Columns) -> str:
    """Format a table: words left-aligned, numbers right-aligned."""
    table = open_table()
    for heading, cells in columns.items():
        words = all(c == "-" or not c.strip("+-")[:1].isdigit() for c in cells)
        left = words or heading in ("run", "state")
        heading = translated(heading)
        table.add_column(Text(heading), justify="left" if left else "right", no_wrap=True)
    for cells in zip(*columns.values(), strict=True):
        table.add_row(*map(Text, cells))
    widest = sum(
        max(map(cell_len, [translated(heading), *cells])) + 2 for heading, cells in columns.items()
    )
    return plain_text(lambda console: console.print(table), width=widest)


def _blocks(columns: Columns, width: int) -> str:
    """One paragraph per run, for narrow terminals."""
    lines = []
    for cells in zip(*columns.values(), strict=True):
        pairs = dict(zip(columns, cells, strict=True))
        lines.append(f"{pairs.pop('run')}: {pairs.pop('state')}")
        # Non-breaking spaces keep a heading with its value.
        facts = ", ".join(
            f"{translated(k)} {v}".replace(" ", "\xa0") for k, v in pairs.items() if v != "-"
        )
        how: Any = {"break_long_words": False, "break_on_hyphens": False}
        wrapped = textwrap.wrap(facts, max(20, width) - 2, **how)
        lines += ["  " + line.replace("\xa0", " ") for line in wrapped]
    return "\n".join(lines)
