"""search: index texts, and answer queries."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from ownbert import limits
from ownbert.checks import between
from ownbert.cli import options as o
from ownbert.cli.input_texts import given_input, given_texts
from ownbert.cli.progress import counting, say_saved, saying
from ownbert.cli.recipe_options import chosen, settings_command
from ownbert.exceptions import InputError, counted
from ownbert.settings import setting
from ownbert.tables.columns import ColumnNames
from ownbert.terminal import console, say

app = typer.Typer(
    name="search",
    help="Search texts by meaning and by words.\n\nownbert search build runs/bert corpus.csv -o "
    'index\n\nownbert search find index "where is my parcel"',
    no_args_is_help=True,
    add_completion=False,
)

_NO_TEXTS = "nothing to index; give files, texts, or lines on standard input"
_NO_QUERY = 'no query; give one, such as ownbert search find INDEX "a text", or a file'
# Queries per block.
_QUERIES = 256
_SHOWN = 100  # characters of a text


@dataclass(frozen=True, kw_only=True)
class IndexSettings:
    """Options for indexing, named as in the Python function."""

    form: str = setting(
        "float16", "Number format of the vectors: float16, or int8 for half the size."
    )
    approximate: bool = setting(
        False,
        "Search only the vectors near a query: faster beyond a few hundred thousand texts, but "
        "some results are missed.",
    )
    max_length: int | None = setting(
        None,
        "Maximum input length, in tokens; longer texts are truncated.",
        shown="the model's limit",
        check=between(3, limits.LENGTH, "[]"),
    )
    overwrite: bool = setting(False, "Replace the index in the output folder.")


@dataclass(frozen=True, kw_only=True)
class FindSettings:
    """Options for queries and their output."""

    top: int = setting(10, "Number of results per query.", check=between(1, limits.COUNT, "[]"))
    by: str = setting("hybrid", "vectors (cosine), words (BM25), or hybrid: the ranks of both.")
    output: Path | None = setting(
        None,
        "Output file for the results: .jsonl, .csv or .tsv.",
        option="--output -o",
        shown="print a table",
    )
    json: bool = setting(False, "Print JSON, one line per text.", without=("output",))
    model: Path | None = setting(None, "Folder of the model, if it was moved.", shown="as built")

    def require(self) -> None:
        """Raise ``InputError`` for options that do not go together."""
        if self.by == "words" and self.model is not None:
            raise InputError(
                "{--by} words does not use a model; omit {--model} or choose another {--by}"
            )


@app.command()
@settings_command
def build(
    model: Annotated[Path, typer.Argument(help="Folder of the model that computes the vectors.")],
    texts: o.TextsOrFiles = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the index.")] = ...,  # type: ignore[assignment]
    encoding: o.Encoding = None,
    *,
    columns: Annotated[
        ColumnNames, chosen("text", id={"help": "Column with ids, copied to the results."})
    ],
    settings: IndexSettings,
    device: o.Device = "auto",
    precision: o.FolderPrecision = None,
    engine: o.Engine = None,
    resume: o.ResumeFile = False,
    quiet: o.Quiet = False,
) -> None:
    """Index texts: vectors of a model and BM25 word weights, in memory-mapped files.

    Any model folder works, pretrained or fine-tuned; ownbert finetune embed trains models for
    this purpose. The index refers to the model folder, which is needed for queries.

    Example: ownbert search build runs/bert corpus.csv -o index
    """
    from ownbert.train.device import keep_memory
    from ownbert.unlabelled.index import build_index

    keep_memory()
    given = given_texts(texts or (), columns, model, missing=_NO_TEXTS)
    with counting("texts indexed", quiet=quiet) as progress:
        index = build_index(
            model,
            given,
            output,
            **columns.settings(),
            device=device,
            precision=precision,
            engine=engine,
            resume=resume,
            progress=progress,
            say=saying(quiet=quiet),
            **vars(settings),
        )
    say_saved(f"{counted(len(index), 'text')} indexed", output, quiet=quiet)


@app.command()
@settings_command
def find(
    index: Annotated[Path, typer.Argument(help="Index folder written by ownbert search build.")],
    queries: o.TextsOrFile = None,
    *,
    settings: FindSettings,
    text_column: o.TextColumn = None,
    encoding: o.Encoding = None,
    device: o.Device = "auto",
    engine: o.Engine = None,
    quiet: o.Quiet = False,
) -> None:
    """Find the texts of an index that are nearest to each query.

    Queries are texts, the rows of a table or the lines of plain text. Which ranking works best
    depends on the texts; docs/search.md has figures.

    Example: ownbert search find index "where is my parcel"

    Example: ownbert search find index queries.txt --top 3 -o found.jsonl
    """
    from ownbert.inference.prediction_writer import PredictionWriter
    from ownbert.tables.columns import read_texts
    from ownbert.tasks.batched_forward import blocks
    from ownbert.terminal import print_rows
    from ownbert.unlabelled.index import Index

    settings.require()
    given: Any = given_input(queries or (), None, missing=_NO_QUERY)
    if isinstance(given, list) and not any(map(str.strip, given)):
        raise InputError(_NO_QUERY)
    if isinstance(given, Path):
        given = read_texts(given, text_column=text_column)
    opened = Index(index, model=settings.model, device=device, engine=engine)

    def rows(block: Sequence[str]) -> list[dict[str, Any]]:
        results = opened.search(block, top_k=settings.top, by=settings.by)
        return [
            {"query": query, "rank": rank, **hit}
            for query, hits in zip(block, results, strict=True)
            for rank, hit in enumerate(hits, start=1)
        ]

    if settings.output is not None:
        with counting("queries answered", quiet=quiet) as progress:
            writer = PredictionWriter(settings.output, None, resume=False)
            count = writer.fill(blocks(given, _QUERIES), rows, progress)
        what = "query" if count == 1 else "queries"
        say_saved(f"{count:,} {what} answered", settings.output, quiet=quiet)
        return
    for block in blocks(given, _QUERIES):
        if settings.json:
            print_rows(rows(block))
        else:
            _show(rows(block))


def _show(rows: list[dict[str, Any]]) -> None:
    """Print a table of the results of each query."""
    from itertools import groupby

    from rich.table import Table
    from rich.text import Text

    from ownbert.train.watch.metric_names import decimals

    output = console()
    if not rows:
        say("nothing found: no text has a word of the query", err=True)
    for query, hits in groupby(rows, key=lambda row: row["query"]):
        output.print(Text(query[:_SHOWN], style="bold"))
        table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), expand=True)
        for _ in range(3):
            table.add_column(justify="right", no_wrap=True)
        table.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
        for hit in hits:
            id = hit.get("id", hit["row"])
            cells = (f"{hit['rank']}", decimals(hit["score"]), f"{id}", hit["text"][:_SHOWN])
            table.add_row(*map(Text, cells))
        output.print(table)
