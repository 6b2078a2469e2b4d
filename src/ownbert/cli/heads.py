"""heads: which attention heads a model needs, and a model without the others."""

from pathlib import Path
from typing import Annotated

import typer

from ownbert import limits
from ownbert.cli.options import Device, FinetunedFolder
from ownbert.errors import InputError
from ownbert.language import translated
from ownbert.terminal import echo


def heads(
    folder: FinetunedFolder,
    file: Annotated[
        Path, typer.Argument(help="Labelled rows, such as dev rows.", show_default=False)
    ],
    by: Annotated[
        str,
        typer.Option(
            help="gradient (one pass), or masking: how far the loss rises without each head alone "
            "(a pass for each)."
        ),
    ] = "gradient",
    prune: Annotated[
        float | None,
        typer.Option(
            help="Take away this share of the heads, the least important first, and save what is "
            "left.",
            show_default="none",
            min=0,
            max=1,
        ),
    ] = None,
    rounds: Annotated[
        int, typer.Option(help="Prune in so many rounds.", min=1, max=limits.LAYERS)
    ] = 5,
    layers: Annotated[
        int | None,
        typer.Option(
            "--drop-layers",
            help="Take so many layers away instead, from the top, one by one.",
            show_default="none",
            min=1,
            max=limits.LAYERS,
        ),
    ] = None,
    train: Annotated[
        Path | None,
        typer.Option(
            help="Labelled rows to fine-tune what is left on after each round.", show_default=False
        ),
    ] = None,
    epochs: Annotated[
        int, typer.Option(help="With --train: passes over its rows.", min=1, max=limits.EPOCHS)
    ] = 1,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Folder for the pruned model.", show_default=False),
    ] = None,
    png: Annotated[
        Path | None,
        typer.Option(help="Draw the table, or the rounds, into this file.", show_default=False),
    ] = None,
    rows: Annotated[
        int, typer.Option(help="Rows that are used, from the first.", min=1, max=limits.COUNT)
    ] = 1000,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    device: Device = "auto",
) -> None:
    """Measure how much a model needs each of its attention heads, and prune those it does not.

    The importance of a head is the expected change of the loss with its output, each layer divided
    by its length, or how far the loss rises when the head is masked. --prune takes the least
    important away in rounds, --drop-layers whole layers, and both show the score and the speed of
    what is left; the folder is one that Transformers opens too, and ownbert finetune --model trains
    it on.

    Example: ownbert heads runs/clf dev.csv

    Example: ownbert heads runs/clf dev.csv --prune 0.5 -o runs/clf-pruned --png pruned.png

    Example: ownbert heads runs/clf dev.csv --drop-layers 1 -o runs/clf-small
    """
    import json as json_module

    from ownbert.folders import writing
    from ownbert.inspect.figures import figure_class
    from ownbert.inspect.heads.importance import (
        gradient_importance,
        heads_table,
        labelled_model,
        left_heads,
        masking_importance,
    )
    from ownbert.inspect.heads.pictures import draw_importance, draw_rounds
    from ownbert.inspect.heads.pruning import Pruning, PruningRound

    measures = {"gradient": gradient_importance, "masking": masking_importance}
    if by not in measures:
        raise InputError(f"by {by!r} is not known; one of {', '.join(measures)}")
    if prune is not None and layers is not None:
        raise InputError("--prune and --drop-layers are two things to take away; take one")
    taken = prune if layers is None else layers
    if (taken is None) != (output is None):
        raise InputError(
            "--prune or --drop-layers and -o belong together: what goes, and the folder for the "
            "rest"
        )
    if png is not None:
        figure_class(png)
    if output is None:
        labelled = labelled_model(folder, file, rows=rows, device=device)
        importance, left = measures[by](labelled), left_heads(labelled.model)
        if png is not None:
            draw_importance(importance, left, f"importance of heads, by {by}", png)
        if json:
            echo(json_module.dumps({"importance": importance.round(6).tolist()}))
            return
        for line in heads_table(importance, left):
            echo(line)
        return

    def show(found: PruningRound) -> None:
        if json:
            echo(json_module.dumps(vars(found)))
            return
        echo(
            translated(
                f"layers {found.layers}, heads {found.heads:,}: {found.metric} {found.score:.4f}, "
                f"{found.tokens_per_second:,.0f} tokens/s"
            )
        )

    pruning = Pruning(folder, file, output, rows, train, epochs, device, show)
    with writing(output):
        found = (
            pruning.layers(layers) if layers is not None else pruning.heads(prune or 0.0, rounds)
        )
    if png is not None:
        draw_rounds(found, png)
    echo(translated(f"saved {output}"), err=json)
