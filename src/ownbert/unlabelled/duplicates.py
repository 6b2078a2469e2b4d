"""Finds duplicates among rows and between files, exact or near (by shingles of texts, or by their
vectors): groups, the row to keep, and a deduplicated file.

N rows, ordered by priority: of two similar rows the earlier one is kept.
"""

import tempfile
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import chain, compress
from pathlib import Path
from typing import Any

import numpy as np

from ownbert.checks import known, up_to
from ownbert.corpus.chunks import digest
from ownbert.exceptions import InputError, fields_repr
from ownbert.files.encodings import reads_encoding
from ownbert.files.input_files import refuse_same
from ownbert.files.resumable_file import ResumableFile, made_for
from ownbert.files.text_files import open_text
from ownbert.inference.embedder import in_blocks
from ownbert.inference.embedding_outputs import of_length_one
from ownbert.inference.engines import Compute, Progress, Say, say_each
from ownbert.inference.row_files import PredictionWriter
from ownbert.inference.vector_files import Record, RowVectors, as_inputs, sources_of
from ownbert.language.messages import Option
from ownbert.tables.columns import ColumnNames, id_value, read_texts_with_ids
from ownbert.tables.memory import MemoryTable
from ownbert.tables.tables import Source, columns, kind_of, read_values
from ownbert.tasks.related_rows import normalised
from ownbert.tasks.row_network import blocks
from ownbert.unlabelled.index_files import NumberRows, number_rows, vectors_of
from ownbert.views.ngram_counts import character_ngrams

KEEP = ("first", "longest")
# Default similarity thresholds for duplicates: by shingles of texts, and by vectors.
THRESHOLD, VECTOR_THRESHOLD = 0.8, 0.95
_TEXT = 200  # characters shown of a text in a group
# Hashes per signature: similarities have a standard error of about 0.04.
HASHES = 128
# Columns of ``keys_and_signatures``.
KEYED = HASHES + 2
# Characters per shingle, and number of hash values of shingles.
_SHINGLE, _HASH_VALUES = 5, 1 << 30
# Share of pairs at the threshold that agree in at least one band.
_RECALL = 0.99
_ROWS = 1024
# Maximum elements of a similarity matrix.
_MATRIX_SIZE = 1 << 24


@dataclass(frozen=True)
class DuplicateRow:
    """A row of a group: its file, its number from 1, its similarity to the kept row (0 to 1; 1 for
    equal texts after normalisation), and the beginning of its text."""

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
        message = "duplicates are searched in one file; join several files, or name some as against"
        raise InputError(message)
    others = [] if against is None else sources_of(as_inputs(against))
    for path in filter(None, (output, groups)):
        refuse_same([*row_sources, *others], path)
    columns_given = ColumnNames(text=text_column)
    corpus = _Corpus([*row_sources, *others], columns_given)
    with ExitStack() as stack:
        write_kept = None if output is None else _kept_writer(row_sources[0], Path(output), stack)
        listed = None
        if groups is not None:
            listed = stack.enter_context(closing(PredictionWriter(groups, None, resume=False)))
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
            rows = kept_rows("vectors", opened.size, "<f4", opened.depends_on())
            vectors = vectors_of(rows, opened.embedder, corpus.records(), None)
            kept, similarity = by_vectors(exact, vectors, order, threshold, fixed=fixed)
            say_each(opened.warnings(), say)
        blank = corpus.blank()
        kept[blank], similarity[blank] = blank, 1
        count = corpus.counts[0]
        is_kept = kept[:count] == np.arange(count)
        dropped = np.flatnonzero(~is_kept)
        result = Duplicates(
            kept=np.flatnonzero(is_kept),
            dropped=dropped,
            exact=int((exact[dropped] == exact[kept[dropped]]).sum()),
            leaks=int((kept[dropped] >= count).sum()),
            groups=corpus.groups(kept, similarity, dropped),
        )
        if write_kept is not None:
            write_kept(is_kept)
        if listed is not None:
            listed.fill((_output_rows(*each) for each in enumerate(result.groups, start=1)), list)
    return result


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


