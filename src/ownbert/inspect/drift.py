"""Whether new rows resemble those that a model was trained on. N: new rows, M: earlier rows."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ownbert.exceptions import InputError, counted, percent
from ownbert.files.encodings import reads_encoding
from ownbert.files.input_files import refuse_same
from ownbert.files.json_files import require_json_name, write_json
from ownbert.fitting.report.statistics import log_odds
from ownbert.inference.engines import Compute, Progress, Say, say_each
from ownbert.inference.open_folder import open_folder
from ownbert.inference.opened import Opened, decide_all
from ownbert.inference.row_summary import OUTCOMES, RowSummary, summarise
from ownbert.language import translated
from ownbert.nn.default_dtype import in_float32
from ownbert.pages import Page, Section
from ownbert.run.file_names import TRAINING_ROWS
from ownbert.tables.columns import ColumnNames
from ownbert.train.metric_names import decimals

_DRAWS = 200  # simulations of differences by chance
_CHANCE = 0.95  # their quantile
_CRITICAL = 1.36  # of Kolmogorov and Smirnov's distance at this level
_WORDS = 15  # per direction
_CLEAR_DEVIATIONS = 3.0
# Quantiles shown of lengths, numbers and confidence, as places in the percentiles.
_PLACES = (25, 50, 75)


@dataclass(frozen=True)
class RowDistance:
    """How far a property of new rows is from that of the earlier ones: values in words, a distance
    from 0 (equal) to 1, and the distance that 95% of equally drawn rows stay below."""

    name: str
    before: str
    now: str
    distance: float
    by_chance: float

    @property
    def beyond_chance(self) -> float:
        return max(0.0, self.distance - self.by_chance)


@dataclass(frozen=True)
class WordChange:
    """A word whose share of texts has changed."""

    word: str
    before: float
    now: float


@dataclass(frozen=True)
class RowDrift:
    """Differences between new rows and earlier ones (``reference``), of N and M rows: the
    properties compared, words that became more or less frequent by more than chance, and shares of
    the labels (earlier, predicted for the new rows)."""

    reference: str
    earlier_rows: int
    rows: int
    distances: tuple[RowDistance, ...]
    words: tuple[WordChange, ...]
    labels: Mapping[str, tuple[float, float]]

    @property
    def largest(self) -> RowDistance:
        """The property that has changed most beyond chance."""
        return max(self.distances, key=lambda each: each.beyond_chance)

    def to_dict(self) -> dict[str, Any]:
        """The results as JSON values."""
        values = asdict(self)
        for each, distance in zip(values["distances"], self.distances, strict=True):
            each["beyond_chance"] = distance.beyond_chance
        return {**values, "largest": self.largest.name}


@reads_encoding
@in_float32
def drift(
    folder: str | Path,
    data: Any,
    *,
    reference: Any = None,
    output: str | Path | None = None,
    html: str | Path | None = None,
    text_column: str | None = None,
    second_column: str | None = None,
    encoding: str | None = None,
    device: str = "auto",
    precision: str | None = None,
    network: bool = False,
    progress: Progress | None = None,
    say: Say | None = None,
) -> RowDrift:
    """Compare new rows with those that a model was trained on: words, lengths, predictions.

    Args:
        folder: folder of a fine-tuned model, an ensemble or a blend.
        data: the new rows, see ``ownbert.predict``.
        reference: earlier rows, such as a test file, which are predicted as well; by default the
            summary of the training rows in the folder.
        output: file to write the results to, as JSON.
        html: file to write the results to, as a page; it has words, but no texts.
        text_column, second_column: columns of the rows; by default as in training.
        encoding: encoding of text files; by default UTF-8.
        device, precision, network: see ``ownbert.predict``.
        progress: called with the number of predictions so far.
        say: called with notes and warnings.

    Raises:
        InputError: a row cannot be read, or there is neither a summary nor ``reference``.
    """
    for path in (output, html):
        refuse_same([folder, data, reference], path)
    if output is not None:
        require_json_name(output)
    columns = ColumnNames(text_column, second_column)
    opened = open_folder(folder, Compute(device, precision, network=network), columns=columns)
    if opened.task.reads_arrays:
        raise InputError("drift compares texts, and image reads images")
    if reference is None:
        before, name = RowSummary.read(Path(opened.folder)), "the training rows"
        if before is None:
            raise InputError(
                "{folder} has no {training_rows}, which fit and finetune write; give earlier "
                "rows with {--reference}",
                folder,
                TRAINING_ROWS,
            )
    else:
        before, name = _summary(opened, reference, None, progress), str(reference)
    now = _summary(opened, data, before, progress)
    say_each((*opened.notes(), *opened.warnings()), say)
    found = RowDrift(
        reference=name if reference is None or isinstance(reference, str | Path) else "rows",
        earlier_rows=before.rows,
        rows=now.rows,
        distances=tuple(_distances(before, now)),
        words=_changed_words(before, now),
        labels=_shares(before.labels, now.labels) if before.labels else {},
    )
    if output is not None:
        write_json(output, found.to_dict())
    if html is not None:
        drift_page(found).write(html)
    return found


def _summary(
    opened: Opened, data: Any, like: RowSummary | None, progress: Progress | None
) -> RowSummary:
    """The summary of rows and of their predictions."""
    task = opened.task
    rows = list(task.stream(task.source(data, labelled=False)))
    decided = decide_all(opened, rows, progress)
    pairs = list(zip(decided, rows, strict=True))
    outcomes = [task.plain(*pair) for pair in pairs] if task.name in OUTCOMES else []
    scores = [task.output_row(*pair).get("score") for pair in pairs]
    known = [float(score) for score in scores if isinstance(score, int | float)]
    return summarise(task, rows, outcomes, known, like)


def _distances(before: RowSummary, now: RowSummary) -> list[RowDistance]:
    """The distances of all properties that both summaries have."""
    rng = np.random.default_rng(0)
    spread = max(before.rare_deviation, now.rare_deviation)
    error = 1.96 * spread * np.sqrt(1 / before.rows + 1 / now.rows)
    rare, difference = (percent(before.rare), percent(now.rare)), abs(now.rare - before.rare)
    found = [
        RowDistance("unknown or rare words", *rare, difference, float(error)),
        _word_distance(before, now, rng),
        _quantile_distance("words per text", before.lengths, now.lengths, before, now),
    ]
    if before.labels and now.labels:
        found.append(_label_distance(before, now, rng))
    for name, earlier, later in (
        ("predicted numbers", before.numbers, now.numbers),
        ("confidence", before.confidence, now.confidence),
    ):
        if earlier is not None and later is not None:
            sized = (replace(each, rows=each.outcomes or each.rows) for each in (before, now))
            found.append(_quantile_distance(name, earlier, later, *sized))
    return found


def _quantile_distance(
    name: str, before: Sequence[float], now: Sequence[float], earlier: RowSummary, later: RowSummary
) -> RowDistance:
    """Kolmogorov and Smirnov's distance of two distributions, from their percentiles."""
    first, second = np.sort(before), np.sort(now)
    points = np.unique([first, second])
    shares = [np.searchsorted(each, points, side="right") / len(each) for each in (first, second)]
    shown = [" ".join(f"{each[i]:.3g}" for i in _PLACES) for each in (first, second)]
    distance = float(np.abs(shares[0] - shares[1]).max())
    # The percentiles themselves are exact to a hundredth.
    by_chance = 0.01 + _CRITICAL * float(np.sqrt(1 / earlier.rows + 1 / later.rows))
    return RowDistance(name, shown[0], shown[1], distance, min(1.0, by_chance))


