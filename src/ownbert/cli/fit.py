"""fit: find the best model within a time budget."""

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from ownbert.cli.options import Output, Overwrite, Quiet, required_output
from ownbert.cli.recipe_options import recipe_command
from ownbert.fitting.fit_recipe import FitRecipe
from ownbert.language import translated
from ownbert.terminal import echo
from ownbert.train.training_settings import DATA, RUN

_SHOWN = (
    *("dev", "test", "labels_per_class", "text_column", "second_column", "label_column"),
    *("label_separator", "label_names", "encoding", "task"),
    *("metric", "model", "size", "seeds", "minutes", "seed", "device"),
)


# Options that only --help-all shows.
_RARE = frozenset({"label_separator", "label_names", "second_column", "seeds"})


@recipe_command(FitRecipe, _SHOWN, command="fit", common=frozenset(_SHOWN) - _RARE)
def fit(
    train: Annotated[
        Path,
        typer.Argument(
            help="Labelled rows: csv, tsv, jsonl or parquet, plain or .gz.", show_default=False
        ),
    ],
    *,
    unlabelled: Annotated[
        list[Path] | None,
        typer.Option(
            help="Texts without labels, of the same kind: a file (txt has one per line), a folder "
            "or a glob; may be given several times.",
            rich_help_panel=DATA,
            show_default=False,
        ),
    ] = None,
    add: Annotated[
        list[Path] | None,
        typer.Option(
            help="Rows that were labelled later: the filled-in file of ownbert label, or a JSON "
            "export of Label Studio. Rows without a label are left out, and an added label "
            "replaces that of the same training text.",
            rich_help_panel=DATA,
            show_default=False,
        ),
    ] = None,
    output: Output = None,
    settings: dict[str, Any],
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Continue what was stopped.", rich_help_panel=RUN),
    ] = False,
    overwrite: Overwrite = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Print what the files hold and what would be fitted, then exit."
        ),
    ] = False,
    debug: Annotated[
        bool,
        typer.Option(
            "--debug", help="Show the traceback of a step that fails; the run continues without it."
        ),
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Find the best model that labelled texts, and texts without labels, give in so many minutes.

    Linear models and networks are fitted, compared on rows that none of them has learnt from, and
    blended; a network that has learnt from the blend is the ordinary Hugging Face folder. predict
    and evaluate use the blend, with --network the network alone. The task (one label per text,
    several, or numbers), the kind of text and the columns are seen from the file. Ctrl-C leaves the
    best model so far, and --resume continues; report.html in the folder says how good it is.

    Example: ownbert fit train.csv --unlabelled corpus.txt --minutes 20 -o best
    """
    started = time.monotonic()  # importing torch counts towards the minutes

    from ownbert.fitting.fit import fit_folder as run
    from ownbert.fitting.fit import preview_fit
    from ownbert.train.device import keep_memory

    keep_memory()
    if dry_run:
        echo(
            translated(preview_fit(train, unlabelled=unlabelled or (), add=add or None, **settings))
        )
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
        started=started,
        **settings,
    )
