"""Compares runs: a table, or blocks if it is too wide; CSV; and a plot."""

import csv
import io
import textwrap
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.cells import cell_len
from rich.text import Text

from ownbert.exceptions import InputError
from ownbert.figures import figure_class
from ownbert.inspect.run_list.run_summary import BASELINE, RunSummary, differing, main_metric
from ownbert.inspect.terminal_tables import open_table, plain_text
from ownbert.language import translated
from ownbert.train.watch.display import duration
from ownbert.train.watch.metric_names import decimals, shown_name
from ownbert.train.watch.training_curves import draw_runs

_HEADINGS = ("run", "name", "state", "time", "size", "steps", "tokens")
_TITLES = {"fit": "fits", "pretrain": "pretraining", "finetune": "fine-tuning"}
_NAMES = {
    "mlm_loss": "MLM loss",
    "mlm_accuracy": "MLM accuracy",
    "unigram_loss": "unigram",
    "nsp_accuracy": "NSP accuracy",
    "sop_accuracy": "SOP accuracy",
    "rtd_accuracy": "RTD accuracy",
    "bow_loss": "BOW loss",
    "clm_loss": "CLM loss",
    "clm_accuracy": "CLM accuracy",
    "plm_loss": "PLM loss",
    "plm_accuracy": "PLM accuracy",
    "span_corruption_loss": "span loss",
    "span_corruption_accuracy": "span accuracy",
}


def show_runs(runs: Sequence[RunSummary], *, width: int | None = None) -> str:
    """Tables of fits, pretraining and fine-tuning runs: state, time, differing settings, results.

    Args:
        runs: runs to compare.
        width: maximum width in characters; a wider table is split into one block per run. None:
            unlimited.
    """
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


Columns = dict[str, list[str]]


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
        heading = translated(_NAMES.get(name) or shown_name(name))
        columns[heading] = [_result(run, name) for run in runs]
    return columns


def _result(run: RunSummary, name: str) -> str:
    """The last value, and the best one if it differs."""
    if name not in run.last:
        return "-"
    last = _figure(name, run.last[name])
    best = _figure(name, run.best[name][0]) if name in run.best else last
    return last if best == last else translated(f"{last} (best {best})")


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
        wrapped = textwrap.wrap(
            facts,
            max(20, width),
            initial_indent="  ",
            subsequent_indent="  ",
            break_long_words=False,
            break_on_hyphens=False,
        )
        lines += [line.replace("\xa0", " ") for line in wrapped]
    return "\n".join(lines)
