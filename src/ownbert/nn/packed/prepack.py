"""A copy of a model for inference, with matrices in the memory layout that oneDNN prefers.

T tokens, D hidden, I intermediate. PyTorch reorders a matrix at every call, which takes a sixth
of the time of a linear layer; here it is done once, and activations are applied to results while
they are in the cache. If PyTorch lacks these operations the copy has plain layers.
"""

import copy
from functools import lru_cache
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from ownbert.nn.blocks import FeedForward
from ownbert.nn.model import Model
from ownbert.nn.output_heads import NextTokenHead
from ownbert.nn.packed.int8 import (
    PackedInt8FeedForward,
    PackedInt8Linear,
    QuantizedLinear,
    can_pack,
)

PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16}

# Activations that oneDNN can fuse: its name and variant.
_FUSED = {
    "gelu": ("gelu", "none"),
    "gelu_python": ("gelu", "none"),
    "gelu_new": ("gelu", "tanh"),
    "gelu_fast": ("gelu", "tanh"),
    "gelu_pytorch_tanh": ("gelu", "tanh"),
    "relu": ("relu", ""),
    "silu": ("swish", ""),
    "swish": ("swish", ""),
    "tanh": ("tanh", ""),
    "sigmoid": ("sigmoid", ""),
}

AnyModule = TypeVar("AnyModule", bound=nn.Module)


def prepack(model: AnyModule, precision: str = "float32") -> AnyModule:
    """Copy a model or any part of one for inference, in evaluation mode and without gradients.

    Linear layers that share their matrix (an MLM decoder) or whose matrix a head reads are not
    packed, except the next-token head, the largest product of each step. Quantized layers use 8-bit
    products whatever the precision, or floats if these are not available.

    Args:
        precision: "float32", equivalent to ``model`` up to rounding, or "bfloat16".

    Returns:
        The copy, which in float32 shares the memory of everything that is not packed.
    """
    if precision not in PRECISIONS:
        known = " or ".join(PRECISIONS)
        raise ValueError(f"precision {precision!r} is not known; {known}")
    dtype = PRECISIONS[precision]
    # deepcopy does not copy parameters listed here.
    memo: dict[int, object] = {
        id(p): nn.Parameter(
            p.detach().to(dtype) if p.is_floating_point() else p, requires_grad=False
        )
        for p in model.parameters()
    }
    packed = copy.deepcopy(model, memo).eval()
    # The scales of quantized layers keep their dtype.
    floating = (m for m in packed.modules() if not isinstance(m, QuantizedLinear))
    for buffers in (module._buffers for module in floating):
        for name, buffer in buffers.items():
            if buffer is not None and buffer.is_floating_point():
                buffers[name] = buffer.to(dtype)
    # Probing the processor and creating layers consume random numbers.
    with torch.random.fork_rng(devices=[]):
        _replace_quantized(packed, dtype)
        if all(p.device.type == "cpu" for p in packed.parameters()) and _works(dtype):
            _replace(packed)
    return packed


def prepack_for_heads(model: Model, precision: str = "float32") -> Model:
    """Like ``prepack``, but with pooler and heads in float32: they are cheap, and rounding logits
    to three digits would change predictions."""
    if precision == "float32":
        return prepack(model)
    packed = copy.copy(model)
    stacks = ("encoder", "decoder")
    packed._modules = {
        name: child and prepack(child, precision if name in stacks else "float32")
        for name, child in model._modules.items()
    }
    packed.head_dtype = torch.float32
    return packed.eval()


def _replace_quantized(model: nn.Module, dtype: torch.dtype) -> None:
    """Use the fast form of quantized layers, or float layers on a CPU without it."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if not isinstance(child, FeedForward) or child.gated:
                continue
            if all(
                isinstance(layer, QuantizedLinear) and can_pack(layer)
                for layer in (child.up, child.down)
            ):
                setattr(parent, name, PackedInt8FeedForward(child))
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, QuantizedLinear) and child.weight.device.type == "cpu":
                packs = can_pack(child)
                packed = PackedInt8Linear(child) if packs else child.floating().to(dtype)
                setattr(parent, name, packed)


@lru_cache
def _works(dtype: torch.dtype) -> bool:
    """Whether the operations are available here and give correct results."""
    if not torch.backends.mkldnn.is_available():
        return False
    linear = nn.Linear(32, 16).to(dtype)
    x = torch.randn(8, 32).to(dtype)
    try:
        with torch.no_grad():
            if dtype == torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
                return False
            actual, expected = PackedLinear(linear, "gelu")(x), nn.functional.gelu(linear(x))
        return torch.allclose(actual.float(), expected.float(), atol=0.05)
    except (AttributeError, RuntimeError):
        return False


def _replace(model: nn.Module) -> None:
    shared = _shared(model)
    done: dict[int, PackedLinear] = {}
    for parent in list(model.modules()):
        fuses = isinstance(parent, FeedForward) and parent.act in _FUSED and not parent.gated
        for name, child in list(parent.named_children()):
            if not isinstance(child, nn.Linear):
                continue
            if id(child.weight) in shared and not isinstance(parent, NextTokenHead):
                continue
            act = None
            if fuses and name == "up":  # unless it is packed in 8 bits already
                act, parent.act = parent.act, "linear"  # pyright: ignore
            if id(child) not in done:
                done[id(child)] = PackedLinear(child, act)  # pyright: ignore[reportArgumentType]
            setattr(parent, name, done[id(child)])


def _shared(model: nn.Module) -> set[int]:
    """Ids of matrices with two owners, and of the MLM head, which reads its matrix directly."""
    seen: set[int] = set()
    shared: set[int] = set()
    for name, module in model.named_modules():
        for parameter in module._parameters.values():
            if id(parameter) in seen or "decoder" in name.rpartition(".")[2]:
                shared.add(id(parameter))
            seen.add(id(parameter))
    return shared


class PackedLinear(nn.Module):
    """``torch.nn.Linear`` with an activation in one call of oneDNN: (..., D) -> (..., I)."""

    def __init__(self, linear: nn.Linear, activation: str | None = None) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.activation = activation
        self.operation, self.variant = ("none", "") if activation is None else _FUSED[activation]
        self.dtype = linear.weight.dtype
        weight = linear.weight.detach().contiguous()
        # Not a parameter or buffer: a packed matrix can be neither saved nor moved.
        self.packed = torch.ops.mkldnn._reorder_linear_weight(weight)
        self.bias = None if linear.bias is None else linear.bias.detach()

    def __getstate__(self) -> dict[str, Any]:
        # A packed matrix can be neither pickled nor copied, so it is stored unpacked.
        return {**self.__dict__, "packed": self.packed.to_dense()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.packed = torch.ops.mkldnn._reorder_linear_weight(self.packed)

    def forward(self, x: Tensor) -> Tensor:
        x = x if x.dtype == self.dtype else x.to(self.dtype)
        return torch.ops.mkldnn._linear_pointwise(
            x, self.packed, self.bias, self.operation, [], self.variant
        )

    def extra_repr(self) -> str:
        act = "" if self.activation is None else f", activation={self.activation}"
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"bias={self.bias is not None}{act}, prepacked in {self.dtype}"
        )
