"""merge: merge the parts that shards wrote."""

from pathlib import Path
from typing import Annotated

import typer

from ownbert.cli.options import Quiet
from ownbert.cli.progress import counting, say_saved
from ownbert.exceptions import counted


def merge(
    output: Annotated[
        Path,
        typer.Argument(help="The output file (-o) of the commands with --shard.", metavar="OUT"),
    ],
    parts: Annotated[
        Path | None, typer.Option(help="Folder of the parts.", show_default="the folder of OUT")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Merge the parts written by predict, embed or score with --shard.

    All parts must exist, be complete, and come from the same model, input and options; they are
    kept. The rows of the result are in input order.

    Example: ownbert merge predictions.jsonl
    """
    from ownbert.inference.merge import merge as run

    with counting("rows joined", quiet=quiet) as progress:
        count = run(output, parts=parts, progress=progress)
    say_saved(f"{counted(count, 'row')} joined", output, quiet=quiet)
