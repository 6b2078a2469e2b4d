"""A trace as an HTML page: every number, coloured by value, with its computation; for a model also
the attention of all heads, and the hidden states of all layers.
"""

import base64
import os
from typing import Any

import numpy as np

from ownbert.files.writing import write_text
from ownbert.inspect.internals.observation import Observation
from ownbert.inspect.internals.page_parts import as_data, view_page
from ownbert.inspect.trace.formula import pattern_of
from ownbert.inspect.trace.trace import Trace
from ownbert.inspect.trace.trace_steps import TraceStep
from ownbert.language import translated

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
