"""The layers that blocks and heads are made of; on a CPU they train faster than PyTorch's.

T tokens, D inputs or hidden, I outputs.
"""

import platform
import re
from collections.abc import Callable
from functools import lru_cache, partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ownbert.config.encoder import EncoderConfig
from ownbert.nn.accumulation import converted

_gelu_tanh = partial(F.gelu, approximate="tanh")
# By their names in ``config.json`` (``config.ACTIVATIONS``).
ACTIVATION: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_python": F.gelu,
    "gelu_new": _gelu_tanh,
    "gelu_fast": _gelu_tanh,
    "gelu_pytorch_tanh": _gelu_tanh,
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "relu": F.relu,
    "relu6": F.relu6,
    "leaky_relu": F.leaky_relu,
    "silu": F.silu,
    "swish": F.silu,
    "mish": F.mish,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "linear": lambda x: x,
}


class NoNorm(nn.Module):
    """Scale and shift of each channel instead of LayerNorm: (..., D) -> (..., D).

    Source: Sun et al. 2020, equation 1.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.bias = nn.Parameter(torch.zeros(size))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight + self.bias

    def extra_repr(self) -> str:
        return f"{self.weight.numel()}"


def make_norm(config: EncoderConfig, size: int, *, eps: float | None = None) -> nn.Module:
    """LayerNorm, RMSNorm (T5), or MobileBERT's ``NoNorm``."""
    if config.mobile is not None and config.mobile.normalization_type == "no_norm":
        return NoNorm(size)
    eps = config.layer_norm_eps if eps is None else eps
    if config.norm_type == "rms_norm":
        return nn.RMSNorm(size, eps=eps)
    return nn.LayerNorm(size, eps=eps, bias=config.norm_bias)


# For larger products (2 T D I operations) padding every layer costs more than compiling once for
# all layers. Matrix units (AMX) multiply bfloat16 several times as fast.
_LARGE, _LARGE_IN_UNITS = 4e8, 1e10
_SMALLEST_STEP = 32  # rows


class Linear(nn.Linear):
    """``torch.nn.Linear`` using oneDNN for two-dimensional training inputs: (T, D) -> (T, I).

    PyTorch multiplies float32 matrices on a CPU with MKL. oneDNN, which PyTorch includes for
    inference, is about a tenth faster on AMD processors at typical model sizes (from Zen 5 on twice
    as fast), and nearly twice as fast for few rows times a whole vocabulary; on Intel processors it
    is slower (docs/lab/training-step.md). The forward pass, the gradient of the input and from Zen
    5 on that of the weight use it where it is faster.

    oneDNN compiles a kernel for each new shape, which takes longer than multiplying a small model's
    matrices, and packed batches rarely have the same number of tokens. So inputs are padded with
    zero rows to a small set of sizes.
    """

    def forward(self, input: Tensor) -> Tensor:
        trains = torch.is_grad_enabled() and self.weight.requires_grad
        if not trains or input.ndim != 2 or input.device.type != "cpu":
            return super().forward(input)
        return linear(input, self.weight, self.bias)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """``torch.nn.functional.linear`` for training, with oneDNN if it is faster: x (T, D), weight
    (I, D), bias (I) -> (T, I)."""
    given = x, weight, bias
    if x.device.type != "cpu":
        return F.linear(*given)
    dtype = product_dtype(x)
    if torch.is_autocast_enabled("cpu"):
        weight = converted(weight, dtype)
        bias = None if bias is None else bias.to(dtype)
    same = dtype == weight.dtype and x.shape[1] == weight.shape[1]
    same = same and (bias is None or bias.dtype == dtype)
    if not same or not onednn_is_faster(dtype):
        return F.linear(*given)
    rows, count = rows_to_multiply(len(x), weight.numel(), dtype), len(x)
    if rows == count:
        return _Product.apply(x.to(dtype), weight, bias)  # pyright: ignore[reportReturnType]
    out: Tensor = _Product.apply(_ConvertAndPad.apply(x, rows, dtype), weight, bias)  # pyright: ignore
    return out[:count]


def product_dtype(x: Tensor) -> torch.dtype:
    """The dtype in which ``x`` is multiplied on a CPU: autocast's, or its own."""
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else x.dtype


