"""label: which texts to label next."""

from pathlib import Path
from typing import Annotated

import typer

from ownbert import limits
from ownbert.cli.options import Device, Encoding, FinetunedFolder, Quiet, TextColumn
from ownbert.cli.progress import counting, saying
from ownbert.language import translated
from ownbert.terminal import echo


def label(
    folder: FinetunedFolder,
    unlabelled: Annotated[
        list[Path],
        typer.Option(
            help="Texts without labels: a file (txt has one per line), a folder or a glob; may be "
            "given several times.",
            show_default=False,
        ),
    ],
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            help="File of texts to label: .csv, .tsv or .jsonl, with an empty column label; .json "
            "for tasks of Label Studio.",
            show_default=False,
        ),
    ],
    count: Annotated[
        int, typer.Option("--count", "-n", help="Number of texts.", min=1, max=limits.COUNT)
    ] = 50,
    check: Annotated[
        Path | None,
        typer.Option(
            help="File of the likely label errors that the report of ownbert fit has found.",
            show_default="none",
        ),
    ] = None,
    train: Annotated[
        Path | None,
        typer.Option(
            help="The training rows: their texts are not chosen again, and --check has them.",
            show_default="none",
        ),
    ] = None,
    text_column: TextColumn = None,
    encoding: Encoding = None,
    seed: Annotated[int, typer.Option(help="Seed of the clusters.", min=0, max=limits.SEED)] = 0,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Choose which texts to label next.

    The most uncertain texts are clustered by their vectors, and the most typical text of each
    cluster is chosen; texts that may have a rare label come first. Where there are few labels so
    far, all texts are clustered. Fill in the column label and give the file back: ownbert fit
    train.csv --add to_label.csv.

    Example: ownbert label best --unlabelled corpus.txt -n 50 -o to_label.csv
    """
    from ownbert.unlabelled.label import to_label

    with counting("texts read", quiet=quiet) as progress:
        rows = to_label(
            folder,
            unlabelled,
            output,
            count=count,
            check=check,
            train=train,
            text_column=text_column,
            seed=seed,
            device=device,
            progress=progress,
            say=saying(quiet=quiet),
        )
    if not quiet:
        echo(translated(f"{len(rows):,} texts to label; saved {output}"))
