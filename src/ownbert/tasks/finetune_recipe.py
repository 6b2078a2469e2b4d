"""The settings of fine-tuning, with their defaults."""

from collections.abc import Mapping, Set
from dataclasses import dataclass, fields
from typing import Any

from ownbert import limits
from ownbert.checks import between, choice, each, up_to
from ownbert.config import LAYER_GATES, WIDEST_BLUR
from ownbert.config import POOLINGS as POOLING_NAMES
from ownbert.encodings import ENCODING_HELP, UTF8, check_encoding
from ownbert.errors import InputError
from ownbert.settings import apply_values, section, setting, validate
from ownbert.train.training_settings import DATA, LEARNING, MODEL, RUN, Optim, Run, refuse_shard

# Title of a panel of --help, in addition to those of all trainings.
ANSWERS = "Answers"

# Tasks with one prediction per text or pair, which linear models and blends support too.
TEXT_TASKS = ("classify", "multilabel", "regress")
POOLINGS = ("pooler", *POOLING_NAMES)
LONG = ("auto", "cut", "windows", "segments")
# Maximum rows of an n-gram embedding table: 4 GB.
_MOST_ROWS = 1 << 23


@dataclass(frozen=True, kw_only=True)
class TaskSettings:
    """Settings of the tasks; a task rejects settings that it does not use."""

    name: str = "classify"
    pooling: str | None = setting(
        None,
        "How token vectors become one vector: pooler (BERT's), first, mean, max, attention, gru, "
        "lstm.",
        MODEL,
        check=choice(*POOLINGS),
        shown="that of sentence-transformers in the folder, else the family's",
        commands={
            "choose": {"shown": "the family's"},
            "embed": {
                "help": "The vector of a text: mean or max over its tokens, or the first one.",
                "shown": "mean",
            },
        },
    )
    feature_size: int | None = setting(
        None,
        "With --feature-columns: numbers that stand for the features of a word.",
        MODEL,
        check=up_to(limits.WIDTH),
        shown="that of pretraining with these columns, else 10",
    )
    ngrams: int | None = setting(
        None,
        "Also read the pairs and triples of neighbouring tokens, by a table with this many rows; "
        "try 262144.",
        MODEL,
        check=up_to(_MOST_ROWS),
        shown="none",
    )
    long: str = setting(
        "auto",
        "Documents beyond --max-length: cut off the end; windows (answers averaged); segments "
        "(attention over their vectors); auto: cut where 95% of the training rows fit, else "
        "windows.",
        DATA,
        check=choice(*LONG),
    )
    stride: int = setting(
        32,
        "Tokens that neighbouring windows share.",
        DATA,
        check=between(0, limits.LENGTH, "[]"),
        commands={"tag": {"help": "Words that neighbouring windows of a long sentence share."}},
    )
    window: int | None = setting(
        None,
        "Tokens of a window, including special ones.",
        check=between(8, limits.LENGTH, "[]"),
        shown="--max-length; with --long auto at most 128",
    )
    max_windows: int = setting(
        64,
        "Windows per document; what is beyond them is cut off.",
        check=up_to(limits.WINDOWS),
        shown="64; with --long auto as many as make 32,768 tokens",
    )
    train_windows: int | None = setting(
        None,
        "Windows of a document that an epoch learns from, drawn anew in each.",
        check=up_to(limits.WINDOWS),
        shown="all; with --long auto as many as make 512 tokens",
    )
    class_weights: str | None = setting(
        None,
        '"balanced" (rare labels count more), "equal", label=weight,label=weight, or JSON.',
        LEARNING,
        shown="equal",
        commands={
            "classify": {"shown": "balanced where few rows have labels of unequal frequency"}
        },
    )
    label_smoothing: float = setting(
        0.0,
        "Share of the target probability that is spread over all labels.",
        LEARNING,
        check=between(0, 1, "[)"),
    )
    separator: str | None = setting(
        None,
        "What separates the labels of a row (lists need none).",
        DATA,
        shown="the first of | ; , that the training rows have",
        option="--label-separator",
    )
    label_names: str | None = setting(
        None,
        "Names of the labels, with commas between them, where a row has a vector of 0 and 1.",
        DATA,
        shown="label_0, label_1, ...",
    )
    threshold: float | None = setting(
        None,
        "Probability from which a label is assigned.",
        ANSWERS,
        shown="what is best on dev rows, or 0.5",
        commands={
            "answer": {
                "help": 'By how much "no answer" must be ahead of an answer (logits) to be given.',
                "shown": "what is best on dev rows, or 0",
            }
        },
        check=between(-limits.WEIGHT, limits.WEIGHT, "[]"),
    )
    loss: str = setting(
        "mse",
        "mse, or huber (outliers count less).",
        LEARNING,
        check=choice("mse", "huber"),
    )
    crf: bool = setting(
        False,
        "Learn which tags follow each other, and choose those of a sentence together (CRF).",
        MODEL,
    )
    tag_all: bool = setting(
        False, "Learn from all pieces of a word instead of the first alone.", LEARNING
    )
    answer_length: int = setting(
        30, "Longest answer, in tokens.", ANSWERS, check=up_to(limits.LENGTH)
    )
    temperature: float = setting(
        0.05,
        "Temperature of the contrastive loss; a lower one gives more weight to the hardest other "
        "texts.",
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
        "Share of the tokens that are hidden while it learns, others in each epoch, as in "
        "pretraining; 0.3 where it learns what another model says of texts.",
        LEARNING,
        check=between(0, 1, "[)"),
    )
    # Augmentation of training images, see ``data.images.augmentation``.
    flip: bool = setting(
        False,
        "Mirror half of the training images, where left and right mean nothing.",
        LEARNING,
    )
    shift: float = setting(
        0.1,
        "Move training images by up to this share of their sides.",
        LEARNING,
        check=between(0, 1, "[)"),
    )
    crop: float = setting(
        1.0,
        "Cut out a part of each training image, at least this share of its area.",
        LEARNING,
        check=between(0, 1, "(]"),
        shown="1: all of it",
    )

    def __post_init__(self) -> None:
        validate(self, "task")

    @classmethod
    def of(cls, name: str, values: Mapping[str, Any]) -> "TaskSettings":
        """Read settings from a config.json; unknown keys, written by other versions, are
        ignored."""
        known = {f.name for f in fields(cls)} - {"name"}
        given = {k: v for k, v in values.items() if k in known}
        return apply_values(cls(name=name), {"long": "cut", **given}, "settings.")

    def changed(self) -> dict[str, Any]:
        """The settings that differ from the defaults.

        "cut" is not included: a finished model truncates long documents unless its folder says
        otherwise.
        """
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "name"}
        if self.long == "cut":
            del values["long"]
        return {k: v for k, v in values.items() if v != getattr(TaskSettings, k)}

    def refuse_others(self, task: str, known: Set[str]) -> None:
        """Check that only settings of this task are set.

        Raises:
            InputError: a setting is not used by the task.
        """
        if others := [name for name in self.changed() if name not in known]:
            raise InputError(
                f"task.{others[0]} is of no use to {task}, which knows {', '.join(sorted(known))}"
            )


