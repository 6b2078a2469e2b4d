"""relevance: which parts of a picture an answer rests on."""

from pathlib import Path
from typing import Annotated

import typer


def relevance(
    folder: Annotated[
        Path, typer.Argument(help="Folder of a model of pictures.", show_default=False)
    ],
    pictures: Annotated[
        list[Path], typer.Argument(help="Pictures, or folders of them.", show_default=False)
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The PNG to write, one row per picture.")
    ] = Path("relevance.png"),
    label: Annotated[
        str | None,
        typer.Option(
            "--class", help="Draw the relevance for this class too, beside the predicted one's."
        ),
    ] = None,
    layers: Annotated[
        str | None,
        typer.Option(help="Layers whose attention is used, from 0, such as 0,1; by default all."),
    ] = None,
) -> None:
    """Draw which patches of pictures a model's answers rest on.

    Beside each picture: attention rollout, and the relevance by attention and its gradient.

    Example: ownbert relevance runs/digits seven.png -o relevance.png --class 1
    """
    from ownbert.errors import InputError
    from ownbert.inspect.relevance.overlay import draw_relevance

    try:
        numbers = None if layers is None else [int(part) for part in layers.split(",")]
    except ValueError:
        raise InputError(f"--layers {layers!r}: whole numbers with commas, such as 0,1") from None
    found = draw_relevance(folder, pictures, output, label=label, layers=numbers)
    for one in found:
        typer.echo(f"{one.name}: {one.answer}, probability {one.probabilities[one.predicted]:.3f}")
    typer.echo(f"saved {output}")
