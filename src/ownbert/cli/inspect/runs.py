"""runs: compare training runs."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from ownbert.terminal import echo, say


def runs(
    folder: Annotated[Path, typer.Argument(help="Folder with runs in it, at any depth.")],
    sort: Annotated[
        str,
        typer.Option(
            help="Sort by name, when, time, step, tokens, a metric such as mlm_loss or macro_f1 "
            "(best first), or a setting such as learning_rate."
        ),
    ] = "name",
    json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
    csv: Annotated[bool, typer.Option("--csv", help="Print one row per run as CSV.")] = False,
    curves: Annotated[
        Path | None,
        typer.Option(
            help="Draw the held-out losses (macro-F1 of fine-tuning) of all runs into this PNG."
        ),
    ] = None,
) -> None:
    """List the fits and runs in a folder: their states, differing settings and results.

    Example: ownbert runs runs --sort mlm_loss
    """
    from json import dumps

    from rich.console import Console

    from ownbert.exceptions import InputError
    from ownbert.inspect.run_list import draw, find_runs, runs_csv, show_runs

    if json and csv:
        raise InputError("{--json} and {--csv} cannot be combined; use one of them")
    summaries = find_runs(folder, sort=sort)
    for line in summaries.broken:
        say(f"left out: {line}", err=True)
    if json:
        echo(dumps([run.as_json() for run in summaries.runs], ensure_ascii=False, indent=2))
    elif csv:
        echo(runs_csv(summaries.runs), end="")
    else:
        # No width limit in a pipe.
        echo(show_runs(summaries.runs, width=Console().width if sys.stdout.isatty() else None))
    if curves is not None:
        draw(summaries.runs, curves)
        say(f"saved {curves}", err=True)
