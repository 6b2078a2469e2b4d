"""Finds duplicates among rows and between files: groups, the row to keep, and a deduplicated
file."""

import tempfile
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from ownbert.checks import known, up_to
from ownbert.exceptions import InputError, fields_repr
from ownbert.files.encodings import reads_encoding
from ownbert.files.input_files import refuse_same
from ownbert.files.resumable_file import ResumableFile, made_for
from ownbert.files.text_files import open_text
from ownbert.inference.embedder import in_blocks
from ownbert.inference.engines import Compute, Progress, Say, say_each
from ownbert.inference.prediction_writer import PredictionWriter
from ownbert.inference.vector_files import Record, RowVectors, as_inputs, sources_of
from ownbert.language.messages import Option
from ownbert.tables.columns import ColumnNames, id_value, read_texts_with_ids
from ownbert.tables.memory import MemoryTable
from ownbert.tables.tables import Source, columns, kind_of, read_values
from ownbert.tasks.batched_forward import blocks
from ownbert.unlabelled.near import KEYED, by_shingles, by_vectors, keys_and_signatures, split_keys
from ownbert.unlabelled.number_rows import NumberRows, number_rows, vectors_of

KEEP = ("first", "longest")
# Default similarity thresholds for duplicates: by shingles of texts, and by vectors.
THRESHOLD, VECTOR_THRESHOLD = 0.8, 0.95
_TEXT = 200  # characters shown of a text in a group


@dataclass(frozen=True)
class DuplicateRow:
    """A row of a group.

    Args:
        source: name of its file.
        row: number of the row, from 1.
        similarity: similarity to the kept row, 0 to 1; 1 for equal texts after normalisation.
        text: beginning of the text.
        kept: whether the row is kept.
    """

    source: str
    row: int
    similarity: float
    text: str
    kept: bool = False


@dataclass(frozen=True)
class Duplicates:
    """The results of ``duplicates``.

    Args:
        kept: indices of the kept rows, from 0.
        dropped: indices of the dropped rows.
        exact: number of dropped rows with the same text as a kept row.
        leaks: number of dropped rows that are similar to a row of ``against``.
        groups: groups of similar rows, the kept row first.
    """

    kept: np.ndarray
    dropped: np.ndarray
    exact: int
    leaks: int
    groups: list[list[DuplicateRow]]

    def __repr__(self) -> str:
        return fields_repr(self)


@reads_encoding
def duplicates(
    rows: Any,
    against: Any = None,
    output: str | Path | None = None,
    *,
    groups: str | Path | None = None,
    threshold: float | None = None,
    keep: str = "first",
    model: str | Path | None = None,
    resume: bool = False,
    text_column: str | None = None,
    encoding: str | None = None,
    device: str = "auto",
    progress: Progress | None = None,
    say: Say | None = None,
) -> Duplicates:
    """Find duplicate and near-duplicate rows.

    Texts are equal if only case, punctuation or spaces differ. They are near duplicates if the
    Jaccard similarity of their five-character shingles (estimated by MinHash), or the cosine
    similarity of their vectors with a model, is at least ``threshold``. Every dropped row is that
    similar to the row that is kept for it. Blank texts are kept, because blank lines separate the
    documents of a corpus.

    Args:
        rows: a file, or rows in memory, see ``ownbert.embed``.
        against: files or rows that are always kept, such as test rows; rows similar to these are
            dropped from ``rows``.
        output: file for the kept rows: .csv, .tsv or .jsonl; .txt for plain text.
        groups: a .jsonl, .csv or .tsv file for all rows of the groups.
        threshold: 0 to 1; by default 0.8, with a model 0.95.
        keep: the row of a group to keep, "first" or "longest".
        model: folder of a model. All pairs of vectors are compared, which takes minutes for 100,000
            rows.
        resume: continue a stopped run with the same ``output`` (or ``groups``), reusing its
            signatures or vectors.
        text_column, encoding, device, say: see ``ownbert.embed``.
        progress: called with the number of rows so far.

    Raises:
        InputError: a file cannot be read or written; nothing is written.
    """
    if threshold is None:
        threshold = THRESHOLD if model is None else VECTOR_THRESHOLD
    up_to(1)("threshold", threshold)
    if model is None and device != "auto":
        raise InputError(
            "{device} requires {--model}; omit it or name a model", Option("--device", device)
        )
    known(*KEEP)("keep", keep)
    row_sources = sources_of(as_inputs(rows))
    if len(row_sources) > 1:
        raise InputError(
            "duplicates are searched in one file; join several files, or name some as against"
        )
    others = [] if against is None else sources_of(as_inputs(against))
    for path in filter(None, (output, groups)):
        refuse_same([*row_sources, *others], path)
    columns_given = ColumnNames(text=text_column)
    corpus = _Corpus([*row_sources, *others], columns_given)
    with ExitStack() as stack:
        write_kept = None if output is None else _kept_writer(row_sources[0], Path(output), stack)
        listed = None if groups is None else PredictionWriter(groups, None, resume=False)
        if listed is not None:
            stack.callback(listed.close)
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ownbert-duplicates-")))

        def kept_rows(
            name: str, width: int, kind: str, depends_on: Mapping[str, Any]
        ) -> NumberRows:
            identity = made_for(corpus.sources, depends_on)
            arguments = output or groups, work, name, width, kind, identity
            return stack.enter_context(number_rows(*arguments, resume=resume))

        signed = kept_rows("signatures", KEYED, "<u4", {"format": 1, "columns": text_column})
        exact, signed = split_keys(signed.computed(corpus.texts(progress), keys_and_signatures))
        order, fixed = corpus.priority(keep)
        if model is None:
            kept, similarity = by_shingles(exact, signed, order, threshold, fixed=fixed)
        else:
            opened = RowVectors(model, columns_given, Compute(device, None), say=say)
            embedder = opened.embedder
            rows = kept_rows("vectors", opened.size, "<f4", opened.depends_on())
            vectors = vectors_of(rows, embedder, corpus.records(), None)
            kept, similarity = by_vectors(exact, vectors, order, threshold, fixed=fixed)
            say_each(opened.warnings(), say)
        blank = corpus.blank()
        kept[blank], similarity[blank] = blank, 1
        result = _result(corpus, exact, kept, similarity)
        if write_kept is not None:
            write_kept(np.isin(np.arange(corpus.counts[0]), result.kept))
        if listed is not None:
            listed.fill((_output_rows(*each) for each in enumerate(result.groups, start=1)), list)
    return result


