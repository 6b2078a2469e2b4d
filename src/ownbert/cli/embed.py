"""embed: texts to vectors."""

from pathlib import Path
from typing import Annotated

import typer

from ownbert import limits
from ownbert.cli.options import Device, Inputs, Precision, Quiet, TextColumn
from ownbert.cli.progress import counting
from ownbert.language import translated
from ownbert.terminal import echo


def embed(
    folder: Annotated[Path, typer.Argument(help="Model folder.", show_default=False)],
    inputs: Inputs,
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            help="vectors.npy (a matrix), .parquet or .jsonl (one row per text, with the text).",
        ),
    ],
    text_column: TextColumn = None,
    pooling: Annotated[
        str | None,
        typer.Option(help="mean, first or max.", show_default="the model's, else mean"),
    ] = None,
    normalize: Annotated[
        bool | None,
        typer.Option(
            "--normalize/--no-normalize",
            help="Vectors of length one.",
            show_default="the model's, else not",
        ),
    ] = None,
    max_length: Annotated[
        int | None,
        typer.Option(
            help="Longest input in tokens; longer texts are cut off.",
            show_default="the model's limit",
            min=1,
            max=limits.LENGTH,
        ),
    ] = None,
    device: Device = "auto",
    precision: Precision = "float32",
    batch_tokens: Annotated[
        int, typer.Option(help="Tokens per forward pass.", min=1, max=limits.BATCH_TOKENS)
    ] = 4096,
    quiet: Quiet = False,
) -> None:
    """Turn every text into a vector, in the order of the texts.

    Texts are the rows of tables or the lines of plain text, empty ones included. Pooling, length
    and normalisation follow what sentence-transformers wrote beside the model, if it did.

    Example: ownbert embed runs/bert corpus.txt.gz -o vectors.npy
    """
    from ownbert.inference.vector_files import count_texts
    from ownbert.inference.vector_files import embed as run
    from ownbert.train.device import keep_memory

    keep_memory()
    # Reads everything once: a mistake in the last line shows at once, not after hours.
    total = count_texts(inputs, text_column=text_column)
    with counting("texts embedded", quiet=quiet, total=lambda: total) as progress:
        count = run(
            folder,
            inputs,
            output,
            text_column=text_column,
            pooling=pooling,
            normalize=normalize,
            max_length=max_length,
            device=device,
            precision=precision,
            batch_tokens=batch_tokens,
            progress=progress,
            say=lambda text: echo(translated(text), err=True),
        )
    if not quiet:
        echo(translated(f"{count:,} texts embedded; saved {output}"))
