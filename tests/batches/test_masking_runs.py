"""Masking of words, n-grams and spans."""

import math
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from ownbert.batches.masking import (
    LONGEST_WORD,
    MASKINGS,
    Masking,
    continuing_tokens,
    ordinary_tokens,
)
from ownbert.text.tokenizer import Tokenizer
from support.tokenizer_folders import FOLDERS

# Ids from 40 on continue the word before.
VOCAB, SPECIAL, MASK, CONTINUING = 60, (0, 1, 2, 3, 4), 4, 40
ORDINARY = ordinary_tokens(VOCAB, SPECIAL)
CONTINUES = np.arange(VOCAB) >= CONTINUING


def masking(kind: str, rate: float = 0.15, words: bool = True, **more) -> Masking:
    return Masking(MASK, ORDINARY, rate, kind, CONTINUES if words else None, **more)


def words_of(ids: list[int], begins: list[bool] | None = None) -> list[list[int]]:
    """Places of each word, one token after the other."""
    words, before = [], False
    for place, token in enumerate(ids):
        if token in SPECIAL:
            before = False
            continue
        goes_on = token >= CONTINUING if begins is None else not begins[place]
        if before and goes_on and len(words[-1]) < LONGEST_WORD:
            words[-1].append(place)
        else:
            words.append([place])
        before = True
    return words


def within(count: float, trials: int, share: float) -> bool:
    """Whether a count is within five deviations of a binomial."""
    return abs(count - trials * share) < 5 * math.sqrt(trials * share * (1 - share)) + 1


IDS = st.lists(st.sampled_from([1, 3, 10, 11, 12, 13, *range(40, 52)]), min_size=0, max_size=70)


@given(
    ids=IDS,
    kind=st.sampled_from(MASKINGS),
    rate=st.sampled_from([0.15, 0.4, 0.9]),
    seed=st.integers(0, 2**40),
    given_words=st.booleans(),
)
@settings(max_examples=150)
def test_targets(ids: list[int], kind: str, rate: float, seed: int, given_words: bool):
    sequence = np.array([2, *ids, 3])
    begins = np.random.default_rng(seed).random(len(sequence)) < 0.5 if given_words else None
    mask = masking(kind, rate)
    before = sequence.copy()
    seen, positions, targets = mask(sequence, np.random.default_rng(seed), begins)
    assert np.array_equal(sequence, before)
    assert np.array_equal(targets, sequence[positions])
    assert (np.diff(positions) > 0).all()
    assert ORDINARY[targets].all()
    rest = np.delete(np.arange(len(sequence)), positions)
    assert np.array_equal(seen[rest], sequence[rest])
    assert ORDINARY[seen[positions]].sum() + (seen[positions] == MASK).sum() == len(positions)
    candidates = int(ORDINARY[sequence].sum())
    count = min(candidates, max(1, round(rate * candidates)))
    again = mask(sequence, np.random.default_rng(seed), begins)
    assert np.array_equal(again[0], seen)
    if kind in ("token", "ngram"):
        assert len(positions) == count
        return
    words = words_of(sequence.tolist(), None if begins is None else begins.tolist())
    hidden = set(positions.tolist())
    chosen = [word for word in words if hidden & set(word)]
    assert all(hidden >= set(word) for word in chosen)
    assert len(positions) <= count or len(chosen) == 1
    if kind == "word":
        # Nothing is left that would have fitted.
        left = count - len(positions)
        assert all(len(word) > left for word in words if word not in chosen)
    elif words:
        assert count - len(positions) < max(map(len, words))


@pytest.mark.parametrize("kind", MASKINGS)
def test_every_place_is_hidden_equally_often(kind: str):
    draws, size = 2000, 160
    hits, special = np.zeros(size), [0, 80, size - 1]
    for seed in range(draws):
        rng = np.random.default_rng((5, seed))
        # Words of one to a few tokens, elsewhere in every sequence.
        ids = np.where(rng.random(size) < 0.6, 10, 45)
        ids[special] = (2, 3, 3)
        hits[masking(kind)(ids, rng)[1]] += 1
    inner = np.delete(hits, special) / draws
    assert abs(inner.mean() - 0.15) < 0.005
    assert (np.abs(inner / inner.mean() - 1) < 0.4).all()
    # About as often beside an edge as elsewhere, where more runs are too long to fit.
    edges = hits[[1, 2, 78, 79, 81, 82, 157, 158]].mean() / draws
    assert abs(edges / inner.mean() - 1) < 0.2


def test_share_of_mask_same_and_random():
    """80/10/10 for each token of words and n-grams, for spans as a whole."""
    vocabulary = 50_000
    ordinary = ordinary_tokens(vocabulary, SPECIAL)
    for kind in ("word", "ngram", "span"):
        mixed, tally, groups = 0, np.zeros(3), 0
        continues = np.arange(vocabulary) % 2 == 1
        mask = Masking(MASK, ordinary, 0.012, kind, continues if kind == "word" else None)
        for seed in range(700):
            rng = np.random.default_rng((8, seed))
            ids = rng.integers(len(SPECIAL), vocabulary, 1000)
            seen, positions, targets = mask(ids, rng)
            shown = seen[positions]
            how = np.where(shown == MASK, 0, np.where(shown == targets, 1, 2))
            tally += np.bincount(how, minlength=3)
            for group in np.split(how, np.flatnonzero(np.diff(positions) > 1) + 1):
                if len(group) > 1:
                    groups += 1
                    mixed += len(set(group.tolist())) > 1
        total = int(tally.sum())
        wide = 3 if kind == "span" else 1  # a span's tokens count as one draw
        for found, share in zip(tally, (0.8, 0.1, 0.1), strict=True):
            assert abs(found - share * total) < 5 * wide * math.sqrt(total * share * (1 - share))
        assert groups > 500
        # Two spans may lie side by side.
        assert mixed / groups < 0.08 if kind == "span" else mixed / groups > 0.25


