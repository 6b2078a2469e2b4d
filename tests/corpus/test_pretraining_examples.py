"""Spans, the hold-out, examples and pairs; special tokens as in fine-tuning."""

import math
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ownbert import InputError, pretrain
from ownbert.corpus.learn_vocabulary import learn_tokenizer
from ownbert.corpus.pretraining_examples import (
    PretrainingData,
    Spans,
    _generator,
    hold_out,
    pretraining_data,
    split_into_spans,
    truncate_pair,
)
from ownbert.corpus.store import Store, prepare
from ownbert.text.styles import InputFormat
from ownbert.text.tokenizer import Tokenizer
from ownbert.train.state import SavedState, newest_state, require_same_identity
from support.small_corpus import CLS, SEP, data_of, make, make_corpus, place, plain


def greedy(documents: list[list[int]], limit: int) -> list[tuple[int, int, int]]:
    """Spans of documents given as lengths of sentences, one sentence after the other."""
    spans, start = [], 0
    for number, sentences in enumerate(documents):
        left, size = list(sentences), 0
        while left:
            if size + left[0] <= limit:
                size += left.pop(0)
                continue
            if size == 0:
                size, left[0] = limit, left[0] - limit
            spans.append((start, start + size, number))
            start, size = start + size, 0
        if size:
            spans.append((start, start + size, number))
            start += size
    return spans


DOCUMENTS = st.lists(st.lists(st.integers(1, 30), min_size=1, max_size=12), min_size=1, max_size=12)


# Few documents are split one by one, many together.
@given(documents=DOCUMENTS, limit=st.integers(1, 40), times=st.sampled_from([1, 40]))
@settings(max_examples=200)
def test_spans_are_those_of_the_plain_way(documents: list[list[int]], limit: int, times: int):
    documents = documents * times
    ends = np.cumsum([n for document in documents for n in document])
    document_ends = np.cumsum([sum(document) for document in documents])
    spans = split_into_spans(ends, document_ends, limit)
    found = list(
        zip(spans.starts.tolist(), spans.stops.tolist(), spans.documents.tolist(), strict=True)
    )
    assert found == greedy(documents, limit)
    assert [b for _, b, _ in found] == [*[a for a, _, _ in found[1:]], document_ends[-1]]
    assert all(0 < b - a <= limit for a, b, _ in found)


@given(
    breaks=st.sets(st.integers(1, 300), min_size=1, max_size=60),
    ends=st.sets(st.integers(1, 300), max_size=40),
    limit=st.integers(1, 60),
)
@settings(max_examples=100)
def test_text_may_break_inside_a_sentence(breaks: set[int], ends: set[int], limit: int):
    """Where a piece was held out, a text ends that no sentence ends with."""
    sentence_ends, document_ends = np.array(sorted(ends)), np.array(sorted(breaks))
    spans = split_into_spans(sentence_ends, document_ends, limit)
    both = sorted(e for e in ends | breaks if e <= document_ends[-1])
    starts = [0, *document_ends[:-1].tolist()]
    documents = [
        np.diff([start, *(e for e in both if start < e <= stop)]).tolist()
        for start, stop in zip(starts, document_ends.tolist(), strict=True)
    ]
    assert list(zip(spans.starts.tolist(), spans.stops.tolist(), strict=True)) == [
        (start, stop) for start, stop, _ in greedy(documents, limit)
    ]


def test_one_document_of_many_millions_of_tokens():
    for ends in (np.array([50_000_000]), np.arange(7, 10_000_001, 7)):
        began = time.process_time()
        spans = split_into_spans(ends, np.array([ends[-1]]), 125)
        assert time.process_time() - began < 2  # a tenth of it is usual
        assert spans.starts[0] == 0
        assert spans.stops[-1] == ends[-1]
        assert (spans.starts[1:] == spans.stops[:-1]).all()
        assert (spans.stops - spans.starts).max() in (125, 119)


# Documents given by their lengths, with a sentence every ten tokens.
CORPORA = {
    "many": (30,) * 25,
    "few": (9000, 1200),
    "one": (5000,),
    "one long": (*[2] * 400, 30_000, *[40] * 50),
}


