"""The residual connection and norm of post-norm blocks: norm(x + dropout(y)).

With compiled loops, training on a CPU takes one pass over the data forward and one backward,
instead of about five each. T tokens, D hidden.
"""

import numpy as np
import torch
from torch import Tensor, nn

from ownbert.nn.fast.compiled import loops_for, parts_of, run
from ownbert.nn.fast.dropout import Dropout, keep_some


def add_and_norm(x: Tensor, y: Tensor, dropout: Dropout, norm: nn.Module) -> Tensor:
    """norm(x + dropout(y)): (T, D).

    Args:
        norm: norm layer; LayerNorm uses a compiled loop if available.
    """
    rate = dropout.p if dropout.training else 0.0
    if not (type(norm) is nn.LayerNorm and norm.weight is not None and torch.is_grad_enabled()):
        return norm(x + dropout(y))
    loops = loops_for(x, y)
    if loops is None or x.ndim != 2 or norm.weight.dtype != torch.float32:
        return norm(x + dropout(y))
    bias = torch.zeros_like(norm.weight) if norm.bias is None else norm.bias
    return _AddAndNorm.apply(x, y, norm.weight, bias, norm.eps, rate, loops)  # pyright: ignore


class _AddAndNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y, weight, bias, eps, rate, loops):
        keep, scale = keep_some(y.numel(), rate) if rate else (None, 1.0)
        keep = None if keep is None else keep.view(y.shape)
        ctx.loops, ctx.types = loops, (x.dtype, y.dtype)
        ctx.scale = np.float32(scale)
        out = torch.empty_like(x, memory_format=torch.contiguous_format)
        normed = torch.empty_like(y, memory_format=torch.contiguous_format)
        # fully_shard resizes the memory of parameters, which NumPy views would prevent permanently.
        weight, bias = weight.clone(), bias.clone()
        rstd = weight.new_empty(len(x))
        given = x.contiguous(), y.contiguous(), keep, ctx.scale, weight, bias, np.float32(eps)
        run(loops.add_and_norm, x.numel(), *given, out, normed, rstd)
        ctx.save_for_backward(normed, rstd, weight, keep)
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):  # pyright: ignore[reportIncompatibleMethodOverride]
        normed, rstd, weight, keep = ctx.saved_tensors
        of_x, of_y = (torch.empty_like(normed, dtype=dtype) for dtype in ctx.types)
        parts = parts_of(grad.numel())
        of_weight, of_bias = (weight.new_zeros(parts, len(weight)) for _ in range(2))
        given = grad.contiguous(), normed, keep, ctx.scale, weight, rstd
        run(ctx.loops.add_and_norm_backward, grad.numel(), *given, of_x, of_y, of_weight, of_bias)
        return of_x, of_y, of_weight.sum(0), of_bias.sum(0), None, None, None