def lengths_of_runs(mask: Masking, size: int, draws: int) -> np.ndarray:
    """Shares of 1, 2, ... 10 among the lengths of hidden runs, few enough to lie apart."""
    counts = np.zeros(11)
    for seed in range(draws):
        rng = np.random.default_rng((9, seed))
        _, positions, _ = mask(np.full(size, 10), rng)
        edges = np.flatnonzero(np.diff(positions) > 1)
        lengths = np.diff([-1, *edges, len(positions) - 1])
        counts += np.bincount(np.minimum(lengths, 10), minlength=11)
    return counts[1:] / counts.sum()


def test_lengths_are_those_of_the_papers():
    found = lengths_of_runs(masking("ngram", 0.02), 5000, 100)
    expected = np.array([1, 1 / 2, 1 / 3]) / (1 + 1 / 2 + 1 / 3)
    assert np.abs(found[:3] - expected).max() < 0.03
    found = lengths_of_runs(masking("ngram", 0.02, longest=1), 5000, 20)
    assert found[0] > 0.95
    found = lengths_of_runs(masking("span", 0.02, words=False), 5000, 150)
    expected = 0.2 * 0.8 ** np.arange(10)
    expected /= expected.sum()
    assert np.abs(found - expected).max() < 0.03
    # The mean that SpanBERT's paper gives.
    assert abs((expected * np.arange(1, 11)).sum() - 3.8) < 0.01


def test_spans_count_words():
    """Of words of three tokens, spans are of 3.8 words."""
    ids = np.tile([10, 45, 45], 1000)
    sizes = []
    for seed in range(60):
        _, positions, _ = masking("span", 0.02)(ids, np.random.default_rng(seed))
        assert (positions[::3] % 3 == 0).all()
        sizes += np.diff([-1, *np.flatnonzero(np.diff(positions) > 1), len(positions) - 1]).tolist()
    assert 3 * 3.4 < np.mean(sizes) < 3 * 4.3


def test_runs_end_at_special_tokens():
    ids, both = np.array([2, 9, 3, 10, 3]), 0
    for seed in range(4000):
        seen, positions, _ = masking("span", 0.9)(ids, np.random.default_rng(seed))
        assert positions.tolist() == [1, 3]
        both += (seen[[1, 3]] == MASK).all()
    assert within(both, 4000, 0.64)  # 0.77 if a span reached over the special token
    # A piece after a special token is not of the word before it.
    ids, found = np.array([2, 9, 45, 3, 46, 47, 3]), set()
    for seed in range(40):
        _, positions, _ = masking("word", 0.5)(ids, np.random.default_rng(seed))
        found.add(tuple(positions.tolist()))
    assert found == {(1, 2), (4, 5)}


def test_long_words_are_hidden_in_short_texts():
    ids, sizes = np.array([2, 9, 45, 46, 10, 3]), []
    for seed in range(600):
        sizes.append(len(masking("word")(ids, np.random.default_rng(seed))[1]))
    assert set(sizes) == {1, 3}
    assert within(sizes.count(3), 600, 0.5)


@pytest.mark.parametrize("kind", ["word", "span"])
def test_text_without_blanks_is_not_hidden_whole(kind: str):
    ids = np.concatenate([[2], np.full(100, 45), [3]])
    for seed in range(50):
        _, positions, _ = masking(kind)(ids, np.random.default_rng(seed))
        assert 1 <= len(positions) <= LONGEST_WORD


def test_no_ordinary_token():
    for kind in MASKINGS:
        seen, positions, targets = masking(kind)(np.array([2, 1, 3]), np.random.default_rng(0))
        assert seen.tolist() == [2, 1, 3]
        assert len(positions) == len(targets) == 0


@pytest.mark.parametrize("family", ["Roberta", "XLMRoberta", "Albert"])
def test_continuing_tokens_of_subwords(family: str, tmp_path: Path):
    tokenizer = Tokenizer.load(FOLDERS[family](tmp_path))
    text = " the quick brown fox jumps over überrascht animals"
    ids = tokenizer.encode_batch([text])[0]
    assert len(ids) > 8
    continues = continuing_tokens(tokenizer)
    assert continues.shape == (tokenizer.vocab_size,)
    assert (~continues[ids]).sum() == 8
    assert not continues[list(tokenizer.special_ids)].any()
    assert not continues[sorted(tokenizer.backend.get_added_tokens_decoder())].any()


def test_continuing_tokens_of_words():
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "un", "##want", "##ed", "#", "##"]
    pieces = continuing_tokens(Tokenizer.wordpiece(vocabulary))
    assert np.flatnonzero(pieces).tolist() == [6, 7, 9]
    assert not continuing_tokens(Tokenizer.blank(vocabulary)).any()


def test_continuing_tokens_of_a_sentencepiece_bpe():
    vocabulary = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", "▁", "a", "▁a"]
    ids = {token: number for number, token in enumerate(vocabulary)}
    tokenizer = Tokenizer(tokenizers.Tokenizer(tokenizers.models.BPE(ids, [("▁", "a")])))
    assert np.flatnonzero(continuing_tokens(tokenizer)).tolist() == [6]
