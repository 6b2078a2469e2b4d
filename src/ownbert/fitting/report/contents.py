"""What a report holds: plain data, from which page and text are made."""

import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ownbert.errors import InputError
from ownbert.fitting.report.calibration import Calibration
from ownbert.fitting.report.drift import Drift
from ownbert.fitting.report.label_errors import LabelError
from ownbert.fitting.report.learning_curve import LearningCurve
from ownbert.fitting.report.typical import RatedRow
from ownbert.tasks.metrics import Scores

LINEAR, BLEND = "linear", "blend"  # the kinds of the baseline and of the best of all
# Characters that would move, hide or reorder what stands around a text.
_UNSAFE = {"Cc", "Cs", "Zl", "Zp"}
_DIRECTIONS = {*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x200E, 0x200F, 0x061C}


@dataclass(frozen=True)
class LeaderboardRow:
    """A model that was compared.

    Args:
        name: of the model.
        kind: linear, self-trained, network, blend or distilled.
        score: mean on held-out rows, or nan if none is left to measure it on.
        spread: standard deviation of that mean, for example from a bootstrap over rows.
        test_score: on rows that chose nothing.
        seconds: of training.
        size: bytes on disk.
        texts_per_second: in use.
        weight: its share in the blend.
    """

    name: str
    kind: str
    score: float
    spread: float | None = None
    test_score: float | None = None
    seconds: float | None = None
    size: int | None = None
    texts_per_second: float | None = None
    weight: float | None = None

    @property
    def measured(self) -> bool:
        """Whether there are rows that the model was not trained on, so that it has a score."""
        return not np.isnan(self.score)


@dataclass(frozen=True)
class Margin:
    """By how much one model is better than another on the same rows.

    Args:
        mean: of the difference.
        low, high: the interval of 90 in 100 samples of rows.
    """

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Advice:
    """One thing to know or do.

    Args:
        kind: do (something to gain), note (good to know) or fine (nothing to do).
        sentence: for the user.
        figure: the number that it rests on.
    """

    kind: str
    sentence: str
    figure: str


