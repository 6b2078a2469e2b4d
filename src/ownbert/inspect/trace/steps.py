"""The matrices of a trace, and how their numbers are derived from each other.

T tokens, D hidden, H heads, K head size.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ownbert.language import translated

# Queries, keys and values, with their projection matrix and description.
PROJECTIONS = {
    "queries": ("query", "what each token looks for"),
    "keys": ("key", "what each token is found by"),
    "values": ("value", "what each token passes on"),
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
    """

    key: str
    title: str
    values: np.ndarray
    formula: str
    meaning: str
    made: Derivation = Derivation()
    rows: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()

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


@dataclass(frozen=True)
class HeadSlice:
    """The rows and columns of a layer's matrices that belong to a head.

    Args:
        size: hidden size D.
        width: H x K of the heads that are not pruned.
        head_size: K.
        head: index of the head.
        heads: indices of the heads that are not pruned.
        columns: for queries, keys and values (matrix, first column, last column).
        rows: first and last row of the output matrix.
    """

    size: int
    width: int
    head_size: int
    head: int
    heads: tuple[int, ...]
    columns: Mapping[str, tuple[str, int, int]]
    rows: tuple[int, int]


def row_names(step: TraceStep) -> tuple[str, ...]:
    """Row names as shown: tokens unchanged, pairs of tokens described."""
    return tuple(map(translated, step.rows)) if step.made.kind == "weigh" else step.rows


def shown_formula(step: TraceStep) -> str:
    """The formula as shown; a formula that is just a key is unchanged."""
    return step.formula if step.formula == step.key else translated(step.formula)


def score_steps(scores: np.ndarray, *, factor: float | None, size: int) -> list[TraceStep]:
    """The scores and, with a ``factor``, the scaled scores.

    Args:
        scores: (T, T).
        factor: scaling factor.
        size: head size K.
    """
    steps = [
        TraceStep(
            "scores",
            "scores",
            scores,
            "scores = queries x keys^T",
            "row i: how well each key fits the query of token i",
            Derivation("product", left="queries", right="keys", turned=True),
        )
    ]
    if factor is not None:
        root = math.isclose(factor, size**-0.5)
        steps.append(
            TraceStep(
                "scaled",
                "scaled scores",
                scores * factor,
                f"scaled = scores / sqrt({size})" if root else f"scaled = scores x {factor:g}",
                "so that their spread does not grow with K" if root else "by qk_scale",
                Derivation("scale", left="scores", factor=factor),
            )
        )
    return steps


def weights_step(weights: np.ndarray, scores: str) -> TraceStep:
    """The attention weights, the softmax of scores.

    Args:
        weights: (T, T).
        scores: key of the step with the scores.
    """
    return TraceStep(
        "weights",
        "attention weights",
        weights,
        f"weights = softmax of each row of {scores}",
        "row i: what token i takes from each token; the row sums to 1",
        Derivation("softmax", left=scores),
    )
