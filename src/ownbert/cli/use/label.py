"""label: choose texts to label next."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from ownbert import limits
from ownbert.checks import between
from ownbert.cli.options import Device, Encoding, FinetunedFolder, Quiet, TextColumn
from ownbert.cli.progress import counting, say_saved, saying
from ownbert.cli.recipe_options import settings_command
from ownbert.settings import setting


@dataclass(frozen=True, kw_only=True)
class LabelSettings:
    """Options for the choice of texts, named as in the Python function."""

    count: int = setting(
        50, "Number of texts to choose.", option="--count -n", check=between(1, limits.COUNT, "[]")
    )
    check: Path | None = setting(
        None, "Output file for the likely label errors in the report of ownbert fit.", shown="none"
    )
    train: Path | None = setting(
        None,
        "Training rows. Their texts are not chosen again, and --check writes them in full.",
        shown="none",
    )
    seed: int = setting(0, "Seed for clustering.", check=between(0, limits.SEED, "[]"))


@settings_command
def label(
    folder: FinetunedFolder,
    unlabelled: Annotated[
        list[Path],
        typer.Option(
            help="Unlabelled texts: a file (.txt: one text per line), a folder or a glob; can be "
            "repeated."
        ),
    ],
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            help="Output file with the texts to label: .csv, .tsv or .jsonl with an empty label "
            "column, or .json for Label Studio tasks.",
        ),
    ],
    *,
    settings: LabelSettings,
    text_column: TextColumn = None,
    encoding: Encoding = None,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Choose which texts to label next.

    Clusters the most uncertain texts by their vectors and chooses the most typical text of each
    cluster; texts that may have a rare label come first. While there are few labels, all texts
    are clustered. Fill in the label column and train again: ownbert fit train.csv --add
    to_label.csv.

    Example: ownbert label best --unlabelled corpus.txt -n 50 -o to_label.csv
    """
    from ownbert.unlabelled.label import to_label

    with counting("texts read", quiet=quiet) as progress:
        rows = to_label(
            folder,
            unlabelled,
            output,
            text_column=text_column,
            device=device,
            progress=progress,
            say=saying(quiet=quiet),
            **vars(settings),
        )
    say_saved(f"{len(rows):,} texts to label", output, quiet=quiet)
