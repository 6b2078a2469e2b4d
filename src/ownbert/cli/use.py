"""evaluate and predict: a fine-tuned model at work."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ownbert.cli.corpus import counting
from ownbert.cli.options import LabelColumn, Quiet, SecondColumn, TextColumn

if TYPE_CHECKING:
    from ownbert.tasks.measures import Scores

Folder = Annotated[
    Path, typer.Argument(help="Folder that ownbert finetune wrote.", show_default=False)
]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
Precision = Annotated[str, typer.Option(help="float32, bfloat16 or auto (what is faster here).")]


def evaluate(
    folder: Folder,
    data: Annotated[Path, typer.Option(help="Labelled texts.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the measures there, as JSON.")
    ] = None,
    text_column: TextColumn = None,
    second_column: SecondColumn = None,
    label_column: LabelColumn = None,
    device: Device = "auto",
    precision: Precision = "float32",
    quiet: Quiet = False,
) -> None:
    """Measure a fine-tuned model on labelled texts: accuracy, macro-F1, and each label.

    Example: ownbert evaluate runs/clf --data test.csv
    """
    from ownbert.tasks.predict import evaluate as run
    from ownbert.train.machine import keep_memory

    keep_memory()
    with counting("documents", quiet=quiet) as progress:
        scores = run(
            folder,
            data,
            output=output,
            text_column=text_column,
            second_column=second_column,
            label_column=label_column,
            device=device,
            precision=precision,
            progress=progress,
            say=_warn,
        )
    if not quiet:
        _show(scores)


def _show(scores: "Scores") -> None:
    from rich.console import Console
    from rich.table import Table

    if scores.labels:
        table = Table("label", title_justify="left", box=None, pad_edge=False)
        for name in ("precision", "recall", "F1", "support"):
            table.add_column(name, justify="right")
        for row in scores.labels:
            figures = (f"{value:.3f}" for value in (row.precision, row.recall, row.f1))
            table.add_row(row.label, *figures, f"{row.support:,}")
        Console(highlight=False).print(table)
        print()
    named = (f"{n.replace('_', ' ').replace('f1', 'F1')} {v:.4f}" for n, v in scores.values.items())
    print("   ".join(named))


def predict(
    folder: Folder,
    input: Annotated[Path, typer.Option(help="Texts: a table, or a document a line.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="JSON lines, in the same order.")],
    text_column: TextColumn = None,
    second_column: SecondColumn = None,
    device: Device = "auto",
    precision: Precision = "float32",
    quiet: Quiet = False,
) -> None:
    """Label every text of a file: one JSON row each, with the label and all probabilities.

    Example: ownbert predict runs/clf --input new.csv -o predictions.jsonl
    """
    from ownbert.tasks.predict import predict as run
    from ownbert.train.machine import keep_memory

    keep_memory()
    with counting("documents labelled", quiet=quiet) as progress:
        count = run(
            folder,
            input,
            output,
            text_column=text_column,
            second_column=second_column,
            device=device,
            precision=precision,
            progress=progress,
            say=_warn,
        )
    if not quiet:
        print(f"{count:,} documents labelled; saved {output}")


def _warn(text: str) -> None:
    typer.echo(text, err=True)
