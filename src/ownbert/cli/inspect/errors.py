"""errors: error analysis of a model."""

from pathlib import Path
from typing import Annotated

import typer

from ownbert import limits
from ownbert.cli.options import (
    Device,
    Encoding,
    FinetunedFolder,
    LabelledColumns,
    Network,
    SkipUnlabelled,
)
from ownbert.cli.recipe_options import settings_command
from ownbert.terminal import echo


@settings_command
def errors(
    folder: FinetunedFolder,
    file: Annotated[Path, typer.Argument(help="Labelled rows that the model was not trained on.")],
    train: Annotated[
        Path | None,
        typer.Option(
            help="Training rows of the model; each mistake is shown with the nearest one.",
            show_default="none",
        ),
    ] = None,
    top: Annotated[
        int, typer.Option(help="Number of mistakes of each kind.", min=1, max=limits.VOCABULARY)
    ] = 10,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    *,
    columns: LabelledColumns,
    skip_unlabelled: SkipUnlabelled = False,
    encoding: Encoding = None,
    device: Device = "auto",
    network: Network = False,
) -> None:
    """Show where a model is wrong, and why.

    Shows which labels, entities or parts of answers are confused; groups of rows (by label,
    length, unknown words, cluster of vectors) with a clearly higher error rate than all rows;
    the most confident mistakes, with the words behind each prediction; and rows whose label may
    be wrong (confident learning). For numbers, shows the largest errors.

    Works for every task of ownbert finetune except embed: classify, multilabel, regress, tag,
    answer, choose, image.

    Example: ownbert errors runs/clf test.csv --train train.csv
    """
    from json import dumps

    from ownbert.inspect.error_analysis import analyse_errors, as_lines

    how = {"columns": columns, "device": device, "network": network}
    how["skip_unlabelled"] = skip_unlabelled
    analysis = analyse_errors(folder, file, train=train, most=top, **how)
    if json:
        echo(dumps(analysis.to_dict(), ensure_ascii=False))
        return
    for line in as_lines(analysis):
        echo(line)
