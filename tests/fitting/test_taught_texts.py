"""Texts that a network is taught on."""

from itertools import pairwise
from unicodedata import category

from ownbert.fitting.networks import mixed_texts, pieces_of


def test_long_texts_are_cut_between_words_and_nothing_is_lost():
    long, short = " ".join(f"word{i}" for i in range(60)), "a short one"
    pieces = pieces_of([long, short], 50)
    assert pieces[1] == short  # the first pieces of all come first
    own = [piece for piece in pieces if piece != short]
    assert " ".join(own) == long
    assert max(map(len, own)) <= 75
    assert all(len(piece) > 25 for piece in own)


def test_texts_without_blanks_are_cut_anywhere():
    text = "深陨坑是月球正面的撞击坑" * 30
    pieces = pieces_of([text], 50)
    assert "".join(pieces) == text
    assert {len(piece) for piece in pieces[:-1]} == {50}


def test_texts_as_short_as_labelled_ones_stay_whole():
    texts = ["one two three", "x" * 70, ""]
    assert pieces_of(texts, 60) == ["one two three", "x" * 70]


def test_mixed_texts_are_as_long_as_texts_and_made_of_their_spans():
    texts = [" ".join(f"{name}{i}" for i in range(count)) for name, count in (("a", 8), ("b", 21))]
    mixed = mixed_texts(texts, "words", 200, seed=0)
    assert len(mixed) == 200
    assert mixed == mixed_texts(texts, "words", 200, seed=0)
    assert mixed != mixed_texts(texts, "words", 200, seed=1)
    split = [text.split() for text in mixed]
    assert {len(own) for own in split} == {8, 21}
    assert {token for own in split for token in own} == {t for text in texts for t in text.split()}
    neighbours = {pair for text in texts for pair in pairwise(text.split())}
    pairs = [pair for own in split for pair in pairwise(own)]
    kept = sum(pair in neighbours for pair in pairs) / len(pairs)
    assert 0.5 < kept < 0.8  # spans of 1 to 5 tokens: two of three pairs are within one
    assert sum("a" in text and "b" in text for text in mixed) > 150


def test_long_mixed_texts_are_made_of_up_to_three_texts():
    """Those of any number would all be alike."""
    texts = [" ".join([name] * 200) for name in "abcdefgh"]
    mixed = [set(text.split()) for text in mixed_texts(texts, "words", 300, seed=0)]
    assert {len(sources) for sources in mixed} == {1, 2, 3}
    assert set.union(*mixed) == set("abcdefgh")
    short = [" ".join([name] * 30) for name in "abcdefgh"]
    mixed = [set(text.split()) for text in mixed_texts(short, "words", 300, seed=0)]
    assert max(map(len, mixed)) > 3


def test_mixed_texts_keep_words_whole_and_letters_as_they_are():
    mixed = mixed_texts(["月球正面 of Apollo 11", "I wrote it"], "chinese", 50, seed=0)
    for token in ("Apollo", "wrote", "月"):
        assert any(token in text for text in mixed)
    assert all(" " not in text for text in mixed)
    mixed = mixed_texts(["ที่นี่มีม้า", "กี่ครั้งนี้"], "chinese", 50, seed=0)
    assert not any(category(text[0]).startswith("M") for text in mixed)
    assert "ที่" in "".join(mixed)
    assert mixed_texts([" ", ""], "ids", 50, seed=0) == []
