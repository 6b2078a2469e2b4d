"""What ``ownbert translate train`` can be told, with its defaults."""

from dataclasses import dataclass, field

from ownbert.errors import InputError
from ownbert.train.recipe import Optim, Run, choice, positive

KINDS = ("bpe", "wordpiece", "blank")


@dataclass(frozen=True, kw_only=True)
class PairFiles:
    """source, target: two files whose lines belong together, or one table (csv, tsv, jsonl,
    parquet) as ``pairs`` with the columns source_column and target_column. dev_*: the same for what
    the model is examined by; without it a share of the training pairs is held out.

    max_length: in tokens; longer pairs are left out. batch_tokens: of source and target together.
    """

    source: str | None = None
    target: str | None = None
    pairs: str | None = None
    dev_source: str | None = None
    dev_target: str | None = None
    dev_pairs: str | None = None
    source_column: str | None = None
    target_column: str | None = None
    held_out: float = 0.02
    max_length: int = 256
    batch_tokens: int = 4096

    def __post_init__(self) -> None:
        positive("data.max_length", self.max_length)
        positive("data.batch_tokens", self.batch_tokens)
        if not 0 < self.held_out < 1:
            raise InputError(f"data.held_out is {self.held_out}; it must be in (0, 1)")


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """kind: bpe (byte-level), wordpiece, or blank (text that is already tokens). size: of each.
    shared: one for both languages, whose embeddings are then one matrix with the generator's.
    lowercase: forget capitals (bpe and wordpiece)."""

    kind: str = "bpe"
    size: int = 8000
    shared: bool = True
    min_count: int | None = None
    lowercase: bool = False

    def __post_init__(self) -> None:
        choice("vocabulary.kind", self.kind, KINDS)
        positive("vocabulary.size", self.size)
        positive("vocabulary.min_count", self.min_count)


@dataclass(frozen=True, kw_only=True)
class Network:
    """In the paper's words: N layers of d_model, h heads, d_ff inside. norm_first: pre-norm."""

    N: int = 3
    d_model: int = 256
    d_ff: int = 1024
    h: int = 4
    dropout: float = 0.1
    norm_first: bool = False

    def __post_init__(self) -> None:
        for name in ("N", "d_model", "d_ff", "h"):
            positive(f"model.{name}", getattr(self, name))
        if self.d_model % self.h:
            raise InputError(
                f"model.d_model is {self.d_model}, model.h {self.h}; the heads must share the "
                "width evenly"
            )
        if not 0 <= self.dropout < 1:
            raise InputError(f"model.dropout is {self.dropout}; it must be in [0, 1)")


@dataclass(frozen=True, kw_only=True)
class Learning:
    """label_smoothing: the share of each target that is spread over the vocabulary. average: at the
    end, the mean of the weights of the last so many saved states (Vaswani et al. 2017, section
    6.1)."""

    label_smoothing: float = 0.1
    average: int = 5

    def __post_init__(self) -> None:
        positive("task.average", self.average)
        if not 0 <= self.label_smoothing < 1:
            raise InputError(
                f"task.label_smoothing is {self.label_smoothing}; it must be in [0, 1)"
            )


@dataclass(frozen=True, kw_only=True)
class TranslateRun(Run):
    """epochs: times through the pairs (20 where neither max_steps nor max_minutes is given); of
    several limits the first that is reached ends the run."""

    epochs: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        positive("run.epochs", self.epochs)


@dataclass(frozen=True, kw_only=True)
class TranslateRecipe:
    """All settings. The optimiser is the paper's (section 5.3): Adam with its schedule."""

    seed: int = 0
    data: PairFiles = field(default_factory=PairFiles)
    vocabulary: Vocabulary = field(default_factory=Vocabulary)
    model: Network = field(default_factory=Network)
    task: Learning = field(default_factory=Learning)
    optim: Optim = field(
        default_factory=lambda: Optim(
            name="adam", betas=(0.9, 0.98), eps=1e-9, weight_decay=0.0, schedule="noam"
        )
    )
    run: TranslateRun = field(default_factory=TranslateRun)
