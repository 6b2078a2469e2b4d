"""A trace as tables for a terminal: small matrices whole, corners of large ones."""

import io
from collections.abc import Sequence

import numpy as np
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ownbert.inspect.trace.formula import explain, number
from ownbert.inspect.trace.steps import Cut, Step, Trace

_ROWS = 10
_NAME = 10  # cells of a row's name, and at most of a column's
_MORE = "…"


def as_text(trace: Trace, width: int = 80) -> str:
    """Plain text, without colours."""
    console = Console(file=io.StringIO(), width=width, highlight=False, no_color=True)
    show(trace, console)
    assert isinstance(console.file, io.StringIO)
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines())


def show(trace: Trace, console: Console) -> None:
    """Every step: its formula, what it is, its numbers, and one of them worked out."""
    console.print(Text(trace.title, style="bold"))
    facts = Table.grid(padding=(0, 2))
    facts.add_column(no_wrap=True, style="cyan")
    facts.add_column()
    for name, value in trace.facts.items():
        facts.add_row(Text(name), Text(value))
    console.print(facts)
    if trace.cut is not None:
        console.print()
        _show_cut(trace.cut, console)
    for place, step in enumerate(trace.steps, 1):
        rows, columns = step.values.shape
        console.print()
        heading = Text(f"{place}. {step.title}", style="bold")
        console.print(heading.append(f"  {rows} x {columns}", style="not bold cyan"))
        formula = "" if step.formula == step.key else f"{step.formula}: "
        console.print(Padding(Text(formula + step.meaning), (0, 0, 0, 2), expand=False))
        console.print(Padding(_table(step, console.width - 2), (0, 0, 0, 2), expand=False))
        if step.made.kind != "given":
            column = min(1, columns - 1)
            console.print(
                Padding(Text(explain(trace, step.key, 0, column)), (0, 0, 0, 2), expand=False)
            )


def _show_cut(cut: Cut, console: Console) -> None:
    """A character a head, the head's own marked."""
    bar = "".join("#" if head == cut.head else "." for head in cut.heads)
    kinds = {
        matrix: sum(m == matrix for m, *_ in cut.columns.values())
        for matrix, *_ in cut.columns.values()
    }
    count, size = len(cut.heads), cut.head_size
    table = Table.grid(padding=(0, 1))
    for name, (matrix, first, last) in cut.columns.items():
        wide = kinds[matrix] * cut.width
        where = f"columns {first}..{last} of the {wide:,} of {matrix}"
        table.add_row(Text(name), Text(f"|{bar}|"), Text(where))
    first, last = cut.rows
    table.add_row(
        Text("output"), Text(f"|{bar}|"), Text(f"rows {first}..{last} of {cut.width:,} of output")
    )
    heads = f"head {cut.head} of {count} (#), {size} columns each, side by side in one matrix"
    console.print(Text(f"The matrices of the layer hold all heads: {heads}."))
    console.print(Padding(table, (0, 0, 0, 2), expand=False))


def _table(step: Step, width: int) -> Table:
    values, decimals = step.values, _decimals(step.values)
    rows = _corner(len(values), _ROWS)
    shown = values[[i for i in rows if i is not None]]
    cells = max(len(_cell(x, decimals)) for x in shown[:, :64].flat)
    names = [step.columns[j] if step.columns else "" for j in range(values.shape[1])]
    cells = max(cells, min(_NAME - 2, max(map(cell_len, names[:16]), default=0)))
    first = len(str(len(values))) + 2 + (_NAME + 2 if step.rows else 0)
    columns = _corner(values.shape[1], max(3, (width - first) // (cells + 2)))
    table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="dim")
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
    """A column's number, and its name below."""
    return f"{index}\n{_short(name, cells)}" if name else str(index)


def _short(name: str, cells: int) -> str:
    return name if cell_len(name) <= cells else set_cell_size(name, cells - 1).rstrip() + _MORE


def _corner(count: int, limit: int) -> Sequence[int | None]:
    """All numbers below ``count``, or the first ones, None and the last."""
    if count <= limit:
        return range(count)
    return [*range(limit - 2), None, count - 1]


def _decimals(values: np.ndarray) -> int:
    """As few as show the numbers exactly, or four."""
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
