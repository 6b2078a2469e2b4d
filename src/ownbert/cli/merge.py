"""merge: join the parts that shards wrote."""

from pathlib import Path
from typing import Annotated

import typer

from ownbert.cli.options import Quiet
from ownbert.cli.progress import counting
from ownbert.language import translated
from ownbert.terminal import echo


def merge(
    output: Annotated[
        Path,
        typer.Argument(help="The file that predict or embed was told to write.", metavar="OUT"),
    ],
    parts: Annotated[
        Path | None,
        typer.Option(help="Folder of the parts.", show_default="that of OUT"),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Join the parts that predict or embed wrote with --shard.

    All parts must be there, complete, and of the same model, input and options; they are kept. The
    rows are in the order of the input.

    Example: ownbert merge predictions.jsonl
    """
    from ownbert.inference.output.merge import merge as run

    with counting("rows joined", quiet=quiet) as progress:
        count = run(output, parts=parts, progress=progress)
    if not quiet:
        what = "row" if count == 1 else "rows"
        echo(translated(f"{count:,} {what} joined; saved {output}"))
