"""An index of texts, searchable by vectors, by words, or by both.

N texts, D vector size, Q queries.
"""

import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ownbert import limits
from ownbert.checkpoint.model_files import model_checksums
from ownbert.checks import anything, between, known, list_of, maybe, one_of, record, text, whole
from ownbert.exceptions import InputError, named_repr
from ownbert.files.encodings import reads_encoding
from ownbert.files.folders import refuse_foreign, writing
from ownbert.files.json_files import read_json, write_json
from ownbert.files.resumable_file import made_for
from ownbert.hub import model_folder
from ownbert.inference.embedder import Embedder
from ownbert.inference.engines import Compute, Progress, Say, say_each
from ownbert.inference.vector_files import RowVectors, as_inputs, records_of, sources_of
from ownbert.run.run_folder import complete_folder, refuse_taken
from ownbert.tables.columns import ColumnNames
from ownbert.tables.memory import is_list, items
from ownbert.unlabelled.index_files import (
    ENTRIES,
    FORMS,
    ROWS,
    VECTOR_FILES,
    KeptRows,
    RowFile,
    VectorFile,
    WordCounts,
    number_rows,
    opened_array,
    vectors_of,
    write_vectors,
)
from ownbert.views.tokens import KINDS, splitter

INDEX = "index.json"
RANKINGS = ("hybrid", "vectors", "words")
# Cormack, Clarke and Buettcher 2009, "Reciprocal Rank Fusion", section 2: the constant of the sum;
# and the depth of the rankings used.
_RRF, _DEPTH = 60, 1000
_SETTINGS = {
    "format": one_of(1),
    "model": text,
    "checksums": list_of(anything),
    "texts": whole(1, limits.COUNT),
    "kind": one_of(*KINDS),
    "ids": maybe(text),
    "max_length": maybe(whole(1, limits.COUNT)),
    "precision": text,
}
_CHECK = record(_SETTINGS, required=tuple(_SETTINGS))
# Maximum elements of a BM25 score matrix.
_MOST_SCORES = 1 << 24


@reads_encoding
def build_index(
    model: str | Path,
    texts: Any,
    output: str | Path,
    *,
    text_column: str | None = None,
    id_column: str | None = None,
    encoding: str | None = None,
    form: str = "float16",
    approximate: bool = False,
    device: str = "auto",
    precision: str | None = None,
    max_length: int | None = None,
    engine: str | None = None,
    overwrite: bool = False,
    resume: bool = False,
    progress: Progress | None = None,
    say: Say | None = None,
) -> "Index":
    """Build an index of texts for search by vectors and by words.

    Args:
        model: folder of the embedding model; the index stores its name, and needs it for queries.
        texts: files, folders or globs, or rows in memory, see ``ownbert.embed``.
        output: folder of the index.
        text_column, id_column, encoding, device, precision, max_length, engine, say: see
            ``ownbert.embed``.
        form: storage format of vectors: float16, or int8 with half the size.
        approximate: group the vectors into cells; a search reads only the cells nearest to the
            query. This is faster beyond a few hundred thousand texts, but misses some results.
        overwrite: replace an index in ``output``.
        resume: continue a stopped run, reusing its vectors.
        progress: called with the number of texts so far.

    Raises:
        InputError: a file cannot be read or written; nothing is written.
    """
    known(*FORMS)("form", form)
    folder, target, inputs = model_folder(model), Path(output), as_inputs(texts)
    with writing(target):
        refuse_taken(target, folder, None, overwrite=overwrite, signs=[INDEX])
        refuse_foreign(target, [INDEX, ROWS, *VECTOR_FILES, *WORD_FILES], signs=[INDEX])
        columns = ColumnNames(text=text_column, id=id_column)
        records = records_of(inputs, columns)
        checksums = model_checksums(folder)  # before reading: a training may replace the model
        compute = Compute(device, precision, engine)
        opened = RowVectors(folder, columns, compute, max_length, say=say)
        embedder, identity = opened.embedder, made_for(sources_of(inputs), opened.depends_on())
        opened_rows = number_rows(
            target, target, "vectors", opened.size, "<f4", identity, resume=resume
        )
        with opened_rows as rows, complete_folder(target) as new:
            kept = KeptRows(new)
            vectors = vectors_of(rows, embedder, kept.blocks(records), progress)
            write_vectors(vectors, new, form)
            if approximate:
                VectorFile(new).write_cells(new)
            write_word_index(kept.words, new)
            kept.words.path.unlink()
            settings = {
                "format": 1,
                "model": str(folder.resolve()),
                "checksums": checksums,
                "texts": rows.done,
                "kind": kept.words.kind,
                "ids": id_column,
                "max_length": embedder.max_length,
                "precision": embedder.precision,
            }
            write_json(new / INDEX, settings)
        say_each(opened.warnings(), say)
    return Index(target, device=device, engine=engine)


