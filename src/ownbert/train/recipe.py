"""What a run can be told, with its defaults. ``ownbert.train.settings`` fills them in."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from ownbert.config import SIZES
from ownbert.errors import InputError

SCHEDULES = ("linear", "wsd", "constant")
_RUN_COUNTS = (
    "max_steps",
    "max_minutes",
    "accumulate",
    "log_every",
    "eval_every",
    "save_every",
)


def _choice(name: str, value: str, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise InputError(f"{name} is {value!r}; one of {', '.join(allowed)}")


def _positive(name: str, value: float | None) -> None:
    if value is not None and not value > 0:
        raise InputError(f"{name} is {value}; it must be more than 0")


@dataclass(frozen=True, kw_only=True)
class Optim:
    """learning_rate: by the size of the model if not set. warmup, decay: shares of the run.
    schedule: "linear" falls from the warm-up to the end, "wsd" stays and falls in ``decay``."""

    learning_rate: float | None = None
    betas: tuple[float, ...] = (0.9, 0.98)
    eps: float = 1e-6
    weight_decay: float = 0.01
    clip: float = 1.0
    schedule: str = "wsd"
    warmup: float = 0.05
    decay: float = 0.2

    def __post_init__(self) -> None:
        _choice("optim.schedule", self.schedule, SCHEDULES)
        _positive("optim.learning_rate", self.learning_rate)
        _positive("optim.clip", self.clip)
        for name in ("warmup", "decay"):
            if not 0 <= getattr(self, name) <= 1:
                raise InputError(f"optim.{name} is {getattr(self, name)}; it must be in [0, 1]")


@dataclass(frozen=True, kw_only=True)
class Run:
    """How long, how, and how often to log, evaluate and save; steps, or None for by the clock
    (a save every five minutes, ten evaluations a run)."""

    max_steps: int | None = None
    max_minutes: float | None = None
    accumulate: int = 1
    precision: str = "auto"
    device: str = "auto"
    log_every: int = 20
    eval_every: int | None = None
    save_every: int | None = None

    def __post_init__(self) -> None:
        _choice("run.precision", self.precision, ("auto", "float32", "bfloat16"))
        _choice("run.device", self.device, ("auto", "cpu", "cuda"))
        for name in _RUN_COUNTS:
            _positive(f"run.{name}", getattr(self, name))


@dataclass(frozen=True, kw_only=True)
class PretrainData:
    tokens: str = ""
    max_length: int = 128
    batch_tokens: int = 2048
    held_out: float = 0.02

    def __post_init__(self) -> None:
        _positive("data.batch_tokens", self.batch_tokens)
        if not 0 <= self.held_out < 1:
            raise InputError(f"data.held_out is {self.held_out}; it must be in [0, 1)")


@dataclass(frozen=True, kw_only=True)
class PretrainModel:
    """size: one of config.SIZES. init_embeddings: "cooccurrence" or "random"."""

    size: str = "tiny"
    dropout: float = 0.0
    init_embeddings: str = "cooccurrence"

    def __post_init__(self) -> None:
        _choice("model.size", self.size, tuple(SIZES))
        _choice("model.init_embeddings", self.init_embeddings, ("cooccurrence", "random"))


@dataclass(frozen=True, kw_only=True)
class PretrainTask:
    """nsp_weight: of the next-sentence loss beside the masked-word loss. BERT has 1; in runs of
    minutes that holds back the words for long (docs/benchmarks.md)."""

    objectives: tuple[str, ...] = ("mlm", "nsp")
    mask_rate: float = 0.3
    nsp_weight: float = 0.1

    def __post_init__(self) -> None:
        for name in self.objectives:
            _choice("task.objectives", name, ("mlm", "nsp"))
        _positive("task.nsp_weight", self.nsp_weight)
        if "mlm" not in self.objectives:
            raise InputError("task.objectives must have mlm; nsp can stand beside it")


@dataclass(frozen=True, kw_only=True)
class PretrainRecipe:
    """Everything that ``ownbert pretrain`` can be told."""

    seed: int = 0
    data: PretrainData = field(default_factory=PretrainData)
    model: PretrainModel = field(default_factory=PretrainModel)
    task: PretrainTask = field(default_factory=PretrainTask)
    optim: Optim = field(default_factory=Optim)
    run: Run = field(default_factory=Run)


@dataclass(frozen=True, kw_only=True)
class FinetuneData:
    """labels_per_class: how many training rows of each label to use; all if not set."""

    train: str = ""
    dev: str = ""
    text_column: str | None = None
    label_column: str | None = None
    labels_per_class: int | None = None
    max_length: int | None = None
    batch_size: int | None = None

    def __post_init__(self) -> None:
        for name in ("labels_per_class", "max_length", "batch_size"):
            _positive(f"data.{name}", getattr(self, name))


@dataclass(frozen=True, kw_only=True)
class FinetuneModel:
    """folder: what to start from. from_scratch: take its size and vocabulary, not its weights."""

    folder: str = ""
    from_scratch: bool = False
    dropout: float = 0.1


@dataclass(frozen=True, kw_only=True)
class FinetuneRun(Run):
    """epochs, and how many without a better dev macro-F1 end the run early."""

    epochs: int | None = None
    patience: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        _positive("run.epochs", self.epochs)
        _positive("run.patience", self.patience)


@dataclass(frozen=True, kw_only=True)
class FinetuneRecipe:
    """Everything that ``ownbert finetune classify`` can be told."""

    seed: int = 0
    data: FinetuneData = field(default_factory=FinetuneData)
    model: FinetuneModel = field(default_factory=FinetuneModel)
    optim: Optim = field(
        default_factory=lambda: Optim(betas=(0.9, 0.999), schedule="linear", warmup=0.1)
    )
    run: FinetuneRun = field(default_factory=FinetuneRun)