@dataclass(frozen=True)
class Report:
    """Everything that the page and the text show; a section without data is left out.

    Args:
        task: classify, multilabel or regress.
        metric: name of the score.
        leaderboard: in any order, at least one row.
        lower: whether lower scores are better.
        best: name of the row that answers new rows; by default the best score.
        network: name of the row of the network that Transformers loads from the folder; "" if there
            is none.
        left_out: what was not fitted or measured, and why.
        margin: of the best over the best linear model.
        held_out: number of rows that scores are of.
        scores: of the best model on held-out rows, with scores per label and confusion matrix.
        labels: (C) names that indices refer to.
        train_counts: (C) training rows per label.
        learning_curve: the score by rows.
        minutes_curve: the score by minutes.
        calibration: of the best model.
        label_errors: likely ones.
        hardest, typical: rows.
        texts: of the held-out rows, which ``row`` of label errors, hardest and typical rows refers
            to.
        places: of these rows for a reader ("train.csv, line 7"); by default their numbers.
        drift: how texts with and without labels differ.
        long_share: share of texts that have more than max_tokens tokens, which the model cuts.
        max_tokens: of a text.
        test_rows: number of test rows.
        learnt_from_test: how many of them have texts that were learnt from.
        data, settings: facts by name, shown as they are.
        advice: what to do next.
    """

    task: str
    metric: str
    leaderboard: tuple[LeaderboardRow, ...]
    lower: bool = False
    best: str = ""
    network: str = ""
    left_out: Mapping[str, str] = field(default_factory=dict)
    margin: Margin | None = None
    held_out: int | None = None
    scores: Scores | None = None
    labels: tuple[str, ...] = ()
    train_counts: tuple[int, ...] = ()
    learning_curve: LearningCurve | None = None
    minutes_curve: LearningCurve | None = None
    calibration: Calibration | None = None
    label_errors: tuple[LabelError, ...] = ()
    hardest: tuple[RatedRow, ...] = ()
    typical: tuple[RatedRow, ...] = ()
    texts: Sequence[str] = ()
    places: Sequence[str] = ()
    drift: Drift | None = None
    long_share: float | None = None
    max_tokens: int | None = None
    test_rows: int = 0
    learnt_from_test: int = 0
    data: Mapping[str, object] = field(default_factory=dict)
    settings: Mapping[str, object] = field(default_factory=dict)
    advice: tuple[Advice, ...] = ()

    def __post_init__(self) -> None:
        if not self.leaderboard:
            raise InputError("a report needs at least one model in its leaderboard")

    @property
    def ranked(self) -> list[LeaderboardRow]:
        """The leaderboard, the best score first; models without a score last."""
        return sorted(self.leaderboard, key=lambda row: -self.worth(row))

    def worth(self, row: LeaderboardRow) -> float:
        """The score of a row, negative where lower ones are better."""
        if not row.measured:
            return -np.inf
        return -row.score if self.lower else row.score

    def gain(self, row: LeaderboardRow, other: LeaderboardRow) -> float:
        """By how much a row is better than another one."""
        return self.worth(row) - self.worth(other)

    @property
    def own_network(self) -> LeaderboardRow | None:
        """The row of the network that Transformers loads from the folder."""
        return next((row for row in self.leaderboard if row.name == self.network), None)

    @property
    def winner(self) -> LeaderboardRow:
        """The row of the model that was chosen."""
        ranked = self.ranked
        return next((row for row in ranked if row.name == self.best), ranked[0])

    @property
    def baseline(self) -> LeaderboardRow | None:
        """The linear model with the best score."""
        return next((row for row in self.ranked if row.kind == LINEAR), None)

    def text_of(self, row: int) -> str:
        """The text of a held-out row, "" if texts were not given."""
        return str(self.texts[row]) if row < len(self.texts) else ""

    def place_of(self, row: int) -> str:
        """Where a reader finds a held-out row."""
        return str(self.places[row]) if row < len(self.places) else f"row {row + 1}"

    def answer(self, value: float) -> str:
        """A label's name, or the value of a regression."""
        if self.task == "regress":
            return f"{value:.3g}"
        return self.labels[int(value)] if int(value) < len(self.labels) else str(int(value))


def bootstrap_margin(
    score: Callable[[np.ndarray, np.ndarray], float],
    targets: np.ndarray,
    best: np.ndarray,
    baseline: np.ndarray,
    draws: int = 1000,
    seed: int = 0,
) -> Margin:
    """The margin of one model over another by a paired bootstrap over rows.

    Args:
        score: of (targets, predictions), higher is better.
        targets, best, baseline: (N, ...) of the same held-out rows.
        draws: samples of N rows, with replacement.
        seed: of the samples.

    Source: Efron and Tibshirani 1993, "An Introduction to the Bootstrap", section 13.3.
    """
    targets, best, baseline = map(np.asarray, (targets, best, baseline))
    rng = np.random.default_rng(seed)
    margins = []
    for _ in range(draws):
        rows = rng.integers(0, len(targets), len(targets))
        margins.append(score(targets[rows], best[rows]) - score(targets[rows], baseline[rows]))
    mean = score(targets, best) - score(targets, baseline)
    low, high = np.quantile(margins, (0.05, 0.95))
    return Margin(float(mean), float(low), float(high))


def cleaned(text: str, most: int) -> str:
    """A text on one line: at most ``most`` characters, none of which control a terminal or page."""
    start = text[: 4 * most]
    safe = (
        " " if ord(c) in _DIRECTIONS or unicodedata.category(c) in _UNSAFE else c for c in start
    )
    line = " ".join("".join(safe).split())
    if len(line) <= most and len(start) == len(text):
        return line
    return f"{line[: most - 1].rstrip()}…"


def shown_spread(spread: float | None) -> float | None:
    """A spread with three digits; None where it is not known, or nothing of it would be shown."""
    return None if spread is None or spread < 0.0005 else spread
