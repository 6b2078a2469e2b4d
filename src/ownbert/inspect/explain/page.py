"""Explanations as one page for a browser: texts in colours, a switch of method and of answer.

The page is self-contained: nothing is fetched.
"""

import html
import json
from collections.abc import Sequence
from importlib.resources import files
from itertools import groupby
from pathlib import Path

from ownbert.errors import InputError
from ownbert.files import write_text
from ownbert.inspect.explain.explain import Explanation
from ownbert.language import translated_page

# Larger pages take long to open.
_MOST_BYTES = 50_000_000


def write_page(found: Sequence[Explanation], path: Path, *, title: str) -> None:
    """Write ``as_page(found)`` atomically."""
    write_text(path, as_page(found, title=title))


def as_page(found: Sequence[Explanation], *, title: str) -> str:
    """The page as HTML.

    Args:
        found: those of one row stand together, by one method or by several.
        title: of the page.

    Raises:
        InputError: it would be too large to open.
    """
    rows = [
        [each.to_dict() for each in own] for _, own in groupby(found, key=lambda each: each.row)
    ]
    data = json.dumps(rows, ensure_ascii=False, allow_nan=False).replace("<", "\\u003c")
    if len(data) > _MOST_BYTES:
        raise InputError(f"a page of {len(data) / 1e6:,.0f} MB; explain fewer rows, or sentences")
    page = files("ownbert.inspect.explain").joinpath("page.html")
    template = translated_page(page.read_text("utf-8"))
    return template.format(title=html.escape(title), data=data)
