"""Settings of the optimiser and of a run, which every training has."""

from collections.abc import Sequence
from dataclasses import dataclass

from ownbert.errors import InputError

SCHEDULES = ("linear", "cosine", "constant", "wsd", "inverse_sqrt", "noam")
# "adamw", "lamb", and torch's own by their names there in lower case; but for LBFGS, which needs
# several passes a step, and SparseAdam, which needs sparse gradients.
OPTIMIZERS = (
    *("adamw", "lamb", "adadelta", "adafactor", "adagrad", "adam", "adamax", "asgd", "muon"),
    *("nadam", "radam", "rmsprop", "rprop", "sgd"),
)
_RUN_COUNTS = (
    "max_steps",
    "max_minutes",
    "accumulate",
    "log_every",
    "eval_every",
    "save_every",
    "keep",
)


def choice(name: str, value: str, allowed: Sequence[str]) -> None:
    """``InputError`` for a value that is not among those allowed."""
    if value not in allowed:
        raise InputError(f"{name} is {value!r}; one of {', '.join(allowed)}")


def positive(name: str, value: float | None) -> None:
    """``InputError`` for a number that is not more than 0."""
    if value is not None and not value > 0:
        raise InputError(f"{name} is {value}; it must be more than 0")


@dataclass(frozen=True, kw_only=True)
class Optim:
    """learning_rate: by the size of the model if not set. name: one of OPTIMIZERS. betas, eps,
    momentum, weight_decay: each is used by the optimisers that know it. schedule, warmup, decay:
    see ``ownbert.train.schedule``; the last two are shares of the run. warmup_steps: of "noam"
    alone.

    layer_decay: each layer learns at this share of the rate of the one above it (1: the same). ema:
    evaluate and keep a running mean of the weights, of which so much stays at each step (0: none).
    adversarial: length of the step by which the word vectors are moved against the model, which
    then learns from that too (FGM, Miyato et al. 2017; 0: none)."""

    learning_rate: float | None = None
    name: str = "adamw"
    betas: tuple[float, ...] = (0.9, 0.98)
    eps: float = 1e-6
    momentum: float = 0.9
    weight_decay: float = 0.01
    clip: float = 1.0
    schedule: str = "wsd"
    warmup: float = 0.05
    decay: float = 0.2
    warmup_steps: int | None = None
    layer_decay: float = 1.0
    ema: float = 0.0
    adversarial: float = 0.0

    def __post_init__(self) -> None:
        choice("optim.name", self.name, OPTIMIZERS)
        choice("optim.schedule", self.schedule, SCHEDULES)
        positive("optim.learning_rate", self.learning_rate)
        positive("optim.clip", self.clip)
        positive("optim.eps", self.eps)
        positive("optim.warmup_steps", self.warmup_steps)
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            found = ", ".join(f"{beta:g}" for beta in self.betas)
            raise InputError(f"optim.betas is [{found}]; it must be two numbers in [0, 1)")
        if not 0 <= self.momentum < 1:
            raise InputError(f"optim.momentum is {self.momentum}; it must be in [0, 1)")
        if not self.weight_decay >= 0:
            raise InputError(f"optim.weight_decay is {self.weight_decay}; it must be 0 or more")
        if not self.adversarial >= 0:
            raise InputError(f"optim.adversarial is {self.adversarial}; it must be 0 or more")
        if not 0 < self.layer_decay <= 1:
            raise InputError(f"optim.layer_decay is {self.layer_decay}; it must be in (0, 1]")
        if not 0 <= self.ema < 1:
            raise InputError(f"optim.ema is {self.ema}; it must be in [0, 1)")
        for name in ("warmup", "decay"):
            if not 0 <= getattr(self, name) <= 1:
                raise InputError(f"optim.{name} is {getattr(self, name)}; it must be in [0, 1]")


@dataclass(frozen=True, kw_only=True)
class Run:
    """How long, how, and how often to log, evaluate and save; steps, or None for by the clock
    (a save every five minutes, ten evaluations a run). keep: how many of the last saved states,
    besides that of the best evaluation. shard: cut weights and optimiser over the processes of
    torchrun (fully_shard) in place of a copy in each."""

    max_steps: int | None = None
    max_minutes: float | None = None
    accumulate: int = 1
    precision: str = "auto"
    device: str = "auto"
    log_every: int = 20
    eval_every: int | None = None
    save_every: int | None = None
    keep: int = 2
    shard: bool = False
    tensorboard: bool = False

    def __post_init__(self) -> None:
        choice("run.precision", self.precision, ("auto", "float32", "bfloat16"))
        choice("run.device", self.device, ("auto", "cpu", "cuda"))
        for name in _RUN_COUNTS:
            positive(f"run.{name}", getattr(self, name))
