"""vocab: learn a vocabulary from files."""

from pathlib import Path
from typing import Annotated

import typer

from ownbert import limits
from ownbert.cli.options import Encoding, Inputs, Layout, Quiet, TextColumn
from ownbert.cli.progress import counting
from ownbert.terminal import say


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
        typer.Option(
            help="Maximum vocabulary size.",
            show_default="100,000 for blank; else 30,000, or fewer for a small corpus",
            min=6,  # the special tokens and one more
            max=limits.VOCABULARY,
        ),
    ] = None,
    min_count: Annotated[
        int | None,
        typer.Option(
            help="Leave out tokens that occur less often.",
            show_default="3 for blank, else 2",
            min=1,
            max=limits.FREQUENCY,
        ),
    ] = None,
    lowercase: Annotated[
        bool,
        typer.Option(
            help="Lowercase text and strip accents (wordpiece only). Accents are kept in text with "
            "vowel signs, such as Hindi or Thai."
        ),
    ] = True,
    text_column: TextColumn = None,
    layout: Layout = "auto",
    encoding: Encoding = None,
    quiet: Quiet = False,
) -> None:
    """Learn a vocabulary from text and report its coverage.

    Writes vocab.txt, tokenizer.json and tokenizer_config.json, which Transformers can load, and
    vocabulary_report.json.

    Example: ownbert vocab corpus.txt.gz --kind blank -o runs/bert
    """
    from ownbert.corpus.learn_vocabulary import format_report, learn_vocabulary

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
        say(format_report(report))
        say(f"saved {output}")
