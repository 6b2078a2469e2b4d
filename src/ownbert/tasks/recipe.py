"""What fine-tuning can be told, with its defaults."""

from collections.abc import Mapping, Set
from dataclasses import dataclass, field, fields
from typing import Any

from ownbert.errors import InputError
from ownbert.train.recipe import Optim, Run, choice, positive

POOLINGS = ("pooler", "first", "mean", "max", "attention", "gru", "lstm")
LONG = ("cut", "windows", "segments")


def _share(name: str, value: float) -> None:
    if not 0 <= value < 1:
        raise InputError(f"{name} is {value}; it must be in [0, 1)")


def _not_negative(name: str, value: float) -> None:
    if not value >= 0:
        raise InputError(f"{name} is {value}; it must be 0 or more")


@dataclass(frozen=True, kw_only=True)
class TaskSettings:
    """What each task can be told; a task refuses what it does not know.

    pooling: what a sentence's answer stands on; by default what the family has. long: what becomes
    of documents longer than ``max_length``: the end is cut off; windows, whose answers are
    averaged; or segments, with attention over their vectors. stride: tokens that neighbouring
    windows share. max_windows: of a document; what is beyond is cut off.

    class_weights: "balanced" (by how rare a label is) or "label=weight,label=weight".
    label_smoothing: share of the truth that is spread over all labels. separator: what stands
    between the labels of a row. threshold: from which probability a label holds, or by how much "no
    answer" must be ahead (in logits) to be said; by default chosen on dev rows. loss: mse or huber.
    crf: choose the tags of a sentence together. tag_all: learn from all pieces of a word, not the
    first alone. answer_length: the longest answer, in tokens. temperature: of the contrastive loss.

    rdrop: weight of the difference between two passes with other dropouts (Liang et al. 2021).
    flip, shift, crop: how training pictures are changed each time they are seen
    (``ownbert.data.images.augmentation``).
    """

    name: str = "classify"
    pooling: str | None = None
    long: str = "cut"
    stride: int = 32
    max_windows: int = 64
    class_weights: str | None = None
    label_smoothing: float = 0.0
    separator: str | None = None
    threshold: float | None = None
    loss: str = "mse"
    crf: bool = False
    tag_all: bool = False
    answer_length: int = 30
    temperature: float = 0.05
    rdrop: float = 0.0
    flip: bool = False
    shift: float = 0.1
    crop: float = 1.0

    def __post_init__(self) -> None:
        if self.pooling is not None:
            choice("task.pooling", self.pooling, POOLINGS)
        choice("task.long", self.long, LONG)
        choice("task.loss", self.loss, ("mse", "huber"))
        for name in ("max_windows", "answer_length", "temperature"):
            positive(f"task.{name}", getattr(self, name))
        for name in ("stride", "rdrop"):
            _not_negative(f"task.{name}", getattr(self, name))
        for name in ("label_smoothing", "shift"):
            _share(f"task.{name}", getattr(self, name))
        if not 0 < self.crop <= 1:
            raise InputError(f"task.crop is {self.crop}; it must be in (0, 1]")

    @classmethod
    def of(cls, name: str, values: Mapping[str, Any]) -> "TaskSettings":
        """Settings out of a config.json; what another version wrote beyond these is left alone."""
        known = {f.name for f in fields(cls)} - {"name"}
        return cls(name=name, **{k: v for k, v in values.items() if k in known})

    def changed(self) -> dict[str, Any]:
        """The settings that are not the default."""
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "name"}
        return {k: v for k, v in values.items() if v != getattr(TaskSettings, k)}

    def refuse_others(self, task: str, known: Set[str]) -> None:
        """``InputError`` for a setting that task ``task`` has no use for."""
        if others := [name for name in self.changed() if name not in known]:
            raise InputError(
                f"task.{others[0]} is of no use to {task}, which knows {', '.join(sorted(known))}"
            )


@dataclass(frozen=True, kw_only=True)
class FinetuneData:
    """Columns are found by their usual names where they are not given. labels_per_class: how many
    training rows of each label to use; all if not set."""

    train: str = ""
    dev: str | None = None
    text_column: str | None = None
    second_column: str | None = None
    label_column: str | None = None
    labels_per_class: int | None = None
    max_length: int | None = None
    batch_size: int | None = None

    def __post_init__(self) -> None:
        for name in ("labels_per_class", "max_length", "batch_size"):
            positive(f"data.{name}", getattr(self, name))


