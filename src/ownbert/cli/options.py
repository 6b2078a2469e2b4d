"""Options that several commands share, with one wording each."""

from pathlib import Path
from typing import Annotated

import typer

_RUN, _DATA, _OPTIM = "Run", "Data", "Learning"

Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.")]
Seed = Annotated[
    int | None, typer.Option(help="Seed of everything random.", show_default="0", min=0)
]
TextColumn = Annotated[
    str | None,
    typer.Option(help="Column of the text in tables.", show_default="by its name"),
]
LabelColumn = Annotated[
    str | None, typer.Option(help="Column of the label.", show_default="by its name")
]
Device = Annotated[
    str | None, typer.Option(help="auto, cpu or cuda.", show_default="auto", rich_help_panel=_RUN)
]
Precision = Annotated[
    str | None,
    typer.Option(
        help="float32, or bfloat16 for matrix products; auto takes what is faster here.",
        show_default="auto",
        rich_help_panel=_RUN,
    ),
]
Config = Annotated[
    Path | None,
    typer.Option(help="A recipe.yaml to start from; options and overrides come on top."),
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[SECTION.NAME=VALUE]...",
        help="Any setting of the recipe, as optim.weight_decay=0.1 (--dry-run shows them all).",
        show_default=False,
    ),
]
DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run", help="Print the resolved recipe, counts and a first batch, then leave."
    ),
]
Resume = Annotated[
    bool,
    typer.Option(
        "--resume",
        help="Go on from the last saved state in the output folder; start if there is none.",
        rich_help_panel=_RUN,
    ),
]
Overwrite = Annotated[
    bool,
    typer.Option(
        "--overwrite", help="Replace the model in the output folder.", rich_help_panel=_RUN
    ),
]
MaxSteps = Annotated[
    int | None, typer.Option(help="Stop after so many steps.", rich_help_panel=_RUN)
]
LogEvery = Annotated[
    int | None,
    typer.Option(help="Steps between rows of log.jsonl.", show_default="20", rich_help_panel=_RUN),
]
SaveEvery = Annotated[
    int | None,
    typer.Option(
        help="Steps between saved states.", show_default="5 minutes", rich_help_panel=_RUN
    ),
]
LearningRate = Annotated[
    float | None,
    typer.Option(help="Peak learning rate.", show_default="by size", rich_help_panel=_OPTIM),
]
Accumulate = Annotated[
    int | None,
    typer.Option(help="Batches added up to one step.", show_default="1", rich_help_panel=_OPTIM),
]
MaxLength = Annotated[
    int | None,
    typer.Option(help="Tokens a sequence, special ones included.", rich_help_panel=_DATA),
]
