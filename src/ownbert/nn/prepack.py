"""A copy of a model for inference, with matrices in the memory layout that oneDNN prefers.

T tokens, D hidden, I intermediate. PyTorch reorders a matrix at every call, which takes a sixth
of the time of a linear layer; here it is done once, and activations are applied to results while
they are in the cache. If PyTorch lacks these operations the copy has plain layers.

8-bit layers have weights with a scale per output channel, and activations with a scale and a
minimum per token, because a scale shared by all tokens loses most of the accuracy
(docs/deployment.md). Processors without VNNI add pairs of products in 16 bits, where 2 x 255 x 127
overflows; with AVX2, weights are bounded so that pairs do not overflow (``bounded_pairs``).
"""

import copy
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, TypeVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ownbert.nn.blocks import FeedForward
from ownbert.nn.encoder_stack import Encoder
from ownbert.nn.layers import ACTIVATION
from ownbert.nn.model import Model
from ownbert.nn.output_heads import NextTokenHead

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
    products whatever the precision, or floats if these are not available. In "float32" the copy is
    equivalent to ``model`` up to rounding, and shares the memory of everything that is not packed.
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


# Rows per thread that go through all steps of a product together, so that intermediate results stay
# in a core's L2 cache.
_ROWS = 192
# Maximum quantized weight and activation.
_WEIGHT, _ACTIVATION = 127, 255
# Maximum sum of two weights whose products are added in 16 bits, and candidates for the number of
# positive levels of a row's weights.
_PAIR, _LEVELS = (2**15 - 1) // _ACTIVATION, (64, 76, 88, 96, 104, 112, 120, 127)
# Number of largest pairs of a row that determine its levels.
_LARGEST = 64
# How this processor multiplies 8-bit numbers: exactly, exactly for bounded pairs, or no faster than
# floats, which are then used instead.
EXACT, PAIRS, NONE = "exact", "pairs", "none"
# FBGEMM appends scale and minimum, two float32, to each row.
_TAIL = 8
# Added to the range of a row before division, as in FBGEMM, because a constant row has range 0.
_TINY = 1e-8
# Names of linear layers whose inputs are not smoothed. Units of a feed-forward network that are
# silent in the calibration texts would get factors with which they outweigh all others later.
_UNSMOOTHED = frozenset({"down"})


def quantizable(encoder: Encoder) -> Iterator[tuple[str, nn.Linear, bool]]:
    """The linear layers that are quantized, those of the blocks: name in the encoder, layer, and
    whether its input is smoothed."""
    for name, module in encoder.blocks.named_modules(prefix="blocks"):
        if isinstance(module, nn.Linear):
            yield name, module, name.rpartition(".")[2] not in _UNSMOOTHED


def smoothing(inputs: Tensor, weight: Tensor, strength: float = 0.5) -> Tensor:
    """Positive factors (D) that divide an input and multiply the weight, per channel: they move a
    part of the quantization difficulty, channels with outliers, from the activation to the weight.

    Args:
        inputs: (D) largest absolute value of each channel in the calibration data.
        weight: (I, D).
        strength: how much is moved: 0 none, 1 all.

    Source: Xiao et al. 2023 (SmoothQuant), equation 4.
    """
    seen = inputs.float().clamp_min(1e-5)
    largest_weights = weight.float().abs().amax(0).clamp_min(1e-5)
    return seen**strength / largest_weights ** (1 - strength)


