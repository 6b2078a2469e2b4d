"""Finds topics of unlabelled texts: clusters of vectors, named by their distinctive words.

N texts, D vector size, C topics, F words.
"""

import re
import tempfile
from array import array
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ownbert import limits
from ownbert.charts import Chart
from ownbert.checks import between
from ownbert.corpus.sparse import sparse
from ownbert.exceptions import InputError, fields_repr, needing, percent
from ownbert.files.encodings import reads_encoding
from ownbert.files.input_files import refuse_same
from ownbert.files.resumable_file import made_for
from ownbert.files.writing import together
from ownbert.inference.embedder import Embedder
from ownbert.inference.embedding_outputs import of_length_one
from ownbert.inference.engines import Compute, Progress, Say, say_each
from ownbert.inference.row_files import PredictionWriter
from ownbert.inference.vector_files import Record, RowVectors, as_inputs, records_of, sources_of
from ownbert.language import translated
from ownbert.language.messages import Message
from ownbert.pages import TEXT, Page, Section, cleaned
from ownbert.tables.columns import ColumnNames
from ownbert.tables.tables import columns, require_column
from ownbert.tasks.row_network import blocks
from ownbert.unlabelled.index_files import KeptRows, RowFile, WordCounts, number_rows, vectors_of

# Numbers of topics to compare by default, and number of vectors for the comparison.
_COUNTS, _COMPARED = (2, 3, 4, 5, 8, 10, 12, 14, 17, 20, 25, 30, 40, 60), 3000
# The silhouette score of many texts is highest for very few topics, so _FEW texts or more get at
# least _LEAST topics.
_LEAST, _FEW = 5, 100
# Maximum number of vectors for fitting the clusters.
_FITTED = 100_000
_ROWS = 1 << 14
# Maximum counts of words by topic in memory, 1 GB.
_MOST_COUNTS = 1 << 28
_WORDS, _TYPICAL = 10, 5
_MOST_PERIODS = 40
_DATE = re.compile(
    r"(\d{4})(?:[-/.年]?(0[1-9]|1[0-2])"
    r"(?:[-/.月]?(0[1-9]|[12]\d|3[01])(?!\d)|(?![-/.月]?\d))|(?![-/.年]?\d))"
)
_TEXT, _WORD = 320, 40  # characters
_WIDTH, _HEIGHT = 140, 18  # pixels of a curve
_NAME, _TEXT_SHOWN = 4, 40  # words; characters of a text


@dataclass(frozen=True)
class Topic:
    """Similar texts: their most distinctive words, their number, indices and texts nearest to the
    centre, and numbers of texts in each period."""

    words: list[str]
    size: int
    typical: list[tuple[int, str]] = field(default_factory=list)
    over_time: list[int] = field(default_factory=list)

    def __repr__(self) -> str:
        return fields_repr(self)

    @property
    def name(self) -> str:
        """The first words, or the start of the most typical text if there are no words."""
        text = self.typical[0][1][:_TEXT_SHOWN].strip() if self.typical else ""
        return ", ".join(self.words[:_NAME]) or text or "-"


@dataclass(frozen=True)
class Topics:
    """The topics of texts, largest first.

    Args:
        of_text: (N) index of the topic of each text.
        similarity: (N) cosine of each text with the centre of its topic.
        periods: names of the periods in order; empty without dates.
    """

    topics: list[Topic]
    of_text: np.ndarray
    similarity: np.ndarray
    periods: list[str]

    def __repr__(self) -> str:
        return fields_repr(self)


