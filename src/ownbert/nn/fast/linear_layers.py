"""Linear layers that train faster on a CPU. T tokens, D numbers in, I out.

PyTorch multiplies float32 matrices on a CPU by MKL. oneDNN, which it brings along for inference, is
on AMD's processors about a tenth faster at a model's sizes (from Zen 5 on twice as fast), and
nearly twice as fast where few rows meet a whole vocabulary; on Intel's, which MKL is made for, it
is slower (docs/lab/training-step.md).

In training on a CPU the forward pass, the gradient of the input and from Zen 5 on that of the
matrix use it where it is faster; everywhere else, and where oneDNN is missing, this is
``torch.nn.Linear``.

oneDNN compiles its code for each new shape, for which it takes longer than for multiplying a small
model's matrices, and packed batches hardly ever have the same number of tokens. So rows of zeros
fill them up to one of a few numbers.
"""

import platform
import re
from functools import lru_cache
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor, nn

from ownbert.nn.fast.accumulation import converted
from ownbert.nn.fast.compiled import loops_for, run

# In products of more operations (2 T D I) rows of zeros, in every layer, cost more than compiling
# once for all layers. Matrix units (AMX) multiply bfloat16 several times as fast.
_LARGE, _LARGE_IN_UNITS = 4e8, 1e10
_FEWEST = 32


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
    dtype = product_dtype(x)
    if torch.is_autocast_enabled("cpu"):
        weight = converted(weight, dtype)
        bias = None if bias is None else bias.to(dtype)
    same = dtype == weight.dtype and x.shape[1] == weight.shape[1]
    same = same and (bias is None or bias.dtype == dtype)
    if not same or not onednn_is_faster(dtype):
        return nn.functional.linear(*given)
    rows, count = rows_to_multiply(len(x), weight.numel(), dtype), len(x)
    if rows == count:
        return _Product.apply(x.to(dtype), weight, bias)  # pyright: ignore[reportReturnType]
    out: Tensor = _Product.apply(_Filled.apply(x, rows, dtype), weight, bias)  # pyright: ignore
    return out[:count]


def product_dtype(x: Tensor) -> torch.dtype:
    """In which type ``x`` is multiplied on a CPU: autocast's, or its own."""
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else x.dtype


def rows_to_multiply(count: int, size: int, dtype: torch.dtype) -> int:
    """How many rows ``count`` become, by rows of zeros, so that few shapes are compiled.

    Args:
        count: T.
        size: of the matrix, D I.
        dtype: of both.

    Returns:
        The next of eight numbers between two powers of two, at most an eighth more than T.
    """
    in_units = dtype == torch.bfloat16 and has_matrix_units()
    if 2 * count * size > (_LARGE_IN_UNITS if in_units else _LARGE):
        return count
    step = max(_FEWEST, 1 << max(0, count.bit_length() - 4))
    return -(-count // step) * step


def has_matrix_units() -> bool:
    """Whether the processor has AMX; an older PyTorch cannot tell."""
    return getattr(torch.cpu, "_is_amx_tile_supported", lambda: False)()


@lru_cache
def onednn_is_faster(dtype: torch.dtype) -> bool:
    """Whether oneDNN multiplies a layer's matrices in training faster than PyTorch does otherwise.

    In float32 MKL is faster on the processors of its maker, Intel.
    """
    mkl = dtype == torch.float32 and torch.backends.mkl.is_available() and _is_intels()
    return not mkl and onednn_has_linear(dtype)


@lru_cache
def mkl_is_narrow() -> bool:
    """Whether the processor computes twice as many float32 numbers at once as MKL lets it: those
    of AMD from Zen 5 (family 26) on, whose registers of 512 bits MKL does not use."""
    processor = _processor()
    family = re.search(r"family\s*:?\s*(\d+)", processor, re.IGNORECASE)
    return "AuthenticAMD" in processor and family is not None and int(family[1]) >= 26


def _is_intels() -> bool:
    return "GenuineIntel" in _processor()


def _processor() -> str:
    """What the system says of the processor: its maker, family and more."""
    try:
        return Path("/proc/cpuinfo").read_text(errors="replace")
    except OSError:  # another system than Linux
        return platform.processor()


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
        turned, same = multiply(expected.t(), x.t(), None), expected.t() @ x
    except (AttributeError, RuntimeError):
        return False
    pairs = (found, expected), (back, plain), (turned, same)
    return all(torch.allclose(a.float(), b.float(), atol=0.05, rtol=0.02) for a, b in pairs)


def multiply(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x (T, D), weight (I, D), bias (I) -> x weight^T + bias (T, I), by oneDNN, no gradients."""
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


class _Filled(torch.autograd.Function):
    """(T, D) in another type and with rows of zeros below, (rows, D), in one copy."""

    @staticmethod
    def forward(ctx, x, rows, dtype):
        ctx.count, ctx.dtype = len(x), x.dtype
        filled = x.new_empty((rows, *x.shape[1:]), dtype=dtype)
        filled[: len(x)] = x
        filled[len(x) :] = 0
        return filled

    @staticmethod
    def backward(ctx, grad):  # pyright: ignore[reportIncompatibleMethodOverride]
        return grad[: ctx.count].to(ctx.dtype), None, None


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
        of_bias = None
        if ctx.has_bias:
            # In float32 a product takes less time than the sum over the tokens.
            ones = grad.new_ones(1, len(grad)) if grad.dtype == torch.float32 else None
            of_bias = grad.sum(0) if ones is None else (ones @ grad)[0]
        return of_input, _of_weight(grad, x), of_bias


def _of_weight(grad: Tensor, x: Tensor) -> Tensor:
    """grad^T x: (T, I), (T, D) -> (I, D).

    Where MKL is narrow oneDNN multiplies float32 faster, but refuses matrices without rows. In
    bfloat16 with matrix units it turns ``grad`` around in as much time as it takes to multiply; a
    compiled loop does so in a fifth of it.
    """
    if grad.dtype == torch.float32 and mkl_is_narrow() and len(grad):
        return multiply(grad.t(), x.t(), None)
    (count, out), size = grad.shape, x.shape[1]
    loops = loops_for(grad) if grad.dtype == torch.bfloat16 and has_matrix_units() else None
    if loops is None:
        return grad.t() @ x
    if count * out <= (count + out) * size:
        return _turned(grad, loops) @ x
    return _turned(_turned(x, loops) @ grad, loops)


def _turned(x: Tensor, loops: ModuleType) -> Tensor:
    """x^T in memory of its own: (N, M) -> (M, N)."""
    out = x.new_empty(x.shape[::-1])
    run(loops.transpose, x.numel(), x.contiguous(), out)
    return out
