"""Explanations as an HTML page: coloured texts, selection of method and prediction, and the
internals of the model.
"""

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ownbert.exceptions import InputError
from ownbert.files.writing import write_text
from ownbert.inspect.explain.explanation import Explanation
from ownbert.inspect.internals.observation import Observation
from ownbert.inspect.internals.page_parts import as_data, packed_bytes, view_page

# Larger pages take long to open.
_MOST_BYTES = 50_000_000
# Maximum side of an image in pixels; larger images only make the page larger.
_SIDE = 512


def write_page(
    explanations: Sequence[Explanation],
    path: Path,
    *,
    title: str,
    inside: Sequence[Observation | None] = (),
    pixels: Sequence[np.ndarray] = (),
) -> None:
    """Write a page of explanations atomically.

    Args:
        explanations: explanations by one or several methods; those of the same row are consecutive.
        path: file to write.
        title: title of the page.
        inside: internals of the model for each row.
        pixels: for image rows, (height, width, channels) from 0 to 1 for each image.

    Raises:
        InputError: there is nothing to show, or the page would be too large to open.
    """
    rows = [
        [each.to_dict() for each in group]
        for _, group in groupby(explanations, key=lambda each: each.row)
    ]
    if not rows:
        raise InputError("there is nothing to show on a page: no words, or nothing found in them")
    observed = [*inside, *[None] * (len(rows) - len(inside))]
    pictures = [picture_data(each) for each in pixels]
    data = {"rows": rows, "inside": [*map(as_data, observed)], "pictures": pictures}
    page = view_page("inspect/explain/page.html", title, {"title": title, **data}, observed)
    if len(page) > _MOST_BYTES:
        raise InputError(
            f"the page would have {len(page) / 1e6:,.0f} MB; explain fewer rows, or use --by "
            "sentence"
        )
    write_text(path, page)


def picture_data(pixels: np.ndarray) -> dict[str, Any]:
    """An image for a page's script: its size, and RGB bytes."""
    step = max(1, -(-max(pixels.shape[:2]) // _SIDE))
    small = torch.from_numpy(np.ascontiguousarray(pixels, dtype=np.float32)).permute(2, 0, 1)
    if step > 1:
        small = torch.nn.functional.avg_pool2d(small, step, ceil_mode=True)
    colours = small.expand(3, -1, -1) if len(small) == 1 else small
    raw = (255 * colours.permute(1, 2, 0)).round().byte().contiguous().numpy()
    height, width = raw.shape[:2]
    return {"width": width, "height": height, "pixels": packed_bytes(raw.tobytes())}
