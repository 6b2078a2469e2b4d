"""describe: the structure of a model."""

from pathlib import Path
from typing import Annotated

import typer

from ownbert import limits
from ownbert.terminal import console, echo


def describe(
    folder: Annotated[Path, typer.Argument(help="Folder of a model.", show_default=False)],
    text: Annotated[
        str | None,
        typer.Argument(
            help="Follow this text through the model: the shape of every step.",
            show_default=False,
        ),
    ] = None,
    tokens: Annotated[
        int | None,
        typer.Option(
            help="The same for this many tokens, where there is no text.", min=1, max=limits.LENGTH
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
) -> None:
    """Show what a model is made of: heads, positions, what is shared, parameters by part.

    Of the folder only config.json is needed.

    Example: ownbert describe runs/bert "12 7 845 9"
    """
    from json import dumps

    from ownbert.inspect.overview.describe import describe as run
    from ownbert.inspect.overview.overview import show

    overview = run(folder, text, tokens=tokens)
    if json:
        echo(dumps(overview.as_json(), ensure_ascii=False, indent=2))
    else:
        show(overview, console())
