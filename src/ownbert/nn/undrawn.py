"""Random initialisation, and contexts that skip it."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode, handle_torch_function, has_torch_function

# Functions that initialise new models randomly.
_DRAWS = {"normal_", "uniform_", "kaiming_uniform_", "kaiming_normal_", "truncated_normal_"}


def truncated_normal_(tensor: Tensor, std: float) -> Tensor:
    """Fill a tensor from a normal distribution truncated at two standard deviations."""
    # PyTorch's trunc_normal_ does not dispatch to modes; with ``normal_`` disabled it would
    # resample values out of range forever.
    if has_torch_function((tensor,)):
        return handle_torch_function(truncated_normal_, (tensor,), tensor, std)
    return nn.init.trunc_normal_(tensor, std=std, a=-2 * std, b=2 * std)


class Undrawn(TorchFunctionMode):
    """A context in which new models are not initialised, because their weights will be overwritten.

    Their memory is uninitialised.
    """

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if getattr(func, "__name__", None) in _DRAWS:
            return args[0] if args else (kwargs or {})["tensor"]
        return func(*args, **(kwargs or {}))


@contextmanager
def shapes_alone() -> Iterator[None]:
    """A context in which new models have shapes but no values: their parameters can be counted and
    compared with those of a file before ``materialize`` allocates memory.

    The meta device alone would load torch's compiler for random initialisation: a second and 60 MB.
    """
    with torch.device("meta"), Undrawn():
        yield


def materialize(model: nn.Module) -> None:
    """Allocate uninitialised memory for the parameters of a model from ``shapes_alone``; shared
    parameters stay shared."""
    allocated: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None and parameter.is_meta:
                if id(parameter) not in allocated:
                    values = torch.empty(parameter.shape, dtype=parameter.dtype)
                    allocated[id(parameter)] = nn.Parameter(values, parameter.requires_grad)
                module._parameters[name] = allocated[id(parameter)]
        if any(buffer is not None and buffer.is_meta for buffer in module._buffers.values()):
            module.fill_buffers()  # pyright: ignore[reportCallIssue]
