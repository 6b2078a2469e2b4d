"""Self-attention step by step: every matrix on the way, and how each number in it is made.

T tokens, D width of the inputs, K width of queries and keys, V width of values.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ownbert.errors import InputError

# The example of the documentation: three inputs of four numbers, three matrices of 4 x 3.
EXAMPLE: dict[str, Any] = {
    "inputs": [[1, 0, 1, 0], [0, 2, 0, 2], [1, 1, 1, 1]],
    "query": [[1, 0, 1], [1, 0, 0], [0, 0, 1], [0, 1, 1]],
    "key": [[0, 0, 1], [1, 1, 0], [0, 1, 0], [1, 1, 0]],
    "value": [[0, 2, 0], [0, 3, 0], [1, 0, 3], [1, 1, 0]],
}

# Weighted values are shown up to so many, T x T x V.
_MOST = 20_000

Numbers = Sequence[Sequence[float]] | np.ndarray


@dataclass(frozen=True)
class Made:
    """How each number of a step is made of those of others, which are named by their keys.

    kind: given; product (a row of ``left`` by a column of ``right``, or by a row of it where it is
    ``turned``, and plus ``bias``, one row); scale (by ``factor``); add; hide; softmax; round;
    rotate; weigh (row i T + j is what row i takes from row j of ``right``).
    """

    kind: str = "given"
    left: str = ""
    right: str = ""
    turned: bool = False
    bias: str = ""
    factor: float = 1.0


@dataclass(frozen=True)
class Step:
    """One matrix. key: its name in formulas. rows, columns: what each of them is called."""

    key: str
    title: str
    values: np.ndarray
    formula: str
    meaning: str
    made: Made = Made()
    rows: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Plain values; a number that is hidden (minus infinity) is null."""
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


@dataclass(frozen=True)
class Cut:
    """Which rows and columns of a layer's matrices belong to one head.

    size: D. width: HK, all heads that are left. head_size: K. columns: queries, keys and values to
    (matrix, first column, last column). rows: of the output matrix. heads: the numbers of all heads
    that are left, in their order; ``head`` is the one of them that is looked at.
    """

    size: int
    width: int
    head_size: int
    head: int
    heads: tuple[int, ...]
    columns: Mapping[str, tuple[str, int, int]]
    rows: tuple[int, int]


@dataclass(frozen=True)
class Trace:
    """All steps in their order. facts: what it is of, by name. cut: of a model's head."""

    title: str
    facts: Mapping[str, str]
    steps: tuple[Step, ...]
    cut: Cut | None = None

    def __getitem__(self, key: str) -> np.ndarray:
        """The matrix of a step."""
        return self.step(key).values

    def step(self, key: str) -> Step:
        for step in self.steps:
            if step.key == key:
                return step
        raise KeyError(f"no step {key!r}; one of {', '.join(s.key for s in self.steps)}")

    def as_json(self) -> dict[str, Any]:
        """All of it as plain values."""
        return {
            "title": self.title,
            "facts": dict(self.facts),
            "cut": None if self.cut is None else asdict(self.cut),
            "steps": [step.as_json() for step in self.steps],
        }

    def __str__(self) -> str:
        from ownbert.inspect.trace.trace import as_text

        return as_text(self)


def trace_attention(
    inputs: Numbers,
    query: Numbers,
    key: Numbers,
    value: Numbers,
    *,
    scale: bool = False,
    digits: int | None = None,
) -> Trace:
    """Self-attention of inputs (T, D) by the matrices query (D, K), key (D, K), value (D, V).

    scale: divide the scores by sqrt(K) (Vaswani et al. 2017, equation 1). digits: round the weights
    to so many decimals, by ``round_weights``, before they meet the values. ``InputError`` for
    shapes that do not fit.
    """
    given = {"inputs": inputs, "query": query, "key": key, "value": value}
    x, *matrices = (_matrix(name, rows) for name, rows in given.items())
    _require_fit(x, dict(zip(("query", "key", "value"), matrices, strict=True)))
    if digits is not None and not 0 <= digits <= 10:
        raise InputError(f"the weights can be rounded to 0..10 decimals, not {digits}")
    steps = [
        Step("inputs", "inputs", x, "inputs", "a row a token"),
        *(
            Step(name, f"{name} matrix", w, f"W_{name}", "learnt; the same for every token")
            for name, w in zip(("query", "key", "value"), matrices, strict=True)
        ),
    ]
    asks = {
        "queries": ("query", "what each token looks for"),
        "keys": ("key", "by what each token is found"),
        "values": ("value", "what each token hands over"),
    }
    for (name, (matrix, meaning)), w in zip(asks.items(), matrices, strict=True):
        made = Made("product", left="inputs", right=matrix)
        steps.append(Step(name, name, x @ w, f"{name} = inputs x W_{matrix}", meaning, made))
    q, k, v = (step.values for step in steps[4:])
    steps += scored(q @ k.T, factor=k.shape[1] ** -0.5 if scale else None, size=k.shape[1])
    weights = softmax(steps[-1].values)
    steps.append(weights_step(weights, steps[-1].key))
    if digits is not None:
        weights = round_weights(weights, digits)
        words = f"to {digits} decimal{'' if digits == 1 else 's'}, so that each row still sums to 1"
        made = Made("round", left="weights")
        steps.append(Step("rounded", "rounded weights", weights, "rounded", words, made))
    steps += _weighted(weights, v, steps[-1].key)
    facts = {
        "tokens": str(len(x)),
        "scores": f"divided by the square root of {k.shape[1]}" if scale else "not divided",
        "weights": "as they are"
        if digits is None
        else f"rounded to {digits} decimal{'' if digits == 1 else 's'}",
    }
    return Trace("Self-attention, step by step", facts, tuple(steps))


