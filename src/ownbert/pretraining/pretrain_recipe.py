"""The settings of pretraining, with their defaults. ``ownbert.settings`` fills them in."""

from dataclasses import dataclass, fields, replace
from typing import TypeVar

from ownbert import limits
from ownbert.batches import MASKINGS
from ownbert.checks import between, each, one_of, positive, up_to
from ownbert.config.encoder import SIZES
from ownbert.exceptions import InputError, warn_of_input
from ownbert.objectives import PRETRAINING, objectives_of
from ownbert.objectives.objective import PretrainingObjective
from ownbert.settings import CheckedSettings, section, setting
from ownbert.train.training_settings import DATA, MODEL, Optim, Run

T = TypeVar("T")

# Minimum vocabulary size for sampled softmax: a smaller vocabulary is hardly larger than the
# sample.
SAMPLED_FROM = 4096
# Default time limit.
DEFAULT_MINUTES = 5.0

# Default sequence lengths: for short documents, and for documents whose median exceeds
# ``LONG_DOCUMENTS`` tokens in the last part of the run. Positions not seen in pretraining are
# random, so a model cannot use longer texts; and short sequences are cheaper.
SHORT, LONG = 128, 512
LONG_DOCUMENTS = 200
LONG_SHARE = 0.2


@dataclass(frozen=True, kw_only=True)
class PretrainData(CheckedSettings, name="data"):
    """The corpus and the batches."""

    # Not part of the recipe's identity: a resumed run compares the content of the corpus.
    tokens: str = setting(
        "", "Token store written by ownbert prepare.", DATA, path=True, resumable=True
    )
    max_length: int | None = setting(
        None,
        "Tokens per sequence, including special ones.",
        DATA,
        check=between(8, limits.LENGTH, "[]"),
        shown=f"{SHORT}; if the median document has more than {LONG_DOCUMENTS} tokens, {LONG} in "
        f"the last {LONG_SHARE:.0%} of the run",
    )
    # Total of all processes, so that a step does not depend on their number.
    batch_tokens: int = setting(
        2048, "Tokens per batch, summed over all processes.", DATA, check=up_to(limits.BATCH_TOKENS)
    )
    held_out: float = setting(
        0.02, "Share of the documents held out for evaluation.", DATA, check=between(0, 1, "[)")
    )
    canaries: int = setting(
        0,
        "Number of random sequences to plant in the training text (1, 2, 4, 8 and 16 times), for "
        "ownbert audit.",
        DATA,
        check=between(0, 1000, "[]"),
    )


