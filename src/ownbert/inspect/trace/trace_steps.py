"""The matrices of a trace, and how their numbers are derived from each other.

T tokens, D hidden, H heads, K head size.
"""

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ownbert.inspect.overview.parameters import HeadColumns
from ownbert.language import translated

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


@dataclass(frozen=True)
class Derivation:
    """How each number of a step is computed from other steps, which are named by key.

    Args:
        kind: given; product (a row of ``left`` times a column of ``right``, or a row if ``turned``,
            plus ``bias``, a single row); scale (by ``factor``); add; hide; softmax; round; rotate;
            weigh (row i T + j: the share of row j of ``right`` in row i).
    """

    kind: str = "given"
    left: str = ""
    right: str = ""
    turned: bool = False
    bias: str = ""
    factor: float = 1.0


@dataclass(frozen=True)
class TraceStep:
    """A matrix of the trace.

    Args:
        key: name in formulas.
        made: how its numbers are computed.
        rows: names of the rows.
        columns: names of the columns.
        rule: right-hand side of the formula, if it does not follow from ``made``.
    """

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
        text = rule.format(key=self.key, left=_symbol(made.left), right=_symbol(made.right))
        return f"{self.key} = {text}{'^T' * made.turned}{' + bias' if made.bias else ''}"

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
    """The rows and columns of a layer's matrices that belong to a head.

    Args:
        size: hidden size D.
        width: H x K of the heads that are not pruned.
        head_size: K.
        heads: indices of the heads that are not pruned.
    """

    size: int
    width: int
    head_size: int
    heads: tuple[int, ...]


def score_steps(scores: np.ndarray, *, factor: float | None, size: int) -> list[TraceStep]:
    """The scores (T, T) and, with a ``factor``, the scaled scores; ``size`` is the head size K."""
    meaning = "row i: how well each key fits the query of token i"
    made = Derivation("product", "queries", "keys", turned=True)
    steps = [TraceStep("scores", "scores", scores, meaning, made)]
    if factor is not None:
        root = math.isclose(factor, size**-0.5)
        rule = f"scores / sqrt({size})" if root else f"scores x {factor:g}"
        meaning = "so that their spread does not grow with K" if root else "by qk_scale"
        made = Derivation("scale", "scores", factor=factor)
        steps.append(
            TraceStep("scaled", "scaled scores", scores * factor, meaning, made, rule=rule)
        )
    return steps


def weights_step(weights: np.ndarray, scores: str) -> TraceStep:
    """The attention weights (T, T), the softmax of the step with the key ``scores``."""
    meaning = "row i: what token i takes from each token; the row sums to 1"
    made = Derivation("softmax", scores)
    return TraceStep("weights", "attention weights", weights, meaning, made)


def _symbol(key: str) -> str:
    return f"W_{key}" if key in _MATRICES else key
