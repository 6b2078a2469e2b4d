"""Counts of n-grams against plain Python."""

import random
from collections import Counter

import numpy as np
import pytest

from ownbert.views.ngram_counts import WordNgrams, character_ngrams


def tokenised(seed: int, texts: int = 40) -> list[list[str]]:
    rng = random.Random(seed)
    return [[f"w{rng.randint(0, 8)}" for _ in range(rng.randint(0, 12))] for _ in range(texts)]


def ngrams(text: list[str], order: int) -> Counter:
    return Counter(
        tuple(text[i : i + n]) for n in range(1, order + 1) for i in range(len(text) - n + 1)
    )


@pytest.mark.parametrize("order", [1, 2, 3])
def test_counts_are_those_of_a_dictionary(order: int):
    texts, others = tokenised(1), tokenised(2)
    counter = WordNgrams.fit(texts, order=order, most=10_000)
    known = set().union(*(ngrams(text, order) for text in texts))
    assert counter.size == len(known)
    counts = counter.counts(others)
    for row, text in zip(counts.toarray(), others, strict=True):
        expected = {k: v for k, v in ngrams(text, order).items() if k in known}
        assert sorted(row[row > 0].tolist()) == sorted(map(float, expected.values()))


def test_the_most_frequent_are_kept():
    texts = [["a", "b"], ["a", "c"], ["a", "b"], ["d"]]
    counter = WordNgrams.fit(texts, order=1, most=2)
    counts = counter.counts([["a"], ["b"], ["c"], ["d"]]).toarray()
    assert counts.sum(1).tolist() == [1, 1, 0, 0]


@pytest.mark.parametrize("order", [1, 3])
def test_some_columns_alone_count_as_before(order: int):
    texts, others = tokenised(3), tokenised(4)
    counter = WordNgrams.fit(texts, order=order, most=10_000)
    columns = np.arange(0, counter.size, 3)
    before = counter.counts(others).toarray()[:, columns]
    np.testing.assert_array_equal(counter.keep(columns).counts(others).toarray(), before)


def test_arrays_give_the_same_counts():
    texts = tokenised(5)
    counter = WordNgrams.fit(texts, order=2, most=10_000)
    again = WordNgrams.from_arrays(counter.arrays())
    np.testing.assert_array_equal(again.counts(texts).toarray(), counter.counts(texts).toarray())


def test_texts_without_tokens_have_no_counts():
    counter = WordNgrams.fit([[], []], order=2, most=10)
    assert counter.counts([["a"], []]).shape == (2, 0)


def test_characters_stay_inside_words():
    counts = character_ngrams(["ab cd", "cd ab", "abcd", ""], (2, 3), 1 << 18).toarray()
    # " a", "ab", "b ", " ab", "ab ", and the same of cd: the order of words makes no difference.
    assert counts[0].sum() == 10
    np.testing.assert_array_equal(counts[0], counts[1])
    assert not np.array_equal(counts[0], counts[2])
    assert counts[3].sum() == 0