@dataclass(frozen=True, kw_only=True)
class PretrainModel(CheckedSettings, name="model"):
    """The size of the network and its initial weights."""

    size: str = setting(
        "tiny", "tiny, mini, small, medium, base or large.", MODEL, check=one_of(*SIZES)
    )
    dropout: float = setting(0.0, "Dropout rate of all layers.", MODEL, check=between(0, 1, "[)"))
    feature_size: int = setting(
        10,
        "For a token store with word features: size of a word's feature vector. A masked word "
        "keeps its features, so they help to predict it.",
        MODEL,
        check=up_to(limits.WIDTH),
    )
    init_embeddings: str = setting(
        "cooccurrence",
        "Initial word embeddings: cooccurrence (from co-occurrences in the corpus) or random.",
        MODEL,
        check=one_of("cooccurrence", "random"),
    )
    init_positions: str = setting(
        "neighbours",
        "Initial weights of the first layer: neighbours (it attends to neighbouring tokens) or "
        "random.",
        MODEL,
        check=one_of("neighbours", "random"),
    )
    init_from: str | None = setting(
        None,
        "Start from the weights of this model folder, or hf:org/name on the hub, matching its "
        "tokens to this vocabulary.",
        MODEL,
        path=True,
    )
    init_counts: str | None = setting(
        None,
        "Token counts in the corpus of that model (a token and a count per line), to match "
        "anonymised ids by rank.",
        MODEL,
        path=True,
    )
    generator: float = setting(
        0.25,
        "Hidden size of ELECTRA's generator as a share of the model's.",
        check=between(0, 1, "(]"),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.init_counts and not self.init_from:
            raise InputError("model.init_counts needs model.init_from")
        if self.init_from and self.size != PretrainModel.size:
            raise InputError(
                "model.size {size} does not apply to model.init_from, which has its own; omit "
                "one of them",
                self.size,
            )


def _with_weights(task: type[T]) -> type[T]:
    """Add a setting for the weight of each objective."""
    for name, objective in PRETRAINING.items():
        task.__annotations__[f"{name}_weight"] = float
        weight = setting(
            objective.weight,
            f"Weight of the loss of {name}.",
            check=between(0, limits.WEIGHT, "[]"),
        )
        setattr(task, f"{name}_weight", weight)
    return task


@dataclass(frozen=True, kw_only=True)
@_with_weights
class PretrainTask(CheckedSettings, name="task"):
    """The objectives that are trained jointly."""

    # With rtd, the generator is trained on mlm. Classifiers with few labels are as good or better
    # with mlm,bow than with mlm alone, and better than with mlm,nsp (docs/lab/pretraining.md; cf.
    # Liu et al. 2019, 4.2).
    objectives: tuple[str, ...] = setting(
        ("mlm", "bow"),
        "Training objectives: "
        + ", ".join(f"{name} ({objective.explained})" for name, objective in PRETRAINING.items())
        + "; BERT: mlm,nsp.",
        DATA,
        check=each(one_of(*PRETRAINING)),
    )
    masking: str = setting(
        "token", "Unit of masking: token, word, ngram or span.", DATA, check=one_of(*MASKINGS)
    )
    mask_rate: float | None = setting(
        None,
        "Share of tokens to predict (BERT: 0.15).",
        DATA,
        check=between(0, 1),
        shown=f"{PretrainingObjective.rate}; for span_corruption "
        f"{PRETRAINING['span_corruption'].rate}",
    )
    span_length: float = setting(
        3.0,
        "Mean length of the spans that span_corruption removes, in tokens.",
        check=between(1, limits.NGRAM, "[]"),
    )
    softmax: str = setting(
        "auto",
        "Softmax over all words (full), or over those of the batch and some sampled ones, which is "
        "faster (sampled): auto, full or sampled.",
        check=one_of("auto", "full", "sampled"),
        shown=f"sampled on a CPU from {SAMPLED_FROM:,} words on, else full",
    )
    ngram: int = setting(
        3, "Maximum length of a masked n-gram, in tokens.", check=up_to(limits.NGRAM)
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in self.objectives:
            positive(f"task.{name}_weight", getattr(self, f"{name}_weight"))
        names, chosen = set(self.objectives), objectives_of(self.objectives)
        if len(names) < len(self.objectives):
            raise InputError(
                "task.objectives names one twice: {objectives}", ", ".join(self.objectives)
            )
        for objective in chosen:
            if objective.alone and len(names) > 1:
                raise InputError(
                    "task.objectives has {name}, which trains another architecture ({network}) "
                    "and cannot be combined with others",
                    objective.name,
                    objective.network,
                )
        if not any(objective.predicts for objective in chosen):
            *first, last = (name for name, objective in PRETRAINING.items() if objective.predicts)
            raise InputError(
                "task.objectives must have {first} or {last}; the others are optional additions",
                ", ".join(first),
                last,
            )
        for objective in chosen:
            objective.require(names)
            if not objective.samples and self.softmax == "sampled":
                raise InputError("task.softmax sampled does not support {name}", objective.name)

    @property
    def rate(self) -> float:
        """The share of predicted tokens."""
        if self.mask_rate is not None:
            return self.mask_rate
        return min(objective.rate for objective in objectives_of(self.objectives))

    @property
    def pairs(self) -> str | None:
        """The objective on pairs of sentences, if any."""
        return next((o.pairs for o in objectives_of(self.objectives) if o.pairs), None)


@dataclass(frozen=True, kw_only=True)
class PhaseRecipe:
    """A part of the run, of size ``share``, with other settings; fields that are None are taken
    from the recipe."""

    share: float = 0.0
    objectives: tuple[str, ...] | None = None
    masking: str | None = None
    mask_rate: float | None = None
    span_length: float | None = None
    nsp_weight: float | None = None
    sop_weight: float | None = None
    max_length: int | None = None
    batch_tokens: int | None = None


@dataclass(frozen=True, kw_only=True)
class PretrainRecipe(CheckedSettings):
    """All settings of ``ownbert pretrain``. Without ``phases``, which are consecutive, the whole
    run is one phase."""

    seed: int = setting(0, "Random seed.", check=between(0, limits.SEED, "[]"))
    data: PretrainData = section(PretrainData())
    model: PretrainModel = section(PretrainModel())
    task: PretrainTask = section(PretrainTask())
    optim: Optim = section(Optim())
    run: Run = section(Run(), max_minutes={"shown": f"{DEFAULT_MINUTES:g} without --max-steps"})
    phases: tuple[PhaseRecipe, ...] = ()

    @property
    def objectives(self) -> set[str]:
        return {name for task, _ in self.parts for name in task.objectives}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.phases:
            for number, phase in enumerate(self.phases, 1):
                positive(f"phases[{number}].share", phase.share)
            total = sum(phase.share for phase in self.phases)
            if abs(total - 1) > 1e-6:
                raise InputError(
                    "the shares of the phases add up to {total:g}; they must add up to 1", total
                )
        used = set[str]().union(*(objective.uses for objective in objectives_of(self.objectives)))
        for name in ("masking", "mask_rate", "ngram", "span_length"):
            if name not in used and getattr(self.task, name) != getattr(PretrainTask, name):
                # Not refused, because runs with such recipes can be resumed.
                names = ", ".join(sorted(self.objectives))
                warn_of_input(
                    "task.{name} does not apply to {names} and has no effect", name, names
                )
        for objective in objectives_of(self.objectives):
            if objective.network is None:
                continue
            if self.model.init_from:
                raise InputError(
                    "model.init_from starts from a BERT, but {name} trains another architecture "
                    "({network})",
                    objective.name,
                    objective.network,
                )
            if not all(objective.name in task.objectives for task, _ in self.parts):
                raise InputError(
                    "a phase with {name} needs it in all phases: it trains another architecture",
                    objective.name,
                )

    @property
    def parts(self) -> list[tuple[PretrainTask, PretrainData]]:
        """Task and data of each phase."""
        if not self.phases:
            return [(self.task, self.data)]
        return [
            (_overridden(self.task, phase), _overridden(self.data, phase)) for phase in self.phases
        ]

    @property
    def longest(self) -> int:
        """Maximum sequence length of any phase, in tokens."""
        return max(data.max_length or SHORT for _, data in self.parts)

    def with_lengths(self, median: float, limit: int | None = None) -> "PretrainRecipe":
        """Fill in sequence lengths that suit documents of ``median`` tokens, if the recipe has
        none; ``limit``: maximum number of positions of the model.

        Long documents use short sequences first and long ones in a last phase (Devlin et al. 2019,
        A.2); a run with too few steps uses long ones only.
        """
        short, long = (length if limit is None else min(length, limit) for length in (SHORT, LONG))
        if self.phases or median <= LONG_DOCUMENTS or long == short:
            return replace(self, data=replace(self.data, max_length=short))
        steps = self.run.max_steps
        if steps is not None and steps * LONG_SHARE < 1:
            return replace(self, data=replace(self.data, max_length=long))
        last = PhaseRecipe(share=LONG_SHARE, max_length=long)
        return replace(
            self,
            data=replace(self.data, max_length=short),
            phases=(PhaseRecipe(share=1 - LONG_SHARE), last),
        )


def _overridden(section: T, phase: PhaseRecipe) -> T:
    """``section`` with the values that the phase overrides."""
    names = {f.name for f in fields(section)} & {f.name for f in fields(phase)}  # pyright: ignore
    changes = {name: getattr(phase, name) for name in names}
    return replace(section, **{k: v for k, v in changes.items() if v is not None})  # pyright: ignore
