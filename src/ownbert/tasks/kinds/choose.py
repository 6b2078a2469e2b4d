"""One of several choices for a prompt."""

from ownbert.tables.columns import COLUMNS
from ownbert.tasks.kinds import TaskKind

KIND = TaskKind(
    task="ownbert.tasks.multiple_choice:MultipleChoiceTask",
    help="""One of several choices for a prompt: story endings, exam questions.

        jsonl or parquet with the columns prompt, choices (a list) and label; or csv or tsv with
        one column per choice (choice0, choice1, ...). Labels are numbers, letters or the text
        of the correct choice.

        Example: ownbert finetune choose --model runs/bert --train train.tsv --dev dev.tsv
        -o runs/chooser""",
    settings=("pooling", "rdrop", "mask_rate"),
    columns=COLUMNS["choose"],
    head="choice",
    example=({"prompt": "a beginning", "choices": ["one ending", "another"]},),
    pipeline="multiple-choice",
)
