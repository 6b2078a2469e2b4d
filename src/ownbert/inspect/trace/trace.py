"""A trace and its tables for a terminal: small matrices in full, corners of large ones."""

import base64
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ownbert.files.writing import write_text
from ownbert.inspect.internals.observation import Observation
from ownbert.inspect.internals.page_parts import as_data, view_page
from ownbert.inspect.terminal_tables import facts_table, indented, open_table, plain_text
from ownbert.inspect.trace.formula import formula_of, number, pattern_of
from ownbert.inspect.trace.trace_steps import HeadSlice, TraceStep
from ownbert.language import translated

_ROWS = 10  # rows of a matrix that are printed
_NAME = 10  # terminal cells of a row name, maximum of a column name
_MORE = "…"


@dataclass(frozen=True)
class Trace:
    """All steps in order.

    Args:
        facts: facts about the input, by name.
        steps: steps of one attention head.
        cut: the head's part of its layer.
    """

    title: str
    facts: Mapping[str, str]
    steps: tuple[TraceStep, ...]
    cut: HeadSlice | None = None

    def __getitem__(self, key: str) -> np.ndarray:
        """The matrix of a step."""
        return self.step(key).values

    def step(self, key: str) -> TraceStep:
        for step in self.steps:
            if step.key == key:
                return step
        raise KeyError(f"no step {key!r}; one of {', '.join(s.key for s in self.steps)}")

    def as_json(self) -> dict[str, Any]:
        """The trace as JSON values."""
        return {
            "title": self.title,
            "facts": dict(self.facts),
            "cut": None if self.cut is None else asdict(self.cut),
            "steps": [step.as_json() for step in self.steps],
        }

    def __str__(self) -> str:
        return plain_text(partial(show, self), width=80)


def explain(trace: Trace, key: str, row: int, column: int) -> str:
    """How ``trace[key][row][column]`` is computed: "scores[1][2] = queries[1] . keys[2] = ..."."""
    matrices = {step.key: step.values for step in trace.steps}
    return formula_of(trace.step(key), row, column, matrices)


def show(trace: Trace, console: Console) -> None:
    """Print every step: formula, description, numbers, and an example of their computation."""
    console.print(Text(translated(trace.title), style="bold"))
    console.print(facts_table(trace.facts.items()))
    if trace.cut is not None:
        console.print()
        _show_head(trace.cut, console)
    for i, step in enumerate(trace.steps, 1):
        rows, columns = step.values.shape
        console.print()
        heading = Text(f"{i}. {translated(step.title)}", style="bold")
        console.print(heading.append(f"  {rows} x {columns}", style="not bold cyan"))
        formula = "" if step.formula == step.key else f"{step.shown_formula}: "
        console.print(indented(Text(formula + translated(step.meaning))))
        console.print(indented(_table(step, console.width - 2)))
        if step.made.kind != "given":
            console.print(indented(Text(explain(trace, step.key, 0, min(1, columns - 1)))))


def _show_head(head: HeadSlice, console: Console) -> None:
    """Print one character per head, with this one marked."""
    bar = "".join("#" if other == head.head else "." for other in head.heads)
    parts = Counter(matrix for matrix, *_ in head.columns.values())
    table = Table.grid(padding=(0, 1))
    for name, (matrix, first, last) in head.columns.items():
        width = parts[matrix] * head.width
        where = translated(f"columns {first}..{last} of the {width:,} of {matrix}")
        table.add_row(Text(name), Text(f"|{bar}|"), Text(where))
    first, last = head.rows
    where = translated(f"rows {first}..{last} of {head.width:,} of output")
    table.add_row(Text("output"), Text(f"|{bar}|"), Text(where))
    words = f"head {head.head} of {len(head.heads)} (#), {head.head_size} columns each"
    line = f"The matrices of the layer hold all heads: {words}, side by side in one matrix."
    console.print(Text(translated(line)))
    console.print(indented(table))