def _label_distance(before: RowSummary, now: RowSummary, rng: np.random.Generator) -> RowDistance:
    """The total variation distance of the labels' shares."""
    names = sorted({*before.labels, *now.labels})
    counts = np.asarray([[s.labels.get(n, 0) for n in names] for s in (before, now)], dtype=float)
    shares = counts / counts.sum(1, keepdims=True)
    pooled = counts.sum(0) / counts.sum()
    # Tags of one text are not independent, so the number of texts counts.
    sizes = [int(min(s.rows, n)) for s, n in zip((before, now), counts.sum(1), strict=True)]
    drawn = [rng.multinomial(size, pooled, _DRAWS) / size for size in sizes]
    chance = np.quantile(np.abs(drawn[0] - drawn[1]).sum(1) / 2, _CHANCE)
    shown = [f"{names[int(own.argmax())]} {percent(float(own.max()))}" for own in shares]
    distance = float(np.abs(shares[0] - shares[1]).sum() / 2)
    return RowDistance("predicted labels", shown[0], shown[1], distance, float(chance))


def _word_distance(before: RowSummary, now: RowSummary, rng: np.random.Generator) -> RowDistance:
    """The difference of the shares of texts with each common word, relative to their sum."""
    counts = _text_counts(before, now, [*before.words])
    sizes = np.asarray([[before.rows], [now.rows]])
    if not counts.size:
        return RowDistance("frequency of words", "–", "–", 0.0, 0.0)
    pooled = np.minimum(1.0, counts.sum(0) / sizes.sum())

    def distance(each: np.ndarray) -> float:
        return float(np.abs(each[0] - each[1]).sum() / max(1e-12, each.sum()))

    drawn = [distance(rng.binomial(sizes, pooled) / sizes) for _ in range(_DRAWS)]
    words, chance = translated(counted(len(before.words), "word")), np.quantile(drawn, _CHANCE)
    return RowDistance("frequency of words", words, "", distance(counts / sizes), float(chance))