def is_index(folder: str | Path) -> bool:
    """Whether a folder was written by ``build_index``."""
    return (Path(folder) / INDEX).is_file()


class Index:
    """An index written by ``build_index``.

    Args:
        folder: folder of the index. Its files are memory-mapped.
        model: folder of the model, if it has moved.
        device, engine: see ``Embedder``.

    Attributes:
        text_bytes: mean size of a text.

    Raises:
        InputError: the folder is not an index, or is damaged.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        model: str | Path | None = None,
        device: str = "auto",
        engine: str | None = None,
    ) -> None:
        import pyarrow as pa

        self.folder = Path(folder)
        if not is_index(self.folder):
            raise InputError("{folder} is not an index; make one with ownbert search build", folder)
        self.settings: Mapping[str, Any] = read_json(self.folder / INDEX, check=_CHECK)
        self.model: str | Path = model or self.settings["model"]
        self._given = device, engine
        try:
            self.words = WordIndex(self.folder, self.settings["kind"], len(self))
            self.vectors = VectorFile(self.folder)
            self._rows = RowFile(self.folder / ROWS)
            if len({len(self), len(self._rows), len(self.vectors.vectors)}) > 1:
                raise ValueError("sizes differ")
            self.text_bytes = self._rows.bytes // len(self)
        except (ValueError, OSError, EOFError, pa.ArrowException) as error:
            raise InputError("the index {folder} is damaged; rebuild it", folder) from error

    def __repr__(self) -> str:
        return named_repr(self, self.folder, texts=len(self))

    def __len__(self) -> int:
        return self.settings["texts"]

    def search(self, queries: Any, top_k: int = 10, by: str = "hybrid") -> Any:
        """Find the texts nearest to each query.

        Args:
            queries: a query, or a list of queries.
            top_k: number of texts per query.
            by: vectors (cosine); words (BM25); or hybrid (reciprocal rank fusion of both).

        Returns:
            For each query a list of mappings, best first: row (from 1), id if the index has ids,
            score and text. Search by words only finds texts that share a word with the query.

        Raises:
            InputError: an argument is invalid, or the model has changed.
        """
        between(1, limits.COUNT, "[]")("top_k", top_k)
        known(*RANKINGS)("search by", by)
        single = isinstance(queries, str)
        query_list: list[Any] = items(queries) if is_list(queries) else [queries]
        if not all(isinstance(query, str) for query in query_list):
            raise InputError("a query must be a text, or a list of texts")
        ranked, step = [], max(1, _MOST_SCORES // len(self))
        for start in range(0, len(query_list), step):
            ranked += self._ranked(query_list[start : start + step], top_k, by)
        hits = [self._hits(*each) for each in ranked]
        return hits[0] if single else hits

    def _ranked(
        self, queries: Sequence[str], count: int, by: str
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """Rows and scores for a few queries, best first."""
        depth = count if by != "hybrid" else max(count, _DEPTH)
        rankings = []
        if by != "words":
            cosines, rows = self.vectors.nearest(self.embedder.encode_query(list(queries)), depth)
            rankings.append(list(zip(rows, cosines, strict=True)))
        if by != "vectors":
            rankings.append([_best(scores, depth) for scores in self.words.scores(queries)])
        if len(rankings) == 1:
            return rankings[0]
        return [_fused([one, two], count) for (one, _), (two, _) in zip(*rankings, strict=True)]

    @cached_property
    def embedder(self) -> Embedder:
        """The embedding model for queries, opened on first use.

        Raises:
            InputError: the model has changed or is missing.
        """
        folder = model_folder(self.model)
        if not folder.is_dir():
            raise InputError(
                "the model of the index is not at {folder}; move it there, or name it with "
                "{--model} of search find",
                folder,
            )
        if model_checksums(folder) != self.settings["checksums"]:
            raise InputError("{folder} is not the model of the index; rebuild the index", folder)
        device, engine = self._given
        precision, length = (self.settings[key] for key in ("precision", "max_length"))
        compute = Compute(device, precision, engine)
        return RowVectors(folder, ColumnNames(), compute, length).embedder

    def _hits(self, rows: np.ndarray, scores: np.ndarray) -> list[dict[str, Any]]:
        hits = []
        for row, score in zip(rows.tolist(), scores.tolist(), strict=True):
            row_id = {} if self.settings["ids"] is None else {"id": self._rows.id(row)}
            found = {"score": float(f"{score:.6g}"), "text": self._rows.text(row)}
            hits.append({"row": row + 1, **row_id, **found})
        return hits


def _best(scores: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows with a positive score, and their scores, highest first."""
    rows = np.flatnonzero(scores)
    if len(rows) > count:
        rows = rows[np.argpartition(-scores[rows], count - 1)[:count]]
    rows = rows[np.argsort(-scores[rows], kind="stable")]
    return rows, scores[rows]


