"""duplicates: find duplicate rows, and write a file without them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from ownbert.checks import up_to
from ownbert.cli.options import Device, Encoding, Quiet, ResumeFile, TextColumn
from ownbert.cli.progress import counting, saying
from ownbert.cli.recipe_options import settings_command
from ownbert.settings import setting
from ownbert.terminal import echo, say

_GROUPS, _SHOWN = 10, 70  # printed groups, and characters of each text


@dataclass(frozen=True, kw_only=True)
class DuplicatesSettings:
    """Options for the comparison and the outputs, named as in the Python function."""

    against: list[Path] | None = setting(
        None,
        "Rows to compare with, such as test rows: duplicates of them are dropped; can be repeated.",
        shown="none",
    )
    threshold: float | None = setting(
        None,
        "Minimum similarity of duplicates, 0 to 1.",
        shown="0.8; 0.95 with --model",
        check=up_to(1),
    )
    keep: str = setting("first", "Row of a group to keep: first or longest.")
    model: Path | None = setting(
        None, "Model folder: compare its vectors instead of sequences of characters.", shown="none"
    )
    output: Path | None = setting(None, "Output file for the remaining rows.", option="--output -o")
    groups: Path | None = setting(
        None, "Output file for the groups of duplicates: .jsonl, .csv or .tsv."
    )


@settings_command
def duplicates(
    file: Annotated[
        Path, typer.Argument(help="Rows: txt, csv, tsv, jsonl or parquet, plain or .gz.")
    ],
    *,
    settings: DuplicatesSettings,
    text_column: TextColumn = None,
    encoding: Encoding = None,
    device: Device = "auto",
    resume: ResumeFile = False,
    quiet: Quiet = False,
) -> None:
    """Find duplicate and near-duplicate rows, and write a file without them.

    Texts are duplicates if only case, punctuation or whitespace differ, and near-duplicates if
    they share most sequences of five characters. With --against, finds training rows that leak
    test rows. Needs only about a hundred bytes of memory per row, and a temporary file of 520
    bytes per row.

    Example: ownbert duplicates corpus.txt -o clean.txt

    Example: ownbert duplicates train.csv --against test.csv -o clean.csv --groups groups.jsonl
    """
    from ownbert.unlabelled.duplicates import duplicates as run

    with counting("rows read", quiet=quiet) as progress:
        result = run(
            file,
            text_column=text_column,
            device=device,
            resume=resume,
            progress=progress,
            say=saying(quiet=quiet),
            **{**vars(settings), "against": settings.against or None},
        )
    if quiet:
        return
    rows, near = len(result.kept) + len(result.dropped), len(result.dropped) - result.exact
    say(
        f"{rows:,} rows, {len(result.dropped):,} of them duplicates: {result.exact:,} exact, "
        f"{near:,} near"
    )
    if settings.against:
        say(f"{result.leaks:,} of them duplicate a row of --against")
    for group in result.groups[:_GROUPS]:
        for each in group[: _GROUPS + 1]:
            sign = "+" if each.kept else "-"
            echo(f"{sign} {each.similarity:.2f}  {each.source}:{each.row}  {each.text[:_SHOWN]}")
        echo()
    if (more := len(result.groups) - _GROUPS) > 0:
        say(f"{more:,} more groups; --groups FILE writes all of them")
    for saved in filter(None, (settings.output, settings.groups)):
        say(f"saved {saved}")