@dataclass(frozen=True, kw_only=True)
class Vit:
    """Sizes of a new ViT. image_size, patch: height and width in pixels, or one number for both; by
    default by the size of the training pictures."""

    image_size: tuple[int, ...] | None = None
    patch: tuple[int, ...] | None = None
    hidden_size: int = 128
    layers: int = 6
    heads: int = 4

    def __post_init__(self) -> None:
        for name in ("hidden_size", "layers", "heads"):
            positive(f"model.vit.{name}", getattr(self, name))
        for name in ("image_size", "patch"):
            given = getattr(self, name)
            if given is None:
                continue
            if len(given) not in (1, 2) or min(given) < 1:
                shown = ", ".join(map(str, given))
                raise InputError(
                    f"model.vit.{name} is {shown}; it must be one whole number from 1 on, or two: "
                    "height,width"
                )
            object.__setattr__(self, name, (given[0], given[-1]))


@dataclass(frozen=True, kw_only=True)
class FinetuneModel:
    """folder: what to start from. from_scratch: take its size and vocabulary, not its weights.
    dropout: 0.1 for texts and 0 for pictures if not set. freeze: so many of the lower layers, and
    the embeddings, stay as they are. pretrain_steps: learn masked words from the texts of the task
    before the task itself. vit: for pictures, what to make where there is no folder."""

    folder: str = ""
    from_scratch: bool = False
    dropout: float | None = None
    freeze: int = 0
    pretrain_steps: int | None = None
    vit: Vit = field(default_factory=Vit)

    def __post_init__(self) -> None:
        _share("model.dropout", self.dropout or 0.0)
        _not_negative("model.freeze", self.freeze)
        _not_negative("model.pretrain_steps", self.pretrain_steps or 0)
        if self.from_scratch and self.pretrain_steps:
            raise InputError(
                "model.from_scratch and model.pretrain_steps are both set; the one drops the "
                "weights that the other goes on with"
            )

    @property
    def new(self) -> bool:
        """Whether all weights are new."""
        return self.from_scratch or not self.folder


@dataclass(frozen=True, kw_only=True)
class FinetuneRun(Run):
    """epochs, and how many without a better ``measure`` on dev rows end the run early. measure: by
    default that of the task. folds: train as many models, each without another part of the rows,
    and average what they say. seeds: train with as many seeds, from ``seed`` on."""

    epochs: int | None = None
    patience: int = 4
    measure: str | None = None
    folds: int | None = None
    seeds: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        positive("run.epochs", self.epochs)
        positive("run.patience", self.patience)
        for name in ("folds", "seeds"):
            value = getattr(self, name)
            if value is not None and value < 2:
                raise InputError(f"run.{name} is {value}; it must be 2 or more")


@dataclass(frozen=True, kw_only=True)
class Search:
    """What to try, each with each; nothing if not set. usual: what is usual of all that is not
    set."""

    usual: bool = False
    learning_rate: tuple[float, ...] = ()
    epochs: tuple[int, ...] = ()
    batch_size: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name in ("learning_rate", "epochs", "batch_size"):
            for value in getattr(self, name):
                positive(f"search.{name}", value)

    @property
    def asked(self) -> bool:
        """Whether there is anything to try."""
        return bool(self.usual or self.learning_rate or self.epochs or self.batch_size)


@dataclass(frozen=True, kw_only=True)
class FinetuneRecipe:
    """Everything that ``ownbert finetune`` can be told."""

    seed: int = 0
    data: FinetuneData = field(default_factory=FinetuneData)
    model: FinetuneModel = field(default_factory=FinetuneModel)
    task: TaskSettings = field(default_factory=TaskSettings)
    optim: Optim = field(
        default_factory=lambda: Optim(betas=(0.9, 0.999), schedule="linear", warmup=0.1)
    )
    run: FinetuneRun = field(default_factory=FinetuneRun)
    search: Search = field(default_factory=Search)

    def __post_init__(self) -> None:
        if self.run.folds and self.run.seeds:
            raise InputError("run.folds and run.seeds are both set; take one")
        if self.search.asked and (self.run.folds or self.run.seeds):
            raise InputError(
                "a search is one thing and run.folds or run.seeds another; search first, and give "
                "what was best then"
            )
