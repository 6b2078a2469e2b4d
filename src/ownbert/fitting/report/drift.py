"""Differences between labelled and unlabelled texts: lengths, words, separability."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from scipy.sparse import csr_array

from ownbert.tasks.metrics import auroc

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
_FOLDS = 5
_TOKENS = 12  # per side, those that differ most
_MOST_TEXTS = 20_000  # per side; more do not change the figures
_FEWEST_TEXTS = 20  # per side, for measuring separability
# Minimum deviations of a difference: smaller ones occur by chance.
_CLEAR_DEVIATIONS = 3.0
_PRIOR = 1000.0  # pseudo-count of the prior, in tokens
_SMOOTHING = 0.5
# Separability below which texts are of the same kind, and above which they are of different kinds.
SAME_KIND, DIFFERENT_KIND = 0.65, 0.9


@dataclass(frozen=True)
class DriftToken:
    """A token that is more frequent on one side: the z-score of the log odds ratio, positive for
    labelled texts, and its share of all tokens of both sides."""

    token: str
    score: float
    labelled: float
    unlabelled: float


@dataclass(frozen=True)
class Drift:
    """Differences between labelled and unlabelled texts.

    Args:
        lengths: tokens per labelled text at ``QUANTILES``.
        unlabelled_lengths: tokens per unlabelled text at ``QUANTILES``.
        unknown: share of the labelled texts' tokens that occur in no unlabelled text.
        unlabelled_unknown: share of the unlabelled texts' tokens that occur in no labelled text.
        tokens: the most different tokens, ordered by score, labelled side first.
        separability: AUROC of a naive Bayes score, 0.5 if the texts are indistinguishable; None
            with too few texts.
    """

    lengths: tuple[float, ...]
    unlabelled_lengths: tuple[float, ...]
    unknown: float
    unlabelled_unknown: float
    tokens: tuple[DriftToken, ...]
    separability: float | None
    summary: str


def compare_texts(labelled: Sequence[Sequence[str]], unlabelled: Sequence[Sequence[str]]) -> Drift:
    """Compare the tokens of labelled and unlabelled texts; large sets are sampled.

    Source: Monroe, Colaresi and Quinn 2008, "Fightin' Words", section 3.5.1 (log odds with an
    informative Dirichlet prior, equations 15, 16, 19 to 22).
    """
    rng = np.random.default_rng(0)
    sides = []
    for texts in (labelled, unlabelled):
        if len(texts) > _MOST_TEXTS:
            texts = [texts[i] for i in np.sort(rng.choice(len(texts), _MOST_TEXTS, replace=False))]
        sides.append(texts)
    ids: dict[str, int] = {}
    tokens = [[ids.setdefault(t, len(ids)) for t in text] for side in sides for text in side]
    texts = _counts(tokens, len(ids))
    owner = np.repeat([0, 1], [len(side) for side in sides])
    lengths = texts.sum(1)
    counts = np.stack([texts[owner == side].sum(0) for side in (0, 1)])
    totals = np.maximum(1, counts.sum(1))
    separability = _separability(texts, owner, rng)
    unknown = [float(counts[s][counts[1 - s] == 0].sum() / totals[s]) for s in (0, 1)]
    quantiles = [
        tuple(np.quantile(lengths[owner == side], QUANTILES).tolist())
        if (owner == side).any()
        else (0.0,) * len(QUANTILES)
        for side in (0, 1)
    ]
    scores = log_odds(counts)
    # A token that occurs in a single text says nothing about its side.
    scores[np.bincount(texts.indices, minlength=len(ids)) < 2] = 0
    names, order = list(ids), np.argsort(-scores, kind="stable")
    more = [i for i in order[:_TOKENS] if scores[i] > _CLEAR_DEVIATIONS]
    less = [i for i in order[-_TOKENS:] if scores[i] < -_CLEAR_DEVIATIONS]
    shares = counts / totals[:, None]
    return Drift(
        lengths=quantiles[0],
        unlabelled_lengths=quantiles[1],
        unknown=unknown[0],
        unlabelled_unknown=unknown[1],
        tokens=tuple(
            DriftToken(names[i], float(scores[i]), float(shares[0, i]), float(shares[1, i]))
            for i in more + less
        ),
        separability=separability,
        summary=_in_words(separability),
    )


def _counts(texts: Sequence[Sequence[int]], size: int) -> csr_array:
    """(texts, V) number of times that each text has each token."""
    starts = np.cumsum([0, *map(len, texts)])
    tokens = np.fromiter(chain.from_iterable(texts), int, starts[-1])
    counts = csr_array((np.ones(len(tokens)), tokens, starts), shape=(len(texts), size))
    counts.sum_duplicates()
    return counts


def log_odds(counts: np.ndarray) -> np.ndarray:
    """(V) z-scores of log odds ratios of counts (2, V); the prior is the pooled distribution."""
    both = counts.sum(0)
    prior = _PRIOR * both / max(1.0, both.sum())
    smoothed = counts + prior
    others = np.maximum(smoothed.sum(1, keepdims=True) - smoothed, _SMOOTHING)
    difference = np.log(smoothed[0] / others[0]) - np.log(smoothed[1] / others[1])
    return difference / np.sqrt(1 / smoothed[0] + 1 / smoothed[1])


def _separability(texts: csr_array, owner: np.ndarray, rng: np.random.Generator) -> float | None:
    """AUROC of texts' mean log-likelihood ratios, each from the counts of the other folds."""
    lengths = texts.sum(1)
    used = lengths > 0
    if min(used[owner == 0].sum(), used[owner == 1].sum()) < _FEWEST_TEXTS:
        return None
    fold = np.empty(len(owner), dtype=int)
    for side in (0, 1):  # stratified folds
        places = np.flatnonzero(owner == side)
        fold[rng.permutation(places)] = np.arange(len(places)) % _FOLDS
    # Means, not sums: lengths are compared separately. Texts are compared within their fold only,
    # because scores of different models have different scales.
    wins, pairs = 0.0, 0
    for held_out in range(_FOLDS):
        rates = []
        for side in (0, 1):
            counts = texts[(fold != held_out) & (owner == side)].sum(0) + _SMOOTHING
            rates.append(np.log(counts / counts.sum()))
        inside = used & (fold == held_out)
        scores = texts[inside] @ (rates[0] - rates[1]) / lengths[inside]
        first, second = (scores[owner[inside] == side] for side in (0, 1))
        wins += auroc(second, first) * len(first) * len(second)
        pairs += len(first) * len(second)
    return float(wins / pairs)


def _in_words(separability: float | None) -> str:
    if separability is None:
        return f"Fewer than {_FEWEST_TEXTS} texts on one side: the difference cannot be measured."
    if separability < SAME_KIND:
        return "Labelled and unlabelled texts are similar."
    if separability < DIFFERENT_KIND:
        return "Labelled and unlabelled texts differ somewhat."
    return "Labelled and unlabelled texts differ clearly."
