"""A trace of self-attention: its matrices, the formula of each number in them, and tables for a
terminal (small matrices in full, corners of large ones); of numbers from the documentation or the
user.

Patterns of formulas are written here, for Python and for ``page.js``, which fills them in when a
reader points at a number. In a pattern, r and c are the row and the column of the number; i and j
are r divided by T and the remainder; ``a[r] . b[:][c]`` is the product of a row and a column.

T tokens, D hidden size or width of the inputs, H heads, K head size, K' width of values.
"""

import base64
import math
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ownbert import limits
from ownbert.exceptions import InputError, counted
from ownbert.files.json_files import read_json
from ownbert.files.npz_files import open_npz
from ownbert.files.writing import write_text
from ownbert.inspect.internals.observation import Observation, as_data, view_page
from ownbert.inspect.parameters import HeadColumns
from ownbert.inspect.terminal_tables import facts_table, indented, open_table, plain_text
from ownbert.language import translated
from ownbert.language.messages import Message, names_of

_ROWS = 10  # rows of a matrix that are printed
_NAME = 10  # terminal cells of a row name, maximum of a column name
_MORE = "…"
# Larger matrices are written as float32 in base64, a third of the size of their digits.
_DIGITS = 4096
# Queries, keys and values, with their projection matrix and description.
PROJECTIONS = {
    "queries": ("query", "what each token looks for"),
    "keys": ("key", "what each token is found by"),
    "values": ("value", "what each token passes on"),
}
_MATRICES = ("query", "key", "value", "output")
# Formulas of matrices by the kind of their derivation.
_FORMULAS = {
    "product": "{left} x {right}",
    "add": "{left} + {right}",
    "softmax": "softmax of each row of {left}",
    "rotate": "rotated {key}",
    "weigh": "{left}[i][j] x {right}[j]",
}
# Number of terms of a sum that are written out.
_TERMS = 6
# Above this score, the formula shows the subtraction of the maximum before exp.
_LARGE = 20.0
_PATTERNS = {
    "given": "",
    "product": "{left}[r] . {right}[:][c]",
    "scale": "{left}[r][c] * {factor}",
    "add": "{left}[r][c] + {right}[r][c]",
    "weigh": "{left}[i][j] * {right}[j][c]",
    "softmax": "{left}[r]",
}
# What follows the name and the value of the number that another is made of.
_WORDS = {
    "hide": "unless it is hidden",
    "round": "rounded",
    "rotate": "rotated with its pair by the position",
}
# A number, a row or a column of a matrix.
_REFERENCE = re.compile(r"(\w+)\[(:|\d+)\](?:\[(\d+)\])?")
Matrices = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Derivation:
    """How each number of a step is computed from other steps, which are named by key.

    ``kind``: given; product (a row of ``left`` times a column of ``right``, or a row if ``turned``,
    plus ``bias``, a single row); scale (by ``factor``); add; hide; softmax; round; rotate; weigh
    (row i T + j: the share of row j of ``right`` in row i).
    """

    kind: str = "given"
    left: str = ""
    right: str = ""
    turned: bool = False
    bias: str = ""
    factor: float = 1.0


@dataclass(frozen=True)
class TraceStep:
    """A matrix of the trace: its ``key`` in formulas, how its numbers are ``made``, names of rows
    and columns; ``rule``: right-hand side of the formula, if it does not follow from ``made``."""

    key: str
    title: str
    values: np.ndarray
    meaning: str
    made: Derivation = Derivation()
    rows: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    rule: str = ""

    @property
    def formula(self) -> str:
        """The formula of the matrix ("scores = queries x keys^T"), or its symbol."""
        made = self.made
        if not (rule := self.rule or _FORMULAS.get(made.kind, "")):
            return _symbol(self.key)
        values = {"key": self.key, "left": _symbol(made.left), "right": _symbol(made.right)}
        rule = Message(rule, *(values[name] for name in names_of(rule)))
        end = "^T" * made.turned + " + bias" * bool(made.bias)
        return Message("{key} = {rule}{end}", self.key, rule, end)

    @property
    def shown_formula(self) -> str:
        """The formula in the user's language; one that is just a key is unchanged."""
        return self.formula if self.formula == self.key else translated(self.formula)

    def as_json(self) -> dict[str, Any]:
        """The step as JSON values; masked scores (minus infinity) are null."""
        rows = self.values.tolist()
        return {
            "key": self.key,
            "title": self.title,
            "formula": self.formula,
            "meaning": self.meaning,
            "shape": list(self.values.shape),
            "rows": list(self.rows),
            "columns": list(self.columns),
            "made": asdict(self.made),
            "values": [[x if math.isfinite(x) else None for x in row] for row in rows],
        }


