"""Linear layers that train faster on a CPU. T tokens, D numbers in, I out.

PyTorch multiplies float32 matrices on a CPU by MKL. oneDNN, which it brings along for inference, is
about a tenth faster at a model's sizes, and nearly twice as fast where few rows meet a whole
vocabulary (docs/benchmarks.md). In training on a CPU the forward pass and the gradient of the input
go that way; everywhere else, and where oneDNN is missing, this is ``torch.nn.Linear``.
"""

from functools import lru_cache

import torch
from torch import Tensor, nn


class Linear(nn.Linear):
    """``torch.nn.Linear``, on two-dimensional inputs in training by oneDNN: (T, D) -> (T, I)."""

    def forward(self, input: Tensor) -> Tensor:
        trains = torch.is_grad_enabled() and self.weight.requires_grad
        if not trains or input.ndim != 2 or input.device.type != "cpu":
            return super().forward(input)
        return linear(input, self.weight, self.bias)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """``torch.nn.functional.linear`` in training, by oneDNN where that is faster: (T, D) -> (T, I).

    Args:
        x: (T, D).
        weight: (I, D).
        bias: (I).
    """
    given = x, weight, bias
    if x.device.type != "cpu":
        return nn.functional.linear(*given)
    if torch.is_autocast_enabled("cpu"):
        dtype = torch.get_autocast_dtype("cpu")
        x, weight = x.to(dtype), weight.to(dtype)
        bias = None if bias is None else bias.to(dtype)
    same = x.dtype == weight.dtype and x.shape[1] == weight.shape[1]
    same = same and (bias is None or bias.dtype == x.dtype)
    if not same or not onednn_has_linear(x.dtype):
        return nn.functional.linear(*given)
    return _Product.apply(x, weight, bias)  # pyright: ignore[reportReturnType]


@lru_cache
def onednn_has_linear(dtype: torch.dtype) -> bool:
    """Whether this PyTorch on this processor can multiply by oneDNN, and gets it right."""
    if dtype not in (torch.float32, torch.bfloat16) or not torch.backends.mkldnn.is_available():
        return False
    # No random numbers: a training run would get others than one that resumes from a saved state.
    x, weight = torch.linspace(-1, 1, 8 * 32).view(8, 32), torch.linspace(-2, 1, 16 * 32)
    x, weight, bias = x.to(dtype), weight.view(16, 32).to(dtype), torch.ones(16, dtype=dtype)
    try:
        if dtype == torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
            return False
        found, expected = multiply(x, weight, bias), nn.functional.linear(x, weight, bias)
        back, plain = multiply(expected, weight.t(), None), expected @ weight
    except (AttributeError, RuntimeError):
        return False
    pairs = (found, expected), (back, plain)
    return all(torch.allclose(a.float(), b.float(), atol=0.05, rtol=0.02) for a, b in pairs)


def multiply(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x (T, D), weight (I, D), bias (I) -> x weight^T + bias (T, I), by oneDNN, no gradients."""
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x, weight)
        ctx.has_bias = bias is not None
        return multiply(x, weight, bias)

    @staticmethod
    def backward(ctx, grad):  # pyright: ignore[reportIncompatibleMethodOverride]
        x, weight = ctx.saved_tensors
        wanted = ctx.needs_input_grad[0]
        if torch.is_grad_enabled():  # for a second derivative
            of_bias = grad.sum(0) if ctx.has_bias else None
            return grad @ weight if wanted else None, grad.t() @ x, of_bias
        grad = grad.contiguous()
        of_input = None
        if wanted:
            # Here oneDNN gains in float32 alone.
            fast = grad.dtype == torch.float32
            of_input = multiply(grad, weight.t(), None) if fast else grad @ weight
        # As a product, the sum over the tokens takes half the time.
        of_bias = (grad.new_ones(1, len(grad)) @ grad)[0] if ctx.has_bias else None
        return of_input, grad.t() @ x, of_bias
