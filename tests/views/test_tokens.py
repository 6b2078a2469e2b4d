"""What kind of text it is, and its tokens."""

from typing import Literal
from unicodedata import normalize

import pytest

from ownbert.exceptions import InputError
from ownbert.views.tokens import (
    KINDS,
    lowered,
    spans_of,
    splitter,
    text_kind,
    tokens_of,
    word_spans,
)


@pytest.mark.parametrize(
    ("texts", "kind"),
    [
        (["7590 23986 90463 35897", "12965 40627 9"], "ids"),
        (["A12.3 B44 Z99.1", "C50 D12.6"], "ids"),
        (["A01,B20,C33", "B20,A01", "C33"], "words"),
        (["A01;B20", "B20;A01;C33"], "words"),
        (["A01|B20", "C33/A01"], "words"),
        (["A01, B20, C33", "C33, A01"], "words"),
        (["The 3 films of 1999 were good.", "No, 2 of them."], "words"),
        (["这部电影在1999年上映。", "不错 的 片子"], "chinese"),
        (["これは映画です"], "chinese"),
        (["", "   "], "words"),
        (["हिन्दी में"], "marked"),
        (["a caf\u00e9, not a café"], "marked"),
        (["good ❤\ufe0f"], "words"),
    ],
)
def test_the_kind_is_seen(texts: list[str], kind: str):
    assert text_kind(texts) == kind


def test_long_lists_of_many_codes_are_split():
    """All lists differ, and there are more codes than lists."""
    rows = [",".join(f"A{(i * 7 + k * 11) % 600}" for k in range(90)) for i in range(300)]
    assert text_kind(rows) == "words"


def test_words_to_show_are_codes_between_separators():
    def shown(text: str) -> list[str]:
        return [text[start:end] for start, end in word_spans([text])[0]]

    assert shown("A01,B20, C33;") == ["A01", "B20", "C33"]
    assert shown("A01 B20") == ["A01", "B20"]
    assert shown("yes, and/or no") == ["yes,", "and/or", "no"]


def test_codes_with_rare_separators_stay_whole():
    assert text_kind([f"A{i} B{i} C/{i} D{i} E{i}" for i in range(200)]) == "ids"
    assert text_kind([f"{i},{i + 1} x{i}" for i in range(0, 400, 2)]) == "ids"  # no part twice
    rare = [f"{i},{i + 1} x{i}" for i in range(0, 400, 2)]
    assert text_kind([*rare, "0,399 2,397"]) == "ids"  # few parts twice


def test_each_kind_is_split_in_its_way():
    assert splitter("ids")("12 A.3  b,") == ["12", "A.3", "b,"]
    assert splitter("words")("It's GOOD, no?") == ["it", "'", "s", "good", ",", "no", "?"]
    assert splitter("chinese")("北京Hotel 5号") == ["北", "京", "hotel", "5", "号"]
    with pytest.raises(InputError, match="kind 'x' is not known"):
        splitter("x")


def test_words_have_their_marks_however_they_are_written():
    split = splitter("marked")
    assert split("हिन्दी का दिन।") == ["हिन्दी", "का", "दिन", "।"]
    assert split("Gu\u0303ahẽ g\u0303a, İzmir") == ["gũahẽ", "g\u0303a", ",", "i\u0307zmir"]
    assert split("good ❤\ufe0f 北京x") == ["good", "❤", "\ufe0f", "北", "京", "x"]
    assert split("ม้าหมา") == ["ม้", "า", "ห", "ม", "า"]
    for text in ("Ñe'ẽ e\u0323\u0301 Å", "한국어", "שָׁלוֹם"):
        assert split(normalize("NFD", text)) == split(normalize("NFC", text))


@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_tokens_cover_letters_that_are_written_apart(form: Literal["NFC", "NFD"]):
    words = [normalize(form, word) for word in ("Ñe\u0303ẽ", "İz", "한국어", "हिन्दी", "x", "ẹ́")]
    text = " ".join(words)
    assert [text[start:end] for start, end in spans_of(text, "marked")] == words
    small, where = lowered(text, "marked")
    assert len(small) == len(where)
    assert [*where] == sorted(where)


def test_pairs_mark_the_second_text_and_what_both_have():
    found = tokens_of(("a b", "b c"), str.split)
    assert found == ["a", "b", "\x02b", "\x02c", "\x03b"]


@pytest.mark.parametrize("kind", KINDS)
def test_each_token_has_its_characters(kind: str):
    """A zero byte separates saved words, so it is no token."""
    text = "a\0b c2, 北京"
    tokens = tokens_of((text,), splitter(kind))
    assert [text[start:end] for start, end in spans_of(text, kind)] == tokens


def test_sentences_without_blanks_are_no_codes_for_their_digits():
    assert text_kind(["这是一段中文文本红3", "另一本书的价格是12元"]) == "chinese"
