"""Drawing weights, and models for which nothing is drawn."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode, handle_torch_function, has_torch_function

# What a new model is drawn by.
_DRAWS = {"normal_", "uniform_", "kaiming_uniform_", "kaiming_normal_", "truncated_normal_"}


def truncated_normal_(tensor: Tensor, std: float) -> Tensor:
    """Fill a tensor from a normal distribution cut off at two deviations."""
    # PyTorch's own is none of those that a mode is asked about; it would draw what lies outside
    # again and again where its ``normal_`` does nothing.
    if has_torch_function((tensor,)):
        return handle_torch_function(truncated_normal_, (tensor,), tensor, std)
    return nn.init.trunc_normal_(tensor, std=std, a=-2 * std, b=2 * std)


class Undrawn(TorchFunctionMode):
    """Within this context nothing is drawn for a new model.

    For those that are written over. Their memory holds what happened to be there.
    """

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if getattr(func, "__name__", None) in _DRAWS:
            return args[0] if args else (kwargs or {})["tensor"]
        return func(*args, **(kwargs or {}))


@contextmanager
def shapes_alone() -> Iterator[None]:
    """Within this context a new model has shapes and no values: its parameters can be counted, and
    compared with those of a file before ``materialize`` takes memory for them.

    Drawing without values would load torch's compiler, for a second and 60 MB.
    """
    with torch.device("meta"), Undrawn():
        yield


def materialize(model: nn.Module) -> None:
    """Take memory for the parameters of a model of ``shapes_alone``; it holds what happened to be
    there. One that two modules share stays one."""
    made: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for name, own in module._parameters.items():
            if own is not None and own.is_meta:
                if id(own) not in made:
                    values = torch.empty(own.shape, dtype=own.dtype)
                    made[id(own)] = nn.Parameter(values, own.requires_grad)
                module._parameters[name] = made[id(own)]
        if any(buffer is not None and buffer.is_meta for buffer in module._buffers.values()):
            module.fill_buffers()  # pyright: ignore[reportCallIssue]
