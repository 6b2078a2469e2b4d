"""Explanations as an HTML page: coloured texts, selection of method and prediction, and the
internals of the model.

The page is self-contained.
"""

import html
from collections.abc import Sequence
from importlib.resources import files
from itertools import groupby
from pathlib import Path

import numpy as np

from ownbert.errors import InputError
from ownbert.files.writing import write_text
from ownbert.inspect.explain.explain import Explanation
from ownbert.inspect.explain.images import PatchExplanation, picture_data
from ownbert.inspect.internals.observation import Observation
from ownbert.inspect.internals.page_parts import as_data, as_json, script, style, weights_of
from ownbert.language import translated_page

# Larger pages take long to open.
_MOST_BYTES = 50_000_000


def write_page(
    found: Sequence[Explanation | PatchExplanation],
    path: Path,
    *,
    title: str,
    inside: Sequence[Observation | None] = (),
    pixels: Sequence[np.ndarray] = (),
) -> None:
    """Write ``as_page(...)`` atomically."""
    write_text(path, as_page(found, title=title, inside=inside, pixels=pixels))


def as_page(
    found: Sequence[Explanation | PatchExplanation],
    *,
    title: str,
    inside: Sequence[Observation | None] = (),
    pixels: Sequence[np.ndarray] = (),
) -> str:
    """The page as HTML.

    Args:
        found: explanations by one or several methods; those of the same row are consecutive.
        title: title of the page.
        inside: internals of the model for each row.
        pixels: for image rows, (height, width, channels) from 0 to 1 for each image.

    Raises:
        InputError: there is nothing to show, or the page would be too large to open.
    """
    rows = [
        [each.to_dict() for each in group] for _, group in groupby(found, key=lambda each: each.row)
    ]
    if not rows:
        raise InputError("there is nothing to show on a page: no words, or nothing found in them")
    observed = [*inside, *[None] * (len(rows) - len(inside))]
    data = as_json(
        {
            "title": title,
            "rows": rows,
            "inside": [None if each is None else as_data(each) for each in observed],
            "pictures": [picture_data(each) for each in pixels],
        }
    )
    if len(data) > _MOST_BYTES:
        raise InputError(
            f"the page would have {len(data) / 1e6:,.0f} MB; explain fewer rows, or use --by "
            "sentence"
        )
    return translated_page(_resource("page.html")).format(
        title=html.escape(title),
        style=style() + _resource("page.css"),
        data=data,
        script=script() + translated_page(_resource("page.js")),
        weights=weights_of(observed),
    )


def _resource(name: str) -> str:
    return (files("ownbert.inspect.explain") / name).read_text(encoding="utf-8")
