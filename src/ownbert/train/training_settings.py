"""Settings of the optimiser, with the learning-rate schedules, and of the run."""

import math
from dataclasses import dataclass

from ownbert import limits
from ownbert.checks import between, one_of, up_to
from ownbert.exceptions import InputError
from ownbert.settings import CheckedSettings, setting

# Titles of panels in --help.
MODEL, DATA, LEARNING, RUN = "Model", "Data", "Learning", "Run"

SCHEDULES = ("linear", "cosine", "constant", "wsd", "inverse_sqrt", "noam")
# Warm-up steps of Vaswani et al. 2017, section 5.3.
NOAM_STEPS = 4000
# Without warm-up, "inverse_sqrt" starts decaying at this share of the run.
_SHORTEST_WARMUP = 0.01
# "adamw", "lamb", and torch's optimisers by their names in lower case, except LBFGS, which needs
# several passes per step, and SparseAdam, which needs sparse gradients.
OPTIMIZERS = (
    *("adamw", "lamb", "adadelta", "adafactor", "adagrad", "adam", "adamax", "asgd", "muon"),
    *("nadam", "radam", "rmsprop", "rprop", "sgd"),
)


def _check_betas(name: str, betas: tuple[float, ...]) -> None:
    if len(betas) != 2 or not all(0 <= beta < 1 for beta in betas):
        values = ", ".join(f"{beta:g}" for beta in betas)
        raise InputError("{name} is [{values}]; it must be two numbers in [0, 1)", name, values)


@dataclass(frozen=True, kw_only=True)
class Optim(CheckedSettings, name="optim"):
    """The optimiser and its schedule.

    Each optimiser uses the settings that it has among betas, eps, momentum and weight_decay.
    """

    learning_rate: float | None = setting(
        None,
        "Peak learning rate.",
        LEARNING,
        check=up_to(limits.RATE),
        shown="depends on the size",
        resumable=True,
    )
    name: str = setting("adamw", f"One of {', '.join(OPTIMIZERS)}.", check=one_of(*OPTIMIZERS))
    betas: tuple[float, ...] = setting(
        (0.9, 0.98),
        "Decay rates of the running means of the gradient and of its square.",
        check=_check_betas,
    )
    eps: float = setting(1e-6, "Added to the denominator of the update.", check=up_to(1))
    momentum: float = setting(
        0.9, "Momentum, for optimisers that use it.", check=between(0, 1, "[)")
    )
    weight_decay: float = setting(0.01, "Weight decay.", check=between(0, limits.WEIGHT, "[]"))
    clip: float = setting(1.0, "Maximum norm of the gradient.", check=up_to(limits.WEIGHT))
    schedule: str = setting("wsd", f"One of {', '.join(SCHEDULES)}.", check=one_of(*SCHEDULES))
    warmup: float = setting(0.05, "Warm-up, as a share of the run.", check=between(0, 1, "[]"))
    decay: float = setting(0.2, "Decay of wsd, as a share of the run.", check=between(0, 1, "[]"))
    warmup_steps: int | None = setting(None, "Warm-up steps of noam.", check=up_to(limits.STEPS))
    layer_decay: float = setting(
        1.0,
        "Learning rate of each layer relative to the layer above it.",
        LEARNING,
        check=between(0, 1, "(]"),
    )
    ema: float = setting(
        0.0,
        "Decay of a running mean of the weights (EMA), which is evaluated and saved; try 0.99.",
        LEARNING,
        check=between(0, 1, "[)"),
    )
    # FGM: Miyato et al. 2017.
    adversarial: float = setting(
        0.0,
        "Adversarial training: also train on word vectors perturbed by this length (FGM); try 0.5.",
        LEARNING,
        check=between(0, limits.WEIGHT, "[]"),
    )


@dataclass(frozen=True, kw_only=True)
class Run(CheckedSettings, name="run"):
    """Duration and machine of a run, and how often to log, evaluate and save.

    Intervals are in steps, or by the clock if None (a save every five minutes, ten evaluations per
    run).
    """

    max_steps: int | None = setting(
        None, "Stop after this many steps.", RUN, check=up_to(limits.STEPS), resumable=True
    )
    max_minutes: float | None = setting(
        None,
        "Stop after this many minutes, including evaluations.",
        RUN,
        check=up_to(limits.MINUTES),
        resumable=True,
    )
    accumulate: int = setting(
        1,
        "Number of batches to accumulate gradients over per step.",
        LEARNING,
        check=up_to(limits.ACCUMULATED),
    )
    precision: str = setting(
        "auto",
        "float32, or bfloat16 for matrix products; auto picks the faster one on this machine.",
        RUN,
        check=one_of("auto", "float32", "bfloat16"),
        resumable=True,
    )
    device: str = setting(
        "auto", "auto, cpu or cuda.", RUN, check=one_of("auto", "cpu", "cuda"), resumable=True
    )
    log_every: int = setting(
        20, "Steps between rows of log.jsonl.", RUN, check=up_to(limits.STEPS), resumable=True
    )
    eval_every: int | None = setting(
        None,
        "Steps between evaluations.",
        RUN,
        check=up_to(limits.STEPS),
        shown="ten per run",
        resumable=True,
    )
    save_every: int | None = setting(
        None,
        "Steps between saved states.",
        RUN,
        check=up_to(limits.STEPS),
        shown="5 minutes",
        resumable=True,
    )
    keep: int = setting(
        2,
        "Keep this many of the last saved states, in addition to the best one.",
        check=up_to(limits.STATES),
        resumable=True,
    )
    shard: bool = setting(
        False,
        "Shard weights and optimiser over the processes of torchrun (fully_shard) instead of "
        "keeping a copy in each.",
        resumable=True,
    )
    tensorboard: bool = setting(False, "Also write TensorBoard curves.", RUN, resumable=True)

    def steps_of(self, batches: int) -> int:
        """The number of steps for this many batches, rounded up."""
        return -(-batches // self.accumulate)


def refuse_shard(run: Run, command: str) -> None:
    """Raise ``InputError`` if ``run.shard`` is set for a command that does not support it."""
    if run.shard:
        raise InputError("run.shard is for pretrain; {command} does not shard weights", command)


def rate_factor(optim: Optim, progress: float, step: int = 1) -> float:
    """The factor of the peak learning rate at ``progress``, the completed share of the run in [0,
    1], in the ``step``-th step.

    It rises linearly during ``warmup``. Then "linear" decays to 0 at the end (as in BERT), "cosine"
    decays to 0 along half a wave (Loshchilov and Hutter 2017), "wsd" stays at 1 and decays to 0
    during the last ``decay`` (warmup-stable-decay), "inverse_sqrt" decays as 1 / sqrt(progress)
    (Vaswani et al. 2017, equation 3), "constant" stays at 1. "noam" is the same equation in steps,
    independent of the length of the run: it rises for ``warmup_steps`` and decays as 1 /
    sqrt(step).
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
