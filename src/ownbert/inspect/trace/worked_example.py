"""Self-attention step by step with given numbers, from the documentation or the user.

T tokens, D width of the inputs, K width of queries and keys, K' width of values.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ownbert import limits
from ownbert.exceptions import InputError
from ownbert.files.json_files import read_json
from ownbert.files.npz_files import open_npz
from ownbert.inspect.trace.trace import (
    PROJECTIONS,
    Derivation,
    Trace,
    TraceStep,
    score_steps,
    weights_step,
)

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
    decimals = f"{digits} decimal{'' if digits == 1 else 's'}"
    if digits is not None:
        weights = round_weights(weights, digits)
        words = f"to {decimals}, so that each row still sums to 1"
        made = Derivation("round", "weights")
        steps.append(TraceStep("rounded", "rounded weights", weights, words, made))
    steps += _weighted(weights, v, steps[-1].key)
    facts = {
        "tokens": str(len(x)),
        "scores": f"divided by the square root of {width}" if scale else "not divided",
        "weights": "as they are" if digits is None else f"rounded to {decimals}",
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
            f"{path} contains {', '.join(values) or 'nothing'}; it must contain "
            f"{', '.join(EXAMPLE)}"
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
        names = tuple(f"{i} from {j}" for i in tokens for j in tokens)
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
        raise InputError(f"{name} is {sizes}; it must be rows and columns of numbers")
    if np.abs(matrix).max() > _LARGEST:
        raise InputError(
            "{name} contains a number beyond {largest:g}, for which the scores become infinite; "
            "use smaller numbers",
            *(name, _LARGEST),
        )
    if not np.isfinite(matrix).all():
        raise InputError("{name} contains a value that is not a finite number", name)
    return matrix