def _kept_writer(source: Source, output: Path, stack: ExitStack) -> Callable[[np.ndarray], object]:
    """A function that writes the rows selected by a mask (rows); rejects unwritable outputs."""

    def fill_from(file: ResumableFile, rows: Iterable[Any]) -> Callable[[np.ndarray], object]:
        stack.enter_context(closing(file))
        return lambda mask: file.fill(blocks(compress(rows, mask)), list)

    kind = kind_of(source)
    plain = kind == kind_of(output) and kind in ("txt", "jsonl")
    if plain and not isinstance(source, MemoryTable):
        # Lines are copied unchanged: objects may have keys that the first one lacks.
        lines = (f"{line}\n" for _, line in open_text(source) if kind == "txt" or line.strip())
        return fill_from(ResumableFile(output, None, resume=False), lines)
    if kind == "txt":
        raise InputError("{output}: lines of plain text are written to a .txt file", output)
    names = columns(source)
    found = read_values(source, names)
    rows = (dict(zip(names, map(id_value, values), strict=True)) for _, values in found)
    if kind_of(output) not in ("delimited", "jsonl"):
        message = "{output}: rows of a table are written to a .csv, .tsv or .jsonl file"
        raise InputError(message, output)
    return fill_from(PredictionWriter(output, None, resume=False), rows)


