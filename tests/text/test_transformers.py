"""Transformers reads our folders to the same ids, and we read its folders."""

from pathlib import Path

import pytest

from ownbert.text.bert_rules import SPECIAL_TOKENS
from ownbert.text.tokenizer import Tokenizer

transformers = pytest.importorskip("transformers")

BLANK = [*SPECIAL_TOKENS, "U.S.", "a-1", "中国", "Ünï", "12", "123", "Abc", "abc", ".", "3,750"]
WORDS = [
    *SPECIAL_TOKENS,
    "he",
    "##llo",
    "world",
    "！",
    "中",
    "国",
    "!",
    "é",
    "É",
    "a",
    "b",
    "U",
    "u",
]
TEXTS = [
    "Hello WORLD! 中国！ é É a.b",
    "Ünï U.S. a-1 中国 12 123 1234 Abc abc . 3,750 x-y",
    "a [MASK] b [SEP]",
    "",
    " \t a  b\u3000a\u00a0b\n ",
]
CASES = {
    "blank": Tokenizer.blank(BLANK, max_length=128),
    "uncased": Tokenizer.wordpiece(WORDS, max_length=512),
    "cased": Tokenizer.wordpiece(WORDS, do_lower_case=False),
    "accents": Tokenizer.wordpiece(WORDS, strip_accents=False),
    "joined": Tokenizer.wordpiece(WORDS, tokenize_chinese_chars=False),
}
CLASSES = ["AutoTokenizer", "BertTokenizer", "BertTokenizerFast"]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("class_name", CLASSES)
def test_same_ids_both_ways(name: str, class_name: str, tmp_path: Path):
    version = int(transformers.__version__.split(".")[0])
    if name == "blank" and version >= 5 and class_name != "AutoTokenizer":
        pytest.skip("BertTokenizer of Transformers 5 always splits at punctuation")
    ours = CASES[name]
    ours.save(tmp_path / "ours")
    theirs = getattr(transformers, class_name).from_pretrained(tmp_path / "ours")
    expected = ours.encode_batch(TEXTS)
    assert [theirs(text, add_special_tokens=False)["input_ids"] for text in TEXTS] == expected
    assert theirs(TEXTS[0])["input_ids"] == [ours.cls_id, *expected[0], ours.sep_id]
    pair = theirs(TEXTS[0], TEXTS[1])
    first = [ours.cls_id, *expected[0], ours.sep_id]
    second = [*expected[1], ours.sep_id]
    assert pair["input_ids"] == first + second
    assert pair["token_type_ids"] == [0] * len(first) + [1] * len(second)
    assert theirs.pad_token_id == ours.pad_id
    assert theirs.mask_token_id == ours.mask_id
    assert len(theirs) == ours.vocab_size
    assert (theirs.model_max_length if ours.max_length else None) == ours.max_length

    theirs.save_pretrained(tmp_path / "theirs")
    back = Tokenizer.load(tmp_path / "theirs")
    assert back.encode_batch(TEXTS) == expected
    assert (back.kind, back.max_length) == (ours.kind, ours.max_length)
