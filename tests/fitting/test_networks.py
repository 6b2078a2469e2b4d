"""Texts that a network is taught on."""

from ownbert.fitting.networks import pieces_of


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
