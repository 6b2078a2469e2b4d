"""drift: new rows compared with those of training."""

from pathlib import Path
from typing import Annotated

import typer

from ownbert.cli import options as o
from ownbert.cli.progress import counting, saying
from ownbert.cli.recipe_options import settings_command
from ownbert.terminal import echo

# Exit code of a change above --fail-above; 2 is that of errors.
_CHANGED = 1


@settings_command
def drift(
    folder: o.FinetunedFolder,
    file: Annotated[Path, typer.Argument(help="New rows, such as those of the last month.")],
    reference: Annotated[
        Path | None,
        typer.Option(
            help="Earlier rows to compare with, which are predicted too.",
            show_default="counts of the training rows, in the folder",
        ),
    ] = None,
    fail_above: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1,
            help="Exit with code 1 if a distance exceeds that of chance by more than this.",
        ),
    ] = None,
    output: o.ResultsJson = None,
    html: o.ResultsPage = None,
    *,
    columns: o.TextColumns,
    encoding: o.Encoding = None,
    device: o.Device = "auto",
    precision: o.FolderPrecision = None,
    network: o.Network = False,
    quiet: o.Quiet = False,
) -> None:
    """Compare new rows with those that a model was trained on.

    Shows how far words (unknown, more or less frequent ones), lengths, predicted labels or numbers
    and, with --reference, the confidence of the predictions have changed, and how much of it is
    chance.

    Example: ownbert drift runs/clf june.csv --html drift.html --fail-above 0.1
    """
    from ownbert.files.writing import together
    from ownbert.inspect.drift import drift as run
    from ownbert.inspect.drift import shown_drift
    from ownbert.train.device import keep_memory

    keep_memory()
    with together(), counting("rows predicted", quiet=quiet) as progress:
        found = run(
            folder,
            file,
            reference=reference,
            output=output,
            html=html,
            **columns.settings(),
            device=device,
            precision=precision,
            network=network,
            progress=progress,
            say=saying(quiet=quiet),
        )
    if not quiet:
        echo(shown_drift(found))
    if fail_above is not None and found.largest.beyond_chance > fail_above:
        raise typer.Exit(_CHANGED)