def scored(scores: np.ndarray, *, factor: float | None, size: int) -> list[Step]:
    """The scores (T, T) and, with a ``factor``, the scaled ones. size: K."""
    made = Made("product", left="queries", right="keys", turned=True)
    meaning = "row i: how well each key fits the query of token i"
    steps = [Step("scores", "scores", scores, "scores = queries x keys^T", meaning, made)]
    if factor is not None:
        root = math.isclose(factor, size**-0.5)
        word = f"scores / sqrt({size})" if root else f"scores x {factor:g}"
        made = Made("scale", left="scores", factor=factor)
        meaning = "so that their spread does not grow with K" if root else "by qk_scale"
        steps.append(
            Step("scaled", "scaled scores", scores * factor, f"scaled = {word}", meaning, made)
        )
    return steps


def weights_step(weights: np.ndarray, left: str) -> Step:
    """The attention weights (T, T), made of the step ``left``."""
    return Step(
        "weights",
        "attention weights",
        weights,
        f"weights = softmax of each row of {left}",
        "row i: what token i takes from each token; the row sums to 1",
        Made("softmax", left=left),
    )


def softmax(scores: np.ndarray) -> np.ndarray:
    """Of each row; the largest is taken away first, which changes nothing and cannot overflow."""
    powers = np.exp(scores - scores.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


def round_weights(weights: np.ndarray, digits: int) -> np.ndarray:
    """Each row rounded so that it still sums to 1 (the method of largest remainders).

    All are rounded down; what is missing to 1 goes, unit by unit, to those that lost most. Plain
    rounding would make 1.1 of 0.0634, 0.4683, 0.4683: its 0.1, 0.5, 0.5 are one tenth too many.
    """
    unit = 10.0**digits
    rounded = np.floor(weights * unit + 1e-9)
    for row, exact in zip(rounded, weights * unit, strict=True):
        missing = round(unit - row.sum())
        row[np.argsort(row - exact, kind="stable")[:missing]] += 1
    return np.round(rounded / unit, digits)


def _weighted(weights: np.ndarray, v: np.ndarray, left: str) -> list[Step]:
    tokens, steps = len(weights), []
    if weights.size * v.shape[1] <= _MOST:
        parts = (weights[:, :, None] * v[None]).reshape(tokens * tokens, -1)
        names = tuple(f"{i} from {j}" for i in range(tokens) for j in range(tokens))
        made = Made("weigh", left=left, right="values")
        words = f"weighted = {left}[i][j] x values[j]"
        meaning = "a row for each token i and each token j that it takes from"
        steps.append(Step("weighted", "weighted values", parts, words, meaning, made, names))
    made = Made("product", left=left, right="values")
    words, meaning = f"outputs = {left} x values", "the sum of what each token takes"
    return [*steps, Step("outputs", "outputs", weights @ v, words, meaning, made)]


def _matrix(name: str, rows: Any) -> np.ndarray:
    try:
        matrix = np.asarray(rows, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(f"{name} must be rows of numbers, all of one length") from None
    if matrix.ndim != 2 or not matrix.size:
        sizes = " x ".join(map(str, matrix.shape)) or "one number"
        raise InputError(f"{name} is {sizes}; it must be rows and columns of numbers")
    if not np.isfinite(matrix).all():
        raise InputError(f"{name} holds a value that is not a finite number")
    return matrix


def _require_fit(inputs: np.ndarray, matrices: Mapping[str, np.ndarray]) -> None:
    width = inputs.shape[1]
    for name, matrix in matrices.items():
        if len(matrix) != width:
            raise InputError(
                f"{name} has {len(matrix)} rows; the inputs are {width} numbers wide, so it must "
                f"have {width}"
            )
    query, key = matrices["query"].shape[1], matrices["key"].shape[1]
    if query != key:
        raise InputError(
            f"query has {query} columns and key {key}; they must have as many, for a score is the "
            "product of a query and a key"
        )
