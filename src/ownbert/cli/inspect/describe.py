"""describe: the structure of a model."""

from pathlib import Path
from typing import Annotated

import typer

from ownbert import limits
from ownbert.terminal import console, echo, say


def describe(
    folder: Annotated[Path, typer.Argument(help="Model folder.")],
    text: Annotated[
        str | None, typer.Argument(help="Show the shape of every step for this text.")
    ] = None,
    tokens: Annotated[
        int | None,
        typer.Option(
            help="Show the shapes for this many tokens instead of a text.", min=1, max=limits.LENGTH
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show the structure of a model: heads, positions, shared weights, parameters by part.

    Only config.json is required in the folder.

    Example: ownbert describe runs/bert "12 7 845 9"
    """
    from json import dumps

    from ownbert.hub import model_folder
    from ownbert.inference.blend import network_note
    from ownbert.inspect.describe import describe as run
    from ownbert.inspect.describe import show

    overview = run(folder, text, tokens=tokens)
    if (note := network_note(model_folder(folder))) is not None:
        say(f"note: {note}", err=True)
    if json:
        echo(dumps(overview.as_json(), ensure_ascii=False, indent=2))
    else:
        show(overview, console())