def rows_to_multiply(count: int, size: int, dtype: torch.dtype) -> int:
    """Number of rows after padding ``count`` rows with zero rows, so that few shapes are compiled,
    for a weight of ``size`` elements: the next of eight steps between two powers of two."""
    in_units = dtype == torch.bfloat16 and has_matrix_units()
    if 2 * count * size > (_LARGE_IN_UNITS if in_units else _LARGE):
        return count
    step = max(_SMALLEST_STEP, 1 << max(0, count.bit_length() - 4))
    return -(-count // step) * step


def has_matrix_units() -> bool:
    """Whether the processor has AMX; false with an older PyTorch, which cannot tell."""
    return getattr(torch.cpu, "_is_amx_tile_supported", lambda: False)()


@lru_cache
def onednn_is_faster(dtype: torch.dtype) -> bool:
    """Whether oneDNN multiplies a layer's matrices in training faster than PyTorch's default. In
    float32, MKL is faster on Intel processors."""
    mkl = dtype == torch.float32 and torch.backends.mkl.is_available() and _is_intels()
    return not mkl and onednn_has_linear(dtype)


@lru_cache
def mkl_is_narrow() -> bool:
    """Whether the processor has wider float32 registers than MKL uses: AMD from Zen 5 (family 26)
    on has 512-bit registers."""
    processor = _processor()
    family = re.search(r"family\s*:?\s*(\d+)", processor, re.IGNORECASE)
    return "AuthenticAMD" in processor and family is not None and int(family[1]) >= 26


def _is_intels() -> bool:
    return "GenuineIntel" in _processor()


def _processor() -> str:
    """Vendor, family and other details of the processor, from the operating system."""
    try:
        return Path("/proc/cpuinfo").read_text(errors="replace")
    except OSError:  # not Linux
        return platform.processor()


@lru_cache
def onednn_has_linear(dtype: torch.dtype) -> bool:
    """Whether oneDNN's linear operation is available here and gives correct results."""
    if dtype not in (torch.float32, torch.bfloat16) or not torch.backends.mkldnn.is_available():
        return False
    # No random numbers, which would make a run differ from one resumed from a saved state.
    x, weight = torch.linspace(-1, 1, 8 * 32).view(8, 32), torch.linspace(-2, 1, 16 * 32)
    x, weight, bias = x.to(dtype), weight.view(16, 32).to(dtype), torch.ones(16, dtype=dtype)
    try:
        if dtype == torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
            return False
        actual, expected = multiply(x, weight, bias), F.linear(x, weight, bias)
        back, plain = multiply(expected, weight.t(), None), expected @ weight
        turned, same = multiply(expected.t(), x.t(), None), expected.t() @ x
    except (AttributeError, RuntimeError):
        return False
    pairs = (actual, expected), (back, plain), (turned, same)
    return all(torch.allclose(a.float(), b.float(), atol=0.05, rtol=0.02) for a, b in pairs)


def multiply(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x (T, D), weight (I, D), bias (I) -> x weight^T + bias (T, I) with oneDNN, no gradients."""
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


class _ConvertAndPad(torch.autograd.Function):
    """(T, D) converted to a dtype and padded with zero rows to (rows, D), in one copy."""

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
        needs_input = ctx.needs_input_grad[0]
        if torch.is_grad_enabled():  # for a second derivative
            of_bias = grad.sum(0) if ctx.has_bias else None
            return grad @ weight if needs_input else None, grad.t() @ x, of_bias
        grad = grad.contiguous()
        of_input = None
        if needs_input:
            # For this gradient oneDNN is faster in float32 only.
            fast = grad.dtype == torch.float32
            of_input = multiply(grad, weight.t(), None) if fast else grad @ weight
        of_bias = None
        if ctx.has_bias:
            # In float32 a matrix product is faster than a sum over the tokens.
            ones = grad.new_ones(1, len(grad)) if grad.dtype == torch.float32 else None
            of_bias = grad.sum(0) if ones is None else (ones @ grad)[0]
        # oneDNN is faster in float32 if MKL is narrow, but rejects empty matrices.
        fast = grad.dtype == torch.float32 and mkl_is_narrow() and len(grad)
        of_weight = multiply(grad.t(), x.t(), None) if fast else grad.t() @ x
        return of_input, of_weight, of_bias


def dropout(x: Tensor, p: float) -> Tensor:
    """Zero a share ``p`` of the elements of ``x``, of any shape, and scale up the others.

    On a CPU drawing random numbers dominates dropout (Srivastava et al. 2014). One 64-bit draw
    serves eight elements, which takes less than half of PyTorch's time. The rate is rounded to a
    multiple of 1/256 (0.1 becomes 26/256), and the scale uses the rounded rate, so the expectation
    stays exact.
    """
    if not p:
        return x
    if x.device.type != "cpu":
        return F.dropout(x, p)
    return _ByteDropout.apply(x, p)  # pyright: ignore[reportReturnType]


def keep_some(count: int, p: float, device: torch.device | str = "cpu") -> tuple[Tensor, float]:
    """A random mask of ``count`` elements (uint8, 1: keep), and the scale of kept elements.

    Bytes are faster than booleans: the comparison is done in place in a thirtieth of the time, and
    conversion plus multiplication takes a quarter of the time.
    """
    threshold = min(max(1, round(256 * p)), 255)
    draws = torch.empty((count + 7) // 8, dtype=torch.int64, device=device)
    draws.random_(-(2**63), None)
    return draws.view(torch.uint8)[:count].ge_(threshold), 256 / (256 - threshold)


class Dropout(nn.Dropout):
    """``torch.nn.Dropout`` using ``dropout``."""

    def forward(self, input: Tensor) -> Tensor:
        return dropout(input, self.p) if self.training else input


class _ByteDropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, p):
        keep, ctx.scale = keep_some(x.numel(), p)
        keep = keep.view(x.shape)
        ctx.save_for_backward(keep)
        return keep.to(x.dtype).mul_(x).mul_(ctx.scale)

    @staticmethod
    def backward(ctx, grad):  # pyright: ignore[reportIncompatibleMethodOverride]
        (keep,) = ctx.saved_tensors
        return keep.to(grad.dtype).mul_(grad).mul_(ctx.scale), None
