"""Metrics of extractive question answering.

F1 and exact match of words are defined as in SQuAD's evaluation script (Rajpurkar et al. 2016,
2018). Answers with Chinese characters are scored as in CMRC 2018 (Cui et al. 2019,
cmrc2018_evaluate.py): F1 by the longest common substring of characters and words. That script
tokenises text between Chinese characters with NLTK; here it is split into words, numbers and
punctuation.
"""

import re
import string
from collections import Counter
from collections.abc import Sequence
from difflib import SequenceMatcher

import numpy as np

from ownbert.tasks.metrics import Scores

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_CHINESE = "\u4e00-\u9fa5"
_HAS_CHINESE = re.compile(f"[{_CHINESE}]")
# Punctuation removed by CMRC's script.
_CHINESE_PUNCTUATION = str.maketrans("", "", "-:_*^/\\~`+=，。：？！“”；’《》·、「」（）－～『』")
# A Chinese character, a word or number, or a punctuation mark.
_SEGMENTS = re.compile(rf"[{_CHINESE}]|[^\W{_CHINESE}]+(?:[.,'][^\W{_CHINESE}]+)*|[^\w\s]")


def normalise(text: str) -> str:
    """Lower-case, and remove punctuation, articles and extra whitespace."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def compare(golds: Sequence[str], answer: str) -> tuple[float, float]:
    """Exact match and F1, each the maximum over the gold answers.

    Without gold answers both are 1 for an empty answer and 0 otherwise.
    """
    if any(_HAS_CHINESE.search(gold) for gold in golds):
        pairs = [_chinese(gold, answer) for gold in golds]
    else:
        predicted = normalise(answer)
        # As in SQuAD's script, gold answers of only articles and punctuation are ignored.
        texts = [text for text in map(normalise, golds) if text] or [""]
        pairs = [(float(t == predicted), _word_f1(t.split(), predicted.split())) for t in texts]
    return max(exact for exact, _ in pairs), max(f1 for _, f1 in pairs)


def _word_f1(gold: Sequence[str], predicted: Sequence[str]) -> float:
    if not gold or not predicted:
        return float(gold == predicted)
    return _f1((Counter(gold) & Counter(predicted)).total(), len(gold), len(predicted))


def _chinese(gold: str, answer: str) -> tuple[float, float]:
    first, second = (t.lower().strip().translate(_CHINESE_PUNCTUATION) for t in (gold, answer))
    one, two = _SEGMENTS.findall(first), _SEGMENTS.findall(second)
    common = SequenceMatcher(None, one, two, autojunk=False).find_longest_match().size
    return float(first == second), _f1(common, len(one), len(two))


def _f1(common: int, gold: int, predicted: int) -> float:
    return 2 * common / (gold + predicted) if common else 0.0


def score_answers(golds: Sequence[Sequence[str]], answers: Sequence[str]) -> Scores:
    """Compute mean f1 and exact_match of all rows.

    With unanswerable questions, also the share of these that got no answer (no_answer_accuracy) and
    the F1 of the others, if any (has_answer_f1).

    Args:
        golds: gold answers of each row.
        answers: predicted texts, empty for no answer.
    """
    pairs = [compare(gold, answer) for gold, answer in zip(golds, answers, strict=True)]
    exact, f1 = np.asarray(pairs, dtype=float).T  # (rows) each
    values = {"f1": float(f1.mean()), "exact_match": float(exact.mean())}
    has = np.asarray([len(gold) > 0 for gold in golds])
    if has.any() and not has.all():
        values["has_answer_f1"] = float(f1[has].mean())
    if not has.all():
        values["no_answer_accuracy"] = float(exact[~has].mean())
    return Scores(values)


def best_threshold(differences: np.ndarray, f1: np.ndarray, has_answer: np.ndarray) -> float:
    """The threshold with the best F1 if rows with a larger difference are left unanswered.

    Like ``find_best_thresh`` of SQuAD's script, but midway to the next difference, so that rounding
    does not change the result.

    Args:
        differences: (rows) logit of "no answer" minus that of the answer.
        f1: (rows) F1 of the answers.
        has_answer: (rows) whether there is a gold answer.
    """
    order = np.argsort(differences, kind="stable")
    above = differences[order]
    # Answering a row gains its F1, or loses a point for an unanswerable question.
    gains = np.cumsum(np.where(has_answer, f1, -1.0)[order])
    ends = np.append(above[1:] > above[:-1], True)  # last row of each group of equal differences
    gains = np.where(ends, gains, -np.inf)
    best = int(gains.argmax())
    if gains[best] <= 0:
        return float(above[0]) - 1
    if best + 1 == len(above):
        return float(above[-1]) + 1
    return float(above[best] + above[best + 1]) / 2
