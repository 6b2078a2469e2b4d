"""Models for whose weights nothing is drawn."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.overrides import TorchFunctionMode

# What the layers of a new model are drawn by.
_DRAWS = {"normal_", "uniform_", "kaiming_uniform_", "kaiming_normal_", "trunc_normal_"}


class Undrawn(TorchFunctionMode):
    """Within this context nothing is drawn for the layers of a new model.

    For those that are written over. Their memory holds what happened to be there.
    """

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if getattr(func, "__name__", None) in _DRAWS:
            return args[0] if args else (kwargs or {})["tensor"]
        return func(*args, **(kwargs or {}))


@contextmanager
def shapes_alone() -> Iterator[None]:
    """Within this context a new model has shapes and no values: its parameters can be counted.

    Drawing without values would load torch's compiler, for a second and 60 MB.
    """
    with torch.device("meta"), Undrawn():
        yield
