"""BERT's tokenizer against that of Transformers, on strings that nobody would write."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ownbert.text.bert import SPECIAL_TOKENS
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


def both(way: str, folder: Any) -> tuple[Tokenizer, Any]:
    ours = Tokenizer.wordpiece(VOCABULARY, max_length=512, **WAYS[way])
    ours.save(folder)
    (folder / "words.txt").write_text("".join(f"{word}\n" for word in VOCABULARY))
    names = {"do_lower_case": True, **WAYS[way]}
    theirs = transformers.BertTokenizerFast(str(folder / "words.txt"), **names)
    return ours, theirs


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


def differences(ours: Tokenizer, theirs: Any, texts: list[str]) -> Iterator[str]:
    """The strings whose ids or offsets differ."""
    mine = ours.encode_batch(texts)
    other = theirs.backend_tokenizer.encode_batch(texts, add_special_tokens=False)
    offsets = ours.backend.encode_batch(texts, add_special_tokens=False)
    for text, ids, encoding, own in zip(texts, mine, other, offsets, strict=True):
        if ids != encoding.ids or own.offsets != encoding.offsets:
            yield f"{text!r}: {ids} and {encoding.ids}, {own.offsets} and {encoding.offsets}"
