"""probe: a linear model on a network's vectors."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from ownbert import limits
from ownbert.checks import between
from ownbert.cli.options import Encoding, Overwrite, Quiet
from ownbert.cli.recipe_options import chosen, settings_command
from ownbert.errors import InputError
from ownbert.language import translated
from ownbert.settings import setting
from ownbert.tables.columns import ColumnNames
from ownbert.terminal import echo

_BY_NAME = {"shown": "by its usual names"}


@dataclass(frozen=True, kw_only=True)
class ProbeSettings:
    """Options for evaluating a linear model, and for comparing layers."""

    dev: Path | None = setting(
        None,
        "Labelled rows to evaluate on.",
        shown="a part of the training rows, or folds of them",
    )
    task: str | None = setting(
        None, "classify, multilabel or regress.", shown="seen from the labels"
    )
    layers: bool = setting(False, "Compare the vectors of all layers instead, and write no folder.")
    png: Path | None = setting(None, "With --layers: draw the comparison.")
    seed: int = setting(0, "Seed of the folds.", check=between(0, limits.SEED, "[]"))

    def given(self) -> dict[str, Any]:
        return {"dev": self.dev, "task": self.task, "seed": self.seed}


@settings_command
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
    *,
    settings: ProbeSettings,
    columns: Annotated[
        ColumnNames,
        chosen(
            text={"help": "Column of the texts.", **_BY_NAME},
            second={"help": "Column of second texts, for pairs.", **_BY_NAME},
            label={"help": "Column of the labels or numbers.", **_BY_NAME},
        ),
    ],
    encoding: Encoding = None,
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
    from ownbert.fitting.network_probe import probe as run
    from ownbert.train.device import keep_memory
    from ownbert.train.watch.metric_names import shown_name

    keep_memory()
    if settings.layers:
        if output is not None:
            raise InputError("--layers writes no folder: leave -o out")
        _compare_layers(model, train, columns, settings, quiet=quiet)
        return
    if settings.png is not None:
        raise InputError("--png draws the comparison of --layers")
    if output is None:
        raise InputError("-o is needed: the folder for the result; or take --layers")
    named = columns.settings()
    scores, source = run(model, train, output, overwrite=overwrite, **named, **settings.given())
    if not quiet:
        shown = "   ".join(f"{translated(shown_name(n))} {v:.4f}" for n, v in scores.values.items())
        echo(f"{translated(source)}: {shown}\n{translated(f'saved {output}')}")


def _compare_layers(
    model: Path, train: Path, columns: ColumnNames, settings: ProbeSettings, *, quiet: bool
) -> None:
    from ownbert.fitting.network_probe import probe_layers
    from ownbert.inspect.figures import draw_layers, figure_class
    from ownbert.train.watch.metric_names import shown_name

    png = settings.png
    if png is not None:
        figure_class(png)
    found, source = probe_layers(model, train, columns=columns, **settings.given())
    names = list(found[0].values)
    if not quiet:
        echo(f"{translated(source)}:")
        for layer, each in enumerate(found):
            named = "   ".join(f"{translated(shown_name(n))} {each.values[n]:.4f}" for n in names)
            echo(f"  {translated(f'layer {layer}' if layer else 'embeddings')}   {named}")
    if png is not None:
        values = [each.values[names[0]] for each in found]
        draw_layers(values, shown_name(names[0]), png)
        echo(translated(f"saved {png}"))
