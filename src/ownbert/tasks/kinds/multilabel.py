"""Any number of labels per text or pair of texts."""

from ownbert.tables.columns import COLUMNS
from ownbert.tasks.kinds import SENTENCE_SETTINGS, TaskKind

KIND = TaskKind(
    task="ownbert.tasks.multilabel:MultiLabelTask",
    help="""Any number of labels per text or pair of texts: keywords, subjects, types of abuse.

        csv, tsv, jsonl or parquet with one or two text columns and a label column: "war|trade",
        a list, or a vector of 0 and 1. An empty cell means no labels.

        Example: ownbert finetune multilabel --model runs/bert --train train.csv --dev dev.csv
        -o runs/labels""",
    settings=("separator", "label_names", "threshold", "class_weights", *SENTENCE_SETTINGS),
    columns=COLUMNS["multilabel"],
    pipeline="text-classification",
)