def ends_of(lengths: tuple[int, ...], sentence: int = 10) -> tuple[np.ndarray, np.ndarray]:
    document_ends = np.cumsum(lengths)
    return np.union1d(
        np.arange(sentence, document_ends[-1], sentence), document_ends
    ), document_ends


def covered(spans: Spans, size: int) -> np.ndarray:
    """How many spans each token is in."""
    steps = np.zeros(size + 1, dtype=int)
    np.add.at(steps, spans.starts, 1)
    np.add.at(steps, spans.stops, -1)
    return np.cumsum(steps)[:-1]


@pytest.mark.parametrize("share", [0.001, 0.02, 0.5, 0.999])
@pytest.mark.parametrize("name", CORPORA)
def test_something_is_left_on_both_sides(name: str, share: float):
    sentence_ends, document_ends = ends_of(CORPORA[name])
    size = int(document_ends[-1])
    for seed in range(5):
        train, held = hold_out(sentence_ends, document_ends, share, seed).spans(sentence_ends, 61)
        assert len(train) > 0
        assert len(held) > 0
        both = covered(train, size) + covered(held, size)
        assert (both == 1).all()
        if len(document_ends) > 1:
            assert train.several
        if 0.01 < share < 0.6:
            found = covered(held, size).sum() / size
            assert 0.4 * share < found < 2.1 * share
        for spans in (train, held):
            owners = np.searchsorted(document_ends, spans.starts, side="right")
            assert np.array_equal(spans.documents, owners)
            assert (spans.stops <= document_ends[owners]).all()


@pytest.mark.parametrize("sentence", [10, 10**6])
@pytest.mark.parametrize("name", CORPORA)
def test_the_length_of_sequences_and_pairs_change_nothing(name: str, sentence: int):
    sentence_ends, document_ends = ends_of(CORPORA[name], sentence)
    size = int(document_ends[-1])
    store = SimpleNamespace(
        tokens=np.full(size, 7), sentence_ends=sentence_ends, document_ends=document_ends
    )
    several = len(document_ends) > 1
    found = set()
    for pairs in (None, "nsp", "sop") if several else (None,):
        for length in (16, 128, 512):
            train, held = pretraining_data(
                store,  # pyright: ignore[reportArgumentType]
                SimpleNamespace(input_format=InputFormat(2, 3)),  # pyright: ignore
                None,
                max_length=length,
                pairs=pairs,
                held_out=0.05,
                seed=4,
            )
            kept, away = covered(train.spans, size), covered(held.spans, size)
            assert not (kept & away).any()
            if pairs != "sop":  # it leaves out spans of one token
                assert (kept + away == 1).all()
                found.add(away.tobytes())
    assert len(found) == 1


def test_whole_documents_where_there_are_enough():
    sentence_ends, document_ends = ends_of((70,) * 200)
    train, held = hold_out(sentence_ends, document_ends, 0.1, 0).spans(sentence_ends, 32)
    documents = set(train.documents.tolist()), set(held.documents.tolist())
    assert not documents[0] & documents[1]
    assert documents[0] | documents[1] == set(range(200))
    assert len(documents[1]) == 20
    again, _ = hold_out(sentence_ends, document_ends, 0.1, 0).spans(sentence_ends, 32)
    other, _ = hold_out(sentence_ends, document_ends, 0.1, 1).spans(sentence_ends, 32)
    assert np.array_equal(again.starts, train.starts)
    assert not np.array_equal(other.starts, train.starts)


def test_nothing_to_hold_out():
    for lengths, share in (((30,) * 25, 0.0), ((9000,), 0.0), ((300, 400), 0.5), ((1,), 0.5)):
        sentence_ends, document_ends = ends_of(lengths)
        train, held = hold_out(sentence_ends, document_ends, share, 0).spans(sentence_ends, 32)
        assert len(held) == 0
        assert len(train) == len(split_into_spans(sentence_ends, document_ends, 32))


