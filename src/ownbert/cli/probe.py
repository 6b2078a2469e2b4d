"""probe: a linear model on the vectors of a network."""

from pathlib import Path
from typing import Annotated

import typer

from ownbert import limits
from ownbert.cli.options import Overwrite, Quiet
from ownbert.language import translated
from ownbert.terminal import echo


def probe(
    model: Annotated[
        Path, typer.Argument(help="Folder of the network, left as it is.", show_default=False)
    ],
    train: Annotated[
        Path,
        typer.Option(help="Labelled rows: csv, tsv, jsonl or parquet, plain or .gz."),
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder for the result.", show_default=False)
    ],
    dev: Annotated[
        Path | None,
        typer.Option(
            help="Labelled rows to evaluate on.",
            show_default="a part of the training rows, or folds of them",
        ),
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(help="classify, multilabel or regress.", show_default="seen from the labels"),
    ] = None,
    text_column: Annotated[
        str | None, typer.Option(help="Column of the texts.", show_default="by its usual names")
    ] = None,
    second_column: Annotated[
        str | None,
        typer.Option(help="Column of second texts, for pairs.", show_default="by its usual names"),
    ] = None,
    label_column: Annotated[
        str | None,
        typer.Option(help="Column of the labels or numbers.", show_default="by its usual names"),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the folds.", min=0, max=limits.SEED)] = 0,
    overwrite: Overwrite = False,
    quiet: Quiet = False,
) -> None:
    """See how good a network's vectors are, with a linear model on them and nothing trained.

    It takes seconds and often comes close to fine-tuning; ownbert fit has it among its candidates.
    predict and evaluate use the folder.

    Example: ownbert probe runs/bert --train train.csv -o runs/probe
    """
    from ownbert.fitting.probe import probe as run
    from ownbert.train.device import keep_memory
    from ownbert.train.metric_names import shown_name

    keep_memory()
    scores, source = run(
        model,
        train,
        output,
        dev=dev,
        task=task,
        text_column=text_column,
        second_column=second_column,
        label_column=label_column,
        seed=seed,
        overwrite=overwrite,
    )
    if not quiet:
        named = "   ".join(f"{translated(shown_name(n))} {v:.4f}" for n, v in scores.values.items())
        echo(f"{translated(source)}: {named}\n{translated(f'saved {output}')}")
