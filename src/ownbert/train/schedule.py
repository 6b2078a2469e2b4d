"""Learning-rate schedules."""

import math

from ownbert.train.training_settings import Optim

# Warm-up steps of Vaswani et al. 2017, section 5.3.
NOAM_STEPS = 4000
# Without warm-up, "inverse_sqrt" starts decaying at this share of the run.
_SHORTEST_WARMUP = 0.01


def factor(optim: Optim, progress: float, step: int = 1) -> float:
    """The factor of the peak learning rate.

    It rises linearly during ``warmup``. Then "linear" decays to 0 at the end (as in BERT), "cosine"
    decays to 0 along half a wave (Loshchilov and Hutter 2017), "wsd" stays at 1 and decays to 0
    during the last ``decay`` (warmup-stable-decay), "inverse_sqrt" decays as 1 / sqrt(progress)
    (Vaswani et al. 2017, equation 3), "constant" stays at 1. "noam" is the same equation in steps,
    independent of the length of the run: it rises for ``warmup_steps`` and decays as 1 /
    sqrt(step).

    Args:
        optim: settings of the schedule.
        progress: completed share of the run, in [0, 1].
        step: number of the step, from 1.
    """
    if optim.schedule == "noam":
        warmup = optim.warmup_steps or NOAM_STEPS
        return min(step / warmup, math.sqrt(warmup / step))
    progress = min(1.0, progress)  # rounded sums of shares may exceed 1
    if progress < optim.warmup:
        return progress / optim.warmup
    # Progress after warm-up, which may take the whole run.
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
