"""Numbers of one's own for a trace, from a file."""

import math
import os
from pathlib import Path
from typing import Any

import numpy as np

from ownbert.data.images.npz import open_npz
from ownbert.errors import InputError
from ownbert.files import read_json, refuse_unreadable
from ownbert.inspect.trace.steps import EXAMPLE

# A score is a sum of products of four numbers, and a float64 ends at 1e308.
_LARGEST = 1e60


def read_inputs(path: str | os.PathLike[str]) -> dict[str, Any]:
    """``inputs``, ``query``, ``key`` and ``value`` of a JSON or npz file.

    ``InputError`` for a file that cannot be read, for names that are missing or not known, and for
    numbers whose scores would be infinite.
    """
    source = Path(path)
    if source.suffix == ".npz":
        with open_npz(source, "arrays of numbers are needed") as arrays:
            values: dict[str, Any] = dict(arrays)
    else:
        refuse_unreadable(source)
        values = read_json(source)
    if values.keys() != EXAMPLE.keys():
        raise InputError(
            f"{path} holds {', '.join(values) or 'nothing'}; it must hold {', '.join(EXAMPLE)}"
        )
    for name, rows in values.items():
        if _largest(rows) > _LARGEST:
            raise InputError(
                f"{path}: {name} holds a number beyond {_LARGEST:g}, of which the scores become "
                "infinite; smaller ones are needed"
            )
    return values


def _largest(rows: Any) -> float:
    """The largest absolute value; 0 for what ``trace_attention`` refuses as no rows of numbers."""
    try:
        return float(np.abs(np.asarray(rows, dtype=np.float64)).max(initial=0))
    except OverflowError:  # a whole number of JSON may have any number of digits
        return math.inf
    except (TypeError, ValueError):
        return 0.0
