"""The settings of ``ownbert translate train``, with their defaults."""

from dataclasses import dataclass

from ownbert import limits
from ownbert.checks import between, one_of, up_to
from ownbert.exceptions import InputError
from ownbert.settings import CheckedSettings, section, setting
from ownbert.train.training_settings import DATA, LEARNING, RUN, Optim, Run, refuse_shard

# Panels of --help, in addition to those of all trainings.
VOCABULARY, NETWORK = "Vocabulary", "Network"

KINDS = ("bpe", "wordpiece", "blank")
# Length penalty of beam search, which ranks translations; greedy search has one translation.
LENGTH_PENALTY = 0.6
# Default number of epochs without any limit.
DEFAULT_EPOCHS = 20


@dataclass(frozen=True, kw_only=True)
class PairFiles(CheckedSettings, name="data"):
    """Two files with parallel lines, or one table with two columns.

    Dev files may be given in the same way; without them a share of the training pairs is held out.
    """

    source: str | None = setting(
        None, "Source texts, one per line.", DATA, path=True, resumable=True
    )
    target: str | None = setting(
        None, "Translations of the source texts, one per line.", DATA, path=True, resumable=True
    )
    pairs: str | None = setting(
        None,
        "Alternatively, both in one table (csv, tsv, jsonl, parquet).",
        DATA,
        path=True,
        resumable=True,
    )
    dev_source: str | None = setting(
        None, "Source texts for evaluation.", DATA, path=True, resumable=True
    )
    dev_target: str | None = setting(
        None, "Translations of the source texts.", DATA, path=True, resumable=True
    )
    dev_pairs: str | None = setting(
        None, "Alternatively, both in one table.", DATA, path=True, resumable=True
    )
    source_column: str | None = setting(
        None, "Column with the source texts, in tables.", DATA, shown="the first of two"
    )
    target_column: str | None = setting(
        None, "Column with the target texts, in tables.", DATA, shown="the second of two"
    )
    held_out: float = setting(
        0.02,
        "Share of the training pairs held out for evaluation if no dev pairs are given.",
        check=between(0, 1),
    )
    max_length: int = setting(
        256,
        "Tokens per sequence, including special ones; longer pairs are skipped.",
        DATA,
        check=up_to(limits.LENGTH),
    )
    batch_tokens: int = setting(
        4096,
        "Tokens per batch, source and target together.",
        DATA,
        check=up_to(limits.BATCH_TOKENS),
    )


@dataclass(frozen=True, kw_only=True)
class Vocabulary(CheckedSettings, name="vocabulary"):
    """One vocabulary for both languages, or one for each."""

    kind: str = setting(
        "bpe",
        "bpe (byte-level), wordpiece, or blank for text that is already tokens.",
        VOCABULARY,
        check=one_of(*KINDS),
    )
    size: int = setting(
        8000, "Vocabulary size.", VOCABULARY, option="--vocab-size", check=up_to(limits.VOCABULARY)
    )
    # A shared vocabulary has one embedding matrix, which the generator uses, too.
    shared: bool = setting(
        True,
        "Share one vocabulary and embedding matrix between both sides, or use one for each.",
        VOCABULARY,
        option="--shared/--separate",
    )
    min_count: int | None = setting(
        None, "Leave out tokens that occur less often.", check=up_to(limits.FREQUENCY)
    )
    lowercase: bool = setting(False, "Convert to lower case (bpe and wordpiece).", VOCABULARY)


@dataclass(frozen=True, kw_only=True)
class Network(CheckedSettings, name="model"):
    """The network, with the paper's names: N layers of d_model, h heads, d_ff feed-forward."""

    N: int = setting(
        3,
        "Number of layers in the encoder and in the decoder.",
        NETWORK,
        option="--layers",
        check=up_to(limits.LAYERS),
    )
    d_model: int = setting(256, "Hidden size.", NETWORK, check=up_to(limits.WIDTH))
    d_ff: int = setting(
        1024, "Size of the feed-forward layers.", NETWORK, check=up_to(4 * limits.WIDTH)
    )
    h: int = setting(
        4, "Attention heads per layer.", NETWORK, option="--heads", check=up_to(limits.WIDTH)
    )
    dropout: float = setting(0.1, "Dropout rate of sublayers.", NETWORK, check=between(0, 1, "[)"))
    norm_first: bool = setting(
        False,
        "Normalise before each sublayer (pre-norm); Transformers cannot load such a model.",
        NETWORK,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.d_model % self.h:
            raise InputError(
                "model.d_model is {d_model}, model.h {value}; d_model must be a multiple of h",
                self.d_model,
                self.h,
            )


@dataclass(frozen=True, kw_only=True)
class Learning(CheckedSettings, name="task"):
    """The loss, and the weights to keep."""

    label_smoothing: float = setting(
        0.1,
        "Share of the target probability spread over the vocabulary (label smoothing).",
        LEARNING,
        check=between(0, 1, "[)"),
    )
    # Vaswani et al. 2017, section 6.1.
    average: int = setting(
        5,
        "At the end, average the weights of this many of the last saved states.",
        LEARNING,
        check=up_to(limits.STATES),
    )


@dataclass(frozen=True, kw_only=True)
class TranslateRun(Run):
    """Limits of the run; the first one that is reached ends it."""

    epochs: int | None = setting(
        None,
        "Number of passes over the pairs.",
        RUN,
        check=up_to(limits.EPOCHS),
        shown=str(DEFAULT_EPOCHS),
        resumable=True,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_shard(self, "translate")


@dataclass(frozen=True, kw_only=True)
class TranslateRecipe(CheckedSettings):
    """All settings. The optimiser is the paper's (section 5.3): Adam with its schedule."""

    seed: int = setting(0, "Random seed.", check=between(0, limits.SEED, "[]"))
    data: PairFiles = section(PairFiles())
    vocabulary: Vocabulary = section(Vocabulary())
    model: Network = section(Network())
    task: Learning = section(Learning())
    optim: Optim = section(
        Optim(name="adam", betas=(0.9, 0.98), eps=1e-9, weight_decay=0.0, schedule="noam"),
        learning_rate={"shown": "from --d-model and the warm-up"},
    )
    run: TranslateRun = section(TranslateRun(), save_every={"shown": "once per epoch"})