@dataclass(frozen=True, kw_only=True)
class FinetuneData:
    """The labelled files. Columns that are not given are found by their usual names."""

    train: str = setting(
        "",
        "Labelled rows to learn.",
        DATA,
        path=True,
        commands={
            "image": {
                "help": "Pictures to learn: a folder of class folders, an IDX file "
                "(train-images-idx3-ubyte.gz, with the labels beside it), or .npz with images and "
                "labels."
            }
        },
    )
    dev: str | None = setting(
        None,
        "Labelled rows that tell when to stop; without them all epochs are run.",
        DATA,
        path=True,
        commands={
            "image": {
                "help": "Pictures that tell when to stop, in the same form; without them all "
                "epochs are run."
            }
        },
    )
    text_column: str | None = setting(None, panel=DATA)
    second_column: str | None = setting(None, panel=DATA)
    label_column: str | None = setting(None, panel=DATA)
    feature_columns: str | None = setting(None, panel=DATA)
    encoding: str | None = setting(None, ENCODING_HELP, DATA, check=check_encoding, shown=UTF8)
    labels_per_class: int | None = setting(
        None,
        "Learn from this many texts of each label, drawn by --seed.",
        DATA,
        check=up_to(limits.COUNT),
        shown="all",
        commands={"image": {"help": "Learn from this many images of each label, drawn by --seed."}},
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
        shown="16, or 32 from 3,000 rows",
        commands={
            "image": {
                "help": "Pictures per batch.",
                "shown": "64 for a new model, else 16, or 32 from 3,000 images",
            }
        },
    )

    def __post_init__(self) -> None:
        validate(self, "data")


