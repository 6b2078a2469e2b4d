"""How near answers are to what people said. N rows.

F1 and exact match of words as SQuAD's own evaluation defines them (Rajpurkar et al. 2016, 2018).
Where the answers hold Chinese characters, those of CMRC 2018 (Cui et al. 2019; its
cmrc2018_evaluate.py): F1 by the longest common run of characters and words. That script cuts what
is between Chinese characters by NLTK; here it is cut into words, numbers and punctuation marks.
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
# What CMRC's script leaves out, and no other mark.
_CHINESE_PUNCTUATION = str.maketrans("", "", "-:_*^/\\~`+=，。：？！“”；’《》·、「」（）－～『』")
# A Chinese character, a word or number, or a mark.
_SEGMENTS = re.compile(rf"[{_CHINESE}]|[^\W{_CHINESE}]+(?:[.,'][^\W{_CHINESE}]+)*|[^\w\s]")


def normalised(text: str) -> str:
    """Lower case, without punctuation, articles and blanks that are not needed."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def compare(golds: Sequence[str], answer: str) -> tuple[float, float]:
    """Exact match and F1, each with the answer of ``golds`` that is nearest. Where there is none
    both are 1 for an empty answer and 0 for another."""
    if any(_HAS_CHINESE.search(gold) for gold in golds):
        pairs = [_chinese(gold, answer) for gold in golds]
    else:
        said = normalised(answer)
        # As in SQuAD's script an answer that is nothing but articles and marks does not count.
        wanted = [found for found in map(normalised, golds) if found] or [""]
        pairs = [(float(gold == said), _word_f1(gold.split(), said.split())) for gold in wanted]
    return max(exact for exact, _ in pairs), max(f1 for _, f1 in pairs)


def _word_f1(gold: Sequence[str], said: Sequence[str]) -> float:
    if not gold or not said:
        return float(gold == said)
    return _f1((Counter(gold) & Counter(said)).total(), len(gold), len(said))


def _chinese(gold: str, answer: str) -> tuple[float, float]:
    first, second = (
        text.lower().strip().translate(_CHINESE_PUNCTUATION) for text in (gold, answer)
    )
    one, two = _SEGMENTS.findall(first), _SEGMENTS.findall(second)
    common = SequenceMatcher(None, one, two, autojunk=False).find_longest_match().size
    return float(first == second), _f1(common, len(one), len(two))


def _f1(common: int, gold: int, said: int) -> float:
    return 2 * common / (gold + said) if common else 0.0


def score_answers(golds: Sequence[Sequence[str]], answers: Sequence[str]) -> Scores:
    """f1 and exact_match over all rows; where some have no answer and some have one, also the F1
    of those that have (has_answer_f1) and how many of the others were told (no_answer_accuracy)."""
    pairs = [compare(gold, answer) for gold, answer in zip(golds, answers, strict=True)]
    exact, f1 = np.asarray(pairs, dtype=float).T  # (N) each
    values = {"f1": float(f1.mean()), "exact_match": float(exact.mean())}
    has = np.asarray([len(gold) > 0 for gold in golds])
    if has.any() and not has.all():
        values["has_answer_f1"] = float(f1[has].mean())
    if not has.all():
        values["no_answer_accuracy"] = float(exact[~has].mean())
    return Scores(values)


def best_threshold(differences: np.ndarray, f1: np.ndarray, has_answer: np.ndarray) -> float:
    """The threshold of the best F1, if rows whose difference is above it are not answered.

    differences (N): score of "no answer" minus that of the answer; f1 (N): of the answers;
    has_answer (N): whether there is one. As ``find_best_thresh`` of SQuAD's script, but half way
    to the next difference, so that rounding moves no row across it.
    """
    order = np.argsort(differences, kind="stable")
    above = differences[order]
    # Answering a row gains its F1, or loses the point of a row that has no answer.
    gains = np.cumsum(np.where(has_answer, f1, -1.0)[order])
    ends = np.append(above[1:] > above[:-1], True)  # of rows with equal differences
    gains = np.where(ends, gains, -np.inf)
    best = int(gains.argmax())
    if gains[best] <= 0:
        return float(above[0]) - 1
    return (
        float(above[best] + above[best + 1]) / 2 if best + 1 < len(above) else float(above[-1]) + 1
    )
