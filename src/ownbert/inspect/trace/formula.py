"""The formula of a single number in a trace.

Patterns of formulas are written here, for Python and for ``page.js``, which fills them in when a
reader points at a number. In a pattern, r and c are the row and the column of the number; i and j
are r divided by T and the remainder; ``a[r] . b[:][c]`` is the product of a row and a column.
"""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ownbert.inspect.trace.trace_steps import TraceStep
from ownbert.language import translated

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
    divided = f"{_short(powers[column])} / {_short(powers.sum())}"
    return [f"{exps[column]} / ({_sum(exps)})", divided]


def _sum(terms: Sequence[str]) -> str:
    if len(terms) <= _TERMS:
        return " + ".join(terms)
    left = translated(f"{len(terms) - _TERMS + 2} more")
    return f"{' + '.join(terms[: _TERMS - 2])} + ... ({left})"


def _signed(value: float) -> str:
    return f"({number(value)})" if value < 0 and math.isfinite(value) else number(value)


def _short(value: float) -> str:
    return number(value) if abs(value) < 1e6 else f"{value:.3e}".replace("e+0", "e+")
