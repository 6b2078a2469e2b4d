"""predict: the answers of a fine-tuned model."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from ownbert.cli.options import (
    Device,
    FinetunedFolder,
    Network,
    Precision,
    Quiet,
    ResumeFile,
    TaskSecondColumn,
    TaskTextColumn,
)
from ownbert.cli.progress import counting
from ownbert.terminal import echo


def predict(
    folder: FinetunedFolder,
    input: Annotated[
        Path,
        typer.Option(
            help="Rows to answer: csv, tsv, jsonl or parquet; one text per line; CoNLL columns "
            "(tag), SQuAD's JSON (answer), or a folder of images, one image, IDX or .npz "
            "(image); .gz too."
        ),
    ],
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", help="A table (.csv, .tsv) or JSON lines, in the same order; .gz too."
        ),
    ],
    text_column: TaskTextColumn = None,
    second_column: TaskSecondColumn = None,
    device: Device = "auto",
    precision: Precision = "float32",
    network: Network = False,
    resume: ResumeFile = False,
    quiet: Quiet = False,
) -> None:
    """Answer every row of a file with a fine-tuned model of any task.

    One row of answers per row, in the same order: the label or labels with their probabilities,
    the numbers, the tags of the words and what they name, the answer found in the text, the
    choice, or how alike two texts are. Plain text, one text per line, will do where a row is a
    single text.

    Example: ownbert predict runs/clf --input new.csv -o predictions.jsonl
    """
    from ownbert.inference.predict import predict as run
    from ownbert.train.device import keep_memory

    keep_memory()
    with counting("rows answered", quiet=quiet) as progress:
        count = run(
            folder,
            input,
            output,
            text_column=text_column,
            second_column=second_column,
            device=device,
            precision=precision,
            network=network,
            resume=resume,
            progress=progress,
            say=partial(echo, err=True),
        )
    if not quiet:
        echo(f"{count:,} {'row' if count == 1 else 'rows'} answered; saved {output}")
