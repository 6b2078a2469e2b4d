"""Questions whose answer is a span of a text."""

from ownbert.tables.columns import COLUMNS
from ownbert.tasks.kinds import TaskKind

KIND = TaskKind(
    task="ownbert.tasks.answer:QuestionAnsweringTask",
    help="""Questions answered by a span of a text: SQuAD, CMRC and similar.

        SQuAD JSON (version 1.1 or 2.0), or csv, tsv, jsonl or parquet with the columns
        question, context and answers. Long texts are read in windows.

        Example: ownbert finetune answer --model runs/bert --train train.json.gz --dev dev.json.gz
        -o runs/reader""",
    settings=("answer_length", "threshold", "stride", "rdrop", "mask_rate"),
    columns=COLUMNS["answer"],
    head="span",
    example=({"question": "Who?", "context": "Anna lives in Rome."},),
    pipeline="question-answering",
)
