"""Measures of answers, beside those of SQuAD's script as Transformers has it, and by hand."""

import random

import numpy as np
import pytest

from ownbert.tasks.answer import best_threshold, compare, score_answers


def random_text(rng: random.Random) -> str:
    words = ["the", "A", "an", "cat", "Cat.", "sat,", "on", "U.S.", "it's", "1,000", "--", "été"]
    return " ".join(rng.choices(words, k=rng.randint(0, 5)))


def test_measures_are_those_of_squads_script():
    from transformers.data.metrics.squad_metrics import compute_exact, compute_f1

    rng = random.Random(2)
    for _ in range(500):
        golds, said = [random_text(rng) for _ in range(rng.randint(1, 3))], random_text(rng)
        kept = [gold for gold in golds if compute_f1(gold, "") == 0] or [""]
        wanted = tuple(max(f(gold, said) for gold in kept) for f in (compute_exact, compute_f1))
        assert compare(golds, said) == pytest.approx(wanted)
    assert compare([], "") == (1, 1)
    assert compare([], "cat") == (0, 0)
    scores = score_answers([["a cat"], [], []], ["the black cat", "", "x"])
    assert scores.values == pytest.approx(
        {
            "f1": (2 / 3 + 1) / 3,
            "exact_match": 1 / 3,
            "has_answer_f1": 2 / 3,
            "no_answer_accuracy": 1 / 2,
        }
    )
    assert set(score_answers([["cat"]], ["cat"]).values) == {"f1", "exact_match"}


@pytest.mark.parametrize(
    ("gold", "said", "exact", "f1"),
    [
        ("北京大学", "北京大学。", 1, 1),
        ("北京大学", "北京", 0, 2 * 2 / 6),
        # The longest run is two long, though three characters are common in this order.
        ("北京大学", "北方大学", 0, 2 * 2 / 8),
        ("1999年", "在1999年", 0, 2 * 2 / 5),
        ("Windows XP系统", "windows xp", 0, 2 * 2 / 6),
        ("《红楼梦》", "红楼梦", 1, 1),
        ("红楼梦", "西游记", 0, 0),
        ("红楼梦", "", 0, 0),
    ],
)
def test_chinese_answers_are_compared_by_character(gold: str, said: str, exact: float, f1: float):
    assert compare([gold], said) == pytest.approx((exact, f1))
    assert compare(["别的", gold], said) == pytest.approx((exact, f1))


def test_the_threshold_is_the_best_of_all():
    from transformers.data.metrics.squad_metrics import find_best_thresh

    rng = np.random.default_rng(4)
    for _ in range(100):
        count = int(rng.integers(1, 15))
        # Positive, as SQuAD's script takes 0 for "answer nothing".
        differences = rng.integers(1, 9, count).astype(float)
        f1, has = rng.random(count).round(1), rng.random(count) < 0.5
        f1 = np.where(has, f1, 0)
        limit = best_threshold(differences, f1, has)
        found = np.where(differences > limit, ~has, f1).mean()
        every = [-1.0, *(np.unique(differences) + 0.5)]
        best = max(np.where(differences > at, ~has, f1).mean() for at in every)
        assert found == pytest.approx(best)
        if len(np.unique(differences)) == count:
            names = [str(n) for n in range(count)]
            theirs = find_best_thresh(
                dict.fromkeys(names, "text"),
                dict(zip(names, f1, strict=True)),
                dict(zip(names, differences, strict=True)),
                dict(zip(names, has, strict=True)),
            )
            assert 100 * found == pytest.approx(theirs[0])
