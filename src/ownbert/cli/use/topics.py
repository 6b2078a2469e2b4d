"""topics: the topics of texts without labels."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from ownbert import limits
from ownbert.checks import between
from ownbert.cli.input_texts import given_texts
from ownbert.cli.options import Device, Encoding, Quiet, ResumeFile, TextColumn, TextsOrFiles
from ownbert.cli.progress import counting, saying
from ownbert.cli.recipe_options import settings_command
from ownbert.settings import setting
from ownbert.tables.columns import ColumnNames
from ownbert.terminal import console, say

_NOTHING = "nothing to group; give files, texts, or lines on standard input"


@dataclass(frozen=True, kw_only=True)
class TopicsSettings:
    """Options for clustering and its outputs, named as in the Python function."""

    output: Path | None = setting(
        None, "Output file with the topic of each text: .jsonl, .csv or .tsv.", option="--output -o"
    )
    html: Path | None = setting(None, "Write a page with the topics.")
    count: int | None = setting(
        None,
        "Number of topics.",
        shown="depends on the data",
        check=between(2, limits.SHARDS, "[]"),
    )
    date_column: str | None = setting(
        None, "Column of dates, such as 2024-05-31, to count topics over time.", shown="none"
    )
    seed: int = setting(0, "Seed for clustering.", check=between(0, limits.SEED, "[]"))


@settings_command
def topics(
    model: Annotated[Path, typer.Argument(help="Folder of the model that computes the vectors.")],
    texts: TextsOrFiles = None,
    *,
    settings: TopicsSettings,
    text_column: TextColumn = None,
    encoding: Encoding = None,
    device: Device = "auto",
    resume: ResumeFile = False,
    quiet: Quiet = False,
) -> None:
    """Group texts by topic, and describe each topic by its distinctive words.

    Clusters the model's vectors with k-means (scikit-learn). The page shows sizes, words,
    typical texts and, with --date-column, the share of each topic over time.

    Example: ownbert topics runs/bert corpus.csv --html topics.html -o topics.jsonl
    """
    from rich.table import Table
    from rich.text import Text

    from ownbert.unlabelled.topics import topics as run

    columns = ColumnNames(text_column, id=settings.date_column)
    given = given_texts(texts or (), columns, model, missing=_NOTHING)
    with counting("texts embedded", quiet=quiet) as progress:
        result = run(
            model,
            given,
            text_column=text_column,
            device=device,
            resume=resume,
            progress=progress,
            say=saying(quiet=quiet),
            **vars(settings),
        )
    if quiet:
        return
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    for justify in ("right", "right", "left"):
        table.add_column(justify=justify)
    for number, topic in enumerate(result.topics, start=1):
        table.add_row(*map(Text, (f"{number}", f"{topic.size:,}", ", ".join(topic.words))))
    console().print(table)
    for saved in filter(None, (settings.output, settings.html)):
        say(f"saved {saved}")
