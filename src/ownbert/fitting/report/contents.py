"""The data of a report, which the HTML page and the text are generated from."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ownbert.exceptions import InputError, fields_repr
from ownbert.fitting.report.statistics import Calibration, Drift, LearningCurve
from ownbert.inference.evaluate import Chance, like_guessing
from ownbert.language.messages import Message
from ownbert.tasks.metrics import LabelError, Scores
from ownbert.tasks.related_rows import bootstrap

_ROWS = 10  # rows shown


@dataclass(frozen=True)
class RatedRow:
    """A held-out row by index and its prediction: indices of classes, or values; and the
    probability of the true class, or the absolute error."""

    row: int
    true: float
    predicted: float
    score: float


def hardest_rows(
    probabilities: np.ndarray, targets: np.ndarray, predicted: np.ndarray
) -> tuple[RatedRow, ...]:
    """The held-out rows with the lowest probabilities of their true classes, lowest first;
    probabilities (N, C), indices of the true and of the predicted classes (N)."""
    own = probabilities[np.arange(len(targets)), targets]
    return _rated_rows(targets, predicted, own, np.argsort(own, kind="stable")[:_ROWS])


def typical_rows(
    probabilities: np.ndarray, targets: np.ndarray, predicted: np.ndarray
) -> tuple[RatedRow, ...]:
    """The held-out row of each class with the highest probability of its true class; arguments as
    in ``hardest_rows``."""
    own = probabilities[np.arange(len(targets)), targets]
    order = np.argsort(-own, kind="stable")
    first = [order[targets[order] == label][0] for label in np.unique(targets)]
    return _rated_rows(targets, predicted, own, first)


def largest_errors(predictions: np.ndarray, targets: np.ndarray) -> tuple[RatedRow, ...]:
    """The rows of a regression (N) with the largest absolute errors, largest first."""
    errors = np.abs(predictions - targets)
    return _rated_rows(targets, predictions, errors, np.argsort(-errors, kind="stable")[:_ROWS])


def _rated_rows(
    targets: np.ndarray, predicted: np.ndarray, scores: np.ndarray, chosen: Iterable[int]
) -> tuple[RatedRow, ...]:
    values = (array.tolist() for array in (targets, predicted, scores))
    rated = [*zip(*values, strict=True)]
    return tuple(RatedRow(int(i), *rated[i]) for i in chosen)


LINEAR, BLEND = "linear", "blend"  # kinds of leaderboard rows


@dataclass(frozen=True)
class LeaderboardRow:
    """A model that was compared."""

    name: str
    kind: str  # linear, self-trained, network, blend or distilled
    score: float  # mean on held-out rows; NaN if there are none
    spread: float | None = None  # standard deviation of the mean, for example from a bootstrap
    test_score: float | None = None  # on rows not used for selection
    seconds: float | None = None  # training time
    size: int | None = None  # bytes on disk
    texts_per_second: float | None = None
    weight: float | None = None  # in the blend
    rows: int | None = None  # number of held-out rows; None if it is that of all of them
    # On the first fold's rows, on which all models have been measured; by default the score.
    first_score: float | None = None

    @property
    def measured(self) -> bool:
        """Whether the model has a score on held-out rows."""
        return not np.isnan(self.score)


@dataclass(frozen=True)
class Margin:
    """How much better one model is than another on the same rows: the mean difference, and its 90%
    interval over samples of rows."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Advice:
    """A finding or recommendation: do (something to gain), note (good to know) or fine (nothing to
    do), and a number that supports it."""

    kind: str
    sentence: str
    figure: str

    @property
    def title(self) -> str:
        """The kind as a heading of the page."""
        return {"do": "Do", "note": "Note", "fine": "Fine"}[self.kind]


