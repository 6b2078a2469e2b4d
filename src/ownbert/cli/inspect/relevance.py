"""relevance: the image patches that a prediction depends on."""

from pathlib import Path
from typing import Annotated

import typer

from ownbert.cli.options import numbers
from ownbert.terminal import say


def relevance(
    folder: Annotated[Path, typer.Argument(help="Folder of an image model.")],
    images: Annotated[list[Path], typer.Argument(help="Images, or folders of them.")],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="PNG to write, one row per image.")
    ] = Path("relevance.png"),
    label: Annotated[
        str | None,
        typer.Option(
            "--class",
            help="Also draw the relevance for this class, next to that for the predicted class.",
        ),
    ] = None,
    layers: Annotated[
        str | None,
        typer.Option(
            help="Layers whose attention is used, from 0, such as 0,1.", show_default="all"
        ),
    ] = None,
) -> None:
    """Draw which image patches a model's predictions rely on.

    Shows attention rollout, and the relevance from attention and its gradient, next to each
    image.

    Example: ownbert relevance runs/digits seven.png -o relevance.png --class 1
    """
    from ownbert.vision.relevance_maps import draw_relevance

    chosen = numbers("--layers", layers)
    explained = draw_relevance(folder, images, output, label=label, layers=chosen)
    for one in explained:
        probability = f"{one.probabilities[one.predicted]:.3f}"
        say(f"{one.name}: {one.answer}, probability {probability}")
    say(f"saved {output}")
