"""topics: what texts without labels are about."""

from pathlib import Path
from typing import Annotated

import typer

from ownbert import limits
from ownbert.cli.input_texts import given_texts
from ownbert.cli.options import Device, Encoding, Quiet, TextColumn, TextsOrFiles
from ownbert.cli.progress import counting, saying
from ownbert.language import translated
from ownbert.terminal import console, echo

_NOTHING = "nothing to group; give files, texts, or lines"


def topics(
    model: Annotated[
        Path, typer.Argument(help="Folder of the model of the vectors.", show_default=False)
    ],
    texts: TextsOrFiles = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="File with the topic of each text: .jsonl, .csv or .tsv.",
            show_default=False,
        ),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(help="Write a page with the topics.", show_default=False),
    ] = None,
    count: Annotated[
        int | None,
        typer.Option(
            help="Number of topics.", show_default="by the data", min=2, max=limits.SHARDS
        ),
    ] = None,
    text_column: TextColumn = None,
    date_column: Annotated[
        str | None,
        typer.Option(
            help="Column of dates, such as 2024-05-31, to count topics over time.",
            show_default="none",
        ),
    ] = None,
    encoding: Encoding = None,
    seed: Annotated[int, typer.Option(help="Seed of the clusters.", min=0, max=limits.SEED)] = 0,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Group texts by what they are about, and name each group by its distinctive words.

    Vectors of the model are clustered by k-means (scikit-learn). The page has sizes, words, typical
    texts and, with --date-column, the share of each topic over time.

    Example: ownbert topics runs/bert corpus.csv --html topics.html -o topics.jsonl
    """
    from rich.table import Table
    from rich.text import Text

    from ownbert.unlabelled.topics import topics as run

    given = given_texts(texts or (), text_column, date_column, missing=_NOTHING)
    with counting("texts embedded", quiet=quiet) as progress:
        found = run(
            model,
            given,
            output,
            html=html,
            count=count,
            text_column=text_column,
            date_column=date_column,
            seed=seed,
            device=device,
            progress=progress,
            say=saying(quiet=quiet),
        )
    if quiet:
        return
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    for justify in ("right", "right", "left"):
        table.add_column(justify=justify)
    for number, topic in enumerate(found.topics, start=1):
        table.add_row(*map(Text, (f"{number}", f"{topic.size:,}", ", ".join(topic.words))))
    console().print(table)
    for saved in filter(None, (output, html)):
        echo(translated(f"saved {saved}"))
