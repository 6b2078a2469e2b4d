"""The settings of ``ownbert fit``, with their defaults."""

from dataclasses import dataclass

from ownbert import limits
from ownbert.checks import between, choice, up_to
from ownbert.config import SIZES
from ownbert.encodings import ENCODING_HELP, UTF8, check_encoding
from ownbert.settings import setting, validate
from ownbert.tasks.finetune_recipe import TEXT_TASKS
from ownbert.train.training_settings import DATA, MODEL, RUN

# One week; larger values are mistakes of units.
_MOST_MINUTES = 7 * 24 * 60


@dataclass(frozen=True, kw_only=True)
class FitRecipe:
    """All settings of ``ownbert fit``."""

    dev: str | None = setting(
        None,
        "Labelled rows to compare models on; they are not learnt from.",
        DATA,
        path=True,
        shown="a part of the training rows, or folds of them",
    )
    test: str | None = setting(
        None,
        "Labelled rows that nothing is chosen on: the report has the score of every model on them.",
        DATA,
        path=True,
        shown="none",
    )
    labels_per_class: int | None = setting(
        None,
        "Learn from this many texts of each label, drawn by --seed.",
        DATA,
        check=up_to(limits.COUNT),
        shown="all",
    )
    unlabelled: tuple[str, ...] = setting(
        (),
        "Texts without labels, of the same kind: txt (one per line), csv, tsv, jsonl, parquet; "
        "several with commas between them.",
        DATA,
        shown="none",
    )
    add: tuple[str, ...] = setting(
        (),
        "Rows that were labelled later: the filled-in file of ownbert label, or a JSON export of "
        "Label Studio. Rows without a label are left out, and an added label replaces that of the "
        "same training text.",
        DATA,
        shown="none",
    )
    text_column: str | None = setting(
        None, "Column of the texts.", DATA, shown="by its usual names"
    )
    second_column: str | None = setting(
        None, "Column of second texts, for pairs.", DATA, shown="by its usual names"
    )
    label_column: str | None = setting(
        None, "Column of the labels or numbers.", DATA, shown="by its usual names"
    )
    label_separator: str | None = setting(
        None,
        "What separates the labels of a row, where it has several (lists need none).",
        DATA,
        shown="the first of | ; , that the rows have",
    )
    label_names: str | None = setting(
        None,
        "Names of the labels, with commas between them, where a row has a vector of 0 and 1.",
        DATA,
        shown="label_0, label_1, ...",
    )
    encoding: str | None = setting(None, ENCODING_HELP, DATA, check=check_encoding, shown=UTF8)
    task: str | None = setting(
        None,
        f"{', '.join(TEXT_TASKS)}.",
        DATA,
        check=choice(*TEXT_TASKS),
        shown="seen from the labels",
    )
    metric: str | None = setting(
        None,
        "Metric that models are compared by: accuracy, macro_f1, weighted_f1, mcc or log_loss; "
        "for several labels micro_f1, macro_f1, weighted_f1, average_precision, subset_accuracy "
        "or log_loss; for numbers spearman, pearson, mae or r2.",
        DATA,
        shown="macro_f1, micro_f1 or spearman, by the task",
    )
    model: str | None = setting(
        None,
        "A model folder to start from, of any family of encoders.",
        MODEL,
        path=True,
        shown="one that is pretrained on the texts",
    )
    size: str = setting(
        "tiny",
        "Of the network that is pretrained: tiny, mini, small, medium, base or large.",
        MODEL,
        check=choice(*SIZES),
    )
    seeds: int = setting(
        4,
        "Networks that differ in their seed and are averaged, at most: as many as there is time "
        "for.",
        MODEL,
        check=between(1, 100, "[]"),
    )
    minutes: float = setting(
        20.0, "How long it may take.", RUN, check=between(0, _MOST_MINUTES, "(]"), resumable=True
    )
    device: str = setting(
        "auto", "auto, cpu or cuda.", RUN, check=choice("auto", "cpu", "cuda"), resumable=True
    )
    seed: int = setting(0, "Seed of everything random.", RUN, check=between(0, limits.SEED, "[]"))

    def __post_init__(self) -> None:
        validate(self)
