"""Cross entropy over a vocabulary, a few rows at a time. M targets (masked tokens), V vocabulary.

The logits are the largest tensor of a step. They are read only once: loss, correct predictions and
gradient are computed while the rows are in the cache, in float32 whatever the dtype of the logits,
and no float32 tensor of their size is stored.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

# Logits that a core processes at a time.
_CHUNK = 1 << 18


def cross_entropy(
    logits: Tensor, targets: Tensor, *, smoothing: float = 0.0
) -> tuple[Tensor, Tensor]:
    """The sum of the cross entropies in nats (float32, differentiable), and how often the target
    has the highest logit.

    Args:
        logits: (M, V).
        targets: (M) token ids.
        smoothing: share of a target that is spread evenly over the vocabulary (Szegedy et al. 2016,
            section 7).
    """
    if logits.device.type != "cpu" or logits.numel() < _CHUNK:
        logits = logits.float()
        # On a CPU a comparison with the maximum takes a tenth of the time of argmax.
        scores = logits.detach()
        right = scores.gather(1, targets[:, None])[:, 0] >= scores.amax(-1)
        loss = F.cross_entropy(logits, targets, reduction="sum", label_smoothing=smoothing)
        return loss, right.sum()
    if not (torch.is_grad_enabled() and logits.requires_grad):
        return _by_rows(logits, targets, smoothing, None)
    return _CrossEntropy.apply(logits, targets, smoothing)  # pyright: ignore[reportReturnType]


def _by_rows(
    logits: Tensor, targets: Tensor, smoothing: float, gradient: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The loss and the correct predictions; fills ``gradient`` (M, V) unless it is None."""
    rows, losses, right = max(1, _CHUNK // logits.shape[1]), [], []
    for start in range(0, len(logits), rows):
        chunk, target = logits[start : start + rows], targets[start : start + rows, None]
        wide = chunk if chunk.dtype == torch.float64 else chunk.float()
        hit, highest = wide.gather(1, target), wide.amax(-1, keepdim=True)
        right.append(hit >= highest)
        if smoothing:  # expected logit of the target
            hit = (1 - smoothing) * hit + smoothing * wide.mean(-1, keepdim=True)
        out = None if gradient is None else gradient[start : start + rows]
        # A float32 copy is overwritten, the logits themselves are not.
        likely = torch.softmax(wide, -1, out=out if wide is chunk else wide)
        # The largest probability is 1 / sum(exp(logits - highest)).
        losses.append(highest - likely.amax(-1, keepdim=True).log_() - hit)
        if out is None:
            continue
        # The gradient of a row: probabilities minus 1 at the target (or its smoothed share).
        likely.scatter_add_(1, target, hit.new_full((), smoothing - 1.0).expand_as(hit))
        if smoothing:
            likely -= smoothing / likely.shape[1]
        if wide is not chunk:
            out.copy_(likely)
    return torch.cat(losses).sum(), torch.cat(right).sum()


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits, targets, smoothing):
        gradient = torch.empty_like(logits)
        loss, correct = _by_rows(logits, targets, smoothing, gradient)
        ctx.save_for_backward(gradient)
        ctx.mark_non_differentiable(correct)
        return loss, correct

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad, _):  # pyright: ignore[reportIncompatibleMethodOverride]
        (gradient,) = ctx.saved_tensors
        return gradient * grad.to(gradient.dtype), None, None