def _result(
    corpus: "_Corpus", exact: np.ndarray, kept: np.ndarray, similarity: np.ndarray
) -> Duplicates:
    count = corpus.counts[0]
    is_kept = kept[:count] == np.arange(count)
    dropped = np.flatnonzero(~is_kept)
    return Duplicates(
        kept=np.flatnonzero(is_kept),
        dropped=dropped,
        exact=int((exact[dropped] == exact[kept[dropped]]).sum()),
        leaks=int((kept[dropped] >= count).sum()),
        groups=corpus.groups(kept, similarity, dropped),
    )


class _Corpus:
    """Concatenated rows of several sources, which are read more than once.

    Attributes:
        counts: number of rows of each source, known after the first pass.
    """

    def __init__(self, sources: Sequence[Source], given: ColumnNames) -> None:
        self.sources, self._given = sources, given
        self.counts: list[int] = []
        self._lengths = array("i")

    def texts(self, progress: Progress | None) -> Iterator[list[str]]:
        """Yield blocks of texts, and count them."""

        def read_all() -> Iterator[str]:
            for number, source in enumerate(self.sources):
                self.counts.append(0)
                for _, text in read_texts_with_ids(source, self._given):
                    self.counts[number] += 1
                    self._lengths.append(len(text.strip()))
                    yield text
                    if progress is not None and not len(self._lengths) % 1000:
                        progress(len(self._lengths))

        return in_blocks(read_all())

    def blank(self) -> np.ndarray:
        """The rows with blank texts."""
        return np.flatnonzero(np.asarray(self._lengths) == 0)

    def priority(self, keep: str) -> tuple[np.ndarray, int]:
        """All rows in order of preference for keeping, and the number of those that are always
        kept: the rows of other sources than the first. Blank rows come last, after all texts."""
        lengths = np.asarray(self._lengths)
        first, blank = np.arange(len(lengths)) < self.counts[0], lengths == 0
        lengths = lengths if keep == "longest" else np.zeros_like(lengths)
        return np.lexsort((-lengths, first, blank)), int((~first & ~blank).sum())

    def records(self) -> Iterator[list[Record]]:
        """Yield blocks of rows with their ids."""
        records = chain(*(read_texts_with_ids(source, self._given) for source in self.sources))
        return in_blocks(records, size=lambda each: len(each[1]))

    def groups(
        self, kept: np.ndarray, similarity: np.ndarray, dropped: np.ndarray
    ) -> list[list[DuplicateRow]]:
        """The dropped rows of the first source, grouped by the kept row."""
        needed = {*dropped.tolist(), *kept[dropped].tolist()}
        rows: dict[int, DuplicateRow] = {}
        index = 0
        for source in self.sources:
            name = str(source)
            for number, (_, text) in enumerate(read_texts_with_ids(source, self._given), start=1):
                if index in needed:
                    location = name, number, round(float(similarity[index]), 4), text[:_TEXT]
                    rows[index] = DuplicateRow(*location, bool(kept[index] == index))
                index += 1
        groups: dict[int, list[DuplicateRow]] = {}
        for row in dropped.tolist():
            head = int(kept[row])
            groups.setdefault(head, [rows[head]]).append(rows[row])
        return list(groups.values())


def _output_rows(number: int, group: Iterable[DuplicateRow]) -> list[dict[str, Any]]:
    return [
        {"group": number, "keep": each.kept, "similarity": each.similarity}
        | {"source": each.source, "row": each.row, "text": each.text}
        for each in group
    ]


def _kept_writer(source: Source, output: Path, stack: ExitStack) -> Callable[[np.ndarray], None]:
    """A function that writes the rows selected by a mask (rows); rejects unwritable outputs."""

    def fill_from(file: ResumableFile, rows: Iterable[Any]) -> Callable[[np.ndarray], None]:
        stack.callback(file.close)
        return lambda mask: _fill(file, rows, mask)

    kind = kind_of(source)
    plain = kind == kind_of(output) and kind in ("txt", "jsonl")
    if plain and not isinstance(source, MemoryTable):
        # Lines are copied unchanged: objects may have keys that the first one lacks.
        lines = (f"{line}\n" for _, line in open_text(source) if kind == "txt" or line.strip())
        return fill_from(ResumableFile(output, None, resume=False), lines)
    if kind == "txt":
        raise InputError("{output}: lines of plain text are written to a .txt file", output)
    names = columns(source)
    rows = (
        dict(zip(names, map(id_value, values), strict=True))
        for _, values in read_values(source, names)
    )
    if kind_of(output) not in ("delimited", "jsonl"):
        raise InputError(
            "{output}: rows of a table are written to a .csv, .tsv or .jsonl file", output
        )
    return fill_from(PredictionWriter(output, None, resume=False), rows)


def _fill(file: ResumableFile, rows: Iterable[Any], mask: np.ndarray) -> None:
    chosen = (row for row, kept in zip(rows, mask, strict=True) if kept)
    file.fill(blocks(chosen), list)