@dataclass(frozen=True, kw_only=True)
class HeadSlice(HeadColumns):
    """The rows and columns of a layer's matrices that belong to a head: hidden size D, width H x K
    of the heads that are not pruned, head size K, and the indices of these heads."""

    size: int
    width: int
    head_size: int
    heads: tuple[int, ...]


@dataclass(frozen=True)
class Trace:
    """All steps in order, facts about the input by name, and the head's part of its layer
    (``cut``)."""

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
        where = translated(
            "columns {first}..{last} of the {width:,} of {matrix}", first, last, width, matrix
        )
        table.add_row(Text(name), Text(f"|{bar}|"), Text(where))
    first, last = head.rows
    where = translated("rows {first}..{last} of {width:,} of output", first, last, head.width)
    table.add_row(Text("output"), Text(f"|{bar}|"), Text(where))
    line = Message(
        "The matrices of the layer hold all heads: head {head} of {count} (#), {size} columns "
        "each, side by side in one matrix.",
        *(head.head, len(head.heads), head.head_size),
    )
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
        # The number of a column stands above its name.
        name = f"\n{_short(names[j], cells)}" if j is not None and names[j] else ""
        heading = _MORE if j is None else f"{j}{name}"
        table.add_column(Text(heading), justify="right", no_wrap=True, min_width=1)
    for i in rows:
        name = [] if not step.rows else [Text("" if i is None else _short(step.rows[i], _NAME))]
        index = _MORE if i is None else str(i)
        line = [_MORE if None in (i, j) else _cell(float(values[i, j]), decimals) for j in columns]
        table.add_row(index, *name, *line)
    return table


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


def write_page(trace: Trace, path: str | os.PathLike[str], **options: Any) -> None:
    """Write ``as_page(trace, **options)`` atomically."""
    write_text(path, as_page(trace, **options))


def as_page(trace: Trace, *, inside: Observation | None = None) -> str:
    """The page as HTML; ``inside``: observation of the whole model, shown first; the steps are then
    collapsed."""
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


def score_steps(scores: np.ndarray, *, factor: float | None, size: int) -> list[TraceStep]:
    """The scores (T, T) and, with a ``factor``, the scaled scores; ``size`` is the head size K."""
    meaning = "row i: how well each key fits the query of token i"
    made = Derivation("product", "queries", "keys", turned=True)
    steps = [TraceStep("scores", "scores", scores, meaning, made)]
    if factor is not None:
        root = math.isclose(factor, size**-0.5)
        rule = f"scores / sqrt({size})" if root else f"scores x {factor:g}"
        meaning = "so that their spread does not grow with K" if root else "by qk_scale"
        made, scaled = Derivation("scale", "scores", factor=factor), scores * factor
        steps.append(TraceStep("scaled", "scaled scores", scaled, meaning, made, rule=rule))
    return steps


def weights_step(weights: np.ndarray, scores: str) -> TraceStep:
    """The attention weights (T, T), the softmax of the step with the key ``scores``."""
    meaning = "row i: what token i takes from each token; the row sums to 1"
    made = Derivation("softmax", scores)
    return TraceStep("weights", "attention weights", weights, meaning, made)


def _symbol(key: str) -> str:
    return f"W_{key}" if key in _MATRICES else key


def pattern_of(step: TraceStep) -> str:
    """The pattern of the formula of each number of a step; "" if the numbers are given."""
    made = step.made
    if (words := _WORDS.get(made.kind)) is not None:
        return f"{made.left}[r][c] (=) {translated(words)}"
    pattern = _PATTERNS[made.kind].replace("[:]", "" if made.turned else "[:]")
    filled = pattern.format(left=made.left, right=made.right, factor=number(made.factor))
    return filled + (f" + {made.bias}[0][c]" if made.bias else "")


def formula_of(step: TraceStep, row: int, column: int, matrices: Matrices) -> str:
    """How a number of a step is computed: "scores[1][2] = queries[1] . keys[2] = ..."."""
    made, places = step.made, {"r": row, "c": column}
    if made.kind == "weigh":
        places["i"], places["j"] = divmod(row, len(matrices[made.right]))
    pattern = re.sub(r"\[([rcij])\]", lambda at: f"[{places[at[1]]}]", pattern_of(step))
    if made.kind == "softmax":
        parts = _softmax(matrices[made.left][row], column)
    elif "(=)" in pattern:
        parts = [pattern.replace("(=)", f"({number(matrices[made.left][row, column])})")]
    elif pattern:
        parts = [pattern, " + ".join(_filled(term, matrices) for term in pattern.split(" + "))]
    else:
        parts = []
    return " = ".join([f"{step.key}[{row}][{column}]", *parts, number(step.values[row, column])])


