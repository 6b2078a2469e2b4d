"""quantize: a copy of a trained folder with 8-bit matrices."""

from pathlib import Path
from typing import Annotated

import typer

from ownbert.cli.options import Quiet, TextColumn
from ownbert.cli.progress import saying
from ownbert.exceptions import InputError
from ownbert.terminal import say


def quantize(
    folder: Annotated[Path, typer.Argument(help="Model folder.")],
    data: Annotated[
        Path | None,
        typer.Argument(
            metavar="FILE",
            help="File with texts, or with the rows of the model's task as for predict, like those "
            "that the model will read; the first 256 are used to measure activations and to "
            "compare both models.",
            show_default="texts included in ownbert",
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder for the copy.")
    ] = None,
    text_column: TextColumn = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace files with the same names in the folder.")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Write a copy of a model with 8-bit matrices, which is smaller and, on most CPUs, faster.

    predict, evaluate, embed and serve accept the copy like any other folder; it cannot be
    trained. Predictions change slightly: the model card reports by how much, and the size of
    both models. Image and translation models cannot be quantized.

    Example: ownbert quantize runs/clf -o runs/clf-int8

    Example: ownbert quantize runs/clf new.csv -o runs/clf-int8
    """
    from ownbert.exporting.quantize import quantize as run

    if output is None:
        raise InputError("{-o} is needed: the folder for the quantized model")
    parity = run(
        folder,
        output,
        data=data,
        text_column=text_column,
        overwrite=overwrite,
        say=saying(quiet=False),
    )
    if not quiet:
        say(
            f"lowest cosine {parity.least_cosine:.4f}, mean {parity.mean_cosine:.4f}, on "
            f"{parity.texts:,} texts"
        )
        for kind, head in parity.heads.items():
            if (described := head.describe()) is not None:
                say(f"{kind}: {described}")
        sizes = [f"{size / 1e6:,.1f}" for size in (parity.bytes_before, parity.bytes_after)]
        say(f"the weights have {sizes[1]} MB instead of {sizes[0]}")
        say(f"saved {output}")
