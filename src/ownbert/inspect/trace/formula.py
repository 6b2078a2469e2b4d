"""The sum behind one number of a trace, in words. ``trace_page`` says the same in a browser."""

import math
from collections.abc import Callable, Sequence

import numpy as np

from ownbert.inspect.trace.steps import Made, Step, Trace

# Terms of a sum that are written out; more are counted.
_TERMS = 6
# Above it exp(score) says little, and the largest score is taken away first.
_LARGE = 20.0


def number(value: float) -> str:
    """Up to four decimals, or the order of magnitude of what would be zero."""
    if not math.isfinite(value):
        return "hidden"
    if value and abs(value) < 5e-5:
        return f"{value:.0e}".replace("e-0", "e-")
    text = f"{value:.4f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def explain(trace: Trace, key: str, row: int, column: int) -> str:
    """How ``trace[key][row][column]`` is made: "scores[1][2] = queries[1] . keys[2] = ..."."""
    step = trace.step(key)
    made, value = step.made, step.values[row, column]
    name = f"{key}[{row}][{column}]"
    terms = _KINDS[made.kind](trace, made, row, column)
    return " = ".join([name, *terms, number(value)])


def label(step: Step, row: int) -> str:
    """What a row is called."""
    return step.rows[row] if step.rows else str(row)


def _product(trace: Trace, made: Made, row: int, column: int) -> list[str]:
    left, right = trace[made.left][row], trace[made.right]
    other = right[column] if made.turned else right[:, column]
    of = f"{made.right}[{column}]" if made.turned else f"{made.right}[:][{column}]"
    name, products = f"{made.left}[{row}] . {of}", _products(left, other)
    if made.bias:
        name += f" + {made.bias}[0][{column}]"
        products += f" + {_signed(trace[made.bias][0, column])}"
    return [name, products]


def _products(left: np.ndarray, right: np.ndarray) -> str:
    pairs = [f"{_signed(a)}*{_signed(b)}" for a, b in zip(left, right, strict=True)]
    return _sum(pairs)


def _sum(terms: Sequence[str]) -> str:
    if len(terms) <= _TERMS:
        return " + ".join(terms)
    return f"{' + '.join(terms[: _TERMS - 2])} + ... ({len(terms) - _TERMS + 2} more)"


def _signed(value: float) -> str:
    return f"({number(value)})" if value < 0 and math.isfinite(value) else number(value)


def _softmax(trace: Trace, made: Made, row: int, column: int) -> list[str]:
    scores = trace[made.left][row]
    top = float(scores.max())
    off = top if abs(top) > _LARGE else 0.0
    less = f" - {number(top)}" if off > 0 else f" + {number(-top)}" if off else ""
    exps = [f"exp({number(s)}{less})" if np.isfinite(s) else "0" for s in scores]
    powers = np.exp(scores - off)
    divided = f"{_short(powers[column])} / {_short(powers.sum())}"
    return [f"{exps[column]} / ({_sum(exps)})", divided]


def _short(value: float) -> str:
    return number(value) if abs(value) < 1e6 else f"{value:.3e}".replace("e+0", "e+")


def _scale(trace: Trace, made: Made, row: int, column: int) -> list[str]:
    name = f"{made.left}[{row}][{column}]"
    one, by = number(trace[made.left][row, column]), number(made.factor)
    return [f"{name} * {by}", f"{_signed(float(one))} * {by}" if one != "hidden" else one]


def _add(trace: Trace, made: Made, row: int, column: int) -> list[str]:
    place = f"[{row}][{column}]"
    left, right = (trace[key][row, column] for key in (made.left, made.right))
    return [
        f"{made.left}{place} + {made.right}{place}",
        f"{_signed(left)} + {_signed(right)}",
    ]


def _weigh(trace: Trace, made: Made, row: int, column: int) -> list[str]:
    i, j = divmod(row, len(trace[made.right]))
    weight, value = trace[made.left][i, j], trace[made.right][j, column]
    return [
        f"{made.left}[{i}][{j}] * {made.right}[{j}][{column}]",
        f"{_signed(weight)} * {_signed(value)}",
    ]


def _from(words: str) -> Callable[[Trace, Made, int, int], list[str]]:
    def explained(trace: Trace, made: Made, row: int, column: int) -> list[str]:
        value = number(trace[made.left][row, column])
        return [f"{made.left}[{row}][{column}] ({value}) {words}"]

    return explained


def _given(trace: Trace, made: Made, row: int, column: int) -> list[str]:
    return []


_KINDS: dict[str, Callable[[Trace, Made, int, int], list[str]]] = {
    "given": _given,
    "product": _product,
    "scale": _scale,
    "add": _add,
    "hide": _from("unless it is hidden"),
    "softmax": _softmax,
    "round": _from("rounded"),
    "rotate": _from("turned with its pair by the position"),
    "weigh": _weigh,
}
