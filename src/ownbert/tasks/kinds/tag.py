"""A tag per word."""

from ownbert.tables.columns import COLUMNS
from ownbert.tasks.kinds import TaskKind

KIND = TaskKind(
    task="ownbert.tasks.tag:TaggingTask",
    help="""A tag per word: names of people and places, parts of speech, chunks.

        CoNLL columns (a word and its tag per line, a blank line between sentences;
        --text-column 1 --label-column 4 selects other columns; in CoNLL-U files, FORM and UPOS
        are read by default), or jsonl, parquet or csv with a column of words and one of tags:
        lists, or strings separated by spaces. Entity tags are O, B-x, I-x, or IOBES, BILOU, BMES.

        Example: ownbert finetune tag --model runs/bert --train train.conll --dev dev.conll --crf
        -o runs/names""",
    settings=(
        *("feature_columns", "feature_size", "crf", "tag_all", "label_smoothing"),
        *("stride", "rdrop", "mask_rate"),
    ),
    without=("second_column",),
    columns=COLUMNS["tag"],
    head="tokens",
    example=("Anna lives in Rome",),
    pipeline="token-classification",
)
