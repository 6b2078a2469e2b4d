"""What a run can be told, with its defaults. ``ownbert.run.settings`` fills them in."""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TypeVar

from ownbert.config import SIZES
from ownbert.data.masking import MASKINGS
from ownbert.errors import InputError

T = TypeVar("T")

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
# A run may be resumed with another value of these; any other setting would make it another run.
# That the corpus is the same is seen by what it holds, wherever it is.
FREE = (
    "optim.learning_rate",
    "run.precision",
    "run.max_steps",
    "run.max_minutes",
    "run.device",
    "run.log_every",
    "run.eval_every",
    "run.save_every",
    "run.keep",
    "run.shard",
    "run.tensorboard",
    "run.epochs",
    "run.patience",
    "run.seeds",
    "data.tokens",
    *(f"data.{dev}{side}" for dev in ("", "dev_") for side in ("source", "target", "pairs")),
)
# What can be learnt, in the order of the log.
OBJECTIVES = ("mlm", "clm", "rtd", "nsp", "sop")


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


@dataclass(frozen=True, kw_only=True)
class PretrainData:
    """batch_tokens: of all processes together, so that a step does not depend on their number."""

    tokens: str = ""
    max_length: int = 128
    batch_tokens: int = 2048
    held_out: float = 0.02

    def __post_init__(self) -> None:
        positive("data.batch_tokens", self.batch_tokens)
        if self.max_length < 8:
            raise InputError(f"data.max_length is {self.max_length}; it must be 8 or more")
        if not 0 <= self.held_out < 1:
            raise InputError(f"data.held_out is {self.held_out}; it must be in [0, 1)")


@dataclass(frozen=True, kw_only=True)
class PretrainModel:
    """size: one of config.SIZES. init_embeddings: "cooccurrence" or "random". init_from: a model
    folder whose weights to start from, with words matched to the vocabulary of the corpus
    (init_counts: how often the old words were, to match by rank). generator: width of ELECTRA's
    generator as a share of the model's."""

    size: str = "tiny"
    dropout: float = 0.0
    init_embeddings: str = "cooccurrence"
    init_from: str | None = None
    init_counts: str | None = None
    generator: float = 0.25

    def __post_init__(self) -> None:
        choice("model.size", self.size, tuple(SIZES))
        choice("model.init_embeddings", self.init_embeddings, ("cooccurrence", "random"))
        if not 0 < self.generator <= 1:
            raise InputError(f"model.generator is {self.generator}; it must be in (0, 1]")
        if self.init_counts and not self.init_from:
            raise InputError("model.init_counts needs model.init_from")


@dataclass(frozen=True, kw_only=True)
class PretrainTask:
    """What is learnt together: mlm (masked words), clm (next words), rtd (replaced tokens, beside
    mlm, which is then the generator's), and nsp (next sentence) or sop (sentence order).

    masking: what is hidden together, a token, a word, ngrams of up to ``ngram`` tokens, or spans.
    nsp_weight: of the next-sentence loss beside the masked-word loss. BERT has 1; in runs of
    minutes that holds back the words for long (docs/benchmarks.md).
    """

    objectives: tuple[str, ...] = ("mlm", "nsp")
    masking: str = "token"
    mask_rate: float = 0.3
    ngram: int = 3
    mlm_weight: float = 1.0
    clm_weight: float = 1.0
    rtd_weight: float = 50.0
    nsp_weight: float = 0.1
    sop_weight: float = 0.1

    def __post_init__(self) -> None:
        for name in self.objectives:
            choice("task.objectives", name, OBJECTIVES)
            positive(f"task.{name}_weight", getattr(self, f"{name}_weight"))
        names = set(self.objectives)
        if len(names) < len(self.objectives):
            raise InputError(f"task.objectives names one twice: {', '.join(self.objectives)}")
        if not names & {"mlm", "clm"}:
            raise InputError("task.objectives must have mlm or clm; the others stand beside it")
        if names >= {"nsp", "sop"}:
            raise InputError("task.objectives has nsp and sop, which share a head; take one")
        if "rtd" in names and names != {"mlm", "rtd"}:
            raise InputError("task.objectives has rtd: beside it stands mlm, and nothing else")
        choice("task.masking", self.masking, MASKINGS)
        positive("task.ngram", self.ngram)
        if not 0 < self.mask_rate < 1:
            raise InputError(f"task.mask_rate is {self.mask_rate}; it must be between 0 and 1")

    @property
    def pairs(self) -> str | None:
        """The objective that is about pairs of sentences, if any."""
        return next((name for name in self.objectives if name in ("nsp", "sop")), None)


@dataclass(frozen=True, kw_only=True)
class Phase:
    """A part of the run that learns something else. share: of the run; the rest as the recipe
    has it where it is not given."""

    share: float = 0.0
    objectives: tuple[str, ...] | None = None
    masking: str | None = None
    mask_rate: float | None = None
    nsp_weight: float | None = None
    sop_weight: float | None = None
    max_length: int | None = None
    batch_tokens: int | None = None


@dataclass(frozen=True, kw_only=True)
class PretrainRecipe:
    """Everything that ``ownbert pretrain`` can be told. phases: in a row; without any the whole
    run is one."""

    seed: int = 0
    data: PretrainData = field(default_factory=PretrainData)
    model: PretrainModel = field(default_factory=PretrainModel)
    task: PretrainTask = field(default_factory=PretrainTask)
    optim: Optim = field(default_factory=Optim)
    run: Run = field(default_factory=Run)
    phases: tuple[Phase, ...] = ()

    def __post_init__(self) -> None:
        if self.phases:
            for number, phase in enumerate(self.phases, 1):
                positive(f"phases[{number}].share", phase.share)
            total = sum(phase.share for phase in self.phases)
            if abs(total - 1) > 1e-6:
                raise InputError(f"the shares of the phases add up to {total:g}; they must give 1")
        with_rtd = ["rtd" in task.objectives for task, _ in self.parts]
        if any(with_rtd) and self.model.init_from:
            raise InputError("model.init_from starts from a BERT, and rtd makes an ELECTRA")
        if any(with_rtd) and not all(with_rtd):
            raise InputError("a phase with rtd needs it in all phases: it is another network")

    @property
    def parts(self) -> list[tuple[PretrainTask, PretrainData]]:
        """Task and data of each phase."""
        if not self.phases:
            return [(self.task, self.data)]
        return [(_over(self.task, phase), _over(self.data, phase)) for phase in self.phases]


def _over(section: T, phase: Phase) -> T:
    """``section`` with what the phase has otherwise."""
    names = {f.name for f in fields(section)} & {f.name for f in fields(phase)}  # pyright: ignore
    changes = {name: getattr(phase, name) for name in names}
    return replace(section, **{k: v for k, v in changes.items() if v is not None})  # pyright: ignore