@pytest.mark.parametrize("pairs", ["nsp", "sop", None])
def test_no_example_reads_what_was_held_out(tmp_path: Path, pairs: str | None):
    """Nor do the false second parts, which look beyond their span."""
    from ownbert.corpus.store import prepare
    from ownbert.text.tokenizer import Tokenizer

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words = [f"w{i}" for i in range(6000)]
    (tmp_path / "a.txt").write_text(" ".join(words[:2500]) + "\n" + " ".join(words[2500:]) + "\n")
    tokenizer = Tokenizer.blank([*special, *words])
    store: Store = prepare(tmp_path / "a.txt", tmp_path / "s", tokenizer=tokenizer)
    train, held = pretraining_data(
        store, tokenizer, None, max_length=64, pairs=pairs, held_out=0.3, seed=0
    )
    away = set(store.tokens[covered(held.spans, len(store.tokens)) > 0].tolist())
    assert len(away) > 1500
    seen = set()
    for epoch in range(8):
        for index in range(len(train)):
            seen |= set(train.example(epoch, index).token_ids.tolist())
    assert not seen & away
    assert len(seen) > 3800
    for index in range(len(held)):
        example = held.example(0, index)
        first = example.token_ids[example.type_ids == 0].tolist()
        assert set(first) <= away | {2, 3}


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


FORMATS = {
    "bert": InputFormat(CLS, SEP),
    "roberta": InputFormat(CLS, SEP, double_sep=True),
    "t5": InputFormat(None, SEP),
    "xlnet": InputFormat(CLS, SEP, cls_last=True),
}


@pytest.mark.parametrize("pairs", [None, "nsp", "sop"])
@pytest.mark.parametrize("name", FORMATS)
def test_examples_look_like_the_inputs_of_fine_tuning(
    corpus: tuple[Store, Tokenizer], name: str, pairs: str | None
):
    around = FORMATS[name]
    data = replace(data_of(*corpus, pairs=pairs, max_length=32)[0], format=around)
    longest = 0
    for index in range(len(data)):
        ids, types = _unmasked(data, index)
        texts = [part for part in _split(ids) if part]
        if pairs is None:
            assert len(texts) == 1
            expected = around.one(texts[0]), around.types(len(ids))
        else:
            expected = around.pair(texts[0], texts[1])
        assert (ids, types) == expected
        assert len(ids) <= data.sizes[index] <= 32 or pairs == "nsp"
        longest = max(longest, len(ids))
    assert longest > 30


def _unmasked(data: PretrainingData, index: int) -> tuple[list[int], list[int]]:
    example = data.example(0, index)
    ids = example.token_ids.copy()
    ids[example.masked_positions] = example.masked_ids
    return ids.tolist(), example.type_ids.tolist()


def _split(ids: list[int]) -> list[list[int]]:
    """The texts between special tokens."""
    array = np.asarray(ids)
    marks = np.flatnonzero((array == CLS) | (array == SEP))
    return [part[part > SEP].tolist() for part in np.split(array, marks)]


def _state(run: Path) -> SavedState:
    newest = newest_state(run)
    assert newest is not None
    return SavedState.read(newest)


def test_a_run_of_an_earlier_version_with_other_pairs_is_not_continued(
    topics: Path, pretrained: Path, tmp_path: Path
):
    texts = (topics / "corpus.txt").read_text().splitlines()
    tokenizer = learn_tokenizer(lambda: iter(texts), kind="bpe", vocab_size=280)
    prepare([topics / "corpus.txt"], tmp_path / "store", tokenizer=tokenizer)
    run = tmp_path / "run"
    pretrain(tmp_path / "store", run, objectives="mlm,nsp", max_steps=1, max_length=16, quiet=True)
    now = _state(run).metadata["identity"]
    assert now.pop("special tokens around texts") == "{1: 2, 2: 4}"
    of_bert = _state(pretrained).metadata["identity"]
    assert now.keys() == of_bert.keys()  # those of earlier versions are continued
    with pytest.raises(InputError, match="an earlier version of ownbert began it with other"):
        require_same_identity(run, now, _state(run).metadata["identity"])
