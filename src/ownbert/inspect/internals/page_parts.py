"""Pages that show a model's internals, and the data of their scripts."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ownbert.inspect.internals.attention_weights import SHARES, packed_bytes
from ownbert.inspect.internals.observation import Observation
from ownbert.language import translated
from ownbert.pages import page


def view_page(
    template: str,
    title: str,
    data: Mapping[str, Any],
    inside: Sequence[Observation | None],
    **values: Any,
) -> str:
    """Fill in a template that extends ``view.html``.

    Args:
        template: path of the template.
        title: title of the page.
        data: data of its script.
        inside: observation of each row, whose weights are added.
        values: further variables of the template.
    """
    weights = [
        (f"{row}.{head.sequence}.{head.layer}.{head.head}", packed)
        for row, observed in enumerate(inside)
        if observed is not None
        for head, packed in zip(observed.weights, observed.packed, strict=True)
    ]
    return page(template, title=title, data=data, weights=weights, **values)


def as_data(observation: Observation | None) -> dict[str, Any] | None:
    """An observation as data for the script, without the weights; None for None."""
    if observation is None:
        return None
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