def _table(step: TraceStep, width: int) -> Table:
    values, decimals = step.values, _decimals(step.values)
    rows = _shown_indices(len(values), _ROWS)
    shown = values[[i for i in rows if i is not None]]
    cells = max(len(_cell(x, decimals)) for x in shown[:, :64].flat)
    names = [step.columns[j] if step.columns else "" for j in range(values.shape[1])]
    cells = max(cells, min(_NAME - 2, max(map(cell_len, names[:16]), default=0)))
    first = len(str(len(values))) + 2 + (_NAME + 2 if step.rows else 0)
    columns = _shown_indices(values.shape[1], max(3, (width - first) // (cells + 2)))
    table = open_table("dim")
    table.add_column("", justify="right", style="dim", no_wrap=True)
    if step.rows:
        table.add_column("", style="dim", no_wrap=True)
    for j in columns:
        heading = _MORE if j is None else _heading(j, names[j], cells)
        table.add_column(Text(heading), justify="right", no_wrap=True, min_width=1)
    for i in rows:
        name = [] if not step.rows else [Text("" if i is None else _short(step.rows[i], _NAME))]
        index = _MORE if i is None else str(i)
        line = [_MORE if None in (i, j) else _cell(float(values[i, j]), decimals) for j in columns]
        table.add_row(index, *name, *line)
    return table


def _heading(index: int, name: str, cells: int) -> str:
    """The number of a column above its name."""
    return f"{index}\n{_short(name, cells)}" if name else str(index)


def _short(name: str, cells: int) -> str:
    return name if cell_len(name) <= cells else set_cell_size(name, cells - 1).rstrip() + _MORE


def _shown_indices(count: int, limit: int) -> Sequence[int | None]:
    """All indices below ``count``, or the first ones, None and the last."""
    if count <= limit:
        return range(count)
    return [*range(limit - 2), None, count - 1]


def _decimals(values: np.ndarray) -> int:
    """The smallest number of decimals that shows the values exactly, at most four."""
    finite = values[np.isfinite(values)]
    for decimals in range(4):
        if np.abs(finite - finite.round(decimals)).max(initial=0.0) < 1e-9:
            return decimals
    return 4


def _cell(value: float, decimals: int) -> str:
    if not np.isfinite(value):
        return "hidden"
    if value and abs(value) < 5e-5:
        return number(value)
    return f"{value:.{decimals}f}"


# Larger matrices are written as float32 in base64, a third of the size of their digits.
_DIGITS = 4096


def write_page(
    trace: Trace, path: str | os.PathLike[str], *, inside: Observation | None = None
) -> None:
    """Write ``as_page(trace, inside=inside)`` atomically."""
    write_text(path, as_page(trace, inside=inside))


def as_page(trace: Trace, *, inside: Observation | None = None) -> str:
    """The page as HTML.

    Args:
        trace: trace of one head.
        inside: observation of the whole model, shown first; the steps are then collapsed.
    """
    data = {
        "steps": [_packed(step) for step in trace.steps],
        "inside": as_data(inside),
        "start": {name: int(trace.facts[name]) for name in ("layer", "head") if inside is not None},
    }
    title, values = translated(trace.title), {"facts": trace.facts, "cut": trace.cut}
    return view_page("inspect/trace/page.html", title, data, [inside], **values)


def _packed(step: TraceStep) -> dict[str, Any]:
    values = step.as_json() | {
        "title": translated(step.title),
        "formula": step.shown_formula,
        "pattern": pattern_of(step),
        "meaning": translated(step.meaning),
        # Tokens are unchanged, pairs of tokens are described.
        "rows": [translated(row) if step.made.kind == "weigh" else row for row in step.rows],
    }
    if step.values.size > _DIGITS:
        raw = np.ascontiguousarray(step.values, dtype="<f4").tobytes()
        values["values"] = base64.b64encode(raw).decode("ascii")
    return values
