"""Parts of pages that show a model's internals: style, script and data.

A page contains style and script once. The weights of each head are in separate scripts at its end,
which are decoded when the head is opened.
"""

import json
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

import numpy as np

from ownbert.inspect.internals.attention_weights import SHARES, packed_bytes
from ownbert.inspect.internals.observation import Observation
from ownbert.language import translated, translated_page

_SCRIPTS = ("words.js", "view.js", "attention.js", "arcs.js", "matrix.js", "layers.js")
_FUNCTIONS = (
    *("heat", "make", "mode", "picture", "save", "signed", "sized", "text", "unpacked"),
    "observationView",
)


def style() -> str:
    """The style sheet shared by all pages."""
    return _resource("view.css")


def script() -> str:
    """The script: an object ``inspector`` with functions for pages."""
    parts = "\n".join(map(_resource, _SCRIPTS))
    names = ", ".join(_FUNCTIONS)
    return translated_page(f"const inspector = (() => {{\n{parts}\nreturn {{ {names} }};\n}})();\n")


def as_data(observation: Observation) -> dict[str, Any]:
    """An observation as data for the script, without the weights."""
    thumbnails = b"".join(head.thumbnail.tobytes() for head in observation.weights)
    return {
        "tokens": [list(row) for row in observation.tokens],
        "heads": observation.heads,
        "kept": [list(heads) for heads in observation.kept],
        "layers": list(observation.layers),
        "shown": [[head.sequence, head.layer, head.head] for head in observation.weights],
        "shares": {"names": SHARES, "values": [head.shares for head in observation.weights]},
        "peaks": [float(f"{head.peak:.5g}") for head in observation.weights],
        "sides": [len(head.thumbnail) for head in observation.weights],
        "thumbnails": packed_bytes(thumbnails),
        "most": observation.most,
        "norms": packed_bytes(np.ascontiguousarray(observation.norms, dtype="<f4").tobytes()),
        "written": [
            [None if np.isnan(x) else float(f"{x:.4g}") for x in layer]
            for layer in observation.written.tolist()
        ],
        "answers": [
            {
                "name": each.name,
                "probability": each.is_probability,
                "values": [round(x, 5) for x in each.values],
                "candidates": [[[n, round(p, 4)] for n, p in layer] for layer in each.candidates],
                "settled": each.settled,
            }
            for each in observation.answers
        ],
        "note": translated(observation.note),
    }


def weights_of(observations: Sequence[Observation | None]) -> str:
    """Scripts with the weights of all heads, by row, sequence, layer and head."""
    return "\n".join(
        f'<script type="text/plain" data-weights="{row}.{head.sequence}.{head.layer}.{head.head}">'
        f"{packed}</script>"
        for row, observed in enumerate(observations)
        if observed is not None
        for head, packed in zip(observed.weights, observed.packed, strict=True)
    )


def as_json(value: Any) -> str:
    """JSON that is safe inside a script element."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False).replace("<", "\\u003c")


def _resource(name: str) -> str:
    return (files("ownbert.inspect.internals") / name).read_text(encoding="utf-8")
