"""push: upload a finished folder to the Hugging Face Hub."""

from pathlib import Path
from typing import Annotated

import typer

from ownbert.cli.options import Quiet
from ownbert.terminal import say


def push(
    folder: Annotated[Path, typer.Argument(help="Folder of a finished model.")],
    name: Annotated[str, typer.Argument(metavar="ORG/NAME", help="Name on the hub.")],
    private: Annotated[
        bool, typer.Option("--private", help="Make a new repository private.")
    ] = False,
    message: Annotated[str, typer.Option(help="Commit message.")] = "Upload by ownbert push",
    with_texts: Annotated[
        bool,
        typer.Option(
            "--with-texts", help="Also upload the report of fit, which quotes texts from the rows."
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the list of files and exit without uploading.")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Upload a finished folder to the Hugging Face hub: model, tokenizer, card, pictures.

    Uploads only files that are needed to use the model, and lists them first: no texts,
    recipes, logs, saved states or unknown files. Requires pip install 'ownbert\\[hub]' and a
    token (hf auth login, or HF_TOKEN).

    Example: ownbert push runs/clf my-name/topics
    """
    from ownbert.exporting.push import push as run

    address = run(
        folder,
        name,
        private=private,
        message=message,
        with_texts=with_texts,
        dry_run=dry_run,
        say=None if quiet and not dry_run else say,
    )
    if dry_run:
        say("nothing was uploaded")
    elif not quiet:
        say(f"saved {address}")