@dataclass(frozen=True, kw_only=True)
class Vit:
    """Sizes of a new ViT; ``image_size`` and ``patch`` are (height, width) in pixels, or one
    number."""

    image_size: tuple[int, ...] | None = setting(
        None,
        "Of a new model: what images are resized to, in pixels, or height,width.",
        MODEL,
        shown="theirs, up to 96",
        check=each(up_to(limits.PIXELS)),
    )
    patch: tuple[int, ...] | None = setting(
        None,
        "Of a new model: side of a patch in pixels, or height,width.",
        MODEL,
        shown="8 patches per side",
        check=each(up_to(limits.PIXELS)),
    )
    hidden_size: int = setting(
        128, "Of a new model: width of a layer.", MODEL, check=up_to(limits.WIDTH)
    )
    layers: int = setting(6, "Of a new model: number of layers.", MODEL, check=up_to(limits.LAYERS))
    heads: int = setting(
        4, "Of a new model: attention heads per layer.", MODEL, check=up_to(limits.WIDTH)
    )

    def __post_init__(self) -> None:
        validate(self, "model.vit")
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
    """The model to start from.

    Args:
        vit: sizes of a new model for images, if there is no folder.
    """

    folder: str = setting(
        "",
        "Folder of the pretrained model, or hf:org/name of the hub.",
        MODEL,
        option="--model",
        path=True,
        commands={"image": {"help": "Folder of a ViT to start from.", "shown": "a new one"}},
    )
    from_scratch: bool = setting(
        False,
        "Take size and vocabulary from the model, but not its weights (for comparison).",
        MODEL,
    )
    dropout: float | None = setting(
        None,
        "Dropout everywhere.",
        MODEL,
        check=between(0, 1, "[)"),
        shown="0.1",
        commands={"image": {"shown": "0"}},
    )
    layer_gate: str | None = setting(
        None,
        "Weigh layers by squeeze and excitation (SesameBERT): last (the last layer times its gate) "
        "or sum (of all layers, each times its own).",
        MODEL,
        check=choice(*LAYER_GATES),
        shown="none",
    )
    attention_blur: float | None = setting(
        None,
        "Blur what attention gives neighbouring tokens by a Gaussian of this width (SesameBERT: "
        "0.3).",
        MODEL,
        check=up_to(WIDEST_BLUR),
        shown="none",
    )
    freeze: int = setting(
        0,
        "Keep the embeddings and this many of the lower layers as they are.",
        LEARNING,
        check=between(0, limits.LAYERS, "[]"),
    )
    head_init: str | None = setting(
        None,
        "Initial weights of a new head: linear (those of a linear model on the frozen network) "
        "or random.",
        LEARNING,
        check=choice("linear", "random"),
        shown="linear with fewer than 3,000 rows",
    )
    pretrain_steps: int | None = setting(
        None,
        "First learn masked words from the texts of the task, for this many steps.",
        LEARNING,
        check=between(0, limits.STEPS, "[]"),
        shown="none",
    )
    vit: Vit = section(Vit())

    def __post_init__(self) -> None:
        validate(self, "model")
        if self.from_scratch and self.pretrain_steps:
            raise InputError(
                "model.from_scratch and model.pretrain_steps are both set; the one drops the "
                "weights that the other continues from"
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
        "Times through the data.",
        RUN,
        check=up_to(limits.EPOCHS),
        shown="12, or as many as make 200 steps, up to 50; 4 from 3,000 rows",
        resumable=True,
        commands={"image": {"shown": "60 for a new model, or 20 from 3,000 images; else 12, or 4"}},
    )
    patience: int = setting(
        4,
        "Stop after this many epochs without a better --measure on dev rows.",
        RUN,
        check=up_to(limits.EPOCHS),
        resumable=True,
    )
    measure: str | None = setting(
        None,
        "What is watched on dev rows: one of the task's metrics, or loss.",
        RUN,
        shown="the task's first",
    )
    folds: int | None = setting(
        None,
        "Train this many models, each leaving out a different part of the rows; their answers are "
        "averaged.",
        RUN,
        check=between(2, limits.MODELS, "[]"),
    )
    seeds: int | None = setting(
        None,
        "Train with this many seeds, from --seed on: mean and spread; their answers are averaged.",
        RUN,
        check=between(2, limits.MODELS, "[]"),
        resumable=True,
    )
    baseline: bool = setting(
        True,
        "Compare with a linear model on TF-IDF at the end, where there are dev rows.",
        RUN,
        commands={
            "embed": {
                "help": "Compare with TF-IDF at the end, where pairs are made from single texts."
            }
        },
        option="--baseline/--no-baseline",
        resumable=True,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_shard(self, "finetune")


@dataclass(frozen=True, kw_only=True)
class Search:
    """The search grid; all combinations are tried. Nothing is searched if it is empty."""

    usual: bool = setting(
        False,
        "Try learning rates, epochs and batch sizes, and keep the best (what to try: "
        "search.learning_rate=1e-5,5e-5 and so on).",
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

    def __post_init__(self) -> None:
        validate(self, "search")

    @property
    def requested(self) -> bool:
        """Whether the grid is not empty."""
        return bool(self.usual or self.learning_rate or self.epochs or self.batch_size)


@dataclass(frozen=True, kw_only=True)
class FinetuneRecipe:
    """All settings of ``ownbert finetune``."""

    seed: int = setting(0, "Seed of everything random.", check=between(0, limits.SEED, "[]"))
    data: FinetuneData = section(FinetuneData())
    model: FinetuneModel = section(FinetuneModel())
    task: TaskSettings = section(TaskSettings())
    optim: Optim = section(
        Optim(betas=(0.9, 0.999), schedule="linear", warmup=0.1),
        learning_rate={
            "commands": {"image": {"shown": "0.001 for a new model, else by size"}},
        },
    )
    run: FinetuneRun = section(FinetuneRun())
    search: Search = section(Search())

    def __post_init__(self) -> None:
        validate(self)
        if self.run.folds and self.run.seeds:
            raise InputError("run.folds and run.seeds are both set; take one")
        if self.search.requested and (self.run.folds or self.run.seeds):
            raise InputError(
                "a search is one thing and run.folds or run.seeds another; search first, and give "
                "what was best then"
            )
