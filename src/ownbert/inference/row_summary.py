"""training_rows.json: counts that describe the rows of a model, without their texts.

N: rows.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ownbert import checks, limits
from ownbert.files.json_files import read_json, write_json
from ownbert.run.file_names import TRAINING_ROWS
from ownbert.tasks.rows import Row
from ownbert.views.tokens import KINDS, splitter, text_kind

_FORMAT = 1
# Tasks whose targets and predictions are labels or numbers.
OUTCOMES = ("classify", "multilabel", "tag", "regress")
# Words are stored if they are in this many texts, at most this many words: rarer ones could name a
# person.
_FEWEST_TEXTS, _MOST_WORDS = 5, 20_000
_GRID = np.linspace(0, 1, 101)
_SHARE = checks.number(0, 1)
_QUANTILES = checks.list_of(checks.number(-1e30, 1e30), least=len(_GRID), most=len(_GRID))
_COUNTS = checks.dict_of(checks.whole(0, limits.COUNT))
_KEYS = checks.record(
    {
        "format": checks.one_of(_FORMAT),
        "rows": checks.whole(1, limits.COUNT),
        "kind": checks.one_of(*KINDS),
        "lengths": _QUANTILES,
        "words": _COUNTS,
        "rare": _SHARE,
        "rare_deviation": _SHARE,
        "labels": _COUNTS,
        "numbers": checks.maybe(_QUANTILES),
        "confidence": checks.maybe(_QUANTILES),
        "outcomes": checks.maybe(checks.whole(0, limits.COUNT)),
    },
    required=("format", "rows", "kind", "lengths", "words", "rare", "rare_deviation", "labels"),
)


@dataclass(frozen=True)
class RowSummary:
    """Counts of words and labels, and percentiles.

    Args:
        rows: number of rows N.
        kind: how texts are split into words (``KINDS``).
        lengths: numbers of words per text.
        words: number of texts with each word, for words in five texts or more.
        rare, rare_deviation: mean share of a text's words that are not among ``words``, and its
            standard deviation over the texts.
        labels: number of rows (for tags: of words) with each label.
        numbers: targets or predictions, if they are numbers.
        confidence: scores of the predictions, if there are any.
        outcomes: number of rows with targets or predictions, if not all rows have them.
    """

    rows: int
    kind: str
    lengths: Sequence[float]
    words: Mapping[str, int]
    rare: float
    rare_deviation: float
    labels: Mapping[str, int]
    numbers: Sequence[float] | None = None
    confidence: Sequence[float] | None = None
    outcomes: int | None = None

    def write(self, folder: Path) -> None:
        """Write the summary into a model folder."""
        write_json(folder / TRAINING_ROWS, {"format": _FORMAT, **asdict(self)})

    @classmethod
    def read(cls, folder: Path) -> "RowSummary | None":
        """The summary of a model folder; None if there is none."""
        values = read_json(folder / TRAINING_ROWS, missing={}, check=_KEYS)
        of_summary = {name: value for name, value in values.items() if name != "format"}
        return cls(**of_summary) if of_summary else None


def summarise(
    task: Any,
    rows: Sequence[Row],
    outcomes: Iterable[Any],
    scores: Sequence[float] = (),
    like: RowSummary | None = None,
) -> RowSummary:
    """Summarise one or more rows of a task.

    Args:
        outcomes: target or prediction of each row: a label, several, a number or several.
        scores: score of each prediction, if there are any.
        like: summary whose kind of text and words are used; None: those of the rows.
    """
    texts = [" ".join(task.pretraining_texts(row)) for row in rows]
    kind = text_kind(texts) if like is None else like.kind
    words_of = splitter(kind)
    split = [words_of(text) for text in texts]
    # In the order of the texts: that of a set differs between processes.
    counts = Counter(word for words in split for word in dict.fromkeys(words))
    if like is None:
        known = {word: n for word, n in counts.most_common(_MOST_WORDS) if n >= _FEWEST_TEXTS}
        stored = known
    else:
        # Words that are new in several texts can be shown, because they are not saved.
        known = dict(like.words)
        stored = {word: n for word, n in counts.items() if n >= 2 or word in known}
    rare = [sum(word not in known for word in words) / len(words) for words in split if words]
    labels: Counter[str] = Counter()
    numbers: list[float] = []
    found = list(outcomes)
    for outcome in found:
        for value in outcome if isinstance(outcome, list | tuple) else [outcome]:
            if isinstance(value, str):
                labels[value] += 1
            elif isinstance(value, int | float | np.number):
                numbers.append(float(value))
    return RowSummary(
        rows=len(rows),
        kind=kind,
        lengths=_percentiles(list(map(len, split))),
        words=stored,
        rare=float(np.mean(rare)) if rare else 0.0,
        rare_deviation=float(np.std(rare)) if rare else 0.0,
        labels=dict(labels),
        numbers=_percentiles(numbers) if numbers and not labels else None,
        confidence=_percentiles(scores) if len(scores) else None,
        outcomes=len(found) if 0 < len(found) < len(rows) else None,
    )


def write_training_rows(
    task: Any, rows: Sequence[Row], folder: Path, predictions: Sequence[Any] | None = None
) -> None:
    """Write the summary of training rows into the folder of their model.

    ``predictions`` for held-out rows are what those for new rows are compared with, because a model
    may predict some labels more often than they are. None: the targets of the rows.
    """
    outcomes = [row.target for row in rows] if predictions is None else predictions
    summarise(task, rows, outcomes if task.name in OUTCOMES else ()).write(folder)


def _percentiles(values: Sequence[float]) -> list[float]:
    return np.quantile(np.asarray(values, dtype=float), _GRID).tolist()