@dataclass(frozen=True)
class Report:
    """The data of the HTML page and the text; sections without data are left out."""

    task: str
    metric: str
    leaderboard: tuple[LeaderboardRow, ...]  # in any order, at least one
    lower: bool = False  # whether lower scores are better
    best: str = ""  # the selected model's row; by default the row with the best score
    network: str = ""  # the row of the folder's network, if there is one
    ordinary: bool = True  # whether Transformers can read the network's head
    left_out: Mapping[str, str] = field(default_factory=dict)  # why, by name
    margin: Margin | None = None  # lead of the selected model over the best linear model
    held_out: int | None = None  # number of held-out rows
    scores: Scores | None = None  # of the selected model on held-out rows
    chance: Mapping[str, Chance] = field(default_factory=dict)  # the same metrics by chance
    labels: tuple[str, ...] = ()  # (C)
    train_counts: tuple[int, ...] = ()  # (C) training rows
    learning_curve: LearningCurve | None = None
    minutes_curve: LearningCurve | None = None
    calibration: Calibration | None = None
    label_errors: tuple[LabelError, ...] = ()
    hardest: tuple[RatedRow, ...] = ()
    typical: tuple[RatedRow, ...] = ()
    # Of the held-out rows, and where readers find them ("line 7"); by default row numbers.
    texts: Sequence[str] = ()
    places: Sequence[str] = ()
    drift: Drift | None = None
    test_rows: int = 0  # number of test rows
    learnt_from_test: int = 0  # of which the texts are also in the training data
    known_groups_in_test: int = 0  # of which the group is also in the training data
    data: Mapping[str, object] = field(default_factory=dict)  # shown as they are, by name
    settings: Mapping[str, object] = field(default_factory=dict)  # likewise
    advice: tuple[Advice, ...] = ()

    def __repr__(self) -> str:
        return fields_repr(self)

    def __post_init__(self) -> None:
        if not self.leaderboard:
            raise InputError("a report needs at least one model in its leaderboard")

    @property
    def ranked(self) -> list[LeaderboardRow]:
        """The leaderboard, best score first; models without a score last."""
        return sorted(self.leaderboard, key=lambda row: -self.worth(row))

    def worth(self, row: LeaderboardRow) -> float:
        """The score of a row, negated where lower is better."""
        if not row.measured:
            return -np.inf
        return -row.score if self.lower else row.score

    def gain(self, row: LeaderboardRow, other: LeaderboardRow) -> float:
        """How much better a row is than another row, on the same held-out rows."""
        own, other_score = self.comparable(row, other)
        if np.isnan(own) or np.isnan(other_score):
            return self.worth(row) - self.worth(other)
        return other_score - own if self.lower else own - other_score

    @staticmethod
    def comparable(row: LeaderboardRow, other: LeaderboardRow) -> tuple[float, float]:
        """The scores of two rows on the same held-out rows."""
        first, second = row.first_score, other.first_score
        if row.rows == other.rows or first is None or second is None:
            return row.score, other.score
        return first, second

    @property
    def row_counts(self) -> list[int | None]:
        """The number of held-out rows behind each ranked score; empty if it is the same for all."""
        counts = [row.rows or self.held_out for row in self.ranked]
        return counts if len(set(counts)) > 1 else []

    @property
    def own_network(self) -> LeaderboardRow | None:
        """The row of the network that Transformers loads from the folder."""
        return next((row for row in self.leaderboard if row.name == self.network), None)

    @property
    def winner(self) -> LeaderboardRow:
        """The row of the selected model."""
        ranked = self.ranked
        return next((row for row in ranked if row.name == self.best), ranked[0])

    @property
    def guessing(self) -> str | None:
        """How the selected model compares with guessing if it is not clearly better, in words."""
        values = {} if self.scores is None else self.scores.values
        return like_guessing(self.metric, values, self.chance)

    @property
    def positive(self) -> str | None:
        """The positive label, if metrics are about one."""
        ranking = None if self.scores is None else self.scores.ranking
        return None if ranking is None else ranking.positive

    @property
    def baseline(self) -> LeaderboardRow | None:
        """The linear model with the best score."""
        return next((row for row in self.ranked if row.kind == LINEAR), None)

    def text_of(self, row: int) -> str:
        """The text of a held-out row, "" if texts were not given."""
        return str(self.texts[row]) if row < len(self.texts) else ""

    def place_of(self, row: int) -> str:
        """Where to find a held-out row."""
        return str(self.places[row]) if row < len(self.places) else Message("row {row}", row + 1)

    def answer(self, value: float) -> str:
        """The name of a label, or the value of a regression."""
        if self.task == "regress":
            return f"{value:.3g}"
        return self.labels[int(value)] if int(value) < len(self.labels) else str(int(value))


def bootstrap_margin(
    gain: Callable[[np.ndarray], float], clusters: np.ndarray, draws: int
) -> Margin:
    """The margin of one model over another, by a paired bootstrap of clusters of rows.

    ``gain``: how much better the model is on the rows with these indices; ``clusters`` (N): the
    cluster of each held-out row.

    Source: Efron and Tibshirani 1993, "An Introduction to the Bootstrap", section 13.3.
    """
    gains = [gain(rows) for rows in bootstrap(clusters, draws)]
    low, high = np.quantile(gains, (0.05, 0.95))
    return Margin(float(gain(np.arange(len(clusters)))), float(low), float(high))


def shown_spread(spread: float | None) -> float | None:
    """A standard deviation rounded to three digits; None if unknown or rounded to zero."""
    return None if spread is None or spread < 0.0005 else spread
