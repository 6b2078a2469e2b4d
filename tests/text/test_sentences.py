"""The sentence rule for plain text."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ownbert.text.sentences import split_sentences


@pytest.mark.parametrize(
    "sentences",
    [
        ["He left.", "She stayed!", "Why?", "No one knows."],
        ['He said "Stop!"', "Then he left.", "(Really.)", "[1] says so."],
        ["Dr. Smith met Mr. J. R. Hill at 5 p.m. on Jan. 3.", "It cost 3.14 dollars."],
        ["See No. 5 and Fig. 2.", "I said no.", "He heard Vol. 3."],
        ["It was in 1999.", "The end."],
        ["1. Introduction comes first.", "2. Then the rest."],
        ["Wait... what is e.g. this?", "“Quoted.”", "‘Single.’", "3 men came."],
        ["今天很好。", "明天呢？", "他说：“走吧！”", "然后走了……", "第一；", "第二"],
        ["他看了《哦，街车！》这部戏。", "（他来了。）", "「是吗？！」", "Python 3.11 发布了。"],
        ["I…", "We go", "no… not yet."],
        ["यह दिन है।", "क्या यह दिन है?", "कल मैं आऊँगा॥", "हाँ।"],
        ["هل هذا بيت؟", "نعم.", "یہ گھر ہے۔", "ነው።", "Այո։", "שלום!"],
        ["Über alles.", "Élan!", "Привет.", "Как дела?"],
    ],
)
def test_sentences_come_back_from_a_line(sentences: list[str]):
    if sentences[0] == "I…":
        assert split_sentences("I… We go\nno… not yet.") == sentences
        return
    chinese = any("一" <= letter <= "鿿" for letter in "".join(sentences))
    assert split_sentences(("" if chinese else " ").join(sentences)) == sentences


def test_line_breaks_end_sentences_and_blanks_are_nothing():
    assert split_sentences("a title\n\n  and a line \r\nmore") == ["a title", "and a line", "more"]
    assert split_sentences(" \n ") == []


def without_blanks(text: str) -> str:
    return "".join(text.split())


marks = st.sampled_from([*".!?。！？；…\"'”’)]」』( \n\tAb1.中", "Mr.", "……", " ", ". "])


@given(st.one_of(st.text(), st.lists(marks, max_size=60).map("".join)))
def test_nothing_but_blanks_is_lost(text: str):
    sentences = split_sentences(text)
    assert without_blanks("".join(sentences)) == without_blanks(text)
    assert all(sentence and sentence == sentence.strip() for sentence in sentences)


@pytest.mark.parametrize(
    "unit", [".", ". ", "1. ", ".)", "a.", "A. ", "。", '."', " ", "Mr. ", "… ", ".\n", "x! 1. "]
)
def test_time_is_linear_in_hostile_text(unit: str):
    text = unit * (250_000 // len(unit)) + "x"
    start = time.process_time()
    sentences = split_sentences(text)
    assert (
        time.process_time() - start < 5
    )  # a quarter of a second; a quadratic rule takes many minutes
    assert sum(map(len, sentences)) <= len(text)
