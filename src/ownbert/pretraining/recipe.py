"""The settings of pretraining, with their defaults. ``ownbert.settings`` fills them in."""

from dataclasses import dataclass, field, fields, replace
from typing import TypeVar

from ownbert.config import SIZES
from ownbert.data.masking import MASKINGS
from ownbert.errors import InputError
from ownbert.train.recipe import Optim, Run, choice, positive

T = TypeVar("T")

# What can be learnt, in the order of the log.
OBJECTIVES = ("mlm", "clm", "rtd", "nsp", "sop")


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
