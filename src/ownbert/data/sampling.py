"""Which rows to keep when only a few labelled ones may be used."""

import zlib
from collections.abc import Sequence

import numpy as np

from ownbert.errors import InputError


def labels_per_class(labels: Sequence[str], n: int, seed: int) -> list[int]:
    """Indices of at most `n` rows of each label, drawn without replacement, ascending.

    A label with fewer than `n` rows gives all of them. The draw of a label depends on `seed`, its
    name and its number of rows only, so adding a label changes no other label's rows; and for one
    seed the rows for a smaller `n` are among those for a larger one, so that scores at 20, 100,
    ... labels a class differ by what was added and not by a fresh draw.
    """
    if n < 1:
        raise InputError(f"labels a class is {n}; it must be at least 1")
    if seed < 0:
        raise InputError(f"seed is {seed}; it must not be negative")
    rows_of: dict[str, list[int]] = {}
    for row, label in enumerate(labels):
        rows_of.setdefault(label, []).append(row)
    chosen: list[int] = []
    for label, rows in sorted(rows_of.items()):
        # crc32 and not hash(): the latter is salted anew in every process.
        rng = np.random.default_rng([seed, zlib.crc32(label.encode())])
        # Sorting uniform numbers, because `choice` may draw differently in another numpy: only the
        # bit stream, of which `random` is the plainest function, is promised to stay.
        order = np.argsort(rng.random(len(rows)), kind="stable")
        chosen.extend(rows[i] for i in order[:n])
    return sorted(chosen)
