"""Numbers for a text or pair of texts."""

from ownbert.tables.columns import COLUMNS
from ownbert.tasks.kinds import SENTENCE_SETTINGS, TaskKind

KIND = TaskKind(
    task="ownbert.tasks.regression:RegressionTask",
    help="""A number per text or pair of texts: ratings, similarity, readability.

        csv, tsv, jsonl or parquet with one or two text columns and a column of numbers; for
        several numbers per row, name their columns: --label-column joy,anger.

        Example: ownbert finetune regress --model runs/bert --train train.csv --dev dev.csv
        -o runs/ratings""",
    settings=("loss", *SENTENCE_SETTINGS),
    columns=COLUMNS["regress"],
    pipeline="text-classification",
)
