"""The settings of ``ownbert fit``, with their defaults."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ownbert import limits
from ownbert.checks import between, one_of
from ownbert.config.encoder import SIZES
from ownbert.exceptions import InputError
from ownbert.settings import CheckedSettings, same_setting, setting
from ownbert.tasks.finetune_recipe import TEXT_TASKS, FinetuneData, FinetuneRun, TaskSettings
from ownbert.train.training_settings import DATA, MODEL, RUN

# One week; larger values are mistakes of units.
_MOST_MINUTES = 7 * 24 * 60


@dataclass(frozen=True, kw_only=True)
class FitRecipe(CheckedSettings):
    """All settings of ``ownbert fit``."""

    dev: str | None = setting(
        None,
        "Labelled rows for comparing models; not used for training.",
        DATA,
        path=True,
        shown="part of the training rows, or folds of them",
    )
    test: str | None = setting(
        None,
        "Labelled test rows, not used for selection; the report shows the score of every model "
        "on them.",
        DATA,
        path=True,
        shown="none",
    )
    labels_per_class: int | None = same_setting(FinetuneData, "labels_per_class")
    # The command declares these options itself, because they may be repeated.
    unlabelled: tuple[str, ...] = ()
    add: tuple[str, ...] = ()
    text_column: str | None = setting(
        None, "Column with the texts.", DATA, shown="detected by name"
    )
    second_column: str | None = setting(
        None, "Column with the second texts of pairs.", DATA, shown="detected by name"
    )
    label_column: str | None = setting(
        None, "Column with the labels or numbers.", DATA, shown="detected by name"
    )
    group: str | None = setting(
        None,
        "Column with the groups of rows, such as customers: compare on groups that are not trained "
        "on.",
        DATA,
    )
    time_column: str | None = setting(
        None, "Column with times: train on earlier rows, compare on the latest.", DATA
    )
    label_separator: str | None = same_setting(
        TaskSettings, "separator", shown="the first of | ; , found in the rows"
    )
    label_names: str | None = same_setting(TaskSettings, "label_names")
    skip_unlabelled: bool = same_setting(TaskSettings, "skip_unlabelled")
    positive: str | None = same_setting(TaskSettings, "positive")
    threshold: float | str | Mapping[str, Any] | None = same_setting(
        TaskSettings,
        "threshold",
        help="Probability from which a label is predicted, of two labels or of several per row: "
        "yes=0.9; or chosen on the held-out rows: yes=precision:0.9, yes=recall:0.9, or "
        "yes=cost:10 (a missed yes costs 10 false alarms). Models are then compared by "
        "average_precision.",
        shown="the best for the metric",
    )
    encoding: str | None = same_setting(FinetuneData, "encoding")
    task: str | None = setting(
        None,
        f"{', '.join(TEXT_TASKS[:-1])} or {TEXT_TASKS[-1]}.",
        DATA,
        check=one_of(*TEXT_TASKS),
        shown="detected from the labels",
    )
    metric: str | None = setting(
        None,
        "Metric for comparing models: accuracy, macro_f1, weighted_f1, mcc, log_loss, "
        "roc_auc, average_precision or f1; for "
        "multilabel micro_f1, macro_f1, weighted_f1, average_precision, subset_accuracy or "
        "log_loss; for regress spearman, pearson, mae, r2.",
        DATA,
        shown="macro_f1, micro_f1 or spearman, depending on the task",
    )
    model: str | None = setting(
        None,
        "Model folder to start from, of any encoder family.",
        MODEL,
        path=True,
        shown="pretrained on the texts",
    )
    size: str | None = setting(
        None,
        "Size of the network to pretrain: tiny, mini, small, medium, base or large.",
        MODEL,
        check=one_of(*SIZES),
        shown="tiny; mini on a GPU",
    )
    seeds: int = setting(
        4,
        "Maximum number of networks, with different seeds, to average; fewer if time is short.",
        MODEL,
        check=between(1, 100, "[]"),
    )
    minutes: float = setting(
        20.0, "Time limit in minutes.", RUN, check=between(0, _MOST_MINUTES, "(]"), resumable=True
    )
    device: str = same_setting(FinetuneRun, "device")
    seed: int = setting(0, "Random seed.", RUN, check=between(0, limits.SEED, "[]"))

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.model is not None and self.size is not None:
            raise InputError(
                "size {size} does not apply to {--model}, which has its own; omit one of them",
                self.size,
            )
