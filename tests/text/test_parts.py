"""Long texts are encoded part by part, with the tokens of the whole text."""

import random
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from ownbert.exceptions import InputError
from ownbert.text.build import bpe_backend
from ownbert.text.text_parts import BATCH, PART, parts_of, places_to_cut
from ownbert.text.tokenizer import Tokenizer
from ownbert.time_limit import Abandoned, wanted_until
from support import tokenizer_folders
from support.tokenizer_folders import SNIPPETS

FAMILIES = ("bert", "roberta", "xlm_roberta", "camembert", "albert", "deberta", "t5", "xlnet")


def load(family: str, folder: Path) -> Tokenizer:
    if family != "bert":
        pytest.importorskip("sentencepiece")
    make: Callable[[Path], Path] = getattr(tokenizer_folders, f"{family}_folder")
    return Tokenizer.load(make(folder / family))


def long_text(seed: int, size: int, gap: str = " ") -> str:
    rng, found, length = random.Random(seed), [], 0
    while length < size:
        found.append(rng.choice(SNIPPETS))
        length += len(found[-1]) + 1
    return gap.join(found)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_tokens_are_those_of_the_whole_text(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    size = PART // 8  # the whole texts are what takes the time
    monkeypatch.setattr("ownbert.text.tokenizer.PART", size)
    monkeypatch.setattr("ownbert.text.tokenizer.parts_of", partial(parts_of, size=size))
    tokenizer = load(family, tmp_path)
    texts = [long_text(0, 3 * size), "a b", "", long_text(1, 2 * size, "\n"), "北京" * size]
    texts += ["北京。Ab12，_、" * (size // 4), "_，½！" * size]
    whole = [tokenizer.encoder.encode(text, add_special_tokens=False).ids for text in texts]
    assert tokenizer.encode_batch(texts) == whole
    for most in (1, 7, 5000):
        for found, ids in zip(tokenizer.encode_batch(texts, most=most), whole, strict=True):
            assert found == ids[: len(found)]
            assert len(found) >= min(most, len(ids))
    for text, (ids, offsets) in zip(texts, tokenizer.with_offsets(texts), strict=True):
        encoding = tokenizer.encoder.encode(text, add_special_tokens=False)
        assert ids.tolist() == encoding.ids
        if family != "deberta":  # its rules strip the blank before a part, and its offset
            assert [*map(tuple, offsets.tolist())] == encoding.offsets
    first = tokenizer.encode_batch(texts[:1], most=1)[0]
    assert len(first) < len(whole[0]) / 2


def test_where_texts_are_cut(tmp_path: Path):
    bert = Tokenizer.wordpiece(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"])
    places = places_to_cut(bert.encoder)
    for text in ("ab " * PART, "北京" * PART, long_text(2, 3 * PART)):
        parts = list(parts_of(text, places))
        assert "".join(parts) == text
        assert len(parts) > 1
        assert max(map(len, parts)) < PART + 100
    assert list(parts_of("a" * (3 * PART), places)) == ["a" * (3 * PART)]
    assert list(parts_of("", places)) == [""]


def test_byte_level_bpe_is_cut_before_punctuation(tmp_path: Path):
    places = places_to_cut(load("roberta", tmp_path).encoder)
    assert max(map(len, parts_of("北京很大，" * PART, places))) < PART + 100


def test_bpe_with_a_space_before_texts_is_not_cut_before_line_feeds():
    backend = bpe_backend({"Ġ": 0, "a": 1, "Ċ": 2}, [], add_prefix_space=True)
    places = places_to_cut(backend)
    assert len(list(parts_of("a\n" * PART, places))) == 1
    assert len(list(parts_of("a " * PART, places))) > 1


def test_half_a_character_is_named_by_its_text():
    tokenizer = Tokenizer.blank(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"])
    with pytest.raises(InputError, match=r"texts\[1\] contains half a surrogate pair"):
        tokenizer.encode_batch(["a " * PART, "a " * PART + "\ud800"])


def test_work_that_is_given_up_stops():
    tokenizer = Tokenizer.blank(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"])
    given_up = threading.Event()

    with wanted_until(given_up):
        assert len(tokenizer.encode("a " * BATCH)) == BATCH
        given_up.set()
        with pytest.raises(Abandoned):
            tokenizer.encode("a " * BATCH)
    assert tokenizer.encode("a")


def test_half_a_character_is_named_by_its_text_not_by_a_part(tmp_path: Path):
    tokenizer = load("bert", tmp_path)
    texts = [long_text(0, 3 * PART), "fine", "half \ud800"]
    for encode in (tokenizer.encode_batch, lambda own: list(tokenizer.with_offsets(own))):
        with pytest.raises(InputError, match=r"texts\[2\] contains half a surrogate pair"):
            encode(texts)
