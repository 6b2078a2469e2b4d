"""compare: two models on the same labelled rows."""

from pathlib import Path
from typing import Annotated

import typer

from ownbert import limits
from ownbert.cli import options as o
from ownbert.cli.progress import counting, saying
from ownbert.cli.recipe_options import settings_command
from ownbert.terminal import echo


@settings_command
def compare(
    first: Annotated[
        Path, typer.Argument(help="Folder written by ownbert finetune or fit.", show_default=False)
    ],
    second: Annotated[
        Path, typer.Argument(help="Another folder for the same task.", show_default=False)
    ],
    file: Annotated[
        Path, typer.Argument(help="Labelled rows that the models were not trained on.")
    ],
    group: Annotated[
        str | None,
        typer.Option(
            "--group",
            help="Column whose rows with the same value, such as a customer, are drawn together.",
        ),
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option(help="Metric that decides which is better.", show_default="as in training"),
    ] = None,
    top: Annotated[
        int,
        typer.Option(
            help="Number of rows shown that only one model predicts right.",
            min=0,
            max=limits.VOCABULARY,
        ),
    ] = 10,
    output: o.ResultsJson = None,
    html: o.ResultsPage = None,
    *,
    columns: o.LabelledColumns,
    skip_unlabelled: o.SkipUnlabelled = False,
    encoding: o.Encoding = None,
    device: o.Device = "auto",
    precision: o.FolderPrecision = None,
    network: o.Network = False,
    quiet: o.Quiet = False,
) -> None:
    """Compare two models for the same task on labelled rows.

    Shows all metrics of both, and the interval of their difference from a paired bootstrap; how
    many rows only one of them predicts right, and which; and the most frequent differences.

    Works for every task of ownbert finetune except embed.

    Example: ownbert compare runs/old runs/new test.csv --html comparison.html
    """
    from ownbert.files.writing import together
    from ownbert.inspect.model_comparison import compare as run
    from ownbert.inspect.model_comparison import shown_comparison
    from ownbert.train.device import keep_memory

    keep_memory()
    with together(), counting("rows predicted", quiet=quiet) as progress:
        result = run(
            first,
            second,
            file,
            group=group,
            metric=metric,
            rows=top,
            output=output,
            html=html,
            **columns.settings(),
            device=device,
            precision=precision,
            network=network,
            skip_unlabelled=skip_unlabelled,
            progress=progress,
            say=saying(quiet=quiet),
        )
    if not quiet:
        echo(shown_comparison(result))
