"""push: a finished folder to the Hugging Face hub."""

from pathlib import Path
from typing import Annotated

import typer

from ownbert.cli.options import Quiet
from ownbert.language import translated
from ownbert.terminal import echo


def push(
    folder: Annotated[Path, typer.Argument(help="Folder of a finished model.", show_default=False)],
    name: Annotated[
        str, typer.Argument(metavar="ORG/NAME", help="Name on the hub.", show_default=False)
    ],
    private: Annotated[
        bool, typer.Option("--private", help="Make a new repository that only you can see.")
    ] = False,
    message: Annotated[str, typer.Option(help="Of the commit.")] = "Upload by ownbert push",
    quiet: Quiet = False,
) -> None:
    """Upload a finished folder to the Hugging Face hub: model, tokenizer, card, pictures.

    Saved states, logs for TensorBoard and unfinished files stay here. It needs
    pip install 'ownbert\\[hub]', and a token (hf auth login, or HF_TOKEN).

    Example: ownbert push runs/clf my-name/topics
    """
    from ownbert.hub import push as run

    address = run(folder, name, private=private, message=message)
    if not quiet:
        echo(translated(f"saved {address}"))
