"""embed: texts to vectors."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from ownbert.cli.options import Device, Precision, Quiet, TextColumn
from ownbert.cli.prepare import Inputs


def embed(
    folder: Annotated[Path, typer.Argument(help="Model folder.", show_default=False)],
    inputs: Inputs,
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            help="vectors.npy (a matrix), .parquet or .jsonl (a row a text, with the text).",
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
        typer.Option(help="Cut texts there, in tokens.", show_default="the model's limit"),
    ] = None,
    device: Device = "auto",
    precision: Precision = "float32",
    batch_tokens: Annotated[int, typer.Option(help="Tokens a forward pass.", min=1)] = 4096,
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
    with _bar(total, quiet=quiet) as progress:
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
            say=_warn,
        )
    if not quiet:
        print(f"{count:,} texts embedded; saved {output}")


@contextmanager
def _bar(total: int | None, *, quiet: bool) -> Iterator[Callable[[int], None]]:
    """A bar on a terminal; the callback takes the number so far."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.progress import TimeRemainingColumn as Remaining

    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield lambda count: None
        return
    shown = TextColumn("texts embedded"), BarColumn(), MofNCompleteColumn(), Remaining()
    with Progress(*shown, console=console) as bar:
        task = bar.add_task("", total=total)
        yield lambda count: bar.update(task, completed=count)


def _warn(text: str) -> None:
    typer.echo(text, err=True)
