"""Attention by plain matrix products over sequences of equal length: no padding, no mask.

For evaluation on a CPU: at all but great lengths faster than scaled_dot_product_attention.

T tokens, B sequences of one length S, H heads, K head size.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from ownbert.batches.layout import Layout, distances
from ownbert.nn.fast.linear_layers import has_matrix_units

# Scores to add, (B or 1, H, S, S'), out of queries (B, H, S, K), keys (B, H, S', K) and their
# distances (B or 1, S, S'): a position kind.
Bias = Callable[[Tensor, Tensor, Tensor], Tensor]

# Rows of queries that are attended to at a time: their scores stay in the cache of a core.
_CHUNK = 512

# PyTorch's softmax takes rows that are shorter than a vector register number by number.
_SHORT = 16
# More numbers than any register has.
_REGISTER = 64

# In bfloat16 PyTorch's kernel, a single call, pays for so few tokens, and for long sequences where
# the processor has matrix units, which it uses itself. In float32 an answer must not depend on how
# many sequences there are.
_FEW_TOKENS, _LONG_IN_UNITS = 64, 128


def attend_equal_lengths(
    q: Tensor, k: Tensor, v: Tensor, layout: Layout, bias: Bias | None
) -> Tensor:
    """As ``attend``: q, k, v (T, H, K) -> (T, H, K), without gradients."""
    equal = layout.equal_lengths
    if equal.order is not None:
        q, k, v = (x[equal.order] for x in (q, k, v))
    out = v.new_empty(v.shape)
    for start, count, length in equal.spans:
        fused = bias is None and _fuses(q, v, count, length)
        step = count if fused else max(1, _CHUNK // length)
        for first in range(0, count, step):
            part = slice(start + first * length, start + min(first + step, count) * length)
            given = q[part], k[part], v[part], length
            out[part] = _fused(*given) if fused else _chunk(*given, bias)
    return out if equal.order is None else out[equal.places]


def _fuses(q: Tensor, v: Tensor, count: int, length: int) -> bool:
    """Whether PyTorch's kernel is faster for so many sequences of this length."""
    if q.dtype != torch.bfloat16 or q.shape != v.shape:
        return False
    return count * length <= _FEW_TOKENS or (length >= _LONG_IN_UNITS and has_matrix_units())


def _fused(q: Tensor, k: Tensor, v: Tensor, length: int) -> Tensor:
    """As ``_chunk``, by PyTorch's kernel."""
    q, k, v = (x.unflatten(0, (-1, length)).transpose(1, 2) for x in (q, k, v))  # (B, H, S, K)
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(0, 1)


def _chunk(q: Tensor, k: Tensor, v: Tensor, length: int, bias: Bias | None) -> Tensor:
    """(B S, H, K) each, of one length S -> (B S, H, K), a view of heads first.

    Values may have another width than queries and keys.
    """
    heads, size = q.shape[1:]
    parts = [x.unflatten(0, (-1, length)).transpose(1, 2) for x in (q, k, v)]  # (B, H, S, K)
    # Contiguous and three-dimensional: the products of strided ones take twice as long.
    qc, kc, vc = (x.contiguous().flatten(0, 1) for x in parts)  # (B H, S, K)
    nothing = qc.new_zeros(1, 1, 1)
    scores = torch.baddbmm(nothing, qc, kc.transpose(1, 2), beta=0, alpha=size**-0.5)
    if bias is not None:
        far = distances(length, length, torch.zeros(1, dtype=torch.int64, device=q.device))
        biased = scores.view(-1, heads, length, length) + bias(parts[0], parts[1], far)
        scores = biased.to(scores.dtype).view(-1, length, length)
    if length < _SHORT:
        weights = _softmax_of_short(scores)
    elif scores.dtype != torch.float32 and length < 64:
        # The softmax of short rows is slow in other types than float32.
        weights = scores.softmax(-1, dtype=torch.float32).to(scores.dtype)
    else:
        weights = torch.softmax(scores, -1, out=scores)
    return torch.bmm(weights, vc).unflatten(0, (-1, heads)).transpose(1, 2).flatten(0, 1)


def _softmax_of_short(scores: Tensor) -> Tensor:
    """(N, S, S') -> (N, S, S'): rows turned to columns, so that a register holds one number of each
    of many rows. Columns of zeros fill the last register: what is left over is computed otherwise,
    and would depend on N."""
    turned = scores.flatten(0, 1).t()  # (S', N S)
    count = turned.shape[1]
    weights = F.pad(turned, (0, -count % _REGISTER)).softmax(0)
    return weights[:, :count].t().contiguous().view(scores.shape)
