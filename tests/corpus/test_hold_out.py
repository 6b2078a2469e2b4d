"""Which text is kept for evaluation."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from ownbert.corpus.pretraining_examples import Spans, hold_out, pretraining_data, split_into_spans
from ownbert.corpus.store import Store
from ownbert.text.styles import InputFormat

# Documents given by their lengths, with a sentence every ten tokens.
CORPORA = {
    "many": (30,) * 25,
    "few": (9000, 1200),
    "one": (5000,),
    "one long": (*[2] * 400, 30_000, *[40] * 50),
}


def corpus(lengths: tuple[int, ...], sentence: int = 10) -> tuple[np.ndarray, np.ndarray]:
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
    sentence_ends, document_ends = corpus(CORPORA[name])
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
    sentence_ends, document_ends = corpus(CORPORA[name], sentence)
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
    sentence_ends, document_ends = corpus((70,) * 200)
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
        sentence_ends, document_ends = corpus(lengths)
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
