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
from ownbert.exceptions import counted, percent
from ownbert.settings import setting
from ownbert.terminal import say

if TYPE_CHECKING:
    from ownbert.corpus.store import Store

# Share of duplicate documents from which on prepare explains how to remove them.
MANY_DUPLICATES = 0.05


@dataclass(frozen=True, kw_only=True)
class PrepareSettings:
    """Options for tokenising documents, named as in the Python function."""

    sentence_end: list[str] | None = setting(
        None,
        "Token that ends a sentence, for text that is already tokens; can be repeated; none to "
        "disable.",
        shown="proposed by the vocabulary report",
    )
    feature_columns: str | None = setting(
        None,
        "Columns with one tag per word, which the model reads as additional input, separated by "
        "commas. For plain text, numbers of CoNLL columns.",
        shown="none",
    )
    duplicates: str = setting(
        "keep",
        "keep or drop documents that repeat the text of an earlier one. They are counted in both "
        "cases.",
    )
    segmenter: str | None = setting(
        None,
        "jieba splits Chinese text into words, for whole-word masking (pip install "
        "'ownbert\\[zh]').",
        shown="none",
    )
    processes: int | None = setting(
        None,
        "Number of tokenising processes, about 150 MB of memory each; it does not affect the "
        "result.",
        shown="one per core, at most 5",
        check=between(1, limits.PROCESSES, "[]"),
    )


@settings_command
def prepare(
    inputs: Inputs,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the token store.")],
    tokenizer: Annotated[
        Path, typer.Option("--tokenizer", "-t", help="Tokenizer folder written by ownbert vocab.")
    ],
    *,
    settings: PrepareSettings,
    text_column: TextColumn = None,
    layout: Layout = "auto",
    encoding: Encoding = None,
    quiet: Quiet = False,
) -> None:
    """Convert text into a memory-mapped token store for pretraining, in one pass.

    An existing store is kept if text, vocabulary and settings are unchanged. If a run is
    stopped or killed, its finished part stays in .NAME.part next to the output, and the same
    command resumes from there.

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
            say(line)


def report(store: "Store", output: Path, *, dropped: bool) -> Iterator[str]:
    """The lines that describe the store, with hints."""
    from ownbert.batches.word_features import describe_features

    state = "unchanged, kept" if store.reused else "written"
    if store.resumed:
        state += f", the first {store.resumed:,} documents by a stopped run"
    documents, sentences = store.documents, store.sentences
    yield (
        f"{output} contains {counted(documents, 'document')}, {counted(sentences, 'sentence')} "
        f"and {counted(len(store.tokens), 'token')} ({state})"
    )
    if store.tags:
        yield describe_features(store.tags)
    if ends := store.settings["sentence_end"]:
        yield f"sentences end at: {' '.join(ends)}"
    elif store.settings["kind"] == "blank":
        yield "no sentence-ending token is known; texts are cut by length (--sentence-end)"
    if store.duplicates:
        share = store.duplicates / store.read_documents
        line = (
            f"{store.duplicates:,} of {store.read_documents:,} documents ({percent(share)}) repeat "
            f"an earlier one, {'dropped' if dropped else 'kept'}"
        )
        if not dropped and share > MANY_DUPLICATES:
            line += "; remove them with --duplicates drop"
        yield line