@reads_encoding
def topics(
    model: str | Path | Embedder,
    texts: Any,
    output: str | Path | None = None,
    *,
    html: str | Path | None = None,
    count: int | None = None,
    text_column: str | None = None,
    date_column: str | None = None,
    encoding: str | None = None,
    seed: int = 0,
    resume: bool = False,
    device: str = "auto",
    progress: Progress | None = None,
    say: Say | None = None,
) -> Topics:
    """Group texts by topic.

    The centred vectors of the model are clustered by k-means. The words of a topic are those that
    contribute most to the Kullback-Leibler divergence of its texts from all texts.

    Args:
        model: folder of the embedding model, or an ``Embedder``.
        texts: files, folders or globs, or rows in memory, see ``ownbert.embed``.
        output: a .jsonl, .csv or .tsv file for the topic of each text.
        html: file for a page with the topics.
        count: number of topics; by default the best of several by silhouette score, at most the
            square root of the number of texts.
        text_column, encoding, device, say: see ``ownbert.embed``.
        date_column: column of dates such as 2024-05-31, for counts of topics over time.
        seed: seed of the clustering.
        resume: continue a stopped run with the same ``output`` (or ``html``), reusing its vectors.
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
    folder = [] if isinstance(model, Embedder) else [model]
    for path in filter(None, (output, html)):
        refuse_same([*folder, *sources], path)
    columns_given = ColumnNames(text=text_column, id=date_column)
    records = records_of(inputs, columns_given)
    with ExitStack() as stack:
        file = None
        if output is not None:
            file = stack.enter_context(closing(PredictionWriter(output, None, resume=False)))
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ownbert-topics-")))
        if isinstance(model, Embedder):
            embedder, identity = model, None
        else:
            opened = RowVectors(model, columns_given, Compute(device, None), say=say)
            embedder, identity = opened.embedder, made_for(sources, opened.depends_on())
        kept, dates = KeptRows(work), _Dates(date_column)

        def read() -> Iterator[list[Record]]:
            for block in kept.blocks(records):
                yield block
                dates.add([date for date, _ in block])

        size = embedder.get_sentence_embedding_dimension()
        rows = number_rows(output or html, work, "vectors", size, "<f4", identity, resume=resume)
        vectors = vectors_of(stack.enter_context(rows), embedder, read(), progress)
        texts_read = RowFile(kept.path)
        of_text, similarity = _clusters(vectors, count, seed)
        say_each(embedder.warnings(), say)
        result = _describe(kept.words, texts_read, of_text, similarity, dates)
        with together():
            if html is not None:
                as_page(result).write(html)
            if file is not None:
                pairs = enumerate(zip(of_text, texts_read.texts(), strict=True))
                rows = (
                    {"row": row + 1, "topic": int(number) + 1, "name": result.topics[number].name}
                    | {"similarity": round(float(similarity[row]), 4), "text": text}
                    for row, (number, text) in pairs
                )
                file.fill(blocks(rows, size=lambda row: len(row["text"])), list)
    return result


def _clusters(vectors: np.ndarray, count: int | None, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The topic of each text, largest first, and the cosine with its centre, both (N)."""
    with needing("this needs scikit-learn: pip install 'ownbert[eval]'"):
        from sklearn.cluster import MiniBatchKMeans
        from sklearn.metrics import silhouette_score
    if len(vectors) < 3:
        raise InputError("there are {count} texts; topics need at least 3", len(vectors))
    if count is not None and count > len(vectors):
        message = "there are {count:,} texts for {count2:,} topics; lower {--count}"
        raise InputError(message, len(vectors), count)
    mean = np.mean(vectors, axis=0, dtype=np.float64).astype(np.float32)
    draw = np.random.default_rng(seed)
    chosen = np.sort(draw.permutation(len(vectors))[:_FITTED])
    sample = of_length_one(vectors[chosen] - mean)

    def fit_clusters(vectors: np.ndarray, number: int) -> Any:
        options: dict[str, Any] = {"batch_size": 4096, "n_init": 3, "random_state": seed}
        return MiniBatchKMeans(number, **options).fit(vectors)

    if count is None:
        compared = sample[draw.permutation(len(sample))[:_COMPARED]]
        fewest = _LEAST if len(vectors) >= _FEW else 2
        counts = [each for each in _COUNTS if fewest <= each and each * each <= len(vectors)] or [2]

        def quality(number: int) -> float:
            labels = fit_clusters(compared, number).labels_
            return silhouette_score(compared, labels) if labels.max() else -1.0

        count = max(counts, key=quality) if len(counts) > 1 else counts[0]
    centres = of_length_one(fit_clusters(sample, count).cluster_centers_)
    of_text = np.empty(len(vectors), np.int64)
    similarity = np.empty(len(vectors), np.float32)
    for start in range(0, len(vectors), _ROWS):
        chunk = slice(start, start + _ROWS)
        cosines = of_length_one(vectors[chunk] - mean) @ centres.T
        of_text[chunk], similarity[chunk] = cosines.argmax(1), cosines.max(1)
    sizes = np.bincount(of_text, minlength=count)
    rank = np.empty(count, np.int64)
    rank[np.argsort(-sizes, kind="stable")] = np.arange(count)  # empty topics come last
    return rank[of_text], similarity


