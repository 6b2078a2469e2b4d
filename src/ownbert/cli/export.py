"""export: convert a trained folder for programs without ownbert."""

from pathlib import Path
from typing import Annotated

import typer

from ownbert.cli.options import Quiet, TextColumn
from ownbert.errors import InputError
from ownbert.language import translated
from ownbert.terminal import echo


def export(
    folder: Annotated[Path, typer.Argument(help="Model folder.", show_default=False)],
    data: Annotated[
        Path | None,
        typer.Argument(
            metavar="FILE",
            help="File of texts on which the file and the model are compared: its first 256.",
            show_default="texts of ownbert",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Folder for the file.", show_default=False),
    ] = None,
    to: Annotated[str, typer.Option(help="onnx, openvino or torch (torch.export).")] = "onnx",
    text_column: TextColumn = None,
    tolerance: Annotated[
        float,
        typer.Option(
            help="Largest difference between two numbers of the file and of the model, at most 1; "
            "beyond it nothing is written.",
            min=0,
            max=1,
        ),
    ] = 1e-3,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace files of the same names in the folder.")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Write a model as a file for programs without ownbert, compared with the model.

    Every head can be exported; texts may be of any number and length. Beside the file stand
    config.json, the tokenizer, and a model card with the largest difference and the least cosine.
    Sentence models are written as sentence-transformers expects them. It needs
    pip install 'ownbert\\[onnx]' or 'ownbert\\[openvino]'; torch needs nothing more.

    Example: ownbert export runs/clf --to onnx -o runs/clf-onnx

    Example: ownbert export runs/clf test.csv --to openvino -o runs/clf-openvino
    """
    from ownbert.exporting.export import export as run

    if output is None:
        raise InputError("-o is needed: the folder for the exported file")
    parity = run(
        folder,
        output,
        to,
        data=data,
        text_column=text_column,
        tolerance=tolerance,
        overwrite=overwrite,
        say=lambda text: echo(translated(text), err=True),
    )
    if not quiet:
        echo(
            translated(
                f"largest difference {parity.largest_difference:.2g}, least cosine "
                f"{parity.least_cosine:.6f}, on {parity.texts:,} texts"
            )
        )
        echo(translated(f"saved {output}"))