def number(value: float) -> str:
    """Format with up to four decimals, or with the order of magnitude instead of zero."""
    if not math.isfinite(value):
        return translated("hidden")
    if value and abs(value) < 5e-5:
        return f"{value:.0e}".replace("e-0", "e-")
    text = f"{value:.4f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def _filled(term: str, matrices: Matrices) -> str:
    """A term with numbers for its references; a product of two vectors is written as a sum."""

    def values(match: re.Match[str]) -> Any:
        matrix, first, second = matrices[match[1]], match[2], match[3]
        if first == ":":
            return matrix[:, int(second)]
        return matrix[int(first)] if second is None else matrix[int(first), int(second)]

    if " . " in term:
        left, right = map(values, _REFERENCE.finditer(term))
        return _sum([f"{_signed(a)}*{_signed(b)}" for a, b in zip(left, right, strict=True)])
    return _REFERENCE.sub(lambda found: _signed(values(found)), term)


def _softmax(scores: np.ndarray, column: int) -> list[str]:
    top = float(scores.max())
    off = top if abs(top) > _LARGE else 0.0
    less = f" - {number(top)}" if off > 0 else f" + {number(-top)}" if off else ""
    exps = [f"exp({number(s)}{less})" if np.isfinite(s) else "0" for s in scores]
    powers = np.exp(scores - off)
    divided = f"{_figure(powers[column])} / {_figure(powers.sum())}"
    return [f"{exps[column]} / ({_sum(exps)})", divided]


def _sum(terms: Sequence[str]) -> str:
    if len(terms) <= _TERMS:
        return " + ".join(terms)
    left = translated("{count} more", len(terms) - _TERMS + 2)
    return f"{' + '.join(terms[: _TERMS - 2])} + ... ({left})"


def _signed(value: float) -> str:
    return f"({number(value)})" if value < 0 and math.isfinite(value) else number(value)


def _figure(value: float) -> str:
    return number(value) if abs(value) < 1e6 else f"{value:.3e}".replace("e+0", "e+")


# The documentation's example: three inputs of size 4, three 4 x 3 matrices.
EXAMPLE: dict[str, Any] = {
    "inputs": [[1, 0, 1, 0], [0, 2, 0, 2], [1, 1, 1, 1]],
    "query": [[1, 0, 1], [1, 0, 0], [0, 0, 1], [0, 1, 1]],
    "key": [[0, 0, 1], [1, 1, 0], [0, 1, 0], [1, 1, 0]],
    "value": [[0, 2, 0], [0, 3, 0], [1, 0, 3], [1, 1, 0]],
}

# Maximum size T x T x K' up to which weighted values are shown.
_MOST_WEIGHTED = 20_000
# A score is a sum of products of four numbers, and float64 overflows at 1e308.
_LARGEST = 1e60
# Maximum of T, D, K, K': scores are T x T, and a trace keeps all steps and shows every number.
_MOST_ROWS = 1000

Numbers = Sequence[Sequence[float]] | np.ndarray


def trace_attention(
    inputs: Numbers,
    query: Numbers,
    key: Numbers,
    value: Numbers,
    *,
    scale: bool = False,
    digits: int | None = None,
) -> Trace:
    """Compute self-attention step by step for inputs (T, D), matrices ``query`` and ``key`` (D, K)
    and ``value`` (D, K').

    Args:
        scale: divide the scores by sqrt(K) (Vaswani et al. 2017, equation 1).
        digits: round the weights to this number of decimals with ``round_weights`` before they are
            multiplied by the values.

    Raises:
        InputError: the shapes do not match.
    """
    x = _matrix("inputs", inputs)
    rows = {"query": query, "key": key, "value": value}
    matrices = {name: _matrix(name, numbers) for name, numbers in rows.items()}
    for name, matrix in matrices.items():
        if len(matrix) != x.shape[1]:
            raise InputError(
                "{name} has {count} rows; the inputs are {width} numbers wide, so it must have "
                "{width}",
                *(name, len(matrix), x.shape[1]),
            )
    columns = [matrices[name].shape[1] for name in ("query", "key")]
    if columns[0] != columns[1]:
        raise InputError(
            "query has {query} columns and key {key}; they must be equal, because a score is "
            "the product of a query and a key",
            *columns,
        )
    if digits is not None and not 0 <= digits <= limits.DECIMALS:
        raise InputError(
            "the weights can be rounded to 0..{decimals} decimals, not {digits}",
            limits.DECIMALS,
            digits,
        )
    steps = [TraceStep("inputs", "inputs", x, "one row per token")]
    projected = []
    for name, (matrix, meaning) in PROJECTIONS.items():
        w, made = matrices[matrix], Derivation("product", "inputs", matrix)
        steps.append(TraceStep(matrix, f"{matrix} matrix", w, "learnt; the same for every token"))
        projected.append(TraceStep(name, name, x @ w, meaning, made))
    q, k, v = (step.values for step in projected)
    width = k.shape[1]
    steps += projected
    steps += score_steps(q @ k.T, factor=width**-0.5 if scale else None, size=width)
    weights = softmax(steps[-1].values)
    steps.append(weights_step(weights, steps[-1].key))
    decimals = counted(digits or 0, "decimal")
    if digits is not None:
        weights = round_weights(weights, digits)
        words = Message("to {decimals}, so that each row still sums to 1", decimals)
        made = Derivation("round", "weights")
        steps.append(TraceStep("rounded", "rounded weights", weights, words, made))
    steps += _weighted(weights, v, steps[-1].key)
    facts = {
        "tokens": str(len(x)),
        "scores": Message("divided by the square root of {width}", width)
        if scale
        else "not divided",
        "weights": "as they are" if digits is None else Message("rounded to {decimals}", decimals),
    }
    return Trace("Self-attention, step by step", facts, tuple(steps))