def signatures(texts: Sequence[str]) -> np.ndarray:
    """MinHash signatures of normalised texts: uint32 (N, HASHES). The share of equal entries
    estimates the Jaccard similarity of the shingle sets.

    A shingle has five consecutive characters. Texts without shingles have 0 everywhere.

    Source: Broder 1997, "On the resemblance and containment of documents".
    """
    rng = np.random.default_rng(0)
    factors = rng.integers(1 << 62, size=HASHES, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    shifts = rng.integers(1 << 62, size=HASHES, dtype=np.uint64)
    result = np.zeros((len(texts), HASHES), np.uint32)
    for start in range(0, len(texts), _ROWS):
        shingles = character_ngrams(
            texts[start : start + _ROWS], (_SHINGLE,), _HASH_VALUES, across=True
        )
        with_shingles = np.flatnonzero(np.diff(shingles.indptr))
        numbers, starts = shingles.indices.astype(np.uint64), shingles.indptr[with_shingles]
        for column in range(HASHES if len(with_shingles) else 0):
            hashed = (numbers * factors[column] + shifts[column]) >> np.uint64(32)
            least = np.minimum.reduceat(hashed.astype(np.uint32), starts)
            result[start + with_shingles, column] = least
    return result


def by_shingles(
    exact: np.ndarray,
    signatures: np.ndarray,
    order: np.ndarray,
    threshold: float,
    *,
    fixed: int = 0,
) -> tuple[np.ndarray, np.ndarray]:
    """Find the row that each row duplicates; a row with an equal text comes before similar ones.

    Args:
        exact: (N) equal numbers for equal texts.
        signatures: (N, HASHES), possibly memory-mapped.
        order: (N) rows by priority.
        fixed: number of rows, the first by priority, that are always kept.

    Returns:
        (N) the row kept for each row, itself if it is kept, and (N) the similarity of both.
    """
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    pairs = [_pairs_with_same_key(exact, order)]
    width = _band(threshold)
    for start in range(0, HASHES - width + 1, width):
        keys = np.zeros(len(order), np.uint64)
        for column in range(start, start + width):
            keys = (keys ^ signatures[:, column]) * np.uint64(0x9E3779B97F4A7C15)
            keys ^= keys >> np.uint64(29)
        band = _pairs_with_same_key(keys, order)
        band = band[signatures[band[:, 0], start] > 0]  # skip texts without shingles
        pairs.append(band[_estimated_similarity(signatures, band[:, 0], band[:, 1]) >= threshold])
    candidates = np.unique(np.concatenate(pairs), axis=0)
    candidates = candidates[rank[candidates[:, 0]] >= fixed]
    candidates = candidates[np.argsort(rank[candidates[:, 0]], kind="stable")]
    kept, similarity = np.arange(len(order)), np.ones(len(order))
    # Converted in blocks, because Python's numbers take several times as much memory.
    starts = range(0, len(candidates), _ROWS)
    pairs_of_block = (candidates[start : start + _ROWS].tolist() for start in starts)
    for row, other in chain.from_iterable(pairs_of_block):
        root = int(kept[other])
        if exact[row] == exact[root]:
            kept[row], similarity[row] = root, 1
            continue
        if kept[row] != row and exact[row] == exact[kept[row]]:
            continue
        # If ``other`` is itself a duplicate, ``root`` is another row, which may be less similar.
        value = float(_estimated_similarity(signatures, np.array([row]), np.array([root]))[0])
        if value >= threshold and (kept[row] == row or value > similarity[row]):
            kept[row], similarity[row] = root, value
    return kept, similarity


def _band(threshold: float) -> int:
    """Number of hashes per band, chosen to find nearly all pairs at the threshold.

    Source: Leskovec, Rajaraman and Ullman 2020, "Mining of Massive Datasets", section 3.4.
    """
    widths = range(32, 0, -1)
    enough = (w for w in widths if 1 - (1 - threshold**w) ** (HASHES // w) >= _RECALL)
    return next(enough, 1)


def _pairs_with_same_key(keys: np.ndarray, order: np.ndarray) -> np.ndarray:
    """(pairs, 2): each row with the first row by priority that has the same key."""
    _, first, inverse = np.unique(keys[order], return_index=True, return_inverse=True)
    pairs = np.stack([order, order[first[inverse]]], 1)
    return pairs[pairs[:, 0] != pairs[:, 1]]


def _estimated_similarity(signatures: np.ndarray, one: np.ndarray, two: np.ndarray) -> np.ndarray:
    """The estimated Jaccard similarity of pairs of rows."""
    similarity = np.empty(len(one), np.float32)
    for start in range(0, len(one), _ROWS):
        chunk = slice(start, start + _ROWS)
        similarity[chunk] = (signatures[one[chunk]] == signatures[two[chunk]]).mean(1)
    return similarity


def by_vectors(
    exact: np.ndarray, vectors: np.ndarray, order: np.ndarray, threshold: float, *, fixed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Like ``by_shingles``, by the cosine similarity of vectors (N, D): each row is compared with
    all rows kept before it, so time is quadratic in N."""
    kept, similarity = np.arange(len(order)), np.ones(len(order))
    always = np.zeros(len(order), bool)
    always[order[:fixed]] = True
    first = {}
    unique = []
    for row in order.tolist():
        kept[row] = first.setdefault(exact[row], row)
        if kept[row] == row:
            unique.append(row)
    kept_rows: list[int] = []
    for start in range(0, len(unique), _ROWS):
        rows = np.asarray(unique[start : start + _ROWS])
        unit = of_length_one(vectors[rows])
        best, nearest = np.full(len(rows), -1.0), np.zeros(len(rows), np.int64)
        step = _MATRIX_SIZE // _ROWS
        for begin in range(0, len(kept_rows), step):
            others = np.asarray(kept_rows[begin : begin + step])
            cosines = unit @ of_length_one(vectors[others]).T
            place = cosines.argmax(1)
            value = cosines[np.arange(len(rows)), place]
            better = value > best
            best[better], nearest[better] = value[better], others[place[better]]
        within = unit @ unit.T
        kept_here: list[int] = []  # kept rows, as indices in this block
        for place, row in enumerate(rows.tolist()):
            if kept_here and (value := within[place, kept_here]).max() > best[place]:
                best[place], nearest[place] = value.max(), rows[kept_here[int(value.argmax())]]
            if best[place] >= threshold and not always[row]:
                kept[row], similarity[row] = nearest[place], best[place]
            else:
                kept_here.append(place)
        kept_rows += rows[kept_here].tolist()
    # Rows with the same text as a row that is itself a duplicate.
    return kept[kept], np.where(kept[kept] == kept, similarity, similarity[kept])


def keys_and_signatures(texts: Sequence[str]) -> np.ndarray:
    """Exact keys and signatures of texts, for ``split_keys``: uint32 (N, KEYED)."""
    texts = [normalised(text) for text in texts]
    keys = b"".join(digest([text])[0][:8] for text in texts)
    return np.hstack([np.frombuffer(keys, "<u4").reshape(-1, 2), signatures(texts)])


def split_keys(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Exact keys (N) and signatures (N, HASHES) of ``keys_and_signatures``."""
    return np.ascontiguousarray(rows[:, :2]).view("<u8").ravel(), rows[:, 2:]
