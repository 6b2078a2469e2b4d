"""Finds topics of unlabelled texts: clusters of vectors, named by their distinctive words.

N texts, D vector size, C topics, F words.
"""

import re
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from ownbert import limits
from ownbert.checks import between
from ownbert.encodings import reads_encoding
from ownbert.errors import InputError
from ownbert.files import refuse_same, together, write_text
from ownbert.inference.embedding.embedder import Progress
from ownbert.inference.embedding.embedding_outputs import of_length_one
from ownbert.inference.embedding.vector_files import (
    Record,
    Say,
    as_inputs,
    embedded,
    opened_embedder,
    records_of,
    sources_of,
    warn_of_cut,
    write_blocks,
)
from ownbert.inference.output.prediction_writer import PredictionWriter
from ownbert.tables.columns import ColumnNames
from ownbert.tables.tables import columns, require_column
from ownbert.tasks.forward.batched_forward import blocks
from ownbert.unlabelled.bm25 import WordCounts
from ownbert.unlabelled.topic_list import Topic, Topics
from ownbert.unlabelled.topics_page import as_page
from ownbert.views.ngram_counts import sparse

# Numbers of topics to compare by default, and number of vectors for the comparison.
_COUNTS, _COMPARED = (5, 8, 10, 12, 14, 17, 20, 25, 30, 40, 60), 3000
# Maximum number of vectors for fitting the clusters.
_FITTED = 100_000
_ROWS = 1 << 14
_WORDS, _TYPICAL = 10, 5
_MOST_PERIODS = 40
_DATE = re.compile(r"(\d{4})(?:-?(\d\d))?(?:-?(\d\d))?(?!\d)")


@reads_encoding
def topics(
    model: str | Path,
    texts: Any,
    output: str | Path | None = None,
    *,
    html: str | Path | None = None,
    count: int | None = None,
    text_column: str | None = None,
    date_column: str | None = None,
    encoding: str | None = None,
    seed: int = 0,
    device: str = "auto",
    progress: Progress | None = None,
    say: Say | None = None,
) -> Topics:
    """Group texts by topic.

    The centred vectors of the model are clustered by k-means. The words of a topic are those that
    contribute most to the Kullback-Leibler divergence of its texts from all texts.

    Args:
        model: folder of the embedding model.
        texts: files, folders or globs, or rows in memory, see ``ownbert.embed``.
        output: a .jsonl, .csv or .tsv file for the topic of each text.
        html: file for a page with the topics.
        count: number of topics; by default the best of several by silhouette score.
        text_column, encoding, device, say: see ``ownbert.embed``.
        date_column: column of dates such as 2024-05-31, for counts of topics over time.
        seed: seed of the clustering.
        progress: called with the number of texts so far.

    Raises:
        InputError: a file cannot be read or written; nothing is written.
    """
    if count is not None:
        between(2, limits.SHARDS, "[]")("count", count)
    inputs = as_inputs(texts)
    sources = sources_of(inputs)
    if date_column is not None:
        for source in sources:
            require_column(columns(source), date_column, source=source, option="--date-column")
    for path in filter(None, (output, html)):
        refuse_same([model, *sources], path)
    records = records_of(inputs, ColumnNames(text=text_column, id=date_column))
    with ExitStack() as stack:
        file = None if output is None else PredictionWriter(output, None, resume=False)
        if file is not None:
            stack.callback(file.close)
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="ownbert-topics-"))
        embedder = opened_embedder(model, device, None, None, None, say)
        counted, kept, dates = WordCounts(), [], []

        def read() -> Iterator[tuple[list[Record], np.ndarray]]:
            for block, vectors in embedded(embedder.encode_document, records, progress):
                yield block, vectors
                block_texts = [text for _, text in block]
                counted.add(block_texts)
                kept.extend(block_texts)
                dates.extend(_date(date, date_column) for date, _ in block)

        path = Path(folder, "vectors.npy")
        write_blocks(path, ".npy", read(), embedder.size, None, lambda done: None)
        vectors = np.load(path, mmap_mode="r")
        of_text, similarity = _clusters(vectors, count, seed)
        warn_of_cut(embedder, say)
        periods = _periods(dates) if date_column is not None else []
        found = _describe(counted, kept, of_text, similarity, periods)
        with together():
            if html is not None:
                write_text(html, as_page(found))
            if file is not None:
                rows = (
                    {"row": row + 1, "topic": int(number) + 1, "name": found.topics[number].name}
                    | {"similarity": round(float(similarity[row]), 4), "text": kept[row]}
                    for row, number in enumerate(of_text)
                )
                file.fill(blocks(rows, size=lambda row: len(row["text"])), list)
    return found


