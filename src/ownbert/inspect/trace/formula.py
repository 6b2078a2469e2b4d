"""The formula of a single number in a trace; ``page.js`` has a JavaScript version."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from ownbert.inspect.trace.steps import Derivation, TraceStep
from ownbert.language import translated

# Number of terms of a sum that are written out.
_TERMS = 6
# Above this score, the formula shows the subtraction of the maximum before exp.
_LARGE = 20.0

Matrices = Mapping[str, np.ndarray]


def number(value: float) -> str:
    """Format with up to four decimals, or with the order of magnitude instead of zero."""
    if not math.isfinite(value):
        return translated("hidden")
    if value and abs(value) < 5e-5:
        return f"{value:.0e}".replace("e-0", "e-")
    text = f"{value:.4f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def formula_of(step: TraceStep, row: int, column: int, matrices: Matrices) -> str:
    """How a number of a step is computed: "scores[1][2] = queries[1] . keys[2] = ...".

    Args:
        step: step of the number.
        row: row of the number, from 0.
        column: column of the number, from 0.
        matrices: matrices of all steps by key.
    """
    name, value = f"{step.key}[{row}][{column}]", number(step.values[row, column])
    return " = ".join([name, *_terms(step.made, row, column, matrices), value])


def _terms(made: Derivation, row: int, column: int, matrices: Matrices) -> list[str]:
    """The terms between the name of a number and its value."""
    if made.kind == "given":
        return []
    index, left = f"[{row}][{column}]", matrices[made.left]
    if made.kind == "product":
        return _product(made, row, column, matrices)
    if made.kind == "softmax":
        return _softmax(left[row], column)
    if made.kind == "weigh":
        i, j = divmod(row, len(matrices[made.right]))
        weight, value = left[i, j], matrices[made.right][j, column]
        return [
            f"{made.left}[{i}][{j}] * {made.right}[{j}][{column}]",
            f"{_signed(weight)} * {_signed(value)}",
        ]
    one = left[row, column]
    if made.kind == "add":
        other = matrices[made.right][row, column]
        return [f"{made.left}{index} + {made.right}{index}", f"{_signed(one)} + {_signed(other)}"]
    if made.kind == "scale":
        shown, factor = number(one), number(made.factor)
        scaled = f"{_signed(float(shown))} * {factor}" if math.isfinite(one) else shown
        return [f"{made.left}{index} * {factor}", scaled]
    words = {
        "hide": "unless it is hidden",
        "round": "rounded",
        "rotate": "rotated with its pair by the position",
    }
    return [f"{made.left}{index} ({number(one)}) {translated(words[made.kind])}"]


def _product(made: Derivation, row: int, column: int, matrices: Matrices) -> list[str]:
    left, right = matrices[made.left][row], matrices[made.right]
    other = right[column] if made.turned else right[:, column]
    name = f"{made.left}[{row}] . {made.right}{'' if made.turned else '[:]'}[{column}]"
    products = _sum([f"{_signed(a)}*{_signed(b)}" for a, b in zip(left, other, strict=True)])
    if made.bias:
        name += f" + {made.bias}[0][{column}]"
        products += f" + {_signed(matrices[made.bias][0, column])}"
    return [name, products]


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
