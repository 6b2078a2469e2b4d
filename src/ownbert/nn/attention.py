"""Scaled dot-product attention over packed sequences (Vaswani et al. 2017, equation 1).

T tokens, P places (tokens and padding), B sequences of a group, S its longest, D hidden, H heads,
K head size.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ownbert.config import EncoderConfig
from ownbert.data.batch import Group, Layout
from ownbert.nn.dropout import Dropout
from ownbert.nn.dropout import dropout as drop


@dataclass(frozen=True)
class Backend:
    """One way to compute attention, and what it can do."""

    run: Callable[[Tensor, Tensor, Tensor, Layout, float], Tensor]
    dropout: bool


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    layout: Layout,
    *,
    dropout: float = 0.0,
    backend: str | None = None,
) -> Tensor:
    """Attention of each token to the tokens of its own sequence.

    q, k, v (T, H, K) -> (T, H, K). ``dropout`` is that of the attention weights and must be 0 in
    evaluation. Without ``backend`` the fastest one that can do it is taken; all compute the same.
    Raises ``ValueError`` for a backend that is not known or cannot do what is asked.
    """
    name = backend or _fastest(q, dropout)
    if name not in BACKENDS:
        raise ValueError(f"attention backend {name!r} is not known; one of {', '.join(BACKENDS)}")
    if dropout and not BACKENDS[name].dropout:
        raise ValueError(f"attention backend {name!r} has no dropout; asked for {dropout}")
    return BACKENDS[name].run(q, k, v, layout, dropout)


def _fastest(q: Tensor, dropout: float) -> str:
    # On CPU the backward pass of scaled_dot_product_attention costs several times that of plain
    # matrix products at the lengths of pretraining, and with dropout it leaves its fast kernel.
    training = torch.is_grad_enabled() and q.requires_grad
    return "matmul" if dropout or (training and q.device.type == "cpu") else "sdpa"


def _reference(q: Tensor, k: Tensor, v: Tensor, layout: Layout, dropout: float) -> Tensor:
    """One sequence after the other, in the words of the equation."""
    out = []
    for qs, ks, vs in zip(*(x.split(layout.lengths) for x in (q, k, v)), strict=True):
        scores = torch.einsum("ihk,jhk->hij", qs, ks) / math.sqrt(q.shape[-1])  # (H, L, L)
        weights = drop(scores.softmax(-1), dropout)
        out.append(torch.einsum("hij,jhk->ihk", weights, vs))
    return torch.cat(out)


def _matmul(q: Tensor, k: Tensor, v: Tensor, group: Group, dropout: float) -> Tensor:
    """(B, H, S, K) each -> (B, H, S, K)"""
    scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-1, -2)  # (B, H, S, S)
    if group.mask is not None:
        scores = scores.masked_fill(~group.mask, torch.finfo(scores.dtype).min)
    weights = drop(scores.softmax(-1), dropout)
    # Autocast computes a softmax in float32; the product goes on in the type of the values.
    return weights.to(v.dtype) @ v


def _sdpa(q: Tensor, k: Tensor, v: Tensor, group: Group, dropout: float) -> Tensor:
    """(B, H, S, K) each -> (B, H, S, K)"""
    return F.scaled_dot_product_attention(q, k, v, attn_mask=group.mask, dropout_p=dropout)


def _grouped(kernel: Callable[[Tensor, Tensor, Tensor, Group, float], Tensor]):
    """Run a padded kernel on groups of sequences of nearly equal length."""

    def run(q: Tensor, k: Tensor, v: Tensor, layout: Layout, dropout: float) -> Tensor:
        grouping = layout.grouping
        rows, places, padding = grouping.rows, grouping.places, grouping.padding
        placed = [_Scatter.apply(x, rows, places, padding) for x in (q, k, v)]  # (P, H, K)
        out = []
        for group in grouping.groups:
            shape = (group.count, group.longest, *q.shape[1:])
            qg, kg, vg = (x[group.start : group.stop].view(shape).transpose(1, 2) for x in placed)
            result = kernel(qg, kg, vg, group, dropout)  # (B, H, S, K)
            out.append(result.transpose(1, 2).reshape(-1, *q.shape[1:]))
        return _Gather.apply(torch.cat(out), rows, places, padding)

    return run


class _Scatter(torch.autograd.Function):
    """Rows (T) to places (P); padding gets a copy of some row, which attention masks out.

    The gradient at padding is zero, so that of a row is the one at its place: a gather, where
    autograd would add up duplicates.
    """

    @staticmethod
    def forward(ctx, x, rows, places, padding):
        ctx.save_for_backward(places)
        return x[rows]

    @staticmethod
    def backward(ctx, grad):  # pyright: ignore[reportIncompatibleMethodOverride]
        (places,) = ctx.saved_tensors
        return grad[places], None, None, None


class _Gather(torch.autograd.Function):
    """Places (P) back to rows (T)."""

    @staticmethod
    def forward(ctx, x, rows, places, padding):
        ctx.save_for_backward(rows, padding)
        return x[places]

    @staticmethod
    def backward(ctx, grad):  # pyright: ignore[reportIncompatibleMethodOverride]
        rows, padding = ctx.saved_tensors
        spread = grad[rows]
        if padding is not None:
            spread[padding] = 0
        return spread, None, None, None


BACKENDS = {
    "reference": Backend(_reference, dropout=True),
    "matmul": Backend(_grouped(_matmul), dropout=True),
    "sdpa": Backend(_grouped(_sdpa), dropout=False),
}


class Attention(nn.Module):
    """Multi-head self-attention: one D x 3D matrix makes queries, keys and values of all heads.

    Head h owns the columns ``h * K : (h + 1) * K`` of each third, which is why the number of
    heads does not change the number of parameters, 4 D^2 + 4 D.
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.heads, self.head_size = config.num_attention_heads, config.head_size
        self.qkv = nn.Linear(config.hidden_size, 3 * config.hidden_size)
        self.output = nn.Linear(config.hidden_size, config.hidden_size)
        self.dropout = Dropout(config.attention_probs_dropout_prob)

    def forward(self, hidden: Tensor, layout: Layout) -> Tensor:
        q, k, v = self.qkv(hidden).view(-1, 3, self.heads, self.head_size).unbind(1)  # (T, H, K)
        out = attend(q, k, v, layout, dropout=self.dropout.p if self.training else 0.0)
        return self.output(out.flatten(1))  # (T, D)

    def extra_repr(self) -> str:
        return f"heads={self.heads}, head_size={self.head_size}"
