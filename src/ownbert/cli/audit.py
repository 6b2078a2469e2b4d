"""audit: what a model remembers of its training texts."""

from pathlib import Path
from typing import Annotated

import typer

from ownbert import limits
from ownbert.cli.options import Device, Encoding, Quiet, TextColumn
from ownbert.cli.progress import saying
from ownbert.language import translated
from ownbert.terminal import echo


def audit(
    folder: Annotated[
        Path,
        typer.Argument(
            help="Folder of a pretrained model, or of one with one label per text.",
            show_default=False,
        ),
    ],
    train: Annotated[
        Path,
        typer.Option(help="Texts that it was trained on; with labels for a classifier."),
    ],
    held_out: Annotated[Path, typer.Option(help="Texts like these that it was not trained on.")],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Write the findings there, as JSON."),
    ] = None,
    most: Annotated[
        int, typer.Option(help="Texts that are drawn of either side.", min=20, max=limits.COUNT)
    ] = 2000,
    card: Annotated[
        bool, typer.Option("--card", help="Add a section to the model card of the folder.")
    ] = False,
    text_column: TextColumn = None,
    encoding: Encoding = None,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Measure what a model remembers of its training texts.

    Whether training texts are told from others by the model's loss; the exposure of sequences that
    pretrain --canaries has planted; rare tokens that the model fills in; parts of training texts in
    pages and cards of the folder. docs/audit.md says what this does not prove.

    Example: ownbert audit runs/bert --train corpus.txt --held-out other.txt --card
    """
    from ownbert.files import refuse_same, together, write_json
    from ownbert.inspect.audit.audit import audit as run
    from ownbert.inspect.audit.audit_card import add_to_card, lines
    from ownbert.train.device import keep_memory

    keep_memory()
    say = saying(quiet=quiet)
    if output is not None:
        refuse_same([folder, train, held_out], output)
    found = run(folder, train, held_out, text_column=text_column, most=most, device=device, say=say)
    with together():
        if output is not None:
            write_json(output, found.as_json())
        warning = add_to_card(folder, found) if card else None
    if warning is not None:
        say(warning)
    if quiet:
        return
    for name, value in lines(found):
        echo(f"{name}: {value}")
    for sentence in found.advice():
        echo(translated(sentence))
