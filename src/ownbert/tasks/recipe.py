"""What fine-tuning can be told, with its defaults."""

from dataclasses import dataclass, field

from ownbert.train.recipe import Optim, Run, positive


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
            positive(f"data.{name}", getattr(self, name))


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
        positive("run.epochs", self.epochs)
        positive("run.patience", self.patience)


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
