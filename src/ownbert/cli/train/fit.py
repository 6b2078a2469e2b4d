"""fit: find the best model within a time budget."""

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from ownbert.cli.options import Output, Overwrite, Quiet, required_output
from ownbert.cli.recipe_options import recipe_command
from ownbert.fitting.fit_recipe import FitRecipe
from ownbert.terminal import say
from ownbert.train.training_settings import DATA, RUN

_SHOWN = (
    *("dev", "test", "labels_per_class", "text_column", "second_column", "label_column"),
    *("group", "time_column"),
    *("label_separator", "label_names", "positive", "threshold"),
    *("skip_unlabelled", "encoding", "task"),
    *("metric", "model", "size", "seeds", "minutes", "seed", "device"),
)


# Options that only --help-all shows.
_RARE = frozenset(
    {
        *("label_separator", "label_names", "skip_unlabelled", "second_column", "seeds"),
        *("encoding", "size", "positive", "threshold"),
    }
)


@recipe_command(FitRecipe, _SHOWN, command="fit", common=frozenset(_SHOWN) - _RARE)
def fit(
    train: Annotated[
        Path, typer.Argument(help="Labelled rows: csv, tsv, jsonl or parquet, plain or .gz.")
    ],
    *,
    unlabelled: Annotated[
        list[Path] | None,
        typer.Option(
            help="Unlabelled texts of the same kind: a file (.txt: one text per line), a folder "
            "or a glob; can be repeated.",
            rich_help_panel=DATA,
        ),
    ] = None,
    add: Annotated[
        list[Path] | None,
        typer.Option(
            help="Additional labelled rows: a filled-in file from ownbert label, or a JSON "
            "export from Label Studio. Rows without a label are skipped; a label given here "
            "replaces the training label of the same text.",
            rich_help_panel=DATA,
        ),
    ] = None,
    output: Output = None,
    settings: dict[str, Any],
    resume: Annotated[
        bool, typer.Option("--resume", help="Resume a stopped run.", rich_help_panel=RUN)
    ] = False,
    overwrite: Overwrite = False,
    replay: Annotated[
        Path | None,
        typer.Option(
            help="Repeat the steps of the finished run in this folder, not by the clock: the same "
            "result, to the bit.",
            rich_help_panel=RUN,
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Print what the files contain and which models would be fitted, then exit.",
        ),
    ] = False,
    debug: Annotated[
        bool,
        typer.Option(
            "--debug",
            help="Show the traceback of a failed step; the run continues without that step.",
        ),
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Find the best model for labelled texts, helped by unlabelled ones, within a time limit.

    Fits linear models and networks, compares them on held-out rows and blends them. A network
    distilled from the blend is saved as an ordinary Hugging Face folder. predict and evaluate
    use the blend, or only the network with --network. The task (one label per text, several
    labels, or numbers), the kind of text and the columns are detected from the file. Ctrl-C
    keeps the best model so far, and --resume continues; report.html in the folder shows how
    good it is.

    Example: ownbert fit train.csv --unlabelled corpus.txt --minutes 20 -o best
    """
    started = time.monotonic()  # importing torch counts towards the minutes

    from ownbert.fitting.fit import fit_folder as run
    from ownbert.fitting.fit import preview_fit
    from ownbert.train.device import keep_memory

    keep_memory()
    if dry_run:
        files = {"unlabelled": unlabelled or (), "add": add or None}
        say(preview_fit(train, **files, replay=replay, **settings))
        return
    run(
        train,
        output=required_output(output),
        unlabelled=unlabelled or (),
        add=add or None,
        resume=resume,
        overwrite=overwrite,
        quiet=quiet,
        debug=debug,
        replay=replay,
        started=started,
        **settings,
    )
