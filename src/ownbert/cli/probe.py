"""probe: a linear model on the vectors of a network."""

from pathlib import Path
from typing import Annotated, Any

import typer

from ownbert import limits
from ownbert.cli.options import Encoding, Overwrite, Quiet
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
        Path | None,
        typer.Option("--output", "-o", help="Folder for the result.", show_default=False),
    ] = None,
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
    encoding: Encoding = None,
    layers: Annotated[
        bool,
        typer.Option(
            "--layers", help="Compare the vectors of all layers instead, and write no folder."
        ),
    ] = False,
    png: Annotated[
        Path | None,
        typer.Option(help="With --layers: draw the comparison.", show_default=False),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the folds.", min=0, max=limits.SEED)] = 0,
    overwrite: Overwrite = False,
    quiet: Quiet = False,
) -> None:
    """See how good a network's vectors are, with a linear model on them and nothing trained.

    It takes seconds and often comes close to fine-tuning; ownbert fit has it among its candidates.
    predict and evaluate use the folder. With --layers each layer has a linear model of its own,
    which shows where in the network the labels can be read.

    Example: ownbert probe runs/bert --train train.csv -o runs/probe

    Example: ownbert probe runs/bert --train train.csv --dev dev.csv --layers --png layers.png
    """
    from ownbert.errors import InputError
    from ownbert.fitting.network_probe import probe as run
    from ownbert.fitting.network_probe import probe_layers
    from ownbert.inspect.figures import draw_layers, figure_class
    from ownbert.tables.columns import ColumnNames
    from ownbert.train.device import keep_memory
    from ownbert.train.watch.metric_names import shown_name

    keep_memory()
    options: dict[str, Any] = {
        "dev": dev,
        "task": task,
        "seed": seed,
    }
    if layers:
        if output is not None:
            raise InputError("--layers writes no folder: leave -o out")
        if png is not None:
            figure_class(png)
        found, source = probe_layers(
            model, train, columns=ColumnNames(text_column, second_column, label_column), **options
        )
        names = list(found[0].values)
        if not quiet:
            echo(f"{translated(source)}:")
            for layer, each in enumerate(found):
                named = "   ".join(
                    f"{translated(shown_name(n))} {each.values[n]:.4f}" for n in names
                )
                echo(f"  {translated(f'layer {layer}' if layer else 'embeddings')}   {named}")
        if png is not None:
            values = [each.values[names[0]] for each in found]
            draw_layers(values, shown_name(names[0]), png)
            echo(translated(f"saved {png}"))
        return
    if png is not None:
        raise InputError("--png draws the comparison of --layers")
    if output is None:
        raise InputError("-o is needed: the folder for the result; or take --layers")
    scores, source = run(
        model,
        train,
        output,
        text_column=text_column,
        second_column=second_column,
        label_column=label_column,
        overwrite=overwrite,
        **options,
    )
    if not quiet:
        named = "   ".join(f"{translated(shown_name(n))} {v:.4f}" for n, v in scores.values.items())
        echo(f"{translated(source)}: {named}\n{translated(f'saved {output}')}")
