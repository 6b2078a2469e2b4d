"""Scaled dot-product attention over packed sequences (Vaswani et al. 2017, equation 1).

T tokens, P places (tokens and padding), B sequences of a group, Q queries and S keys of the
longest, D hidden, H heads, K head size.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ownbert.data.layout import Group, Layout, Side, distances, lowest
from ownbert.nn.kernels.dropout import dropout as drop
from ownbert.nn.kernels.equal_lengths import Bias, attend_equal_lengths
from ownbert.nn.kernels.manual import attend_manually
from ownbert.nn.kernels.varlen import attend_varlen, lacks

# From there on PyTorch's kernel, which never holds all scores, is as fast on a CPU.
_LONG = 1024


class Attended(NamedTuple):
    """out (T, H, K); weights, if asked for: one (H, Q, S) a sequence, without padding."""

    out: Tensor
    weights: list[Tensor] | None


@dataclass(frozen=True)
class Kernel:
    """What attention does besides its inputs: dropout of the weights, bias, weights kept."""

    dropout: float = 0.0
    bias: Bias | None = None
    weights: bool = False


@dataclass(frozen=True)
class Backend:
    """One way to compute attention, and what it can do.

    gradients: it can be trained through. masks: it takes layouts that hide something inside of a
    sequence, or whose keys are not the queries' own. biases: it adds them to the scores. lacks:
    what keeps it from these queries and this layout, in words, or None.
    """

    run: Callable[[Tensor, Tensor, Tensor, Layout, Kernel], Attended]
    dropout: bool = True
    weights: bool = True
    gradients: bool = True
    masks: bool = True
    biases: bool = True
    lacks: Callable[[Tensor, Layout], str | None] = lambda q, layout: None


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    layout: Layout,
    *,
    dropout: float = 0.0,
    bias: Bias | None = None,
    weights: bool = False,
    backend: str | None = None,
) -> Attended:
    """Attention of each query to the keys that ``layout`` lets it see.

    q (T, H, K), k and v (T', H, K) -> out (T, H, K). ``dropout`` is that of the attention weights
    and must be 0 in evaluation. Without ``backend`` the fastest one that can do it is taken; all
    compute the same. A query that sees no key gets the mean of all values of its sequence.
    Raises ``ValueError`` for a backend that is not known or cannot do what is asked.
    """
    kernel = Kernel(dropout, bias, weights)
    training = torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad)
    name = backend or _fastest(q, layout, kernel, training)
    if name not in BACKENDS:
        raise ValueError(f"attention backend {name!r} is not known; one of {', '.join(BACKENDS)}")
    if reason := BACKENDS[name].lacks(q, layout):
        raise ValueError(f"attention backend {name!r} {reason}")
    _require(BACKENDS[name], name, layout, kernel, training)
    return BACKENDS[name].run(q, k, v, layout, kernel)


def _fastest(q: Tensor, layout: Layout, kernel: Kernel, training: bool) -> str:
    if q.device.type != "cpu":
        if kernel.dropout or kernel.weights:
            return "matmul"
        return "sdpa" if kernel.bias or lacks(q, layout) else "varlen"
    if kernel.weights or (kernel.bias and (kernel.dropout or training)):
        return "matmul"
    # On CPU the backward pass of scaled_dot_product_attention costs several times that of plain
    # matrix products at the lengths of pretraining, and with dropout it leaves its fast kernel.
    if kernel.dropout or training:
        return "manual"
    return "sdpa" if layout.hides or layout.max_seqlen > _LONG else "equal_lengths"


def _require(backend: Backend, name: str, layout: Layout, kernel: Kernel, training: bool) -> None:
    """``ValueError`` for what the backend cannot do."""
    if kernel.dropout and not backend.dropout:
        raise ValueError(f"attention backend {name!r} has no dropout; asked for {kernel.dropout}")
    if kernel.weights and not backend.weights:
        raise ValueError(f"attention backend {name!r} keeps no weights; take matmul or reference")
    if training and not backend.gradients:
        raise ValueError(f"attention backend {name!r} has no gradients; take matmul or sdpa")
    if kernel.bias and not backend.biases:
        raise ValueError(f"attention backend {name!r} adds nothing to scores; take matmul or sdpa")
    if layout.hides and not backend.masks:
        raise ValueError(f"attention backend {name!r} hides nothing; take matmul or sdpa")


def _reference(q: Tensor, k: Tensor, v: Tensor, layout: Layout, kernel: Kernel) -> Attended:
    """One sequence after the other, in the words of the equation."""
    keys = layout.keys or layout
    out, weights = [], []
    parts = zip(q.split(layout.lengths), k.split(keys.lengths), v.split(keys.lengths), strict=True)
    for b, (qs, ks, vs) in enumerate(parts):
        queries, sources = len(qs), len(ks)
        scores = torch.einsum("ihk,jhk->hij", qs, ks) * q.shape[-1] ** -0.5  # (H, Q, S)
        if kernel.bias is not None:
            far = distances(queries, sources, torch.tensor([sources - queries], device=q.device))
            turned = qs.transpose(0, 1)[None], ks.transpose(0, 1)[None]
            scores = scores + kernel.bias(*turned, far)[0]
        seen = torch.ones(queries, sources, dtype=torch.bool, device=q.device)
        if layout.causal:
            seen = seen.tril(sources - queries)
        if layout.mask is not None:
            seen = seen & layout.mask[b]
        scores = scores.masked_fill(~seen, lowest(scores.dtype))
        w = drop(scores.softmax(-1), kernel.dropout).to(v.dtype)
        weights.append(w)
        out.append(torch.einsum("hij,jhk->ihk", w, vs))
    return Attended(torch.cat(out), weights if kernel.weights else None)


def _matmul(
    q: Tensor, k: Tensor, v: Tensor, group: Group, kernel: Kernel
) -> tuple[Tensor, Tensor | None]:
    """(B, H, Q, K), (B, H, S, K) twice -> (B, H, Q, K) and the weights (B, H, Q, S)"""
    scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-1, -2)  # (B, H, Q, S)
    if kernel.bias is not None:
        scores = scores + _bias(q, k, group, kernel.bias)
    if group.mask is not None:
        # Nobody needs the scores again, and a sum has no backward pass of its own.
        scores += group.hidden(scores.dtype)
    # Autocast computes a softmax in float32; the product goes on in the type of the values.
    weights = drop(scores.softmax(-1), kernel.dropout).to(v.dtype)
    return weights @ v, weights


def _sdpa(
    q: Tensor, k: Tensor, v: Tensor, group: Group, kernel: Kernel
) -> tuple[Tensor, Tensor | None]:
    """(B, H, Q, K), (B, H, S, K) twice -> (B, H, Q, K)"""
    mask = None if group.mask is None else group.hidden(q.dtype)
    if kernel.bias is not None:
        bias = _bias(q, k, group, kernel.bias).to(q.dtype)
        if group.mask is not None:
            bias = bias.masked_fill(~group.mask, lowest(q.dtype))
        mask = bias.expand(q.shape[0], q.shape[1], *bias.shape[2:])
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=kernel.dropout), None


def _bias(q: Tensor, k: Tensor, group: Group, bias: Bias) -> Tensor:
    """(B or 1, H, Q, S), zero for a query that sees nothing."""
    scores = bias(q, k, group.distances)
    return scores if group.seen is None else scores.masked_fill(~group.seen, 0)


def _grouped(run_group: Callable[..., tuple[Tensor, Tensor | None]]):
    """Run a padded kernel on groups of sequences of nearly equal length."""

    def run(q: Tensor, k: Tensor, v: Tensor, layout: Layout, kernel: Kernel) -> Attended:
        grouping = layout.grouping
        q = _place(q, grouping.queries)  # (P, H, K)
        k, v = _place(k, grouping.keys), _place(v, grouping.keys)
        out, weights = [], {}
        for group in grouping.groups:
            qg = q[group.queries].unflatten(0, (group.count, -1)).transpose(1, 2)
            kg, vg = (x[group.keys].unflatten(0, (group.count, -1)).transpose(1, 2) for x in (k, v))
            if group.seen is not None:
                qg = qg.masked_fill(~group.seen, 0)  # All its scores are zero: the mean of all.
            result, kept = run_group(qg, kg, vg, group, kernel)  # (B, H, Q, K)
            out.append(result.transpose(1, 2).reshape(-1, *q.shape[1:]))
            if kernel.weights and kept is not None:
                weights.update(zip(group.members, kept.unbind(0), strict=True))
        joined = out[0] if len(out) == 1 else torch.cat(out)
        side = grouping.queries
        if not side.same:
            joined = _Gather.apply(joined, side.rows, side.places, side.padding)
        return Attended(joined, _cut_out(weights, layout) if kernel.weights else None)

    return run


def _manual(q: Tensor, k: Tensor, v: Tensor, layout: Layout, kernel: Kernel) -> Attended:
    return Attended(attend_manually(q, k, v, layout, kernel.dropout), None)


def _varlen(q: Tensor, k: Tensor, v: Tensor, layout: Layout, kernel: Kernel) -> Attended:
    return Attended(attend_varlen(q, k, v, layout), None)


def _place(x: Tensor, side: Side) -> Tensor:
    """Rows (T, H, K) to places (P, H, K)."""
    if side.same:
        return x
    return _Scatter.apply(x, side.rows, side.places, side.padding)  # pyright: ignore[reportReturnType]


def _cut_out(weights: dict[int, Tensor], layout: Layout) -> list[Tensor]:
    """The weights of each sequence without its padding."""
    keys = (layout.keys or layout).lengths
    sizes = zip(layout.lengths, keys, strict=True)
    return [weights[b][:, :queries, :sources] for b, (queries, sources) in enumerate(sizes)]


def _equal_lengths(q: Tensor, k: Tensor, v: Tensor, layout: Layout, kernel: Kernel) -> Attended:
    return Attended(attend_equal_lengths(q, k, v, layout, kernel.bias), None)


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
    "reference": Backend(_reference),
    "matmul": Backend(_grouped(_matmul)),
    "sdpa": Backend(_grouped(_sdpa), dropout=False, weights=False),
    "manual": Backend(_manual, weights=False, biases=False),
    "varlen": Backend(_varlen, dropout=False, weights=False, biases=False, lacks=lacks),
    "equal_lengths": Backend(
        _equal_lengths, dropout=False, weights=False, gradients=False, masks=False
    ),
}
