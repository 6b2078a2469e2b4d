"""A trace as one page for a browser: every number, coloured by its value, and the sum behind it.

The page is whole in itself: nothing is fetched.
"""

import base64
import html
import json
import os
from typing import Any

import numpy as np

from ownbert.files import write_text
from ownbert.inspect.trace.page_script import SCRIPT, STYLE
from ownbert.inspect.trace.steps import Step, Trace

# Larger matrices are written as float32 in base64, a third of the size of their digits.
_DIGITS = 4096

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<header>
<h1>{title}</h1>
<dl>{facts}</dl>
<p>Point at a number to see the sum behind it and what it is made of; click to keep it, then move
with the arrow keys. <span class="legend"><i class="minus"></i> below zero
<i class="plus"></i> above zero, the stronger the larger in its matrix</span></p>
{cut}
</header>
<main></main>
<output id="sum" aria-live="polite">Point at a number.</output>
<noscript>This page draws its numbers by a script of its own.</noscript>
<script type="application/json" id="data">{data}</script>
<script>{script}</script>
</body>
</html>
"""


def write_page(trace: Trace, path: str | os.PathLike[str]) -> None:
    """Write ``as_page(trace)``, whole or not at all."""
    write_text(path, as_page(trace))


def as_page(trace: Trace) -> str:
    """The page as HTML."""
    facts = "".join(
        f"<div><dt>{html.escape(name)}</dt><dd>{html.escape(value)}</dd></div>"
        for name, value in trace.facts.items()
    )
    data = json.dumps([_packed(step) for step in trace.steps], ensure_ascii=False, allow_nan=False)
    return _PAGE.format(
        title=html.escape(trace.title),
        style=STYLE,
        facts=facts,
        cut=_cut_picture(trace),
        data=data.replace("<", "\\u003c"),
        script=SCRIPT,
    )


def _packed(step: Step) -> dict[str, Any]:
    values = step.as_json()
    if step.values.size > _DIGITS:
        raw = np.ascontiguousarray(step.values, dtype="<f4").tobytes()
        values["values"] = base64.b64encode(raw).decode("ascii")
    return values


def _cut_picture(trace: Trace) -> str:
    """The fused matrices to scale, with the columns (rows, of output) of the head filled."""
    cut = trace.cut
    if cut is None:
        return ""
    matrices: dict[str, list[tuple[str, int, int]]] = {}
    for name, (matrix, first, last) in cut.columns.items():
        matrices.setdefault(matrix, []).append((name, first, last))
    tall, scale, left, parts = 84, 84 / cut.size, 0.0, []
    for matrix, columns in matrices.items():
        wide = cut.width * len(columns) * scale
        parts.append(_text(left, 10, f"{matrix}, {cut.size} x {cut.width * len(columns)}"))
        parts.append(_box("all", left, 26, wide, tall))
        for place in range(1, len(columns) * len(cut.heads)):
            kind = "third" if place % len(cut.heads) == 0 else "head"
            x = left + place * cut.head_size * scale
            parts.append(f'<path class="{kind}" d="M{x:.1f} 26v{tall}"/>')
        for third, (name, first, last) in enumerate(columns):
            x = left + first * scale
            parts.append(_box("own", x, 26, (last + 1 - first) * scale, tall))
            parts.append(_text(left + third * cut.width * scale, 22, name))
            parts.append(_text(left + third * cut.width * scale, 122, f"{first}..{last}"))
        left += wide + 36
    first, last = cut.rows
    parts.append(_text(left, 10, f"output, {cut.width} x {cut.size}"))
    parts.append(_box("all", left, 26, cut.size * scale, cut.width * scale))
    for place in range(1, len(cut.heads)):
        y = 26 + place * cut.head_size * scale
        parts.append(f'<path class="head" d="M{left:.1f} {y:.1f}h{cut.size * scale:.1f}"/>')
    y, high = 26 + first * scale, (last + 1 - first) * scale
    parts.append(_box("own", left, y, cut.size * scale, high))
    parts.append(_text(left, 122, f"rows {first}..{last}"))
    wide = left + max(cut.size * scale, 90)
    words = (
        f"All heads lie side by side in the same matrices: head {cut.head} of {len(cut.heads)} "
        f"owns {cut.head_size} columns of queries, keys and values each and as many rows of output."
    )
    return (
        f'<figure><svg viewBox="0 0 {wide:.0f} 126" width="{wide * 1.6:.0f}" role="img" '
        f'aria-label="{words}">{"".join(parts)}</svg><figcaption>{words}</figcaption></figure>'
    )


def _box(kind: str, x: float, y: float, wide: float, high: float) -> str:
    return f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{wide:.1f}" height="{high:.1f}"/>'


def _text(x: float, y: float, words: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}">{html.escape(words)}</text>'
