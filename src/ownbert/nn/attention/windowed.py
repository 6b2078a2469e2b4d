"""Local attention over long sequences in blocks, with memory linear in the length.

B sequences of a group, S longest of them, H heads, K head size.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from ownbert.batches.layout import Layout, lowest
from ownbert.nn.layers import dropout as drop

# Minimum queries per block: fewer calls, but more keys that are invisible to some queries.
BLOCK = 64


def unsupported(q: Tensor, layout: Layout) -> str | None:
    """Why this cannot compute a layout, or None."""
    return None if layout.near_alone else "requires that only windows hide keys"


def attend_windowed(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, window: int, dropout: float
) -> Tensor:
    """Attention of each query to keys at a distance of at most ``window``.

    Args:
        q, k, v: (B, H, S, K), as the result.
        mask: broadcastable to (B, 1, S, S), equal for all queries, false for padding keys.

    Source: Beltagy, Peters, Cohan 2020 (Longformer), section 3.1, without dilation.
    """
    size, length = max(window, BLOCK), q.shape[2]
    out = []
    for start in range(0, length, size):
        stop = min(start + size, length)
        first, last = max(0, start - window), min(length, stop + window)
        rows = torch.arange(start, stop, device=q.device)[:, None]
        far = (rows - torch.arange(first, last, device=q.device)).abs() > window
        hidden = far if mask is None else far | ~mask[..., first:last]
        scores = torch.zeros(hidden.shape, dtype=q.dtype, device=q.device)
        scores.masked_fill_(hidden, lowest(q.dtype))
        block = q[:, :, start:stop], k[:, :, first:last], v[:, :, first:last]
        out.append(_attend(*block, scores, dropout))
    return torch.cat(out, 2)


def _attend(q: Tensor, k: Tensor, v: Tensor, hidden: Tensor, dropout: float) -> Tensor:
    """One block of ``attend_windowed``; ``hidden`` is an additive mask of the scores."""
    if not dropout:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=hidden)
    scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-1, -2) + hidden
    return drop(scores.softmax(-1), dropout).to(v.dtype) @ v