def _clusters(vectors: np.ndarray, count: int | None, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The topic of each text, largest first, and the cosine with its centre, both (N)."""
    try:
        from sklearn.cluster import MiniBatchKMeans
        from sklearn.metrics import silhouette_score
    except ImportError:
        raise InputError("this needs scikit-learn: pip install 'ownbert[eval]'") from None
    if len(vectors) < (least := max(3, count or 0)):
        raise InputError(f"there are {len(vectors)} texts; topics need at least {least}")
    mean = np.mean(vectors, axis=0, dtype=np.float64).astype(np.float32)
    draw = np.random.default_rng(seed)
    chosen = np.sort(draw.permutation(len(vectors))[:_FITTED])
    sample = of_length_one(vectors[chosen] - mean)

    def fit_clusters(vectors: np.ndarray, number: int) -> Any:
        options: dict[str, Any] = {"batch_size": 4096, "n_init": 3, "random_state": seed}
        return MiniBatchKMeans(number, **options).fit(vectors)

    if count is None:
        few = sample[draw.permutation(len(sample))[:_COMPARED]]
        counts = [each for each in _COUNTS if 3 * each <= len(few)] or [2]
        labels = [fit_clusters(few, each).labels_ for each in counts] if len(counts) > 1 else []
        scores = [
            silhouette_score(few, assignment) if assignment.max() else -1.0 for assignment in labels
        ]
        count = counts[int(np.argmax(scores))] if scores else counts[0]
    centres = of_length_one(fit_clusters(sample, count).cluster_centers_)
    of_text = np.empty(len(vectors), np.int64)
    similarity = np.empty(len(vectors), np.float32)
    for start in range(0, len(vectors), _ROWS):
        chunk = slice(start, start + _ROWS)
        cosines = of_length_one(vectors[chunk] - mean) @ centres.T
        of_text[chunk], similarity[chunk] = cosines.argmax(1), cosines.max(1)
    sizes = np.bincount(of_text, minlength=count)
    place = np.empty(count, np.int64)
    place[np.argsort(-sizes, kind="stable")] = np.arange(count)  # empty topics come last
    return place[of_text], similarity


def _describe(
    counted: WordCounts,
    texts: Sequence[str],
    of_text: np.ndarray,
    similarity: np.ndarray,
    periods: Sequence[str | None],
) -> Topics:
    """The topics with their words, typical texts and periods."""
    size = int(of_text.max()) + 1
    weights = _word_weights(counted, of_text, size)
    words, names = list(counted.words), sorted({p for p in periods if p is not None})
    found = []
    for number in range(size):
        members = np.flatnonzero(of_text == number)
        nearest = members[np.argsort(-similarity[members], kind="stable")]
        best = np.argsort(-weights[number], kind="stable")[:_WORDS]
        near: list[int] = nearest[: 4 * _TYPICAL][::-1].tolist()
        typical: dict[str, int] = {str(texts[row]): row for row in near}  # distinct texts
        counts = Counter(periods[row] for row in members.tolist()) if names else {}
        found.append(
            Topic(
                [words[word] for word in best if weights[number, word] > 0],
                len(members),
                [(row, text) for text, row in list(typical.items())[::-1][:_TYPICAL]],
                [counts[name] for name in names],
            )
        )
    return Topics(found, of_text, similarity, names)


def _word_weights(counted: WordCounts, of_text: np.ndarray, size: int) -> np.ndarray:
    """(C, F) distinctiveness of words for topics: the share p of the topic's texts with a word
    times log(p / q), where q is the share among all texts."""
    counts = counted.matrix()
    counts.data[:] = 1
    ones = np.ones(len(of_text), np.float32)
    member = sparse.csr_array((ones, (of_text, np.arange(len(of_text)))), shape=(size, len(ones)))
    shares = (member @ counts).toarray() / np.bincount(of_text, minlength=size)[:, None]
    texts_with = np.bincount(counts.indices, minlength=counts.shape[1])
    weights = shares * np.log(np.maximum(shares, 1e-9) * len(ones) / texts_with)
    letters = np.array([re.search(r"\w", word) is not None for word in counted.words], bool)
    return np.where(letters & (texts_with > 1), weights, 0)


def _date(value: Any, column: str | None) -> tuple[str, ...]:
    """Year, month and day of a date as available; empty if it is missing."""
    if column is None or value is None or value == "":
        return ()
    if (match := _DATE.match(str(value).strip())) is None:
        raise InputError(f"{column} has {str(value)[:40]!r}, no date such as 2024-05-31")
    return tuple(part for part in match.groups() if part is not None)


def _periods(dates: Sequence[tuple[str, ...]]) -> list[str | None]:
    """The period of each text, in days, months or years: the finest unit with few periods."""
    fewest = min((len(date) for date in dates if date), default=1)
    ways = (["-".join(d[:parts]) if d else None for d in dates] for parts in range(fewest, 1, -1))
    few = (found for found in ways if len(set(found)) <= _MOST_PERIODS)
    return next(few, [date[0] if date else None for date in dates])
