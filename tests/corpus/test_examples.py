"""Examples other than next-sentence pairs of tokens masked one by one."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ownbert.corpus.store import Store
from ownbert.exceptions import InputError
from ownbert.text.tokenizer import Tokenizer
from support.small_corpus import CLS, SEP, data_of, make, make_corpus, place, plain


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> tuple[Store, Tokenizer]:
    return make_corpus(tmp_path_factory.mktemp("corpus"))


def test_documents_of_one_token(tmp_path: Path):
    store, tokenizer = make(tmp_path, [[2]] * 25)
    one = replace(store, sentence_ends=np.arange(1, 51), document_ends=np.arange(1, 51))
    for pairs, length in (("nsp", 5), (None, 3)):
        train, held = data_of(one, tokenizer, pairs=pairs)
        assert (len(train), len(held)) == (45, 5)
        assert set(train.sizes.tolist()) == {length}
        for index in range(45):
            parts, _, example = plain(train, 0, index)
            assert [len(part) for part in parts] == [1] * (length // 2)
            assert example.masked_positions is not None
            assert len(example.masked_positions) == 1
            assert example.next_sentence == (1 if pairs else None)
    with pytest.raises(InputError, match="documents of at least two tokens, the corpus has none"):
        data_of(one, tokenizer, pairs="sop")
    # Spans of one token are left out where there are others.
    ends = np.append(np.arange(1, 41), 50)
    train, held = data_of(replace(one, sentence_ends=ends, document_ends=ends), tokenizer)
    assert len(train) + len(held) == 41
    few = replace(one, sentence_ends=ends[-2:], document_ends=ends[-2:])
    train, _ = data_of(few, tokenizer, pairs="sop", max_length=40)
    assert (train.spans.stops - train.spans.starts).tolist() == [37, 3, 10]
    mixed = replace(one, sentence_ends=np.array([1, 50]), document_ends=np.array([1, 50]))
    train, _ = data_of(mixed, tokenizer, pairs="sop")
    assert train.spans.starts.tolist() == [1]


def test_a_corpus_of_one_token(tmp_path: Path):
    store, tokenizer = make(tmp_path, [[1]])
    train, held = data_of(store, tokenizer, pairs=None)
    assert (len(train), len(held)) == (1, 0)
    example = train.example(0, 0)
    assert len(example.token_ids) == 3
    assert example.masked_positions is not None
    assert example.masked_positions.tolist() == [1]
    for pairs in ("nsp", "sop"):
        with pytest.raises(
            InputError, match=r"needs (at least two documents|documents of at least two)"
        ):
            data_of(store, tokenizer, pairs=pairs)


def test_sentence_order(corpus: tuple[Store, Tokenizer]):
    store, tokenizer = corpus
    data, held = data_of(store, tokenizer, pairs="sop")
    assert (data.spans.stops - data.spans.starts).min() > 1
    assert len(held) > 0
    labels, breaks = [], []
    sentence_ends = set(store.sentence_ends.tolist())
    for epoch in range(8):
        for index in range(len(data)):
            (first, second), ends, example = plain(data, epoch, index)
            assert min(len(first), len(second)) >= 1
            assert len(example.token_ids) <= data.sizes[index] <= 64
            kinds = [0] * (ends[0] + 1) + [1] * (ends[1] - ends[0])
            assert example.type_ids.tolist() == kinds
            labels.append(example.next_sentence)
            a, b = place(store, first), place(store, second)
            if min(a, b) < 0:
                continue  # nothing but full stops
            before, after, size = (b, a, len(second)) if labels[-1] else (a, b, len(first))
            assert after == before + size
            stop = after + len(first) + len(second) - size
            assert data.spans.starts[index] <= before < stop <= data.spans.stops[index]
            breaks.append(after in sentence_ends)
    assert abs(np.mean(labels) - 0.5) < 5 * 0.5 / math.sqrt(len(labels))
    assert np.mean(breaks) > 0.7


@pytest.mark.parametrize("pairs", ["nsp", "sop", None])
def test_sizes_are_near_the_lengths(corpus: tuple[Store, Tokenizer], pairs: str | None):
    store, tokenizer = corpus
    data, _ = data_of(store, tokenizer, pairs=pairs)
    assert data.sizes.dtype == np.int64
    assert len(data.sizes) == len(data)
    lengths = np.array([len(data.example(0, i).token_ids) for i in range(len(data))])
    assert lengths.max() <= data.sizes.max() == 64
    assert 0.9 < lengths.sum() / data.sizes.sum() < 1.02
    if pairs != "nsp":
        assert (lengths <= data.sizes).all()


def test_without_masking_nothing_is_hidden(corpus: tuple[Store, Tokenizer]):
    store, tokenizer = corpus
    masked, _ = data_of(store, tokenizer, pairs=None)
    data = replace(masked, masking=None)
    for index in range(50):
        example = data.example(1, index)
        assert example.masked_positions is None
        assert example.masked_ids is None
        (part,), _, _ = plain(masked, 1, index)
        assert example.token_ids.tolist() == [CLS, *part, SEP]


def test_the_words_of_a_segmenter_are_hidden_whole(corpus: tuple[Store, Tokenizer]):
    store, tokenizer = corpus
    words = (np.random.default_rng(0).random(len(store.tokens)) < 0.5).astype(np.uint8)
    with_words = replace(store)
    object.__setattr__(with_words, "words", words)
    plain_data, _ = data_of(store, tokenizer)
    sizes = []
    for kind in ("word", "span"):
        masking = replace(plain_data.masking, kind=kind)
        data = replace(plain_data, store=with_words, masking=masking)
        for index in range(len(data)):
            parts, ends, example = plain(data, 0, index)
            assert example.masked_positions is not None
            hidden = np.zeros(len(example.token_ids), dtype=bool)
            hidden[example.masked_positions] = True
            for part, end in zip(parts, ends, strict=True):
                if (at := place(store, part)) < 0:
                    continue
                begins = words[at : at + len(part)].astype(bool)
                begins[0] = True
                found = np.split(hidden[end - len(part) : end], np.flatnonzero(begins)[1:])
                assert all(len(set(word.tolist())) == 1 for word in found if len(word) <= 16)
                sizes += [len(word) for word in found if word.any()]
        # Kinds that know no words leave the store's alone.
        token = replace(plain_data, store=with_words)
        assert np.array_equal(token.example(0, 3).token_ids, plain_data.example(0, 3).token_ids)
    assert np.mean(sizes) > 1.5
