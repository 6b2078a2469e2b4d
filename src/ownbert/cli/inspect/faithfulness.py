"""faithfulness: whether explanations reflect the model."""

from pathlib import Path
from typing import Annotated

import typer

from ownbert.cli.options import Device, Encoding, Network, TextColumns
from ownbert.cli.recipe_options import settings_command
from ownbert.terminal import echo, say

# Maximum number of predictions; each takes several hundred forward passes.
_MOST_ROWS = 100_000


@settings_command
def faithfulness(
    folder: Annotated[Path, typer.Argument(help="Folder of a trained model that reads texts.")],
    file: Annotated[Path, typer.Argument(help="Rows, as for ownbert predict.")],
    methods: Annotated[
        str | None,
        typer.Option(help="Methods, separated by commas.", show_default="all but shapley"),
    ] = None,
    rows: Annotated[
        int, typer.Option(help="Number of predictions to measure on.", min=2, max=_MOST_ROWS)
    ] = 100,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Picture to write (.png).")
    ] = None,
    *,
    columns: TextColumns,
    encoding: Encoding = None,
    device: Device = "auto",
    network: Network = False,
) -> None:
    """Measure which explanation method is most faithful to a model, compared with a random
    order.

    Words are masked in the order given by each method. Comprehensiveness is the drop in the
    probability of the prediction without its most important words: higher is better.
    Sufficiency is the drop with only these words: lower is better. Both are means over 5, 10,
    20 and 50 % of the words; ± is the standard error over rows. Correlation compares each
    method with leaving out single words.

    Example: ownbert faithfulness runs/clf dev.csv --rows 200 -o faithful.png
    """
    from functools import partial
    from json import dumps

    from ownbert.figures import figure_class
    from ownbert.inspect.explain.faithfulness import (
        USUAL,
        best_method,
        draw_curves,
        faithfulness_table,
    )
    from ownbert.inspect.explain.faithfulness import faithfulness as measure

    if output is not None:
        figure_class(output)
    chosen = USUAL if methods is None else tuple(name.strip() for name in methods.split(","))
    how = {"device": device, "network": network, **columns.settings()}
    curves = measure(folder, file, methods=chosen, rows=rows, say=partial(say, err=True), **how)
    if json:
        echo(dumps({name: each.row() for name, each in curves.items()}))
    else:
        for line in faithfulness_table(curves):
            echo(line)
        best = best_method(curves)
        echo()
        if best is None:
            say("no method is better than a random order")
        else:
            say(f"the most faithful on these rows: {best}")
    if output is not None:
        draw_curves(curves, output)
        say(f"saved {output}", err=json)
