"""audit: what a model remembers of its training texts."""

from pathlib import Path
from typing import Annotated

import typer

from ownbert import limits
from ownbert.cli.options import Device, Encoding, Quiet, TextColumn
from ownbert.cli.progress import saying
from ownbert.terminal import echo, say


def audit(
    folder: Annotated[
        Path,
        typer.Argument(
            help="Folder of a pretrained model, or of a classifier with one label per text."
        ),
    ],
    train: Annotated[
        Path,
        typer.Option(help="Texts that the model was trained on; with labels for a classifier."),
    ],
    held_out: Annotated[
        Path, typer.Option(help="Similar texts that the model was not trained on.")
    ],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Write the findings to this file, as JSON."),
    ] = None,
    most: Annotated[
        int,
        typer.Option(help="Number of texts to sample from each side.", min=20, max=limits.COUNT),
    ] = 2000,
    card: Annotated[
        bool, typer.Option("--card", help="Add a section to the folder's model card.")
    ] = False,
    text_column: TextColumn = None,
    encoding: Encoding = None,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Measure what a model remembers of its training texts.

    Measures how well the model's loss separates training texts from others; the exposure of
    sequences planted by pretrain --canaries; rare tokens that the model fills in; and parts of
    training texts in pages and cards of the folder. docs/audit.md explains what this does not
    prove.

    Example: ownbert audit runs/bert --train corpus.txt --held-out other.txt --card
    """
    from ownbert.files.json_files import require_json_name, write_json
    from ownbert.files.writing import together
    from ownbert.inspect.audit import add_to_card, lines
    from ownbert.inspect.audit import audit as run
    from ownbert.train.device import keep_memory

    keep_memory()
    note = saying(quiet=quiet)
    if output is not None:
        require_json_name(output)
    result = run(
        folder, train, held_out, text_column=text_column, most=most, device=device, say=note
    )
    with together():
        if output is not None:
            write_json(output, result.as_json())
        warning = add_to_card(folder, result) if card else None
    if warning is not None:
        note(warning)
    if quiet:
        return
    for name, value in lines(result):
        echo(f"{name}: {value}")
    for sentence in result.advice():
        say(sentence)
