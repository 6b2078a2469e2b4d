"""The learning rate over a run, as a function of how much of it is done."""

from ownbert.train.recipe import Optim


def factor(optim: Optim, progress: float) -> float:
    """What the peak learning rate is multiplied by at ``progress`` in [0, 1].

    Rises in a straight line during ``warmup``; then "linear" falls to 0 at the end (as BERT),
    "wsd" stays at 1 and falls to 0 in the last ``decay`` (warmup-stable-decay), "constant" stays.
    """
    if progress < optim.warmup:
        return progress / optim.warmup
    if optim.schedule == "linear":
        return (1 - progress) / max(1e-9, 1 - optim.warmup)
    if optim.schedule == "wsd" and optim.decay:
        return min(1.0, (1 - progress) / optim.decay)
    return 1.0