def _text_counts(before: RowSummary, now: RowSummary, words: Sequence[str]) -> np.ndarray:
    return np.asarray([[s.words.get(w, 0) for w in words] for s in (before, now)], dtype=float)


def _changed_words(before: RowSummary, now: RowSummary) -> tuple[WordChange, ...]:
    """The words that became clearly more frequent, then those that became rarer."""
    words = [*{**before.words, **now.words}]
    if not words:
        return ()
    counts = _text_counts(before, now, words)
    scores = log_odds(counts)  # positive: more frequent before
    order = np.argsort(scores, kind="stable")
    chosen = [i for i in order[:_WORDS] if scores[i] < -_CLEAR_DEVIATIONS]
    chosen += [i for i in order[: -_WORDS - 1 : -1] if scores[i] > _CLEAR_DEVIATIONS]
    return tuple(
        WordChange(words[i], counts[0, i] / before.rows, counts[1, i] / now.rows) for i in chosen
    )


def _shares(before: Mapping[str, int], now: Mapping[str, int]) -> dict[str, tuple[float, float]]:
    totals = [max(1, sum(each.values())) for each in (before, now)]
    names = sorted({*before, *now}, key=lambda name: (-before.get(name, 0), name))
    return {n: (before.get(n, 0) / totals[0], now.get(n, 0) / totals[1]) for n in names}


def drift_lead(found: RowDrift) -> list[str]:
    """Sentences: the largest change, and the rows compared."""
    largest = found.largest
    name, amount = translated(largest.name), decimals(largest.beyond_chance)
    if largest.beyond_chance > 0:
        first = translated("Changed most: {name}, by {amount} more than chance", name, amount)
    else:
        first = translated("No change beyond chance")
    new = translated(counted(found.rows, "new row"))
    earlier = translated(counted(found.earlier_rows, "row"))
    reference = translated(found.reference)
    return [
        first,
        translated("{new} compared with {reference} ({earlier})", new, reference, earlier),
    ]


def drift_page(found: RowDrift) -> Page:
    """The comparison as sentences and tables."""
    rows = tuple(
        (
            translated(each.name),
            each.before,
            each.now,
            decimals(each.distance),
            decimals(each.by_chance),
            decimals(each.beyond_chance),
        )
        for each in found.distances
    )
    columns = ("", "before", "now", "distance", "by chance", "beyond chance")
    lead = (
        "Distances are from 0 to 1. Lengths, numbers and confidence: the 25, 50 and 75% quantiles."
    )
    labels = tuple((name, *map(percent, shares)) for name, shares in found.labels.items())
    words = tuple((w.word, percent(w.before), percent(w.now)) for w in found.words)
    sections = [
        Section("drift", "Changes", lead, columns, rows),
        Section(
            "labels",
            "Labels",
            "Share of each label; now: as predicted.",
            ("label", "before", "now"),
            labels,
        ),
        Section(
            "words", "Words", "Share of texts with the word.", ("word", "before", "now"), words
        ),
    ]
    shown = [section.in_language() for section in sections if section.rows]
    return Page("new rows", drift_lead(found), shown)


def shown_drift(found: RowDrift) -> str:
    """The comparison as text for a terminal."""
    return drift_page(found).text()
