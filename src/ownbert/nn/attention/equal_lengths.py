"""Attention by plain matrix products over sequences of equal length, without padding and mask.

For evaluation on a CPU; faster than scaled_dot_product_attention except for long sequences.

T tokens, B sequences of one length S, H heads, K head size.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from ownbert.batches.layout import Layout, distances
from ownbert.nn.layers import has_matrix_units

# Computes a bias (B or 1, H, S, S') of the scores from queries (B, H, S, K), keys (B, H, S', K) and
# distances (B or 1, S, S').
Bias = Callable[[Tensor, Tensor, Tensor], Tensor]

# Rows of queries per chunk, so that their scores fit in a core's cache.
_CHUNK = 512

# PyTorch's softmax is not vectorised for rows shorter than a vector register.
_SHORT = 16
# At least the number of elements in any vector register.
_REGISTER = 64

# In bfloat16 PyTorch's kernel is faster for few tokens, because it is a single call, and for long
# sequences on processors with matrix units, which it uses. In float32 results must not depend on
# the number of sequences.
_FEW_TOKENS, _LONG_IN_UNITS = 64, 128


def attend_equal_lengths(
    q: Tensor, k: Tensor, v: Tensor, layout: Layout, bias: Bias | None
) -> Tensor:
    """See ``attend``: q, k, v (T, H, K) -> (T, H, K), without gradients."""
    equal = layout.equal_lengths
    if equal.order is not None:
        q, k, v = (x[equal.order] for x in (q, k, v))
    out = v.new_empty(v.shape)
    for start, count, length in equal.spans:
        fused = bias is None and _fuses(q, v, count, length)
        step = count if fused else max(1, _CHUNK // length)
        for first in range(0, count, step):
            part = slice(start + first * length, start + min(first + step, count) * length)
            arguments = q[part], k[part], v[part], length
            out[part] = _fused(*arguments) if fused else _chunk(*arguments, bias)
    return out if equal.order is None else out[equal.places]


def _fuses(q: Tensor, v: Tensor, count: int, length: int) -> bool:
    """Whether PyTorch's kernel is faster for this number and length of sequences."""
    if q.dtype != torch.bfloat16 or q.shape != v.shape:
        return False
    return count * length <= _FEW_TOKENS or (length >= _LONG_IN_UNITS and has_matrix_units())


def _fused(q: Tensor, k: Tensor, v: Tensor, length: int) -> Tensor:
    """Same as ``_chunk``, with PyTorch's kernel."""
    q, k, v = (x.unflatten(0, (-1, length)).transpose(1, 2) for x in (q, k, v))  # (B, H, S, K)
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(0, 1)


def _chunk(q: Tensor, k: Tensor, v: Tensor, length: int, bias: Bias | None) -> Tensor:
    """(B S, H, K) each, with equal lengths S -> (B S, H, K), a view with heads first.

    Values may have another width than queries and keys.
    """
    heads, size = q.shape[1:]
    parts = [x.unflatten(0, (-1, length)).transpose(1, 2) for x in (q, k, v)]  # (B, H, S, K)
    # Contiguous and three-dimensional: products of strided tensors take twice as long.
    qc, kc, vc = (x.contiguous().flatten(0, 1) for x in parts)  # (B H, S, K)
    unused = qc.new_zeros(1, 1, 1)
    scores = torch.baddbmm(unused, qc, kc.transpose(1, 2), beta=0, alpha=size**-0.5)
    if bias is not None:
        relative = distances(length, length, torch.zeros(1, dtype=torch.int64, device=q.device))
        biased = scores.view(-1, heads, length, length) + bias(parts[0], parts[1], relative)
        scores = biased.to(scores.dtype).view(-1, length, length)
    if length < _SHORT:
        weights = _softmax_of_short(scores)
    elif scores.dtype != torch.float32 and length < 64:
        # The softmax of short rows is slow in other dtypes than float32.
        weights = scores.softmax(-1, dtype=torch.float32).to(scores.dtype)
    else:
        weights = torch.softmax(scores, -1, out=scores)
    return torch.bmm(weights, vc).unflatten(0, (-1, heads)).transpose(1, 2).flatten(0, 1)


def _softmax_of_short(scores: Tensor) -> Tensor:
    """Softmax of short rows: (N, S, S') -> (N, S, S').

    Rows are transposed to columns, so that a register holds one element of each of many rows. Zero
    columns fill the last register; a remainder would be computed differently and depend on N.
    """
    columns = scores.flatten(0, 1).t()  # (S', N S)
    count = columns.shape[1]
    weights = F.pad(columns, (0, -count % _REGISTER)).softmax(0)
    return weights[:, :count].t().contiguous().view(scores.shape)