def _describe(
    counted: WordCounts,
    texts: RowFile,
    of_text: np.ndarray,
    similarity: np.ndarray,
    dates: "_Dates",
) -> Topics:
    """The topics with their words, typical texts and periods."""
    size = int(of_text.max()) + 1
    topics_at_once = max(1, _MOST_COUNTS // max(1, len(counted.words)))
    texts_with_word = _texts_with_words(counted, np.zeros_like(of_text), range(1))[0]
    with_word = np.empty((0, 0))
    words, (names, periods) = np.array(list(counted.words), object), dates.periods()
    letters = np.array([re.search(r"\w", word) is not None for word in words], bool)
    described = []
    for number in range(size):
        if (index := number % topics_at_once) == 0:
            part = range(number, min(number + topics_at_once, size))
            with_word = _texts_with_words(counted, of_text, part)
        members = np.flatnonzero(of_text == number)
        weights = _weights(with_word[index], texts_with_word, len(members), len(of_text))
        weights = np.where(letters, weights, 0)
        best = np.argsort(-weights, kind="stable")[:_WORDS]
        nearest = members[np.argsort(-similarity[members], kind="stable")]
        near: list[int] = nearest[: 4 * _TYPICAL][::-1].tolist()
        typical: dict[str, int] = {texts.text(row): row for row in near}  # distinct texts
        dated = periods[members] if names else np.zeros(0, np.int64)
        shown = [(row, text) for text, row in list(typical.items())[::-1][:_TYPICAL]]
        over_time = np.bincount(dated[dated >= 0], minlength=len(names)).tolist()
        own = words[best[weights[best] > 0]].tolist()
        described.append(Topic(own, len(members), shown, over_time))
    return Topics(described, of_text, similarity, names)


def _texts_with_words(counted: WordCounts, of_text: np.ndarray, topics: range) -> np.ndarray:
    """(topics, F) number of texts of each topic that contain each word."""
    counts = np.zeros((len(topics), len(counted.words)), np.int32)
    for first, block in counted.blocks():
        topic = of_text[first : first + block.shape[0]] - topics.start
        rows = np.flatnonzero((topic >= 0) & (topic < len(topics)))
        block.data[:] = 1
        shape = len(topics), len(topic)
        member = sparse.csr_array((np.ones(len(rows), np.int32), (topic[rows], rows)), shape=shape)
        sums = (member @ block).tocoo()
        counts[sums.row, sums.col] += sums.data
    return counts


def _weights(
    with_word: np.ndarray, with_word_in_all: np.ndarray, topic_texts: int, all_texts: int
) -> np.ndarray:
    """(F) distinctiveness of words for a topic: the share p of its texts that contain a word times
    log(p / q), where q is the share among all texts, from the numbers of texts (F) of the topic,
    and of all texts, with each word. Words of a single text are used only if there are no
    others."""
    share = with_word / topic_texts
    weights = share * np.log(np.maximum(share, 1e-9) * all_texts / np.maximum(with_word_in_all, 1))
    several = np.where(with_word_in_all > 1, weights, 0)
    return several if (several > 0).any() else weights


class _Dates:
    """The dates of texts in a column, if any; distinct dates are stored once."""

    def __init__(self, column: str | None) -> None:
        self._column = column
        self._numbers: dict[tuple[str, ...], int] = {}
        self._of_text = array("i")

    def add(self, values: Sequence[Any]) -> None:
        """Add the dates of a block of texts."""
        if self._column is not None:
            dates = (_date(value, self._column) for value in values)
            self._of_text.extend(
                self._numbers.setdefault(date, len(self._numbers)) for date in dates
            )

    def periods(self) -> tuple[list[str], np.ndarray]:
        """The names of the periods in order, and the index of each text's period, or -1."""
        periods = _periods(list(self._numbers))
        names = sorted({period for period in periods if period is not None})
        index = np.array([-1 if p is None else names.index(p) for p in periods], np.int64)
        return names, index[np.asarray(self._of_text, np.int64)]


def _date(value: Any, column: str) -> tuple[str, ...]:
    """The year of a date, with month and day if it has them; empty if the date is missing."""
    if value is None or value == "":
        return ()
    if (match := _DATE.match(str(value).strip())) is None:
        message = "{column} has {value!r}, no date such as 2024-05-31"
        raise InputError(message, column, str(value)[:40])
    return tuple(part for part in match.groups() if part is not None)


def _periods(dates: Sequence[tuple[str, ...]]) -> list[str | None]:
    """The period of each date, in days, months or years: the finest unit with few periods."""
    fewest = min((len(date) for date in dates if date), default=1)
    candidates = (
        ["-".join(d[:parts]) if d else None for d in dates] for parts in range(fewest, 1, -1)
    )
    few = (periods for periods in candidates if len(set(periods)) <= _MOST_PERIODS)
    return next(few, [date[0] if date else None for date in dates])


def as_page(topics: Topics) -> Page:
    """The topics with their words, typical texts, and shares of the texts of each period."""
    texts, count, periods = len(topics.of_text), len(topics.topics), topics.periods
    board, sections = [], []
    for number, topic in enumerate(topics.topics, start=1):
        name = cleaned(topic.name, 4 * _WORD)
        board.append((f"{number}", name, f"{topic.size:,}", f"{percent(topic.size / texts)}"))
        rows = tuple(
            (f"{row + 1:,}", f"{topics.similarity[row]:.2f}", cleaned(text, _TEXT))
            for row, text in topic.typical
        )
        columns = tuple(map(translated, ("row", "similarity", TEXT)))
        chips = [("", [(word, "", "") for word in topic.words])]
        title = f"{number}. {name}"
        sections.append(Section(f"topic-{number}", title, columns=columns, rows=rows, chips=chips))
    lead = "Share of the texts of each period: {first} – {last}"
    lead = Message(lead, periods[0], periods[-1]) if periods else ""
    columns = ("number", "words", "texts", "share")
    bars = [_line(topics, topic) for topic in topics.topics] if periods else None
    overview = Section("topics", "Topics", lead, columns, tuple(board), names=2, bars=bars)
    figures = [(f"{texts:,}", "texts"), (f"{count:,}", "topics")]
    headline = translated("{texts:,} texts in {count:,} topics", texts, count)
    return Page("topics", [headline], [overview.in_language(), *sections], figures)


def _line(topics: Topics, topic: Topic) -> Chart:
    """The share of a topic in each period, as a line from 0 to the maximum share."""
    totals = np.sum([each.over_time for each in topics.topics], axis=0)
    shares = np.asarray(topic.over_time) / np.maximum(1, totals)
    x = np.linspace(4, _WIDTH - 4, len(shares)) if len(shares) > 1 else np.array([4.0])
    y = _HEIGHT - 2 - (_HEIGHT - 4) * shares / (shares.max() or 1)
    points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x, y, strict=True))
    named = zip(topics.periods, shares.tolist(), strict=True)
    title = "; ".join(f"{period} {percent(share)}" for period, share in named)
    return Chart(title, lines=[("fit", points)])
