"""Commands for collections of texts without labels: search, topics, duplicates, label."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from ownbert import limits
from ownbert.checks import between, up_to
from ownbert.cli import options as o
from ownbert.cli.command import argument, command_function
from ownbert.exceptions import InputError, counted
from ownbert.language.messages import Message
from ownbert.settings import changed, setting
from ownbert.tables.columns import ColumnNames
from ownbert.terminal import console, echo, print_rows, say

search_app = typer.Typer(
    name="search",
    help="Search texts by meaning and by words.\n\nownbert search build runs/bert corpus.csv -o "
    'index\n\nownbert search find index "where is my parcel"',
    no_args_is_help=True,
    add_completion=False,
)
_VECTORS = argument(..., "Folder of the model that computes the vectors.")
_NO_QUERY = 'no query; give one, such as ownbert search find INDEX "a text", or a file'
# Queries per block.
_QUERIES = 256
_SHOWN = 100  # characters of a text


class BuildCommand(o.TextFiles, o.Quiet):
    """Index texts: vectors of a model and BM25 word weights, in memory-mapped files.

    Any model folder works, pretrained or fine-tuned; ownbert finetune embed trains models for
    this purpose. The index refers to the model folder, which is needed for queries.

    Example: ownbert search build runs/bert corpus.csv -o index
    """

    keeps_memory = True

    model: Path = _VECTORS
    texts: list[str] | None = o.TEXTS_OR_FILES
    output: Path = setting(..., "Folder for the index.")
    text_column: str | None = o.TEXT_COLUMN
    id_column: str | None = changed(o.ID_COLUMN, help="Column with ids, copied to the results.")
    form: str = setting(
        "float16", "Number format of the vectors: float16, or int8 for half the size."
    )
    approximate: bool = setting(
        False,
        "Search only the vectors near a query: faster beyond a few hundred thousand texts, but "
        "some results are missed.",
    )
    max_length: int | None = changed(o.MAX_LENGTH, check=between(3, limits.LENGTH, "[]"))
    overwrite: bool = setting(False, "Replace the index in the output folder.")
    precision: str | None = o.FOLDER_PRECISION
    engine: str | None = o.ENGINE
    resume: bool = o.RESUME_FILE

    def run(self) -> None:
        from ownbert.unlabelled.index import build_index

        columns = ColumnNames(self.text_column, id=self.id_column)
        nothing = "nothing to index; give files, texts, or lines on standard input"
        texts = o.given_texts(self.texts, columns, self.model, missing=nothing)
        with self.counting("texts indexed") as progress:
            given = {**self.given("quiet"), "texts": texts}
            index = build_index(**given, progress=progress, say=self.note)
        self.saved(Message("{count} indexed", counted(len(index), "text")), self.output)


class FindCommand(o.TextFiles, o.Quiet):
    """Find the texts of an index that are nearest to each query.

    Queries are texts, the rows of a table or the lines of plain text. Which ranking works best
    depends on the texts; docs/search.md has figures.

    Example: ownbert search find index "where is my parcel"

    Example: ownbert search find index queries.txt --top 3 -o found.jsonl
    """

    index: Path = argument(..., "Index folder written by ownbert search build.")
    queries: list[str] | None = o.TEXTS_OR_FILE
    top: int = setting(10, "Number of results per query.", check=between(1, limits.COUNT, "[]"))
    by: str = setting("hybrid", "vectors (cosine), words (BM25), or hybrid: the ranks of both.")
    output: Path | None = setting(
        None, "Output file for the results: .jsonl, .csv or .tsv.", shown="print a table"
    )
    json: bool = changed(o.JSON, help="Print JSON, one line per text.", without=("output",))
    model: Path | None = setting(None, "Folder of the model, if it was moved.", shown="as built")
    engine: str | None = o.ENGINE

    def run(self) -> None:
        from ownbert.inference.row_files import PredictionWriter
        from ownbert.tables.columns import read_texts
        from ownbert.tasks.row_network import blocks
        from ownbert.unlabelled.index import Index

        if self.by == "words" and self.model is not None:
            raise InputError(
                "{--by} words does not use a model; omit {--model} or choose another {--by}"
            )
        queries: Any = o.given_input(self.queries, None, missing=_NO_QUERY)
        if isinstance(queries, list) and not any(map(str.strip, queries)):
            raise InputError(_NO_QUERY)
        if isinstance(queries, Path):
            queries = read_texts(queries, text_column=self.text_column)
        index = Index(self.index, model=self.model, device=self.device, engine=self.engine)

        def rows(block: Sequence[str]) -> list[dict[str, Any]]:
            results = index.search(block, top_k=self.top, by=self.by)
            return [
                {"query": query, "rank": rank, **hit}
                for query, hits in zip(block, results, strict=True)
                for rank, hit in enumerate(hits, start=1)
            ]

        if self.output is not None:
            with self.counting("queries answered") as progress:
                writer = PredictionWriter(self.output, None, resume=False)
                count = writer.fill(blocks(queries, _QUERIES), rows, progress)
            answered = "{count:,} query answered" if count == 1 else "{count:,} queries answered"
            self.saved(Message(answered, count), self.output)
            return
        for block in blocks(queries, _QUERIES):
            (print_rows if self.json else _show_hits)(rows(block))


search_app.command("build")(command_function(BuildCommand))
search_app.command("find")(command_function(FindCommand))


def _show_hits(rows: list[dict[str, Any]]) -> None:
    """Print a table of the results of each query."""
    from itertools import groupby

    from rich.table import Table
    from rich.text import Text

    from ownbert.train.metric_names import decimals

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


class TopicsCommand(o.TextFiles, o.Quiet):
    """Group texts by topic, and describe each topic by its distinctive words.

    Clusters the model's vectors with k-means (scikit-learn). The page shows sizes, words,
    typical texts and, with --date-column, the share of each topic over time.

    Example: ownbert topics runs/bert corpus.csv --html topics.html -o topics.jsonl
    """

    model: Path = _VECTORS
    texts: list[str] | None = o.TEXTS_OR_FILES
    output: Path | None = setting(
        None, "Output file with the topic of each text: .jsonl, .csv or .tsv."
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
    seed: int = o.SEED
    resume: bool = o.RESUME_FILE

    def run(self) -> None:
        from rich.table import Table
        from rich.text import Text

        from ownbert.unlabelled.topics import topics

        columns = ColumnNames(self.text_column, id=self.date_column)
        nothing = "nothing to group; give files, texts, or lines on standard input"
        texts = o.given_texts(self.texts, columns, self.model, missing=nothing)
        with self.counting("texts embedded") as progress:
            given = {**self.given("quiet"), "texts": texts}
            result = topics(**given, progress=progress, say=self.note)
        if self.quiet:
            return
        table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
        for justify in ("right", "right", "left"):
            table.add_column(justify=justify)
        for number, topic in enumerate(result.topics, start=1):
            table.add_row(*map(Text, (f"{number}", f"{topic.size:,}", ", ".join(topic.words))))
        console().print(table)
        for path in filter(None, (self.output, self.html)):
            say("saved {output}", path)


# Printed groups, and characters of each text.
_GROUPS, _CHARACTERS = 10, 70


class DuplicatesCommand(o.TextFiles, o.Quiet):
    """Find duplicate and near-duplicate rows, and write a file without them.

    Texts are duplicates if only case, punctuation or whitespace differ, and near-duplicates if
    they share most sequences of five characters. With --against, finds training rows that leak
    test rows. Needs only about a hundred bytes of memory per row, and a temporary file of 520
    bytes per row.

    Example: ownbert duplicates corpus.txt -o clean.txt

    Example: ownbert duplicates train.csv --against test.csv -o clean.csv --groups groups.jsonl
    """

    file: Path = argument(..., "Rows: txt, csv, tsv, jsonl or parquet, plain or .gz.")
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
    output: Path | None = setting(None, "Output file for the remaining rows.")
    groups: Path | None = setting(
        None, "Output file for the groups of duplicates: .jsonl, .csv or .tsv."
    )
    resume: bool = o.RESUME_FILE

    def run(self) -> None:
        from ownbert.unlabelled.duplicates import duplicates

        given = {**self.given("file", "quiet"), "against": self.against or None}
        with self.counting("rows read") as progress:
            result = duplicates(self.file, **given, progress=progress, say=self.note)
        if self.quiet:
            return
        rows, near = len(result.kept) + len(result.dropped), len(result.dropped) - result.exact
        say(
            "{rows:,} rows, {count:,} of them duplicates: {exact:,} exact, {near:,} near",
            *(rows, len(result.dropped), result.exact, near),
        )
        if self.against:
            say("{leaks:,} of them duplicate a row of {--against}", result.leaks)
        for group in result.groups[:_GROUPS]:
            for row in group[: _GROUPS + 1]:
                sign = "+" if row.kept else "-"
                place = f"{row.source}:{row.row}"
                echo(f"{sign} {row.similarity:.2f}  {place}  {row.text[:_CHARACTERS]}")
            echo()
        if (more := len(result.groups) - _GROUPS) > 0:
            say("{more:,} more groups; {--groups} FILE writes all of them", more)
        for path in filter(None, (self.output, self.groups)):
            say("saved {output}", path)


class LabelCommand(o.TextFiles, o.Quiet):
    """Choose which texts to label next.

    Clusters the most uncertain texts by their vectors and chooses the most typical text of each
    cluster; texts that may have a rare label come first. While there are few labels, all texts
    are clustered. Fill in the label column and train again: ownbert fit train.csv --add
    to_label.csv.

    Example: ownbert label best --unlabelled corpus.txt -n 50 -o to_label.csv
    """

    folder: Path = o.FINETUNED_FOLDER
    unlabelled: list[Path] = setting(
        ...,
        "Unlabelled texts: a file (.txt: one text per line), a folder or a glob; can be repeated.",
    )
    output: Path = setting(
        ...,
        "Output file with the texts to label: .csv, .tsv or .jsonl with an empty label column, or "
        ".json for Label Studio tasks.",
    )
    count: int = setting(
        50, "Number of texts to choose.", option="--count -n", check=between(1, limits.COUNT, "[]")
    )
    check: Path | None = setting(
        None, "Output file for the likely label errors in the report of ownbert fit.", shown="none"
    )
    train: Path | None = setting(
        None,
        "Training rows. Their texts are not chosen again, and --check writes them in full.",
        shown="none",
    )
    seed: int = o.SEED

    def run(self) -> None:
        from ownbert.unlabelled.label import to_label

        with self.counting("texts read") as progress:
            given = self.given("encoding", "quiet")
            rows = to_label(**given, progress=progress, say=self.note)
        self.saved(Message("{count} to label", counted(len(rows), "text")), self.output)
