"""Pairs for next-sentence prediction, and what all examples have in common."""

import math
from pathlib import Path

import numpy as np
import pytest

from ownbert.corpus.pretraining_examples import PretrainingData, _generator, truncate_pair
from ownbert.corpus.store import Store
from ownbert.exceptions import InputError
from ownbert.text.tokenizer import Tokenizer
from support.small_corpus import data_of, make, make_corpus, place, plain


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> tuple[Store, Tokenizer]:
    return make_corpus(tmp_path_factory.mktemp("corpus"))


def test_pairs(corpus: tuple[Store, Tokenizer]):
    store, tokenizer = corpus
    data, _ = data_of(store, tokenizer)
    labels, lengths, breaks = [], [], []
    sentence_ends = set(store.sentence_ends.tolist())
    for epoch in range(12):
        for index in range(len(data)):
            (first, second), ends, example = plain(data, epoch, index)
            assert len(first) >= 1
            assert len(second) >= 1
            assert len(example.token_ids) <= 64
            kinds = [0] * (ends[0] + 1) + [1] * (ends[1] - ends[0])
            assert example.type_ids.tolist() == kinds
            labels.append(example.next_sentence)
            lengths.append(len(example.token_ids))
            a, b = place(store, first), place(store, second)
            if min(a, b) < 0:
                continue  # nothing but full stops
            owners = np.searchsorted(store.document_ends, [a, b], side="right")
            assert owners[0] == data.spans.documents[index]
            if example.next_sentence == 0:
                assert b == a + len(first)
                assert owners[1] == owners[0]
                breaks.append(b in sentence_ends)
            else:
                assert owners[1] != owners[0]
                assert owners[1] in data.spans.documents
    # Half are real, but for a few spans of one token, which cannot be split.
    assert abs(np.mean(labels) - 0.5) < 5 * 0.5 / math.sqrt(len(labels)) + 0.01
    assert set(labels) == {0, 1}
    # Parts meet at a sentence end, unless a sentence was split or there is only one.
    assert np.mean(breaks) > 0.8
    assert max(lengths) == 64
    assert np.mean(np.array(lengths) < 20) > 0.03


def test_the_second_part_comes_from_anywhere_else(corpus: tuple[Store, Tokenizer]):
    store, tokenizer = corpus
    data, _ = data_of(store, tokenizer)
    found = set()
    for epoch in range(2500):
        (_, second), _, example = plain(data, epoch, 7)
        if example.next_sentence == 1 and (at := place(store, second)) >= 0:
            found.add(int(np.searchsorted(store.document_ends, at, side="right")))
    others = set(data.spans.documents.tolist()) - {int(data.spans.documents[7])}
    assert found <= others
    assert len(found) > 0.9 * len(others)


def test_short_sequences_have_their_share(tmp_path: Path):
    store, tokenizer = make(tmp_path, [[100]] * 40)
    data, _ = data_of(store, tokenizer, max_length=40, pairs=None)
    lengths = np.array([len(data.example(e, i).token_ids) for e in range(40) for i in range(36)])
    full = [b - a for a, b in zip(data.spans.starts, data.spans.stops, strict=True)][:36]
    short = lengths < np.tile(np.array(full) + 2, 40)
    assert 0.06 < short.mean() < 0.12
    assert lengths.max() == 40
    assert lengths.min() == 4  # [CLS], two tokens, [SEP]


@pytest.mark.parametrize("pairs", ["nsp", "sop", None])
def test_a_pure_function_of_seed_epoch_and_index(
    corpus: tuple[Store, Tokenizer], pairs: str | None
):
    store, tokenizer = corpus
    data, _ = data_of(store, tokenizer, pairs=pairs)
    again, _ = data_of(store, tokenizer, pairs=pairs)
    other, _ = data_of(store, tokenizer, pairs=pairs, seed=1)

    def seen(source: PretrainingData, epoch: int, index: int) -> tuple:
        e = source.example(epoch, index)
        assert e.masked_positions is not None
        return (*e.token_ids.tolist(), -1, *e.masked_positions.tolist(), e.next_sentence)

    order = [(e, i) for e in range(3) for i in range(40)]
    forward = {key: seen(data, *key) for key in order}
    assert forward == {key: seen(again, *key) for key in reversed(order)}
    # Masks are fresh in every epoch and for every seed.
    long = [i for i in range(40) if len(forward[0, i]) > 40]
    assert len(long) > 20
    assert all(len({forward[e, i] for e in range(3)}) == 3 for i in long)
    assert all(seen(other, 0, i) != forward[0, i] for i in long)


