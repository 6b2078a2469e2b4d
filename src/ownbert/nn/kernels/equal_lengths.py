"""Attention by plain matrix products over sequences of equal length: no padding, no mask.

For evaluation on a CPU: at all but great lengths faster than scaled_dot_product_attention.

T tokens, B sequences of one length S, H heads, K head size.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from ownbert.data.layout import Layout, distances

# Scores to add, (B or 1, H, S, S'), out of queries (B, H, S, K), keys (B, H, S', K) and their
# distances (B or 1, S, S'): a position kind.
Bias = Callable[[Tensor, Tensor, Tensor], Tensor]

# Rows of queries that are attended to at a time: their scores stay in the cache of a core.
_CHUNK = 512


def attend_equal_lengths(
    q: Tensor, k: Tensor, v: Tensor, layout: Layout, bias: Bias | None
) -> Tensor:
    """As ``ownbert.nn.attention.attend``: q, k, v (T, H, K) -> (T, H, K), without gradients."""
    equal = layout.equal_lengths
    if equal.order is not None:
        q, k, v = (x[equal.order] for x in (q, k, v))
    out = v.new_empty(v.shape)
    for start, count, length in equal.spans:
        step = max(1, _CHUNK // length)
        for first in range(0, count, step):
            part = slice(start + first * length, start + min(first + step, count) * length)
            out[part] = _chunk(q[part], k[part], v[part], length, bias)
    return out if equal.order is None else out[equal.places]


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
    if scores.dtype != torch.float32 and length < 64:
        # The softmax of short rows is slow in other types than float32.
        weights = scores.softmax(-1, dtype=torch.float32).to(scores.dtype)
    else:
        weights = torch.softmax(scores, -1, out=scores)
    return torch.bmm(weights, vc).unflatten(0, (-1, heads)).transpose(1, 2).flatten(0, 1)
