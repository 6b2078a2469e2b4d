"""BERT's tokenizer against that of Transformers, on strings that nobody would write."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ownbert
from ownbert.text.bert_rules import SPECIAL_TOKENS
from ownbert.text.tokenizer import Tokenizer

transformers = pytest.importorskip("transformers")

PIECES = [*"abcdefghijklmnopqrstuvwxyz0123456789éàßñ!?.,-'#@", *"中国我日本語가각שלםمرح", "😀", "½"]
WORDS = ["hello", "world", "un", "the", "ﬁ", "ö", "K", "Hello", "WORLD", "É", "中国"]
VOCABULARY = [*SPECIAL_TOKENS, *PIECES, *WORDS, *(f"##{piece}" for piece in PIECES)]
# How texts are read: cased and not, with and without accents, Chinese words whole or apart.
WAYS: dict[str, dict[str, Any]] = {
    "uncased": {},
    "cased": {"do_lower_case": False},
    "accents": {"strip_accents": False},
    "joined": {"tokenize_chinese_chars": False},
}
# Ranges of code points, from the first to the last, and how often they are drawn.
RANGES = (
    (0x61, 0x7A, 30),  # letters that the vocabulary has
    (0x20, 0x7E, 20),
    (0x00, 0x1F, 4),  # controls, among them the spaces of C
    (0x7F, 0xA0, 4),
    (0xA1, 0x24F, 8),  # Latin with accents, İ and ß among them
    (0x300, 0x36F, 10),  # combining marks
    (0x370, 0x52F, 4),  # Greek with its two sigmas, Cyrillic
    (0x590, 0x6FF, 5),  # from right to left
    (0x900, 0x97F, 3),
    (0xE00, 0xE7F, 2),
    (0x1100, 0x11FF, 2),  # Jamo, which compose
    (0x1E00, 0x1FFF, 4),
    (0x2000, 0x206F, 10),  # spaces of every width, joiners, marks of direction
    (0x2100, 0x218F, 3),
    (0x3000, 0x30FF, 5),
    (0x4E00, 0x9FFF, 8),
    (0xAC00, 0xD7A3, 3),
    (0xD7B0, 0xD7FF, 2),  # up to the surrogates
    (0xE000, 0xE010, 1),  # and after them
    (0xF900, 0xFAFF, 3),
    (0xFB00, 0xFB4F, 2),  # ligatures
    (0xFE00, 0xFEFF, 3),
    (0xFF00, 0xFFFF, 5),  # full width, the replacement character, and what is none
    (0x10000, 0x1FFFF, 2),
    (0x1F300, 0x1FAFF, 5),  # emoji, with tones of skin
    (0x20000, 0x2FA1F, 4),
    (0xE0000, 0xE01EF, 2),  # tags and variants
    (0x10FFF0, 0x10FFFF, 1),
)
# Besides single characters: special tokens, long words, and what looks like a piece.
WHOLE = ("[MASK]", "[CLS]", "[mask]", "##a", "hello", "a" * 99, "a" * 100, "a" * 101, "İ", "ς", " ")


def pair(way: str, folder: Path) -> tuple[Tokenizer, Any, Any]:
    """Our tokenizer, our class of Transformers' interface, and theirs, of one vocabulary."""
    ours = Tokenizer.wordpiece(VOCABULARY, max_length=512, **WAYS[way])
    ours.save(folder)
    file = folder / "words.txt"
    file.write_text("".join(f"{word}\n" for word in VOCABULARY), encoding="utf-8")
    theirs = transformers.BertTokenizerFast(str(file), **{"do_lower_case": True, **WAYS[way]})
    return ours, ownbert.BertTokenizer.from_pretrained(folder), theirs


def drawn(rng: np.random.Generator, count: int) -> list[str]:
    """Strings of up to a few dozen characters, mixed from all ranges."""
    starts, ends, weights = np.asarray(RANGES).T
    lengths = rng.integers(0, 24, count)
    kinds = rng.choice(len(RANGES), lengths.sum(), p=weights / weights.sum())
    codes = rng.integers(starts[kinds], ends[kinds] + 1).astype("<u4")
    text = codes.tobytes().decode("utf-32-le")
    stops = lengths.cumsum()
    texts = [text[stop - length : stop] for stop, length in zip(stops, lengths, strict=True)]
    for index in np.flatnonzero(rng.random(count) < 0.2):
        at = int(rng.integers(0, len(texts[index]) + 1))
        part = WHOLE[rng.integers(len(WHOLE))]
        texts[index] = texts[index][:at] + part + texts[index][at:]
    return texts


def differences(tokenizers: tuple[Tokenizer, Any, Any], texts: list[str]) -> Iterator[str]:
    """The strings whose ids or offsets differ."""
    ours, same_interface, theirs = tokenizers
    expected = theirs.backend_tokenizer.encode_batch(texts, add_special_tokens=False)
    given = same_interface(texts, add_special_tokens=False, return_offsets_mapping=True)
    found = zip(ours.encode_batch(texts), given["input_ids"], given["offset_mapping"], strict=True)
    for text, (ids, others, offsets), right in zip(texts, found, expected, strict=True):
        if not ids == others == right.ids or [*map(tuple, offsets)] != right.offsets:
            yield f"{text!r}: {ids}, {others} and {right.ids}; {offsets} and {right.offsets}"


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Tokenizer, Any, Any]]:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # forks of this process follow
    return {way: pair(way, tmp_path_factory.mktemp(way)) for way in WAYS}


characters = st.one_of(
    st.characters(exclude_categories=["Cs"]),
    *(st.characters(min_codepoint=a, max_codepoint=b) for a, b, _ in RANGES),
    st.sampled_from(WHOLE),
)


@settings(max_examples=30, derandomize=True, database=None)
@given(st.lists(st.lists(characters, max_size=12).map("".join), min_size=8, max_size=40))
def test_strings_of_hypothesis(tokenizers: dict[str, Any], texts: list[str]):
    for way in WAYS:
        assert not list(differences(tokenizers[way], texts))


@pytest.mark.parametrize("way", WAYS)
def test_drawn_strings(tokenizers: dict[str, Any], way: str):
    rng = np.random.default_rng(len(way))
    assert not list(differences(tokenizers[way], drawn(rng, 2_000)))


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_a_million_strings(tokenizers: dict[str, Any], way: str):
    """A quarter of them in each way of reading."""
    rng = np.random.default_rng([7, len(way)])
    count = 0
    for _ in range(50):
        texts = drawn(rng, 5_000)
        count += len(texts)
        assert not list(differences(tokenizers[way], texts))[:5]
    assert count * len(WAYS) == 1_000_000