def _fused(rankings: Sequence[np.ndarray], count: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows ranked by the sum of their reciprocal ranks."""
    rows, inverse = np.unique(np.concatenate(rankings), return_inverse=True)
    gains = np.concatenate([1 / (_RRF + 1 + np.arange(len(ranking))) for ranking in rankings])
    sums = np.bincount(inverse, gains, len(rows))
    order = np.argsort(-sums, kind="stable")[:count]
    return rows[order], sums[order]


K1, B = 1.2, 0.75
WORD_FILES = ("words.npy", "starts.npy", "texts.npy", "weights.npy")
# Maximum number of temporary files, each of which is sorted in memory.
_PARTS = 200
_ENTRY = np.dtype([("word", "<i4"), ("text", "<i4"), ("weight", "<f4")])


def write_word_index(counted: WordCounts, folder: Path) -> None:
    """Write the files of a ``WordIndex``; only a part of the weights is in memory at a time.

    Source: Robertson and Zaragoza 2009, "The Probabilistic Relevance Framework: BM25 and Beyond",
    section 3.4; the idf adds 1 inside the logarithm, so that weights are not negative.
    """
    words, starts, texts, weights = (folder / name for name in WORD_FILES)
    np.save(words, np.frombuffer("\0".join(counted.words).encode(), dtype=np.uint8))
    ends = np.concatenate([[0], np.cumsum(counted.texts_with())])
    np.save(starts, ends)
    with ExitStack() as stack:
        work = stack.enter_context(tempfile.TemporaryDirectory(dir=folder))
        files = [stack.enter_context(path.open("wb")) for path in (texts, weights)]
        for file, kind in zip(files, ("<i4", "<f4"), strict=True):
            shape = {"descr": kind, "fortran_order": False, "shape": (int(ends[-1]),)}
            np.lib.format.write_array_header_1_0(file, shape)
        for path in _by_words(counted, ends, Path(work)):
            entries = np.fromfile(path, _ENTRY)
            entries = entries[np.argsort(entries["word"], kind="stable")]
            for file, name in zip(files, ("text", "weight"), strict=True):
                file.write(entries[name].tobytes())


def _by_words(counted: WordCounts, ends: np.ndarray, work: Path) -> list[Path]:
    """Write entries to files, each with all entries of a range of words; in the order of words."""
    with_word, lengths = np.diff(ends), counted.lengths
    part = ends[:-1] // max(ENTRIES, int(ends[-1]) // _PARTS + 1)  # of each word
    idf = np.log1p((len(lengths) - with_word + 0.5) / (with_word + 0.5)).astype(np.float32)
    norm = (K1 * (1 - B + B * lengths / max(1e-9, lengths.mean()))).astype(np.float32)
    paths = {number: work / f"{number}" for number in np.unique(part).tolist()}
    with ExitStack() as stack:
        files = {k: stack.enter_context(path.open("wb")) for k, path in paths.items()}
        for first, block in counted.blocks():
            entries = np.empty(block.nnz, _ENTRY)
            text = np.repeat(np.arange(first, first + block.shape[0]), np.diff(block.indptr))
            entries["word"], entries["text"] = block.indices, text
            gain = (K1 + 1) * idf[block.indices]
            entries["weight"] = gain * block.data / (block.data + norm[text])
            own = part[block.indices]
            order = np.argsort(own, kind="stable")
            distinct, start = np.unique(own[order], return_index=True)
            for number, rows in zip(distinct.tolist(), np.split(order, start)[1:], strict=True):
                files[number].write(entries[rows].tobytes())
    return list(paths.values())


class WordIndex:
    """BM25 weights by word, memory-mapped, for N texts of a kind; ``ValueError`` if the files do
    not belong together."""

    def __init__(self, folder: Path, kind: str, texts: int) -> None:
        arrays: list[Any] = [opened_array(folder / name) for name in WORD_FILES]
        joined = arrays[0].tobytes().decode()
        self.kind, self.size = kind, texts
        self.words = {word: i for i, word in enumerate(joined.split("\0"))} if joined else {}
        _, self.starts, self.texts, self.weights = arrays
        if len(self.starts) != len(self.words) + 1 or not (
            self.starts[-1] == len(self.texts) == len(self.weights)
        ):
            raise ValueError("sizes differ")

    def scores(self, queries: Sequence[str]) -> np.ndarray:
        """float32 (Q, N), 0 for texts without any word of the query."""
        scores = np.zeros((len(queries), self.size), np.float32)
        split = splitter(self.kind)
        for row, query in zip(scores, queries, strict=True):
            for word, count in Counter(split(query)).items():
                if (number := self.words.get(word)) is not None:
                    own = slice(int(self.starts[number]), int(self.starts[number + 1]))
                    row[self.texts[own]] += count * self.weights[own]
        return scores
