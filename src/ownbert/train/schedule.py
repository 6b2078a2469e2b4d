"""The learning rate over a run, as a function of how much of it is done."""

import math

from ownbert.train.recipe import Optim

# Of Vaswani et al. 2017, section 5.3.
NOAM_STEPS = 4000
# The square root's fall needs a point to start from where there is no warm-up: this share of a run.
_SHORTEST_WARMUP = 0.01


def factor(optim: Optim, progress: float, step: int = 1) -> float:
    """What the peak learning rate is multiplied by at ``progress`` in [0, 1], in step ``step``.

    Rises in a straight line during ``warmup``. Then "linear" falls to 0 at the end (as BERT),
    "cosine" does so along half a wave (Loshchilov and Hutter 2017), "wsd" stays at 1 and falls to 0
    in the last ``decay`` (warmup-stable-decay), "inverse_sqrt" falls as 1 / sqrt(progress) (Vaswani
    et al. 2017, equation 3), "constant" stays. "noam" is that equation by steps, whatever the
    length of the run: it rises for ``warmup_steps`` and falls as 1 / sqrt(step).
    """
    if optim.schedule == "noam":
        warmup = optim.warmup_steps or NOAM_STEPS
        return min(step / warmup, math.sqrt(warmup / step))
    progress = min(1.0, progress)  # a sum of shares may be a rounding above
    if progress < optim.warmup:
        return progress / optim.warmup
    # Of what comes after the warm-up; none is left where the warm-up is the whole run.
    done = (progress - optim.warmup) / (1 - optim.warmup) if optim.warmup < 1 else 1.0
    if optim.schedule == "linear":
        return 1 - done
    if optim.schedule == "cosine":
        return (1 + math.cos(math.pi * done)) / 2
    if optim.schedule == "inverse_sqrt":
        start = optim.warmup or _SHORTEST_WARMUP
        return math.sqrt(start / max(progress, start))
    decay = min(optim.decay, 1 - optim.warmup)
    if optim.schedule == "wsd" and decay:
        return min(1.0, (1 - progress) / decay)
    return 1.0
