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
_LABELS = 100  # in the table of evaluate
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
Precision = Annotated[str, typer.Option(help="float32, bfloat16 or auto (what is faster here).")]


def evaluate(
    folder: Folder,
    data: Annotated[Path, typer.Option(help="Labelled texts.")],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="Write the measures there, as JSON; the confusion matrix beside it, as a picture.",
        ),
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
    from ownbert.tasks.pictures import CONFUSION, draw_confusion
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
    if output is not None:
        told = draw_confusion(output.with_name(f"{output.stem}.{CONFUSION}"), scores)
        if told is not None and not quiet:
            _warn(told)
    if not quiet:
        _show(scores)


def _show(scores: "Scores") -> None:
    """Each label, what is most often taken for what, and the measures."""
    from ownbert.tasks.pictures import most_confused
    from ownbert.train.names import shown_name

    if scores.labels:
        _show_labels(scores)
    if confused := most_confused(scores):
        print(f"most often confused: {'; '.join(confused)}\n")
    named = (f"{shown_name(n)} {v:.4f}" for n, v in scores.values.items())
    print("   ".join(named))


def _show_labels(scores: "Scores") -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table("label", title_justify="left", box=None, pad_edge=False)
    for name in ("precision", "recall", "F1", "support"):
        table.add_column(name, justify="right")
    for row in scores.labels[:_LABELS]:
        figures = (f"{value:.3f}" for value in (row.precision, row.recall, row.f1))
        table.add_row(Text(row.label), *figures, f"{row.support:,}")
    Console(highlight=False).print(table)
    if (more := len(scores.labels) - _LABELS) > 0:
        print(f"and {more:,} more labels; -o measures.json has them all")
    print()


def predict(
    folder: Folder,
    input: Annotated[Path, typer.Option(help="Texts: a table, or a document a line.")],
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", help="A table (.csv, .tsv) or JSON lines, in the same order; .gz too."
        ),
    ],
    text_column: TextColumn = None,
    second_column: SecondColumn = None,
    device: Device = "auto",
    precision: Precision = "float32",
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on where a stopped run of the same ended.")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Label every text of a file: a row each, with the label and all probabilities.

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
            resume=resume,
            progress=progress,
            say=_warn,
        )
    if not quiet:
        print(f"{count:,} documents labelled; saved {output}")


def _warn(text: str) -> None:
    typer.echo(text, err=True)
