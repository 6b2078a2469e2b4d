"""Text vectors, learnt from pairs."""

from ownbert.tables.columns import COLUMNS
from ownbert.tasks.kinds import TaskKind

KIND = TaskKind(
    task="ownbert.tasks.embed:EmbeddingTask",
    help="""Text vectors for search and comparison, trained on pairs of texts (alias: rank).

    csv, tsv, jsonl or parquet with two columns of matching texts (query and document, anchor
    and positive, ...) and optionally one of non-matching texts (negative, hard_negative or
    neg); or with two texts and a score. From single texts (txt, a folder, or a table with one
    text column), pairs are generated: two pieces of a text, two consecutive lines, or a short
    text with itself. Compute vectors with ownbert embed or with sentence-transformers.

    Example: ownbert finetune embed --model runs/bert --train pairs.csv --dev dev.csv
    -o runs/vectors""",
    settings=("pooling", "temperature", "baseline"),
    alias="rank",
    columns=COLUMNS["embed"],
    files=("modules.json", "sentence_bert_config.json", "config_sentence_transformers.json"),
    example=("a text", "another one"),
    pipeline="sentence-similarity",
)
