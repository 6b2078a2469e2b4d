"""A trace as an HTML page: every number, coloured by value, with its computation; for a model also
the attention of all heads, and the hidden states of all layers.

The page is self-contained.
"""

import base64
import html
import os
from importlib.resources import files
from typing import Any

import numpy as np

from ownbert.files.writing import write_text
from ownbert.inspect.internals.observation import Observation
from ownbert.inspect.internals.page_parts import as_data, as_json, script, style, weights_of
from ownbert.inspect.trace.formula import pattern_of
from ownbert.inspect.trace.steps import HeadSlice, TraceStep
from ownbert.inspect.trace.trace import Trace
from ownbert.language import translated, translated_page

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
    facts = "".join(
        f"<div><dt>{_words(name)}</dt><dd>{_words(value)}</dd></div>"
        for name, value in trace.facts.items()
    )
    data = {
        "steps": [_packed(step) for step in trace.steps],
        "inside": None if inside is None else as_data(inside),
        "start": {name: int(trace.facts[name]) for name in ("layer", "head") if inside is not None},
    }
    return translated_page(_resource("page.html")).format(
        title=_words(trace.title),
        style=style() + _resource("page.css"),
        facts=facts,
        cut="" if trace.cut is None else _head_figure(trace.cut),
        data=as_json(data),
        script=script() + translated_page(_resource("page.js")),
        weights=weights_of([inside]),
    )


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


def _words(text: str) -> str:
    return html.escape(translated(text))


def _resource(name: str) -> str:
    return (files("ownbert.inspect.trace") / name).read_text(encoding="utf-8")


def _head_figure(head: HeadSlice) -> str:
    """The fused matrices to scale, with the head's columns (for the output, rows) filled."""
    matrices: dict[str, list[tuple[str, int, int]]] = {}
    for name, (matrix, first, last) in head.columns.items():
        matrices.setdefault(matrix, []).append((name, first, last))
    count, tall, scale, left, parts = len(head.heads), 84, 84 / head.size, 0.0, []
    for matrix, columns in matrices.items():
        width = head.width * len(columns)
        parts.append(_text(left, 10, f"{matrix}, {head.size} x {width}"))
        parts.append(_box("all", left, 26, width * scale, tall))
        for index in range(1, len(columns) * count):
            kind = "third" if index % count == 0 else "head"
            x = left + index * head.head_size * scale
            parts.append(f'<path class="{kind}" d="M{x:.1f} 26v{tall}"/>')
        for third, (name, first, last) in enumerate(columns):
            x = left + third * head.width * scale
            wide = (last + 1 - first) * scale
            parts.append(_box("own", left + first * scale, 26, wide, tall))
            parts.append(_text(x, 22, name))
            parts.append(_text(x, 122, f"{first}..{last}"))
        left += width * scale + 36
    first, last = head.rows
    wide = head.size * scale
    parts.append(_text(left, 10, f"output, {head.width} x {head.size}"))
    parts.append(_box("all", left, 26, wide, head.width * scale))
    for index in range(1, count):
        y = 26 + index * head.head_size * scale
        parts.append(f'<path class="head" d="M{left:.1f} {y:.1f}h{wide:.1f}"/>')
    parts.append(_box("own", left, 26 + first * scale, wide, (last + 1 - first) * scale))
    parts.append(_text(left, 122, f"rows {first}..{last}"))
    width = left + max(wide, 90)
    words = _words(
        f"All heads lie side by side in the same matrices: head {head.head} of {count} has "
        f"{head.head_size} columns each of queries, keys and values, and the same number of rows "
        "of output."
    )
    return (
        f'<figure><svg viewBox="0 0 {width:.0f} 126" width="{width * 1.6:.0f}" role="img" '
        f'aria-label="{words}">{"".join(parts)}</svg><figcaption>{words}</figcaption></figure>'
    )


def _box(kind: str, x: float, y: float, wide: float, high: float) -> str:
    return f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{wide:.1f}" height="{high:.1f}"/>'


def _text(x: float, y: float, words: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}">{_words(words)}</text>'