def softmax(scores: np.ndarray) -> np.ndarray:
    """Softmax of each row; subtracting the maximum prevents overflow."""
    powers = np.exp(scores - scores.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


def round_weights(weights: np.ndarray, digits: int) -> np.ndarray:
    """Round each row so that it still sums to 1 (largest remainder method).

    All weights are rounded down, and the missing units go to those with the largest remainders.
    Ordinary rounding of 0.0634, 0.4683, 0.4683 to one decimal gives 0.1, 0.5, 0.5, which is 1.1.
    """
    unit = 10.0**digits
    rounded = np.floor(weights * unit + 1e-9)
    for row, exact in zip(rounded, weights * unit, strict=True):
        missing = round(unit - row.sum())
        row[np.argsort(row - exact, kind="stable")[:missing]] += 1
    return np.round(rounded / unit, digits)


def read_inputs(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read ``inputs``, ``query``, ``key`` and ``value`` from a JSON or npz file.

    Raises:
        InputError: the file cannot be read, a name is missing or unknown, or a number is so large
            that scores would be infinite.
    """
    source = Path(path)
    if source.suffix == ".npz":
        with open_npz(source, "arrays of numbers are needed") as arrays:
            values: dict[str, Any] = dict(arrays)
    else:
        values = read_json(source, pipe=True)
    if values.keys() != EXAMPLE.keys():
        raise InputError(
            "{path} contains {values}; it must contain {example}",
            path,
            ", ".join(values) or "nothing",
            ", ".join(EXAMPLE),
        )
    for name, rows in values.items():
        _matrix(f"{path}: {name}", rows)
    return values


def _weighted(weights: np.ndarray, v: np.ndarray, left: str) -> list[TraceStep]:
    made, steps = Derivation("product", left, "values"), []
    if weights.size * v.shape[1] <= _MOST_WEIGHTED:
        tokens = range(len(weights))
        pairs = (weights[:, :, None] * v[None]).reshape(weights.size, -1)
        meaning = "one row per pair: what token i takes from token j"
        weigh = Derivation("weigh", left, "values")
        names = tuple(Message("{index} from {value}", i, j) for i in tokens for j in tokens)
        steps.append(TraceStep("weighted", "weighted values", pairs, meaning, weigh, names))
    meaning = "the sum of what each token takes"
    return [*steps, TraceStep("outputs", "outputs", weights @ v, meaning, made)]


def _matrix(name: str, rows: Any) -> np.ndarray:
    try:
        matrix = np.asarray(rows, dtype=np.float64)
    except OverflowError:  # JSON integers may have any number of digits
        matrix = np.full((1, 1), np.inf)
    except (TypeError, ValueError):
        raise InputError("{name} must be rows of numbers, all of one length", name) from None
    if max(matrix.shape, default=0) > _MOST_ROWS:
        sizes = " x ".join(f"{size:,}" for size in matrix.shape)
        raise InputError(
            "{name} is {sizes}; a trace shows every number, of at most {most_rows:,} rows and "
            "columns",
            *(name, sizes, _MOST_ROWS),
        )
    if matrix.ndim != 2 or not matrix.size:
        sizes = " x ".join(map(str, matrix.shape)) or "one number"
        raise InputError("{name} is {sizes}; it must be rows and columns of numbers", name, sizes)
    if np.abs(matrix).max() > _LARGEST:
        raise InputError(
            "{name} contains a number beyond {largest:g}, for which the scores become infinite; "
            "use smaller numbers",
            *(name, _LARGEST),
        )
    if not np.isfinite(matrix).all():
        raise InputError("{name} contains a value that is not a finite number", name)
    return matrix
