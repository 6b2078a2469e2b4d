"""vocab and prepare: from files to a vocabulary and a token store."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ownbert.cli.options import Quiet, TextColumn

if TYPE_CHECKING:
    from ownbert.data.corpus.store import Store

# From this share of the documents on, prepare says how to be rid of duplicates.
MANY_DUPLICATES = 0.05

Inputs = Annotated[
    list[Path],
    typer.Argument(
        help="Files, folders or globs: txt, csv, tsv, jsonl, parquet, plain or .gz.",
        show_default=False,
    ),
]
Layout = Annotated[
    str,
    typer.Option(
        help="Plain text: line is a document a line; blank is a sentence a line with blank lines "
        "between documents."
    ),
]


def vocab(
    inputs: Inputs,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the tokenizer.")],
    kind: Annotated[
        str,
        typer.Option(
            help="blank for text that is already tokens (ids, codes); wordpiece for plain text."
        ),
    ] = "wordpiece",
    vocab_size: Annotated[
        int | None,
        typer.Option(help="At most so many tokens.", show_default="100,000 blank, 30,000 else"),
    ] = None,
    min_count: Annotated[
        int | None,
        typer.Option(help="Leave out what is rarer.", show_default="3 blank, 2 else"),
    ] = None,
    lowercase: Annotated[
        bool, typer.Option(help="Lower case and no accents (wordpiece only).")
    ] = True,
    text_column: TextColumn = None,
    layout: Layout = "auto",
    quiet: Quiet = False,
) -> None:
    """Learn a vocabulary from text and report how well it covers it.

    Writes vocab.txt, tokenizer.json and tokenizer_config.json, which Transformers loads, and
    vocabulary_report.json.

    Example: ownbert vocab corpus.txt.gz --kind blank -o runs/bert
    """
    from ownbert.text.learn import format_report, learn_vocabulary

    with counting("documents read", quiet=quiet) as progress:
        report = learn_vocabulary(
            inputs,
            output,
            kind=kind,
            vocab_size=vocab_size,
            min_count=min_count,
            text_column=text_column,
            layout=layout,
            lowercase=lowercase,
            progress=progress,
        )
    if not quiet:
        print(format_report(report))
        print(f"saved {output}")


def prepare(
    inputs: Inputs,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the token store.")],
    tokenizer: Annotated[
        Path, typer.Option("--tokenizer", "-t", help="Folder that ownbert vocab wrote.")
    ],
    sentence_end: Annotated[
        list[str] | None,
        typer.Option(
            help="A token that ends a sentence in text that is already tokens; may be repeated; "
            "none for no such token.",
            show_default="as the vocabulary report proposes",
        ),
    ] = None,
    text_column: TextColumn = None,
    layout: Layout = "auto",
    duplicates: Annotated[
        str,
        typer.Option(
            help="Documents with the text of an earlier one: keep, or drop. They are counted "
            "either way."
        ),
    ] = "keep",
    segmenter: Annotated[
        str | None,
        typer.Option(
            help="jieba finds the words of Chinese text, for masking whole words "
            "(pip install 'ownbert\\[zh]').",
            show_default="none",
        ),
    ] = None,
    processes: Annotated[
        int | None,
        typer.Option(
            help="Processes that tokenise, about 150 MB of memory each; the store is the same "
            "with any number.",
            show_default="one a core, at most 5",
        ),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Turn text into a token store for pretraining: one pass, memory-mapped.

    A store that is there already is kept if text, vocabulary and settings are
    the same. A run that was stopped, even killed, leaves what it has finished
    in .NAME.part beside the output, and the same command continues there.

    Example: ownbert prepare corpus.txt.gz --tokenizer runs/bert -o runs/tokens
    """
    from ownbert.data.corpus.store import prepare as write_store

    ends = [] if sentence_end == ["none"] else sentence_end
    with advancing(quiet=quiet) as progress:
        store = write_store(
            inputs,
            output,
            tokenizer=tokenizer,
            text_column=text_column,
            layout=layout,
            sentence_end=ends,
            duplicates=duplicates,
            segmenter=segmenter,
            processes=processes,
            progress=progress,
        )
    if not quiet:
        for line in report(store, output, dropped=duplicates == "drop"):
            print(line)


def report(store: "Store", output: Path, *, dropped: bool) -> Iterator[str]:
    """What was prepared, and what is worth knowing about it."""
    state = "unchanged, kept" if store.reused else "written"
    if store.resumed:
        state += f", the first {store.resumed:,} documents by a run that was stopped"
    yield (
        f"{output}: {store.documents:,} documents, {store.sentences:,} sentences, "
        f"{len(store.tokens):,} tokens ({state})"
    )
    if ends := store.settings["sentence_end"]:
        yield f"sentences end at: {' '.join(ends)}"
    elif store.settings["kind"] == "blank":
        yield "no token is known to end sentences; texts are cut by length (--sentence-end)"
    if store.duplicates:
        share = store.duplicates / store.read_documents
        line = (
            f"{store.duplicates:,} of {store.read_documents:,} documents ({share:.1%}) repeat an "
            f"earlier one, {'dropped' if dropped else 'kept'}"
        )
        if not dropped and share > MANY_DUPLICATES:
            line += "; to leave them out: --duplicates drop"
        yield line


@contextmanager
def advancing(*, quiet: bool) -> Iterator[Callable[[int, int, int | None], None]]:
    """Documents, megabytes, rate and time left, on a terminal; a line where a stopped run is gone
    on with, anywhere."""
    from rich.console import Console
    from rich.progress import (
        DownloadColumn,
        Progress,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )
    from rich.progress import TextColumn as Text

    console = Console(stderr=True)
    started = False

    def announce(documents: int, done: int) -> None:
        nonlocal started
        if not started and documents and not done and not quiet:
            console.print(f"going on after {documents:,} documents that a stopped run finished")
        started = True

    if quiet or not console.is_terminal:
        yield lambda documents, done, total: announce(documents, done)
        return
    columns = (DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn(compact=True))
    with Progress(
        Text("{task.description}"), *columns, console=console, transient=True
    ) as progress:
        task = progress.add_task("documents", total=None)

        def update(documents: int, done: int, total: int | None) -> None:
            announce(documents, done)
            progress.update(
                task, description=f"{documents:,} documents", completed=done, total=total
            )

        yield update


@contextmanager
def counting(what: str, *, quiet: bool) -> Iterator[Callable[[int], None]]:
    """A count that runs on a terminal; the callback takes the number so far."""
    from rich.console import Console

    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield lambda count: None
        return
    with console.status(what) as status:
        yield lambda count: status.update(f"{count:,} {what}")
