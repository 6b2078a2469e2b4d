"""Texts that differ only in spaces, case or punctuation have one key; shared keys connect rows."""

import unicodedata

import pytest

from ownbert.tasks.related_rows import clusters_of, text_key


@pytest.mark.parametrize(
    "copy",
    [
        *("Café au lait, s'il vous plaît! ", "café au lait, s'il vous plaît", "CAFÉ AU LAIT S IL "),
        unicodedata.normalize("NFD", "Café au lait, s'il vous plaît."),
        "Café\u00a0au lait\tS´IL\nvous  plaît \u200b…",
    ],
)
def test_copies_have_the_key_of_the_text(copy: str):
    text = "Café au lait s'il vous plaît"
    expected = "Café au lait s'il" if copy.startswith("CAFÉ") else text
    assert text_key(copy) == text_key(expected)
    long = f"{copy} {'and so on ' * 30}"
    assert text_key(long) == text_key(f"{expected} {'And so on, ' * 30}")


@pytest.mark.parametrize(
    ("one", "two"),
    [
        *(("1 23", "12 3"), ("1.5", "15"), ("a b", "ab"), ("!", "?"), (":-)", ":-("), ("ä", "a")),
        *(("มา", "ม้า"), ("कि", "की"), ("\ue000", "\ue001"), ("一 二", "一二")),
        ("word " * 40 + "a", "word " * 40 + "b"),
    ],
)
def test_other_texts_have_other_keys(one: str, two: str):
    assert text_key(one) != text_key(two)


def test_blank_texts_have_no_key():
    assert [*map(text_key, ("", " \t\n", "\u3000"))] == ["", "", ""]
    assert text_key(" ... ") == text_key("...") != ""


def test_clusters_are_connected_by_any_shared_key():
    keys = [("a",), (), ("b", "c"), ("a", "d"), ("c",), ("d", "b"), (), ("e",)]
    assert clusters_of(keys).tolist() == [0, 1, 0, 0, 0, 0, 2, 3]
    assert clusters_of([]).tolist() == []
    assert clusters_of([(), ()]).tolist() == [0, 1]