def test_without_pairs_a_span_is_one_part(corpus: tuple[Store, Tokenizer]):
    store, tokenizer = corpus
    data, _ = data_of(store, tokenizer, pairs=None)
    for index in range(len(data)):
        parts, _, example = plain(data, 0, index)
        assert len(parts) == 1
        assert example.next_sentence is None
        assert not example.type_ids.any()
        start, stop = int(data.spans.starts[index]), int(data.spans.stops[index])
        at = place(store, parts[0])
        assert at < 0 or start <= at < at + len(parts[0]) <= stop


def google_truncation(first: list, second: list, budget: int, rng: np.random.Generator) -> None:
    """``truncate_seq_pair`` of google-research/bert, create_pretraining_data.py."""
    while len(first) + len(second) > budget:
        longer = first if len(first) > len(second) else second
        if rng.random() < 0.5:
            del longer[0]
        else:
            longer.pop()


@pytest.mark.parametrize("sizes", [(9, 30, 20), (30, 9, 20), (11, 11, 5), (40, 40, 2), (3, 4, 9)])
def test_truncation_is_googles(sizes: tuple[int, int, int]):
    a, b, budget = sizes
    rng, draws = np.random.default_rng(0), 4000
    fronts = np.zeros((2, 2, draws))
    for draw in range(draws):
        ours = truncate_pair(range(a), range(b), budget, rng)
        theirs = list(range(a)), list(range(b))
        google_truncation(*theirs, budget, rng)
        assert [len(part) for part in ours] == [len(part) for part in theirs]
        for side, (mine, yours) in enumerate(zip(ours, theirs, strict=True)):
            assert mine.step == 1
            assert 0 <= mine[0] <= mine[-1] < (a, b)[side]
            fronts[:, side, draw] = mine[0], yours[0]
    spread = np.sqrt(fronts.var(-1).sum(0) / draws) + 1e-9
    assert (np.abs(fronts[0].mean(-1) - fronts[1].mean(-1)) < 5 * spread).all()
    assert (np.abs(fronts[0].std(-1) - fronts[1].std(-1)) < 0.15).all()


def test_a_single_document_has_pairs_of_its_own_parts(tmp_path: Path):
    store, tokenizer = make(tmp_path, [[1]])
    with pytest.raises(InputError, match="at least two documents, or a longer one"):
        data_of(store, tokenizer)
    store, tokenizer = make(tmp_path, [[5] * 80])
    train, _ = data_of(store, tokenizer, max_length=16)
    for index in range(len(train)):
        others = {train._elsewhere(index, np.random.default_rng(i)) for i in range(400)}
        assert others == set(range(len(train))) - {index}
    labels = [train.example(0, index).next_sentence for index in range(len(train))]
    assert {0, 1} == set(labels)
    train, held = data_of(store, tokenizer, pairs=None, max_length=16)
    assert len(train) + len(held) == 40
    assert 1 < len(plain(train, 0, 0)[2].token_ids) <= 16
    train, _ = data_of(store, tokenizer, pairs="sop", max_length=16)
    assert {train.example(0, i).next_sentence for i in range(20)} == {0, 1}
    with pytest.raises(InputError, match="max_length 7 is too short"):
        data_of(store, tokenizer, max_length=7)


def test_tiny_documents(tmp_path: Path):
    store, tokenizer = make(tmp_path, [[2], [2]])
    train, held = data_of(store, tokenizer)
    assert (len(train), len(held)) == (2, 0)
    for epoch in range(50):
        for index in (0, 1):
            (first, second), _, example = plain(train, epoch, index)
            assert (len(first), len(second)) in [(1, 1), (1, 2)]
            own = store.tokens[2 * index]
            assert own not in second
            assert example.next_sentence in (0, 1)


def test_generators_are_those_of_numpy():
    for key in ((0, 0, 0), (3, 7, 9), (2**32 - 1, 1, 2), (2**32, 1, 2), (5, 2**40, 2**33)):
        ours, theirs = _generator(*key), np.random.default_rng(key)
        assert ours.integers(2**62, size=5).tolist() == theirs.integers(2**62, size=5).tolist()


def test_impossible_pairs_are_refused(corpus: tuple[Store, Tokenizer]):
    with pytest.raises(InputError, match="'next' is not known; use one of nsp, sop"):
        data_of(*corpus, pairs="next")


def test_pairs_remain_possible_after_holding_out(tmp_path: Path):
    # One document is long and the other one span: were that held out, no pair would be left.
    store, tokenizer = make(tmp_path, [[5] * 240, [4]])
    for seed in range(60):
        train, _ = data_of(store, tokenizer, seed=seed)
        assert len(set(train.spans.documents.tolist())) == 2
