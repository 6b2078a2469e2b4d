"""One label per text or pair of texts."""

from ownbert.tables.columns import COLUMNS
from ownbert.tasks.kinds import SENTENCE_SETTINGS, TaskKind

KIND = TaskKind(
    task="ownbert.tasks.classification:ClassificationTask",
    help="""One label per text or pair of texts: topics, sentiment, intents, inference.

        csv, tsv, jsonl or parquet with one or two text columns and a label column.

        Example: ownbert finetune classify --model runs/bert --train train.csv --dev dev.csv
        -o runs/classifier""",
    settings=(
        "labels_per_class",
        "label_names",
        "positive",
        "threshold",
        "class_weights",
        "label_smoothing",
        *SENTENCE_SETTINGS,
    ),
    columns=COLUMNS["classify"],
    example=("a text", {"text": "a text", "text_pair": "its pair"}),
    pipeline="text-classification",
)
