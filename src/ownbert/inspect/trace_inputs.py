"""Numbers of one's own for a trace, from a file."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from ownbert.errors import InputError
from ownbert.inspect.trace import EXAMPLE


def read_inputs(path: str | os.PathLike[str]) -> dict[str, Any]:
    """``inputs``, ``query``, ``key`` and ``value`` of a JSON or npz file.

    ``InputError`` for a file that cannot be read, and for names that are missing or not known.
    """
    source = Path(path)
    try:
        if source.suffix == ".npz":
            with np.load(source, allow_pickle=False) as arrays:
                values: Any = {name: arrays[name] for name in arrays.files}
        else:
            values = json.loads(source.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"no such file: {path}") from None
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from None
    except ValueError as error:  # of json and of numpy
        kind = "npz" if source.suffix == ".npz" else "JSON"
        raise InputError(f"{path} is not {kind}: {' '.join(str(error).split())}") from None
    if not isinstance(values, dict) or values.keys() != EXAMPLE.keys():
        said = ", ".join(map(str, values)) if isinstance(values, dict) else type(values).__name__
        raise InputError(f"{path} holds {said}; it must hold {', '.join(EXAMPLE)}")
    return values
