"""probe: a linear model on a network's vectors."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from ownbert import limits
from ownbert.checks import between
from ownbert.cli.options import Encoding, Overwrite, Quiet
from ownbert.cli.progress import saying
from ownbert.cli.recipe_options import chosen, settings_command
from ownbert.exceptions import InputError
from ownbert.fitting.fit_recipe import FitRecipe
from ownbert.language import translated
from ownbert.settings import same_setting, setting
from ownbert.tables.columns import ColumnNames
from ownbert.terminal import echo, say

_BY_NAME = {"shown": "detected by name"}


@dataclass(frozen=True, kw_only=True)
class ProbeSettings:
    """Options for evaluating a linear model, and for comparing layers."""

    dev: Path | None = setting(
        None, "Labelled rows to evaluate on.", shown="part of the training rows, or folds of them"
    )
    task: str | None = setting(
        None, "classify, multilabel or regress.", shown="detected from the labels"
    )
    group: str | None = same_setting(FitRecipe, "group", panel=None)
    time_column: str | None = same_setting(FitRecipe, "time_column", panel=None)
    layers: bool = setting(False, "Compare the vectors of all layers instead; writes no folder.")
    png: Path | None = setting(
        None, "With --layers: plot the comparison into this file.", needs=("layers",)
    )
    seed: int = setting(0, "Seed for the folds.", check=between(0, limits.SEED, "[]"))

    def given(self) -> dict[str, Any]:
        names = ("dev", "task", "group", "time_column", "seed")
        return {name: getattr(self, name) for name in names}


@settings_command
def probe(
    model: Annotated[Path, typer.Argument(help="Folder of the network; it is not modified.")],
    train: Annotated[
        Path, typer.Option(help="Labelled rows: csv, tsv, jsonl or parquet, plain or .gz.")
    ],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder for the result.")
    ] = None,
    *,
    settings: ProbeSettings,
    columns: Annotated[
        ColumnNames,
        chosen(
            text={"help": "Column with the texts.", **_BY_NAME},
            second={"help": "Column with the second texts of pairs.", **_BY_NAME},
            label={"help": "Column with the labels or numbers.", **_BY_NAME},
        ),
    ],
    encoding: Encoding = None,
    overwrite: Overwrite = False,
    quiet: Quiet = False,
) -> None:
    """Measure how good a network's vectors are, with a linear model on the frozen network.

    This takes seconds and often comes close to fine-tuning; ownbert fit includes it among its
    candidates. The folder works with predict and evaluate. With --layers, a separate linear
    model per layer shows which layers encode the labels.

    Example: ownbert probe runs/bert --train train.csv -o runs/probe

    Example: ownbert probe runs/bert --train train.csv --dev dev.csv --layers --png layers.png
    """
    from ownbert.fitting.network_probe import probe as run
    from ownbert.train.device import keep_memory
    from ownbert.train.watch.metric_names import decimals, shown_name

    keep_memory()
    if settings.layers:
        if output is not None:
            raise InputError("{--layers} writes no folder: omit {-o}")
        _compare_layers(model, train, columns, settings, quiet=quiet)
        return
    if output is None:
        raise InputError("{-o} is needed: the folder for the result; or use {--layers}")
    named = columns.settings()
    note = None if quiet else saying(quiet=quiet)
    options: Any = {**named, **settings.given(), "overwrite": overwrite, "say": note}
    scores, source = run(model, train, output, **options)
    if not quiet:
        values = (f"{translated(shown_name(n))} {decimals(v, 4)}" for n, v in scores.values.items())
        shown = "   ".join(values)
        echo(f"{translated(source)}: {shown}\n{translated(f'saved {output}')}")


def _compare_layers(
    model: Path, train: Path, columns: ColumnNames, settings: ProbeSettings, *, quiet: bool
) -> None:
    from ownbert.figures import figure_class
    from ownbert.fitting.network_probe import draw_layers, probe_layers
    from ownbert.train.watch.metric_names import decimals, shown_name

    png = settings.png
    if png is not None:
        figure_class(png)
    options: Any = {**settings.given(), "say": None if quiet else saying(quiet=quiet)}
    scores, source = probe_layers(model, train, columns=columns, **options)
    names = list(scores[0].values)
    if not quiet:
        echo(f"{translated(source)}:")
        for layer, each in enumerate(scores):
            values = ((translated(shown_name(n)), decimals(each.values[n], 4)) for n in names)
            named = "   ".join(f"{name} {value}" for name, value in values)
            echo(f"  {translated(f'layer {layer}' if layer else 'embeddings')}   {named}")
    if png is not None:
        values = [each.values[names[0]] for each in scores]
        draw_layers(values, shown_name(names[0]), png)
        say(f"saved {png}")
