"""Several names in one text, separated by commas."""

import csv
from collections.abc import Iterable
from typing import Any


def split_names(names: str) -> list[str]:
    """The names in a text, separated by commas; a name with a comma is in double quotes."""
    parts = next(csv.reader([names], skipinitialspace=True), [])
    return [name.strip() for name in parts]


def join_names(names: Iterable[Any]) -> str:
    """The text that ``split_names`` splits into these names."""
    texts = [str(name) for name in names]
    return ",".join(
        '"' + text.replace('"', '""') + '"' if "," in text or text.startswith('"') else text
        for text in texts
    )
