"""The settings of fine-tuning, with their defaults."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from ownbert import limits
from ownbert.checks import between, each, one_of, up_to
from ownbert.config.encoder import LAYER_GATES, WIDEST_BLUR
from ownbert.config.head_spec import POOLINGS as POOLING_NAMES
from ownbert.exceptions import InputError
from ownbert.files.encodings import ENCODING_HELP, UTF8, check_encoding
from ownbert.settings import CheckedSettings, apply_values, section, setting
from ownbert.tasks.kinds import KINDS
from ownbert.train.training_settings import DATA, LEARNING, MODEL, RUN, Optim, Run, refuse_shard

ANSWERS = "Predictions"  # title of a panel of --help, in addition to those of all trainings

# Tasks with one prediction per text or pair, which linear models and blends support too.
TEXT_TASKS = tuple(name for name, kind in KINDS.items() if kind.linear)
POOLINGS = ("pooler", *POOLING_NAMES)
LONG = ("auto", "cut", "windows", "segments")
_MOST_ROWS = 1 << 23  # maximum rows of an n-gram embedding table: 4 GB


def _check_threshold(name: str, value: Any) -> None:
    if isinstance(value, int | float):
        between(-limits.WEIGHT, limits.WEIGHT, "[]")(name, value)


@dataclass(frozen=True, kw_only=True)
class TaskSettings(CheckedSettings, name="task"):
    """Settings of the tasks; a task rejects settings that it does not use."""

    name: str = "classify"
    pooling: str | None = setting(
        None,
        "Pooling of token vectors into one vector: pooler (BERT's), first, mean, max, attention, "
        "gru, lstm.",
        MODEL,
        check=one_of(*POOLINGS),
        shown="as configured for sentence-transformers, else the family's",
        commands={
            "choose": {"shown": "the family's"},
            "embed": {
                "help": "Pooling of token vectors into a text vector: mean, max or first.",
                "shown": "as configured for sentence-transformers, else mean",
            },
        },
    )
    feature_size: int | None = setting(
        None,
        "With --feature-columns: size of a word's feature vector.",
        MODEL,
        check=up_to(limits.WIDTH),
        shown="as in pretraining with these columns, else 10",
    )
    ngrams: int | None = setting(
        None,
        "Also embed token bigrams and trigrams, hashed into a table with this many rows; try "
        "262144.",
        MODEL,
        check=up_to(_MOST_ROWS),
        shown="none",
    )
    long: str = setting(
        "auto",
        "Documents longer than --max-length: cut the end; windows (predictions averaged); "
        "segments (attention over their vectors); auto: cut if 95% of the training rows fit, "
        "else windows.",
        DATA,
        check=one_of(*LONG),
    )
    stride: int = setting(
        32,
        "Overlap of neighbouring windows, in tokens.",
        DATA,
        check=between(0, limits.LENGTH, "[]"),
        commands={"tag": {"help": "Overlap of neighbouring windows of a long sentence, in words."}},
    )
    window: int | None = setting(
        None,
        "Tokens of a window, including special ones.",
        check=between(8, limits.LENGTH, "[]"),
        shown="--max-length; with --long auto at most 128",
    )
    max_windows: int = setting(
        64,
        "Maximum number of windows per document; the rest is truncated.",
        check=up_to(limits.WINDOWS),
        shown="64; with --long auto enough for 32,768 tokens",
    )
    train_windows: int | None = setting(
        None,
        "Windows of a document to train on per epoch, sampled anew in each.",
        check=up_to(limits.WINDOWS),
        shown="all; with --long auto enough for 512 tokens",
    )
    window_mean: str | None = setting(
        None,
        "What is averaged over the windows of a document: logits or probabilities.",
        check=one_of("logits", "probabilities"),
        shown="logits; probabilities in folders made before there was a choice",
    )
    class_weights: str | None = setting(
        None,
        '"balanced" (rare labels count more), "equal", label=weight,label=weight, or JSON.',
        LEARNING,
        shown="equal",
        commands={"classify": {"shown": "balanced for few rows with imbalanced labels"}},
    )
    label_smoothing: float = setting(
        0.0,
        "Share of the target probability spread over all labels (label smoothing).",
        LEARNING,
        check=between(0, 1, "[)"),
    )
    separator: str | None = setting(
        None,
        "Separator between the labels of a row (not needed for lists).",
        DATA,
        shown="the first of | ; , found in the training rows",
        option="--label-separator",
    )
    skip_unlabelled: bool = setting(
        False,
        "Leave out rows without a label or number, and report how many there are; without it such "
        "rows are an error.",
        DATA,
    )
    label_names: str | None = setting(
        None,
        "Names of the labels, separated by commas, if rows contain vectors of 0 and 1.",
        DATA,
        shown="label_0, label_1, ...",
    )
    positive: str | None = setting(
        None,
        "The label that f1, roc_auc and average_precision are about.",
        ANSWERS,
        shown="for two labels: yes, true, 1 or positive, else the rarer one",
    )
    threshold: float | str | Mapping[str, Any] | None = setting(
        None,
        "Probability from which a label is predicted: yes=0.9; or chosen on the dev rows: "
        "yes=precision:0.9, yes=recall:0.9, or yes=cost:10 (a missed yes costs 10 false alarms).",
        ANSWERS,
        shown="the most probable label",
        commands={
            "multilabel": {
                "help": "Probability from which labels are predicted: 0.3, a=0.3,b=0.9, or "
                "a=recall:0.9.",
                "shown": "tuned on the dev rows, or 0.5",
            },
            "answer": {
                "help": 'Margin, in logits, by which "no answer" must exceed the best answer to be '
                "predicted.",
                "shown": "tuned on the dev rows, or 0",
            },
        },
        check=_check_threshold,
    )
    loss: str = setting(
        "mse", "mse, or huber (outliers count less).", LEARNING, check=one_of("mse", "huber")
    )
    crf: bool = setting(
        False, "Learn tag transitions, and decode the tags of a sentence jointly (CRF).", MODEL
    )
    tag_all: bool = setting(
        False, "Train on all pieces of a word instead of only the first.", LEARNING
    )
    answer_length: int = setting(
        30, "Maximum answer length, in tokens.", ANSWERS, check=up_to(limits.LENGTH)
    )
    temperature: float = setting(
        0.05,
        "Temperature of the contrastive loss; a lower one gives more weight to the hardest "
        "negatives.",
        LEARNING,
        check=up_to(limits.WEIGHT),
    )
    # Liang et al. 2021.
    rdrop: float = setting(
        0.0,
        "Weight of the difference between two passes with different dropout masks (R-Drop); try 1.",
        LEARNING,
        check=between(0, limits.WEIGHT, "[]"),
    )
    mask_rate: float = setting(
        0.0,
        "Share of tokens masked during training, different ones in each epoch; 0.3 if the model "
        "learns the probabilities of another model.",
        LEARNING,
        check=between(0, 1, "[)"),
    )
    # Augmentation of training images, see ``ownbert.vision.augmentation``.
    flip: bool = setting(
        False, "Mirror half of the training images, if left and right do not matter.", LEARNING
    )
    shift: float = setting(
        0.1,
        "Shift training images by up to this share of their height and width.",
        LEARNING,
        check=between(0, 1, "[)"),
    )
    crop: float = setting(
        1.0,
        "Crop each training image to at least this share of its area.",
        LEARNING,
        check=between(0, 1, "(]"),
        shown="1: all of it",
    )

    @classmethod
    def of(cls, name: str, values: Mapping[str, Any]) -> "TaskSettings":
        """Read settings from a config.json; unknown keys, written by other versions, are
        ignored."""
        names = {f.name for f in fields(cls)} - {"name"}
        settings = {k: v for k, v in values.items() if k in names}
        return apply_values(cls(name=name), {"long": "cut", **settings}, "settings.")

    def changed(self) -> dict[str, Any]:
        """The settings that differ from the defaults, without ``long`` "cut": a finished model
        truncates long documents unless its folder says otherwise."""
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "name"}
        if self.long == "cut":
            del values["long"]
        return {k: v for k, v in values.items() if v != getattr(TaskSettings, k)}


@dataclass(frozen=True, kw_only=True)
class FinetuneData(CheckedSettings, name="data"):
    """The labelled files. Columns that are not given are found by their usual names."""

    train: str = setting(
        "",
        "Labelled training rows.",
        DATA,
        path=True,
        commands={
            "image": {
                "help": "Training images: a folder of class folders, an IDX file "
                "(train-images-idx3-ubyte.gz, with the labels next to it), or .npz with "
                "images and labels."
            },
            "embed": {"help": "Training pairs, or single texts."},
        },
    )
    dev: str | None = setting(
        None,
        "Labelled rows for early stopping; without them, all epochs are run.",
        DATA,
        path=True,
        commands={
            "image": {
                "help": "Images for early stopping, in the same format; without them, all epochs "
                "are run."
            },
            "embed": {
                "help": "Pairs or single texts for early stopping; without them, all epochs are "
                "run, unless the training file has single texts, of which some are held out."
            },
        },
    )
    text_column: str | None = setting(None, panel=DATA)
    second_column: str | None = setting(None, panel=DATA)
    label_column: str | None = setting(None, panel=DATA)
    feature_columns: str | None = setting(None, panel=DATA)
    group: str | None = setting(
        None,
        "Column with groups of rows, such as customers, which stay together in --folds and --dev.",
        DATA,
    )
    time_column: str | None = setting(
        None, "Column with times: the latest rows become the dev rows.", DATA
    )
    encoding: str | None = setting(None, ENCODING_HELP, DATA, check=check_encoding, shown=UTF8)
    labels_per_class: int | None = setting(
        None,
        "Number of training texts per label, sampled with --seed.",
        DATA,
        check=up_to(limits.COUNT),
        shown="all",
        commands={"image": {"help": "Number of training images per label, sampled with --seed."}},
    )
    max_length: int | None = setting(
        None,
        "Tokens per sequence, including special ones.",
        DATA,
        check=up_to(limits.LENGTH),
        shown="the model's limit",
    )
    batch_size: int | None = setting(
        None,
        "Rows per batch.",
        DATA,
        check=up_to(limits.BATCH_ROWS),
        shown="16; 32 for 3,000 rows or more",
        commands={
            "image": {
                "help": "Images per batch.",
                "shown": "64 for a new model, else 16, or 32 with 3,000 images or more",
            },
            "embed": {"shown": "16; 32 for 3,000 rows or more; 64 for single texts"},
        },
    )


@dataclass(frozen=True, kw_only=True)
class Vit(CheckedSettings, name="model.vit"):
    """Sizes of a new ViT; ``image_size`` and ``patch`` are (height, width) in pixels, or one
    number."""

    image_size: tuple[int, ...] | None = setting(
        None,
        "For a new model: size to resize images to, in pixels, or height,width.",
        MODEL,
        shown="the size of the images, up to 96",
        check=each(up_to(limits.PIXELS)),
    )
    patch: tuple[int, ...] | None = setting(
        None,
        "For a new model: patch size in pixels, or height,width.",
        MODEL,
        shown="8 patches per side",
        check=each(up_to(limits.PIXELS)),
    )
    hidden_size: int = setting(
        128, "For a new model: hidden size.", MODEL, check=up_to(limits.WIDTH)
    )
    layers: int = setting(
        6, "For a new model: number of layers.", MODEL, check=up_to(limits.LAYERS)
    )
    heads: int = setting(
        4, "For a new model: attention heads per layer.", MODEL, check=up_to(limits.WIDTH)
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("image_size", "patch"):
            size = getattr(self, name)
            if size is None:
                continue
            if len(size) not in (1, 2) or min(size) < 1:
                shown = ", ".join(map(str, size))
                raise InputError(
                    "model.vit.{name} is {shown}; it must be one whole number from 1 on, or "
                    "two: height,width",
                    name,
                    shown,
                )
            object.__setattr__(self, name, (size[0], size[-1]))


@dataclass(frozen=True, kw_only=True)
class FinetuneModel(CheckedSettings, name="model"):
    """The model to start from; ``vit`` has the sizes of a new model for images, if there is no
    folder."""

    folder: str = setting(
        "",
        "Folder of the pretrained model, or hf:org/name on the hub.",
        MODEL,
        option="--model",
        path=True,
        commands={"image": {"help": "Folder of a ViT to start from.", "shown": "a new one"}},
    )
    from_scratch: bool = setting(
        False, "Use only the model's size and vocabulary, not its weights (for comparison).", MODEL
    )
    dropout: float | None = setting(
        None,
        "Dropout rate of all layers.",
        MODEL,
        check=between(0, 1, "[)"),
        shown="0.1",
        commands={"image": {"shown": "0"}},
    )
    layer_gate: str | None = setting(
        None,
        "Weight layers by squeeze and excitation (SesameBERT): last (the last layer times its "
        "gate) or sum (of all layers, each times its gate).",
        MODEL,
        check=one_of(*LAYER_GATES),
        shown="none",
    )
    attention_blur: float | None = setting(
        None,
        "Blur attention outputs over neighbouring tokens with a Gaussian of this width "
        "(SesameBERT: 0.3).",
        MODEL,
        check=up_to(WIDEST_BLUR),
        shown="none",
    )
    freeze: int = setting(
        0,
        "Freeze the embeddings and this many of the lowest layers.",
        LEARNING,
        check=between(0, limits.LAYERS, "[]"),
    )
    head_init: str | None = setting(
        None,
        "Initial weights of a new head: linear (those of a linear model on the frozen network) "
        "or random.",
        LEARNING,
        check=one_of("linear", "random"),
        shown="linear with fewer than 3,000 rows",
    )
    pretrain_steps: int | None = setting(
        None,
        "First pretrain on the texts of the task (masked words) for this many steps.",
        LEARNING,
        check=between(0, limits.STEPS, "[]"),
        shown="none",
    )
    vit: Vit = section(Vit())

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.from_scratch and self.pretrain_steps:
            raise InputError(
                "model.from_scratch and model.pretrain_steps are both set; the first drops the "
                "weights that the second continues from"
            )

    @property
    def new(self) -> bool:
        """Whether all weights are newly initialised."""
        return self.from_scratch or not self.folder


@dataclass(frozen=True, kw_only=True)
class FinetuneRun(Run):
    """Training length in epochs, and whether to train one model or several."""

    epochs: int | None = setting(
        None,
        "Number of passes over the data.",
        RUN,
        check=up_to(limits.EPOCHS),
        shown="12, or enough for 200 steps, up to 50; 4 to 12 for 3,000 rows or more",
        resumable=True,
        commands={
            "image": {
                "shown": "60 for a new model, or 20 with 3,000 images or more; else 12, or 4"
            },
            "embed": {"shown": "as for other tasks; 2 to 12 for single texts"},
        },
    )
    patience: int = setting(
        4,
        "Stop after this many evaluations without improvement of --measure on the dev rows.",
        RUN,
        check=up_to(limits.EPOCHS),
        resumable=True,
    )
    measure: str | None = setting(
        None,
        "Metric monitored on the dev rows: one of the task's metrics, or loss.",
        RUN,
        shown="the task's first",
    )
    folds: int | None = setting(
        None,
        "Cross-validation: train this many models, each without a different part of the rows, "
        "and average their predictions.",
        RUN,
        check=between(2, limits.MODELS, "[]"),
    )
    seeds: int | None = setting(
        None,
        "Train with this many seeds, starting at --seed: reports mean and spread, and averages "
        "the predictions.",
        RUN,
        check=between(2, limits.MODELS, "[]"),
        resumable=True,
    )
    baseline: bool = setting(
        True,
        "At the end, compare with a linear model on TF-IDF, if there are dev rows.",
        RUN,
        commands={
            "embed": {
                "help": "At the end, compare with TF-IDF, if pairs are made from single texts."
            }
        },
        option="--baseline/--no-baseline",
        resumable=True,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_shard(self, "finetune")


@dataclass(frozen=True, kw_only=True)
class Search(CheckedSettings, name="search"):
    """The search grid; all combinations are tried. Nothing is searched if it is empty."""

    usual: bool = setting(
        False,
        "Try several learning rates, epochs and batch sizes, and keep the best (set "
        "them with search.learning_rate=1e-5,5e-5 and so on).",
        RUN,
        option="--search",
    )
    learning_rate: tuple[float, ...] = setting(
        (), "Peak learning rates to try.", check=each(up_to(limits.RATE))
    )
    epochs: tuple[int, ...] = setting(
        (), "Numbers of epochs to try.", check=each(up_to(limits.EPOCHS))
    )
    batch_size: tuple[int, ...] = setting(
        (), "Batch sizes to try.", check=each(up_to(limits.BATCH_ROWS))
    )

    @property
    def requested(self) -> bool:
        """Whether the grid is not empty."""
        return bool(self.usual or self.learning_rate or self.epochs or self.batch_size)


@dataclass(frozen=True, kw_only=True)
class FinetuneRecipe(CheckedSettings):
    """All settings of ``ownbert finetune``."""

    seed: int = setting(0, "Random seed.", check=between(0, limits.SEED, "[]"))
    data: FinetuneData = section(FinetuneData())
    model: FinetuneModel = section(FinetuneModel())
    task: TaskSettings = section(TaskSettings())
    optim: Optim = section(
        Optim(betas=(0.9, 0.999), schedule="linear", warmup=0.1),
        learning_rate={
            "commands": {"image": {"shown": "0.001 for a new model, else depends on the size"}}
        },
    )
    run: FinetuneRun = section(FinetuneRun())
    search: Search = section(Search())

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.run.folds and self.data.time_column:
            raise InputError(
                "run.folds and data.time_column are both set, and each chooses the rows to "
                "evaluate on; omit one of them"
            )
        if self.run.folds and self.run.seeds:
            raise InputError("run.folds and run.seeds are both set; use one of them")
        if self.search.requested and (self.run.folds or self.run.seeds):
            raise InputError(
                "a search cannot be combined with run.folds or run.seeds; search first, then use "
                "the best settings"
            )
