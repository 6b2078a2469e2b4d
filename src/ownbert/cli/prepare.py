"""prepare: turn files into a token store."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ownbert import limits
from ownbert.checks import between
from ownbert.cli.options import Encoding, Inputs, Layout, Quiet, TextColumn
from ownbert.cli.progress import advancing
from ownbert.cli.recipe_options import settings_command
from ownbert.language import translated
from ownbert.settings import setting
from ownbert.terminal import echo

if TYPE_CHECKING:
    from ownbert.corpus.store import Store

# Share of duplicate documents from which on prepare explains how to remove them.
MANY_DUPLICATES = 0.05


@dataclass(frozen=True, kw_only=True)
class PrepareSettings:
    """Options for tokenising documents, named as in the Python function."""

    sentence_end: list[str] | None = setting(
        None,
        "A token that ends a sentence in text that is already tokens; may be repeated; none for no "
        "such token.",
        shown="as the vocabulary report proposes",
    )
    feature_columns: str | None = setting(
        None,
        "Columns of tags, one for each word of the text, which the model reads beside it; commas "
        "between them. In plain text numbers of CoNLL columns.",
        shown="none",
    )
    duplicates: str = setting(
        "keep",
        "Documents with the text of an earlier one: keep, or drop. They are counted either way.",
    )
    segmenter: str | None = setting(
        None,
        "jieba finds the words of Chinese text, for masking whole words "
        "(pip install 'ownbert\\[zh]').",
        shown="none",
    )
    processes: int | None = setting(
        None,
        "Processes that tokenise, about 150 MB of memory each; the store is the same with any "
        "number.",
        shown="one per core, at most 5",
        check=between(1, limits.PROCESSES, "[]"),
    )


@settings_command
def prepare(
    inputs: Inputs,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the token store.")],
    tokenizer: Annotated[
        Path, typer.Option("--tokenizer", "-t", help="Folder that ownbert vocab wrote.")
    ],
    *,
    settings: PrepareSettings,
    text_column: TextColumn = None,
    layout: Layout = "auto",
    encoding: Encoding = None,
    quiet: Quiet = False,
) -> None:
    """Turn text into a token store for pretraining: one pass, memory-mapped.

    A store that is there already is kept if text, vocabulary and settings are
    the same. A run that was stopped, even killed, leaves what it has finished
    in .NAME.part beside the output, and the same command resumes from there.

    Example: ownbert prepare corpus.txt.gz --tokenizer runs/bert -o runs/tokens
    """
    from ownbert.corpus.store import prepare as write_store

    ends = [] if settings.sentence_end == ["none"] else settings.sentence_end
    with advancing(quiet=quiet) as progress:
        store = write_store(
            inputs,
            output,
            tokenizer=tokenizer,
            text_column=text_column,
            layout=layout,
            progress=progress,
            **{**vars(settings), "sentence_end": ends},
        )
    if not quiet:
        for line in report(store, output, dropped=settings.duplicates == "drop"):
            echo(translated(line))


def report(store: "Store", output: Path, *, dropped: bool) -> Iterator[str]:
    """The lines that describe the store, with hints."""
    from ownbert.batches.word_features import describe_features

    state = "unchanged, kept" if store.reused else "written"
    if store.resumed:
        state += f", the first {store.resumed:,} documents by a run that was stopped"
    yield (
        f"{output}: {store.documents:,} documents, {store.sentences:,} sentences, "
        f"{len(store.tokens):,} tokens ({state})"
    )
    if store.tags:
        yield describe_features(store.tags)
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
