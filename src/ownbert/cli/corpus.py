"""vocab and prepare: from files to a vocabulary and a token store."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from ownbert.cli.options import Quiet, TextColumn

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
    quiet: Quiet = False,
) -> None:
    """Turn text into a token store for pretraining: one pass, memory-mapped.

    A store that is there already is kept if text, vocabulary and settings are the same.

    Example: ownbert prepare corpus.txt.gz --tokenizer runs/bert -o runs/tokens
    """
    from ownbert.data.store import prepare as write_store

    ends = [] if sentence_end == ["none"] else sentence_end
    with counting("documents prepared", quiet=quiet) as progress:
        store = write_store(
            inputs,
            output,
            tokenizer=tokenizer,
            text_column=text_column,
            layout=layout,
            sentence_end=ends,
            progress=progress,
        )
    if quiet:
        return
    state = "unchanged, kept" if store.reused else "written"
    print(
        f"{output}: {store.documents:,} documents, {store.sentences:,} sentences, "
        f"{len(store.tokens):,} tokens ({state})"
    )
    if ends := store.settings["sentence_end"]:
        print(f"sentences end at: {' '.join(ends)}")
    elif store.settings["kind"] == "blank":
        print("no token is known to end sentences; texts are cut by length (--sentence-end)")


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
