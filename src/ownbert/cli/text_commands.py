"""Commands that prepare text for pretraining: vocab, prepare."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ownbert import limits
from ownbert.checks import between
from ownbert.cli import options as o
from ownbert.exceptions import counted, percent
from ownbert.language import translated
from ownbert.language.messages import Message
from ownbert.settings import setting
from ownbert.terminal import console, say

if TYPE_CHECKING:
    from ownbert.corpus.store import Store

# Share of duplicate documents from which on prepare explains how to remove them.
MANY_DUPLICATES = 0.05


class CorpusCommand(o.Quiet):
    """A command that reads a corpus."""

    text_column: str | None = o.TEXT_COLUMN
    layout: str = o.LAYOUT
    encoding: str | None = o.ENCODING


class VocabCommand(CorpusCommand):
    """Learn a vocabulary from text and report its coverage.

    Writes vocab.txt, tokenizer.json and tokenizer_config.json, which Transformers can load, and
    vocabulary_report.json.

    Example: ownbert vocab corpus.txt.gz --kind blank -o runs/bert
    """

    inputs: list[Path] = o.INPUTS
    output: Path = setting(..., "Folder for the tokenizer.")
    kind: str = setting(
        "wordpiece", "blank for text that is already tokens (ids, codes); wordpiece for plain text."
    )
    vocab_size: int | None = setting(
        None,
        "Maximum vocabulary size.",
        shown="100,000 for blank; else 30,000, or fewer for a small corpus",
        check=between(6, limits.VOCABULARY, "[]"),  # the special tokens and one more
    )
    min_count: int | None = setting(
        None,
        "Leave out tokens that occur less often.",
        shown="3 for blank, else 2",
        check=between(1, limits.FREQUENCY, "[]"),
    )
    lowercase: bool = setting(
        True,
        "Lowercase text and strip accents (wordpiece only). Accents are kept in text with vowel "
        "signs, such as Hindi or Thai.",
        option="--lowercase/--no-lowercase",
    )

    def run(self) -> None:
        from ownbert.corpus.learn_vocabulary import format_report, learn_vocabulary

        with self.counting("documents read") as progress:
            report = learn_vocabulary(
                self.inputs, progress=progress, **self.given("inputs", "quiet")
            )
        if not self.quiet:
            say(format_report(report))
            say("saved {output}", self.output)


class PrepareCommand(CorpusCommand):
    """Convert text into a memory-mapped token store for pretraining, in one pass.

    An existing store is kept if text, vocabulary and settings are unchanged. If a run is
    stopped or killed, its finished part stays in .NAME.part next to the output, and the same
    command resumes from there.

    Example: ownbert prepare corpus.txt.gz --tokenizer runs/bert -o runs/tokens
    """

    inputs: list[Path] = o.INPUTS
    output: Path = setting(..., "Folder for the token store.")
    tokenizer: Path = setting(
        ..., "Tokenizer folder written by ownbert vocab.", option="--tokenizer -t"
    )
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

    def run(self) -> None:
        from ownbert.corpus.store import prepare

        if self.sentence_end == ["none"]:
            self.sentence_end = []
        with self.advancing() as progress:
            store = prepare(self.inputs, progress=progress, **self.given("inputs", "quiet"))
        if not self.quiet:
            for line in report(store, self.output, dropped=self.duplicates == "drop"):
                say(line)

    @contextmanager
    def advancing(self) -> Iterator[Callable[[int, int, int | None], None]]:
        """Show documents, megabytes, rate and remaining time on a terminal.

        If a stopped run is resumed, one line says so on any output.
        """
        from rich.progress import DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn
        from rich.progress import TextColumn as Text

        output = console(stderr=True)
        started = False

        def announce(documents: int, done: int) -> None:
            nonlocal started
            if not started and documents and not done and not self.quiet:
                output.print(
                    translated(
                        "resuming after {documents:,} documents finished by a stopped run",
                        documents,
                    )
                )
            started = True

        if self.quiet or not output.is_terminal:
            yield lambda documents, done, total: announce(documents, done)
            return
        columns = (
            Text("{task.description}"),
            *(DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn(compact=True)),
        )
        with Progress(*columns, console=output, transient=True) as progress:
            task = progress.add_task(translated("documents"), total=None)

            def update(documents: int, done: int, total: int | None) -> None:
                announce(documents, done)
                shown = translated("{count:,} documents", documents)
                progress.update(task, description=shown, completed=done, total=total)

            yield update


def report(store: "Store", output: Path, *, dropped: bool) -> Iterator[str]:
    """The lines that describe the store, with hints."""
    from ownbert.batches.word_features import describe_features

    state = "unchanged, kept" if store.reused else "written"
    if store.resumed:
        first = "{state!t}, the first {count:,} documents by a stopped run"
        state = Message(first, state, store.resumed)
    documents, sentences = store.documents, store.sentences
    yield (
        Message(
            "{output} contains {documents}, {sentences} and {tokens} ({state})",
            *(
                output,
                counted(documents, "document"),
                counted(sentences, "sentence"),
                counted(len(store.tokens), "token"),
                state,
            ),
        )
    )
    if store.tags:
        yield describe_features(store.tags)
    if ends := store.settings["sentence_end"]:
        yield Message("sentences end at: {ends}", " ".join(ends))
    elif store.settings["kind"] == "blank":
        yield "no sentence-ending token is known; texts are cut by length (--sentence-end)"
    if store.duplicates:
        share = store.duplicates / store.read_documents
        line = Message(
            "{count:,} of {documents:,} documents ({share}) repeat an earlier one, {state!t}",
            *(
                store.duplicates,
                store.read_documents,
                percent(share),
                "dropped" if dropped else "kept",
            ),
        )
        if not dropped and share > MANY_DUPLICATES:
            line += "; remove them with --duplicates drop"
        yield line
