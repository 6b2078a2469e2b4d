"""Options of fine-tuning that depend on the task."""

from typing import Annotated

import typer

from ownbert.cli.options import DATA, LEARNING, MODEL, RUN

ANSWERS = "Answers"

Measure = Annotated[
    str | None,
    typer.Option(
        help="What is watched on dev rows: one of the task's measures, or loss.",
        show_default="the task's first",
        rich_help_panel=RUN,
    ),
]
Folds = Annotated[
    int | None,
    typer.Option(
        help="Train so many models, each without another part of the rows; their answers are "
        "averaged.",
        rich_help_panel=RUN,
    ),
]
Seeds = Annotated[
    int | None,
    typer.Option(
        help="Train with so many seeds: mean and spread; their answers are averaged.",
        rich_help_panel=RUN,
    ),
]
LabelsPerClass = Annotated[
    int | None,
    typer.Option(
        help="Learn from so many texts of each label, drawn by --seed.",
        show_default="all",
        rich_help_panel=DATA,
    ),
]
RDrop = Annotated[
    float | None,
    typer.Option(
        help="Weight of the difference between two passes with other dropouts (R-Drop); try 1.",
        show_default="0",
        rich_help_panel=LEARNING,
    ),
]
Pooling = Annotated[
    str | None,
    typer.Option(
        help="What the answer stands on: pooler (BERT's), first, mean, max, attention, gru, lstm.",
        show_default="the family's",
        rich_help_panel=MODEL,
    ),
]
Long = Annotated[
    str | None,
    typer.Option(
        help="Documents beyond --max-length: cut; windows (answers averaged); segments "
        "(attention over their vectors).",
        show_default="cut",
        rich_help_panel=DATA,
    ),
]
Stride = Annotated[
    int | None,
    typer.Option(
        help="Tokens that neighbouring windows share.", show_default="32", rich_help_panel=DATA
    ),
]
ClassWeights = Annotated[
    str | None,
    typer.Option(
        help='"balanced" (rare labels count more), or label=weight,label=weight.',
        show_default="all alike",
        rich_help_panel=LEARNING,
    ),
]
LabelSmoothing = Annotated[
    float | None,
    typer.Option(
        help="Share of the truth that is spread over all labels.",
        show_default="0",
        rich_help_panel=LEARNING,
    ),
]
Separator = Annotated[
    str | None,
    typer.Option(
        help="What stands between the labels of a row (lists need none).",
        show_default="the first of | ; , that the training rows have",
        rich_help_panel=DATA,
    ),
]
LabelThreshold = Annotated[
    float | None,
    typer.Option(
        "--threshold",
        help="From which probability on a label holds.",
        show_default="what is best on dev rows, or 0.5",
        rich_help_panel=ANSWERS,
    ),
]
RegressionLoss = Annotated[
    str | None,
    typer.Option(
        help="mse, or huber (rows that are far off count less).",
        show_default="mse",
        rich_help_panel=LEARNING,
    ),
]
AnswerLength = Annotated[
    int | None,
    typer.Option(help="Longest answer, in tokens.", show_default="30", rich_help_panel=ANSWERS),
]
AnswerThreshold = Annotated[
    float | None,
    typer.Option(
        "--threshold",
        help='By how much "no answer" must be ahead of an answer (logits) to be said.',
        show_default="what is best on dev rows, or 0",
        rich_help_panel=ANSWERS,
    ),
]
EmbedPooling = Annotated[
    str | None,
    typer.Option(
        "--pooling",
        help="What the vector of a text is: mean or max over its tokens, or the first one.",
        show_default="mean",
        rich_help_panel=MODEL,
    ),
]
Temperature = Annotated[
    float | None,
    typer.Option(
        help="Of texts that belong together: a lower one looks harder at the nearest others.",
        show_default="0.05",
        rich_help_panel=LEARNING,
    ),
]
TagStride = Annotated[
    int | None,
    typer.Option(
        "--stride",
        help="Words that neighbouring windows of a long sentence share.",
        show_default="32",
        rich_help_panel=DATA,
    ),
]
Crf = Annotated[
    bool | None,
    typer.Option(
        "--crf",
        help="Learn which tags follow each other, and choose those of a sentence together.",
        rich_help_panel=MODEL,
    ),
]
TagAll = Annotated[
    bool | None,
    typer.Option(
        "--tag-all",
        help="Learn from all pieces of a word, not from the first alone.",
        rich_help_panel=LEARNING,
    ),
]
