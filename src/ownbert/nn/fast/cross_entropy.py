"""Cross entropy over a vocabulary, a few rows at a time. M targets (masked tokens), V vocabulary.

The logits of a step are its largest tensor. Here they are read once: loss, right answers and
gradient come from the same rows while these are in the cache, in float32 whatever the logits are,
and nothing of that size in float32 is kept.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

# Logits that a core works on at a time.
_CHUNK = 1 << 18


def cross_entropy(
    logits: Tensor, targets: Tensor, *, smoothing: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Summed cross entropy, and how many predictions are right.

    Args:
        logits: (M, V).
        targets: (M), token ids.
        smoothing: the share of a target that is spread evenly over the vocabulary (Szegedy et al.
            2016, section 7).

    Returns:
        The sum in nats (float32, with gradient), and how often the target has the highest logit
        (without).
    """
    if logits.device.type != "cpu" or logits.numel() < _CHUNK:
        logits = logits.float()
        # Comparing with the maximum takes a tenth of the time of argmax on a CPU.
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
    """The sum and the right predictions; ``gradient`` (M, V) is filled, if there is one."""
    rows, losses, right = max(1, _CHUNK // logits.shape[1]), [], []
    for start in range(0, len(logits), rows):
        own, target = logits[start : start + rows], targets[start : start + rows, None]
        wide = own if own.dtype == torch.float64 else own.float()
        hit, highest = wide.gather(1, target), wide.amax(-1, keepdim=True)
        right.append(hit >= highest)
        if smoothing:  # what the target is expected to score
            hit = (1 - smoothing) * hit + smoothing * wide.mean(-1, keepdim=True)
        out = None if gradient is None else gradient[start : start + rows]
        # A copy in float32 is overwritten, the logits themselves are not.
        likely = torch.softmax(wide, -1, out=out if wide is own else wide)
        # The largest probability is 1 / sum(exp(logits - highest)).
        losses.append(highest - likely.amax(-1, keepdim=True).log_() - hit)
        if out is None:
            continue
        # The gradient of a row: its probabilities, less 1 at the target (or its shares).
        likely.scatter_add_(1, target, hit.new_full((), smoothing - 1.0).expand_as(hit))
        if smoothing:
            likely -= smoothing / likely.shape[1]
        if wide is not own:
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
