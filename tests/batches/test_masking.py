"""Masking, by its statistics over many draws."""

import math

import numpy as np
import pytest

from ownbert.batches.masking import Masking, ordinary_tokens
from ownbert.exceptions import InputError

VOCAB, SPECIAL, MASK = 60, (0, 1, 2, 3, 4), 4
MASKING = Masking(MASK, ordinary_tokens(VOCAB, SPECIAL))


def within(count: int, trials: int, share: float) -> bool:
    """Whether a count is within five deviations of a binomial."""
    return abs(count - trials * share) < 5 * math.sqrt(trials * share * (1 - share)) + 1


def sequence(seed: int, length: int = 60) -> np.ndarray:
    ids = np.random.default_rng(seed).integers(len(SPECIAL), VOCAB, length)
    ids[[0, length // 2, -1]] = (2, 3, 3)
    return ids


@pytest.mark.parametrize("rate", [0.15, 0.3])
def test_shares(rate: float):
    masking = Masking(MASK, ordinary_tokens(VOCAB, SPECIAL), rate)
    hidden = same = total = ordinary = 0
    replacements = np.zeros(VOCAB, dtype=int)
    for seed in range(3000):
        ids = sequence(seed)
        before = ids.copy()
        seen, positions, targets = masking(ids, np.random.default_rng((1, seed)))
        assert np.array_equal(ids, before)
        assert np.array_equal(targets, ids[positions])
        assert (np.diff(positions) > 0).all()
        assert not np.isin(targets, SPECIAL).any()
        untouched = np.delete(np.arange(len(ids)), positions)
        assert np.array_equal(seen[untouched], ids[untouched])
        shown = seen[positions]
        hidden += int((shown == MASK).sum())
        same += int((shown == targets).sum())
        replaced = shown[(shown != MASK) & (shown != targets)]
        replacements += np.bincount(replaced, minlength=VOCAB)
        total += len(positions)
        ordinary += int((~np.isin(ids, SPECIAL)).sum())
    assert abs(total / ordinary - rate) < 0.01
    assert within(hidden, total, 0.8)
    # A random token is the same one by chance, once in the size of the real vocabulary.
    real = VOCAB - len(SPECIAL)
    assert within(same, total, 0.1 + 0.1 / real)
    assert within(int(replacements.sum()), total, 0.1 * (1 - 1 / real))
    assert not replacements[list(SPECIAL)].any()
    assert all(within(n, int(replacements.sum()), 1 / real) for n in replacements[len(SPECIAL) :])


def test_every_place_is_hidden_equally_often():
    ids, draws = sequence(0, 40), 4000
    hits = np.zeros(40, dtype=int)
    for seed in range(draws):
        _, positions, _ = MASKING(ids, np.random.default_rng(seed))
        hits[positions] += 1
    ordinary = ~np.isin(ids, SPECIAL)
    assert not hits[~ordinary].any()
    assert all(within(n, draws, round(0.15 * 37) / 37) for n in hits[ordinary])


def test_at_least_one_target_where_one_is_possible():
    for ids in ([2, 9, 3], [2, 9, 10, 3]):
        _, positions, targets = MASKING(np.array(ids), np.random.default_rng(0))
        assert len(positions) == len(targets) == 1
    seen, positions, targets = MASKING(np.array([2, 1, 1, 3]), np.random.default_rng(0))
    assert seen.tolist() == [2, 1, 1, 3]
    assert len(positions) == len(targets) == 0


def test_a_pure_function_of_its_generator():
    ids = sequence(3)
    first = MASKING(ids, np.random.default_rng(5))
    again = MASKING(ids, np.random.default_rng(5))
    other = MASKING(ids, np.random.default_rng(6))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not np.array_equal(first[1], other[1])


def test_tokens_are_drawn_in_a_fixed_order():
    """Runs of older versions must see the same masks when they are resumed."""
    for seed in range(50):
        ids = sequence(seed, 5 + seed)
        rng = np.random.default_rng((2, seed))
        candidates = np.flatnonzero(~np.isin(ids, SPECIAL))
        count = max(1, round(0.15 * len(candidates)))
        positions = np.sort(rng.choice(candidates, count, replace=False))
        draw = rng.random(count)
        expected = ids.copy()
        expected[positions[draw < 0.8]] = MASK
        replaced = positions[draw >= 0.9]
        expected[replaced] = len(SPECIAL) + rng.integers(VOCAB - len(SPECIAL), size=len(replaced))
        seen, found, _ = MASKING(ids, np.random.default_rng((2, seed)))
        assert np.array_equal(found, positions)
        assert np.array_equal(seen, expected)


def test_impossible_settings_are_refused():
    ordinary = ordinary_tokens(VOCAB, SPECIAL)
    for rate in (0.0, 1.0, -0.1):
        with pytest.raises(InputError, match="must be between 0 and 1"):
            Masking(MASK, ordinary, rate)
    with pytest.raises(InputError, match="'words' is not known; use one of token, word"):
        Masking(MASK, ordinary, kind="words")
    with pytest.raises(InputError, match="has 0 tokens; it must have at least 1"):
        Masking(MASK, ordinary, kind="ngram", longest=0)
