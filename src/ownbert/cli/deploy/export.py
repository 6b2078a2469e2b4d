"""export: convert a trained folder for programs without ownbert."""

from pathlib import Path
from typing import Annotated

import typer

from ownbert.cli.options import Quiet, TextColumn
from ownbert.cli.progress import saying
from ownbert.exceptions import InputError
from ownbert.terminal import say


def export(
    folder: Annotated[Path, typer.Argument(help="Model folder.")],
    data: Annotated[
        Path | None,
        typer.Argument(
            metavar="FILE",
            help="File with texts, or with the rows of the model's task as for predict; the "
            "exported file and the model are compared on the first 256.",
            show_default="texts included in ownbert",
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder for the file.")
    ] = None,
    to: Annotated[str, typer.Option(help="onnx, openvino or torch (torch.export).")] = "onnx",
    text_column: TextColumn = None,
    tolerance: Annotated[
        float,
        typer.Option(
            help="Largest allowed difference between outputs of the exported file and of the "
            "model, at most 1; above it, nothing is written.",
            min=0,
            max=1,
        ),
    ] = 1e-3,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace files with the same names in the folder.")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Export a model for use without ownbert, and compare the result with the model.

    Any head can be exported, for any number and length of texts. The folder also gets
    config.json, the tokenizer, and a model card with the largest difference and the lowest
    cosine similarity. Sentence embedding models get the files that sentence-transformers
    expects. Requires pip install 'ownbert\\[onnx]' or 'ownbert\\[openvino]'; torch requires
    nothing else.

    Example: ownbert export runs/clf --to onnx -o runs/clf-onnx

    Example: ownbert export runs/clf test.csv --to openvino -o runs/clf-openvino
    """
    from ownbert.exporting.export import export as run

    if output is None:
        raise InputError("{-o} is needed: the folder for the exported file")
    parity = run(
        folder,
        output,
        to,
        data=data,
        text_column=text_column,
        tolerance=tolerance,
        overwrite=overwrite,
        say=saying(quiet=False),
    )
    if not quiet:
        say(
            f"largest difference {parity.largest_difference:.2g}, lowest cosine "
            f"{parity.least_cosine:.6f}, on {parity.texts:,} texts"
        )
        say(f"saved {output}")