def quantize_weight(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Quantize (I, D) to int8 (I, D) with a scale per row, float32 (I)."""
    weight = weight.detach().float()
    scale = (weight.abs().amax(1) / _WEIGHT).clamp_min(torch.finfo(torch.float32).tiny)
    whole = (weight / scale[:, None]).round().clamp_(-_WEIGHT, _WEIGHT)
    return whole.to(torch.int8), scale


def bounded_pairs(weight: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Requantize weights so that no pair of neighbouring products overflows 16 bits.

    Weights, int8 (I, D) with even D, and scales (I) -> the same. Each row is rounded to fewer
    levels: with 64 positive levels no pair is too large; with more levels rounding is finer, but
    both weights of a pair that is too large are reduced equally. Each row uses the number of levels
    with the smallest squared error.
    """
    whole = weight.float()
    first, second = whole[:, ::2], whole[:, 1::2]  # the two weights of each pair
    sums = (first + second).abs_()  # (I, D / 2)
    largest = sums.topk(min(_LARGEST, sums.shape[1])).values[..., None]  # (I, pairs, 1)
    steps = _WEIGHT / torch.tensor(_LEVELS)
    lost = (largest - _PAIR * steps).clamp_min_(0).square_().sum(1) / 2  # (I, levels)
    lost += weight.shape[1] / 12 * steps.square() * (steps > 1)
    steps = steps[lost.argmin(1)]  # (I)
    whole.div_(steps[:, None]).round_()
    over = ((first + second).abs_() - _PAIR).clamp_min_(0) / 2
    first -= first.sign() * over.ceil()
    second -= second.sign() * over.floor()
    return whole.to(torch.int8), scale * steps


def quantize_linears(encoder: Encoder, smooth: Mapping[str, Tensor]) -> None:
    """Replace linear layers by ``QuantizedLinear``; ``smooth`` has (D) for each, by its name in the
    encoder, whose weights are already multiplied by it."""
    for name, divisor in smooth.items():
        parent, _, child = name.rpartition(".")
        module = encoder.get_submodule(parent)
        setattr(module, child, QuantizedLinear(getattr(module, child), divisor))


class QuantizedLinear(nn.Module):
    """``torch.nn.Linear`` with 8-bit weights, whose inputs, divided by ``smooth`` (D), are rounded
    to 8 bits. The weight of ``linear`` is already multiplied by ``smooth``.

    It computes in floating point on any device; ``prepack`` creates a fast version for CPUs.
    """

    def __init__(self, linear: nn.Linear, smooth: Tensor) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        weight, scale = quantize_weight(linear.weight)
        self.weight = nn.Parameter(weight, requires_grad=False)  # (I, D)
        bias = None if linear.bias is None else linear.bias.detach()
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)
        self.register_buffer("scale", scale)  # (I)
        self.register_buffer("smooth", smooth.detach().float())
        self.scale: Tensor
        self.smooth: Tensor

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) -> (..., I)"""
        scaled = x.float() / self.smooth
        rounded = round_rows(scaled.detach())
        if scaled.requires_grad:
            # Straight-through gradient of the rounding (Bengio et al. 2013, section 4), for
            # gradient-based explanations.
            rounded = scaled + (rounded - scaled.detach())
        rounded = rounded.to(x.dtype)
        weight = (self.weight.float() * self.scale[:, None]).to(x.dtype)
        return F.linear(rounded, weight, None if self.bias is None else self.bias.to(x.dtype))

    def floating(self) -> nn.Linear:
        """The layer without rounding of its inputs."""
        linear = nn.Linear(self.in_features, self.out_features, bias=self.bias is not None)
        linear.weight.data = self.weight.float() * (self.scale[:, None] / self.smooth)
        if self.bias is not None:
            linear.bias.data = self.bias.detach().float()
        return linear.requires_grad_(False)

    def extra_repr(self) -> str:
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"bias={self.bias is not None}, int8"
        )


def round_rows(x: Tensor) -> Tensor:
    """Round every row of (..., D) to 256 values from its minimum to its maximum."""
    low = x.amin(-1, keepdim=True)
    span = x.amax(-1, keepdim=True) - low
    whole = ((x - low) * (_ACTIVATION / (span + _TINY))).round()
    return whole * (span / _ACTIVATION) + low


class PackedInt8Linear(nn.Module):
    """``QuantizedLinear`` with oneDNN's 8-bit products: (..., D) -> (..., I).

    With q the quantized row, s its scale and m its minimum, x = s q + m; so x W^T = s (q W^T) + m
    (row sums of W). The product is computed in integers, followed by two operations per output.
    ``products`` is EXACT or PAIRS, by default detected for this processor.
    """

    def __init__(
        self, linear: QuantizedLinear, activation: str = "linear", products: str | None = None
    ) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.activation = activation
        weight, self.scale = linear.weight, linear.scale.detach()
        if (products or products_here()) == PAIRS:
            weight, self.scale = bounded_pairs(weight, self.scale)
        # Not a parameter or buffer: a packed matrix can be neither saved nor moved.
        self.packed = torch.ops.onednn.qlinear_prepack(F.pad(weight, (0, _TAIL)), None)
        self.zero_points = torch.zeros(self.out_features, dtype=torch.int32)
        self.sums = weight.sum(1, dtype=torch.float32) * self.scale
        none = torch.zeros(self.out_features)
        self.bias = none if linear.bias is None else linear.bias.detach().float()
        same = bool((linear.smooth == 1).all())
        self.smooth = None if same else 1 / linear.smooth.detach()

    def __getstate__(self) -> dict[str, Any]:
        # As in ``PackedLinear``; packing transposes the matrix.
        return {**self.__dict__, "packed": self.packed.to_dense().t().contiguous()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.packed = torch.ops.onednn.qlinear_prepack(self.packed, None)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, self.in_features).float().contiguous()
        out = rows.new_empty(len(rows), self.out_features)
        for start in range(0, len(rows), rows_together()):
            part = slice(start, start + rows_together())
            self.some(rows[part], out[part])
        return out.view(*x.shape[:-1], self.out_features).to(x.dtype)

    def some(self, x: Tensor, out: Tensor) -> None:
        """(n, D), contiguous float32, into ``out`` (n, I)."""
        if self.smooth is not None:
            x = x * self.smooth
        quantized = torch.ops.quantized.embedding_bag_byte_prepack(x)  # (n, D + 8)
        scale, low = quantized.view(torch.float32)[:, -2:].split(1, 1)
        # The weights of the last eight columns are zero.
        product = multiply(quantized, self.packed, self.scale, self.zero_points)
        torch.addcmul(self.bias, low, self.sums, out=out)
        torch.addcmul(out, product, scale, out=out)
        if self.activation in ("gelu", "gelu_python"):
            torch.ops.aten.gelu_(out)
        elif self.activation != "linear":
            out.copy_(ACTIVATION[self.activation](out))

    def extra_repr(self) -> str:
        act = "" if self.activation == "linear" else f", activation={self.activation}"
        return (
            f"in_features={self.in_features}, out_features={self.out_features}{act}, "
            "prepacked in int8"
        )


class PackedInt8FeedForward(nn.Module):
    """``FeedForward`` in 8 bits, some rows at a time, without storing the intermediate layer."""

    def __init__(self, network: FeedForward) -> None:
        super().__init__()
        up, down = cast(QuantizedLinear, network.up), cast(QuantizedLinear, network.down)
        self.up, self.down = PackedInt8Linear(up, network.act), PackedInt8Linear(down)

    def forward(self, hidden: Tensor) -> Tensor:
        """(T, D) -> (T, I) -> (T, D)"""
        x = hidden.float().contiguous()
        out = torch.empty_like(x)
        inner = x.new_empty(min(len(x), rows_together()), self.up.out_features)
        for start in range(0, len(x), rows_together()):
            rows = x[start : start + rows_together()]
            self.up.some(rows, inner[: len(rows)])
            self.down.some(inner[: len(rows)], out[start : start + len(rows)])
        return out.to(hidden.dtype)


def multiply(x: Tensor, packed: Tensor, scale: Tensor, zero_points: Tensor) -> Tensor:
    """x (n, D) uint8 and a packed matrix (I, D) int8 -> x weight^T scale, float32 (n, I)."""
    return torch.ops.onednn.qlinear_pointwise(
        x, 1.0, 0, packed, scale, zero_points, None, 1.0, 0, torch.float32, "none", [], ""
    )


def rows_together() -> int:
    return _ROWS * torch.get_num_threads()


def can_pack(linear: QuantizedLinear) -> bool:
    """Whether the fast product is available for this layer on this processor."""
    # Scale and minimum follow a row, where float32 must be aligned.
    aligned = linear.weight.device.type == "cpu" and linear.in_features % 4 == 0
    return aligned and products_here() != NONE


@lru_cache
def products_here() -> str:
    """EXACT, PAIRS or NONE: how this processor multiplies 8-bit numbers."""
    if _is_exact(EXACT):
        return EXACT
    # MiniLM, one thread, relative to float32: 1.2 to 1.35 times as fast with AVX2, 1.01 with
    # AVX-512.
    is_avx2 = torch.backends.cpu.get_cpu_capability() == "AVX2"
    return PAIRS if is_avx2 and _is_exact(PAIRS) else NONE


def _is_exact(products: str) -> bool:
    """Whether oneDNN has these products here, and the largest numbers do not overflow."""
    if not torch.backends.mkldnn.is_available():
        return False
    linear = nn.Linear(64, 16)
    with torch.no_grad():
        linear.weight.copy_(torch.linspace(-1, 1, 64 * 16).view(16, 64))
        linear.weight[:4] = 1
        linear.weight[4:8] = -1
        # Neighbours are pairs: every other weight is zero.
        linear.weight[8:10] = torch.tensor([1.0, 0.0]).repeat(32)
        x = torch.linspace(-1, 3, 8 * 64).view(8, 64)
        x[:4, 1:] = 3
        plain = QuantizedLinear(linear, torch.full((64,), 0.5))
        try:
            actual = PackedInt8Linear(plain, products=products)(x)
        except (AttributeError, RuntimeError):
            return False
        if products == PAIRS:
            weight, plain.scale = bounded_pairs(plain.weight, plain.scale)
            plain.weight.copy_(weight)
        return torch.allclose(actual, plain(x), atol=0.05, rtol=1e-3)
